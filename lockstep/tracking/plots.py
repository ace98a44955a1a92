"""Curves of runs: read, aligned and drawn; the interquartile mean over runs with its bootstrap interval.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. matplotlib (an
extra) is imported when something is drawn.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lockstep.state.checks import install_hint
from lockstep.tracking.records import read_metrics
from lockstep.tracking.run_folder import RunFolder

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_CHUNK = 64  # resamples at once: enough to spare Python's time, few enough to spare memory


class Curve(NamedTuple):
    """One run's values over environment steps, each `[points]`; `spread` is NaN where it is not known."""

    steps: np.ndarray
    values: np.ndarray
    spread: np.ndarray


def read_curve(run: str | os.PathLike[str], metric: str = "returns_stat/mean", scope: str = "test") -> Curve:
    """Return a metric of a run over environment steps, from its metrics.jsonl; the last value counts where a step is
    there twice, values that are not finite are left out.

    Raises `ValueError`: the run has no such record; the names that it has are listed.
    """
    points: dict[int, tuple[float, float]] = {}
    seen: set[str] = set()
    for record in read_metrics(run):
        if record["step_type"] != "env_step":
            continue
        data = record["data"]
        seen.update(f"{record['scope']}/{name}" for name in data)
        value = data.get(metric)
        if record["scope"] == scope and isinstance(value, int | float) and np.isfinite(value):
            spread = data.get(metric.removesuffix("mean") + "std") if metric.endswith("/mean") else None
            points[record["step"]] = (value, spread if isinstance(spread, int | float) else np.nan)
    if not points:
        raise ValueError(f"{run} has no record of {scope}/{metric}; it has: {', '.join(sorted(seen)) or 'none'}")
    steps = np.array(sorted(points))
    values = np.array([points[step] for step in steps.tolist()], dtype=np.float64)
    return Curve(steps, values[:, 0], values[:, 1])


def align_curves(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Return curves on common steps: `(steps [P], values [runs, P])`.

    The steps are those of all runs within the range that every run covers; values between two evaluations are
    interpolated.

    Raises `ValueError`: the runs have no range in common.
    """
    start = max(curve.steps[0] for curve in curves)
    end = min(curve.steps[-1] for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[(steps >= start) & (steps <= end)]
    if steps.size == 0:
        raise ValueError("the runs have no range of steps in common")
    return steps, np.stack([np.interp(steps, curve.steps, curve.values) for curve in curves])


def plot_runs(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    metric: str = "returns_stat/mean",
    scope: str = "test",
) -> Path:
    """Draw the evaluation return of runs over environment steps and return the picture's path.

    One panel for each environment, one line for each algorithm: of one run its curve (with the deviation
    over the evaluation's episodes), of several the interquartile mean over runs with a stratified bootstrap
    95 % interval.

    Raises `ValueError`: no run was given, or one has no such metric. `ImportError`: matplotlib is not installed.
    """
    figure = draw_runs(runs, metric=metric, scope=scope)
    target = Path(output).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    return target


def draw_runs(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    metric: str = "returns_stat/mean",
    scope: str = "test",
) -> Any:
    """Return the matplotlib figure that `plot_runs` saves (same arguments, same errors)."""
    paths = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    if not paths:
        raise ValueError("plot_runs needs at least one run folder")
    groups: dict[str, dict[str, list[Curve]]] = {}
    for path in paths:
        run = RunFolder.open(path)
        groups.setdefault(run.env, {}).setdefault(run.algo, []).append(read_curve(run.path, metric, scope))
    return draw_curves(groups, metric=metric, scope=scope)


def draw_curves(
    groups: Mapping[str, Mapping[str, Sequence[Curve]]], *, metric: str = "returns_stat/mean", scope: str = "test"
) -> Any:
    """Return the matplotlib figure of curves by environment and algorithm, as `plot_runs` draws them."""
    figure, panels = _new_figure(len(groups))
    algos = list(dict.fromkeys(algo for group in groups.values() for algo in group))
    for panel, (env, group) in zip(panels, groups.items(), strict=True):
        for algo, curves in group.items():
            _draw_group(panel, algo, curves, _COLOURS[algos.index(algo) % len(_COLOURS)])
        _dress(panel, env, metric, scope)
    return figure


def _new_figure(num_panels: int) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {install_hint('plot')}") from error
    columns = min(num_panels, 3)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)  # drawn without a display, and without pyplot's state
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in panels[num_panels:]:
        unused.set_axis_off()
    return figure, panels[:num_panels]


def _draw_group(panel: Any, algo: str, curves: Sequence[Curve], colour: str) -> None:
    if len(curves) == 1:
        steps, values, spread = curves[0]
        panel.plot(steps, values, color=colour, linewidth=1.8, marker="o", markersize=3, label=algo.upper())
        if np.isfinite(spread).any():
            label = "± std over episodes"
            panel.fill_between(steps, values - spread, values + spread, color=colour, alpha=0.15, lw=0, label=label)
        return
    steps, values = align_curves(curves)
    interval = iqm_bootstrap(values)
    for row in values:
        panel.plot(steps, row, color=colour, linewidth=0.7, alpha=0.25)
    label = f"{algo.upper()}, IQM of {len(curves)} runs"
    panel.plot(steps, interval.iqm, color=colour, linewidth=2.0, label=label)
    panel.fill_between(
        steps, interval.low, interval.high, color=colour, alpha=0.2, lw=0, label="95 % bootstrap interval"
    )


def _dress(panel: Any, title: str, metric: str, scope: str) -> None:
    from matplotlib.ticker import EngFormatter

    names = {"returns_stat/mean": "return", "lens_stat/mean": "episode length"}
    scopes = {"test": "evaluation", "train": "training"}
    panel.set_title(title)
    panel.set_xlabel("environment steps")
    panel.set_ylabel(f"{scopes.get(scope, scope)} {names.get(metric, metric)}")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.grid(True, alpha=0.3, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.01)
    panel.legend(frameon=False, fontsize="small", loc="best")


class IqmInterval(NamedTuple):
    """Interquartile mean and the ends of its confidence interval; floats, or arrays over points."""

    iqm: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(scores: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the interquartile mean along an axis: the mean of what is left without a quarter at each end.

    Of n scores n // 4 are dropped at each end, as SciPy's `trim_mean(scores, 0.25)` and rliable do.

    Raises `ValueError`: no scores, or NaN among them.
    """
    values = np.sort(np.moveaxis(np.asarray(scores, dtype=np.float64), axis, 0), axis=0)
    n = values.shape[0]
    if n == 0 or np.isnan(values).any():
        raise ValueError("the interquartile mean needs at least one score and no NaN")
    mean: np.ndarray = values[n // 4 : n - n // 4].mean(0)
    return mean


def iqm_bootstrap(
    strata: np.ndarray | Sequence[np.ndarray],
    *,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> IqmInterval:
    """Return the interquartile mean of all scores, with a percentile interval from a stratified bootstrap.

    Args:
        strata: one array `[runs, ...]`, or several (one for each task, runs may differ, trailing axes the
            same). Runs are drawn with replacement within each stratum; the mean is over all together,
            separately for each point of the trailing axes (evaluation steps, say). A run is drawn whole, so
            the points of a curve belong together.
        confidence: share of the resampled means inside the interval.
        num_resamples: how many resamples.
        seed: of the draws; equal arguments give equal results.

    Returns:
        `IqmInterval(iqm, low, high)`, each with the trailing shape.

    Raises `ValueError`: no runs, NaN, trailing axes that differ.
    """
    arrays = [strata] if isinstance(strata, np.ndarray) else list(strata)
    rng = np.random.default_rng(seed)
    center = iqm(np.concatenate(arrays))
    means = np.empty((num_resamples, *center.shape))
    for start in range(0, num_resamples, _CHUNK):
        chunk = means[start : start + _CHUNK]
        drawn = [array[rng.integers(0, len(array), (len(chunk), len(array)))] for array in arrays]
        chunk[...] = iqm(np.concatenate(drawn, axis=1), axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return IqmInterval(center, low, high)
