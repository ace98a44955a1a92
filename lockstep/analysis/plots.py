"""Curves of runs: functions that read, align, smooth and draw them.

matplotlib, an extra, is imported when something is drawn.
"""

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from lockstep.analysis.intervals import iqm_bootstrap
from lockstep.analysis.run_groups import MAX_LABEL, RunGroup, RunPath, group_runs, open_runs
from lockstep.options.checks import check_whole, install_hint, suggestion
from lockstep.state.markup import picture_text
from lockstep.tracking.records import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

RETURN = "returns_stat/mean"
"""Name of the metric that is drawn if no other is chosen."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", ":", "-.")
_PANEL_WIDTH, _PANEL_HEIGHT = 6.4, 4.2
"""Size of a panel in inches."""
_TABLE_FONT = 7.0
"""Font size of the table below a picture, in points."""
_LETTER_WIDTH, _LINE_HEIGHT = 0.0605, 0.145
"""Size in inches of a letter and a line of that table, in a monospaced font."""
MAX_POINTS = 500
"""Number of points of an aligned curve. More cannot be distinguished on a picture."""
Axis = Literal["steps", "seconds", "gradient_steps"]
AXES: dict[Axis, str] = {
    "steps": "environment steps",
    "seconds": "seconds of the run",
    "gradient_steps": "gradient steps",
}
"""Labels of the horizontal axes."""
_SCOPES = {"test": "evaluation", "train": "training"}
_NAMES = {RETURN: "return", "lens_stat/mean": "episode length"}


class Curve(NamedTuple):
    """Values of one run over steps or seconds."""

    x: np.ndarray
    """Steps or seconds, `[points]`, in increasing order."""
    values: np.ndarray
    """Values of the metric, `[points]`."""
    spread: np.ndarray
    """Standard deviation over the episodes of each value, `[points]`; NaN if it is not known."""


def read_curve(run: RunPath, metric: str = RETURN, scope: str = "test", x: Axis = "steps") -> Curve:
    """Return a metric of a run over environment steps, seconds or gradient steps, from its metrics.jsonl.

    If a step occurs twice, its last value counts. Values that are not finite are left out.

    Raises `ValueError`: the run has no such record. The message lists the records that it has.
    """
    return curve_of(read_metrics(run), metric, scope, x, source=run)


def curve_of(
    records: Sequence[Mapping[str, Any]], metric: str, scope: str, x: Axis = "steps", *, source: RunPath = "the run"
) -> Curve:
    """Return a metric from the records of a run, as `read_curve` does. Errors call the run `source`."""
    if x not in AXES:
        raise ValueError(f"x={x!r} is not allowed; {suggestion(x, AXES)}")
    points: dict[int, tuple[float, float, float]] = {}
    known: set[str] = set()  # for the error message
    step_type = "env_step"
    for record in records:
        if record["step_type"] not in ("env_step", "gradient_step") or record["scope"] == "save":
            continue
        data = record["data"]
        known.update(f"{record['scope']}/{name}" for name, value in data.items() if not isinstance(value, str))
        value = data.get(metric)
        if record["scope"] == scope and isinstance(value, int | float) and np.isfinite(value):
            spread = None
            if metric.endswith("/mean"):
                spread = data.get(metric.removesuffix("mean") + "std")
            if not isinstance(spread, int | float):
                spread = np.nan
            points[record["step"]] = (value, spread, record.get("wall_s", np.nan))
            step_type = record["step_type"]
    if not points:
        raise ValueError(_no_record_message(metric, scope, known, source))

    steps = np.array(sorted(points))
    values, spread, seconds = np.array([points[step] for step in steps.tolist()], np.float64).T
    if x == "seconds":
        # The times of a resumed run may go back a little, which an axis must not do.
        return Curve(np.maximum.accumulate(seconds), values, spread)
    axis_of_records = f"{step_type}s".removeprefix("env_")
    if x != axis_of_records:
        steps = _converted(steps, records, x, source)
    return Curve(steps, values, spread)


def _no_record_message(metric: str, scope: str, known: set[str], source: RunPath) -> str:
    """Return the error message for a record that a run does not have, with the records that it has."""
    missing = f"no record of {scope}/{metric}"
    if (scope, metric) == ("test", RETURN):
        missing = f"no evaluation in its records ({missing})"
    if scope == "test" and f"train/{metric}" in known:
        missing += f"; scope 'train' has {metric}"
    return f"{source} has {missing}; it has: {', '.join(sorted(known)) or 'none'}"


def _converted(steps: np.ndarray, records: Sequence[Mapping[str, Any]], x: Axis, source: RunPath) -> np.ndarray:
    """Convert environment steps to gradient steps or back, by the counters at the ends of epochs."""
    counters = {(0, 0)}
    for record in records:
        data = record["data"]
        steps_name = {"save": "env_step", "info": "train_step"}.get(record["scope"])
        if steps_name is not None and {steps_name, "gradient_step"} <= set(data):
            counters.add((int(data[steps_name]), int(data["gradient_step"])))
    if len(counters) == 1:
        raise ValueError(f"{source} has no record of environment steps together with gradient steps; take another x")
    env_steps, gradient_steps = np.array(sorted(counters)).T
    if not env_steps.any():
        return steps  # an offline run counts gradient steps only
    if x == "steps":
        return np.interp(steps, gradient_steps, env_steps)
    return np.interp(steps, env_steps, gradient_steps)


def smoothed(curve: Curve, smooth: int) -> Curve:
    """Return the moving average of a curve, without spread: each point is the mean of the last `smooth` points."""
    if check_whole("smooth", smooth, 1) == 1:
        return curve
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    ends = np.arange(1, len(curve.values) + 1)
    starts = np.maximum(0, ends - smooth)
    return Curve(curve.x, (sums[ends] - sums[starts]) / (ends - starts), np.full(len(ends), np.nan))


def align_curves(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Return curves on a common axis: `(x [P], values [runs, P])`.

    The axis has the points of all runs in the range that every run covers, at most `MAX_POINTS` of them. Values between
    two evaluations are interpolated.

    Raises `ValueError`: the runs have no range in common.
    """
    start = max(curve.x[0] for curve in curves)
    end = min(curve.x[-1] for curve in curves)
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    x = x[(x >= start) & (x <= end)]
    if x.size == 0:
        raise ValueError("the runs have no range of steps in common")
    if x.size > MAX_POINTS:
        x = x[np.linspace(0, x.size - 1, MAX_POINTS).astype(int)]
    return x, np.stack([np.interp(x, curve.x, curve.values) for curve in curves])


def plot_runs(
    runs: Sequence[RunPath] | RunPath,
    output: RunPath,
    *,
    metric: str = RETURN,
    scope: str = "test",
    x: Axis = "steps",
    group_by: Sequence[str] = (),
    labels: Sequence[str] = (),
    smooth: int = 1,
) -> Path:
    """Draw the evaluation returns of runs, and return the picture's path.

    There is one panel for each environment, and one line for each group of runs. A single run has its curve, with the
    deviation over the episodes of an evaluation. Several runs have their interquartile mean, with a 95 % interval from
    a stratified bootstrap.

    Args:
        runs: folders of runs, or of a folder that holds runs, such as `runs`.
        output: file of the picture, whose suffix is the format.
        metric, scope: name of the record; scope "test" (evaluation), "train" or "update".
        x: horizontal axis, "steps", "seconds" or "gradient_steps".
        group_by: paths of options (`training.lr`) that distinguish groups. Otherwise all options but the seed do that
            differ between the runs of an algorithm.
        labels: names in the legend, one for each group.
        smooth: number of evaluations whose mean is a point. The picture says so.

    Raises:
        ValueError: there is no run, a run has no such metric, or no run has an option of `group_by`.
        ImportError: matplotlib is not installed.
    """
    figure = draw_runs(runs, metric=metric, scope=scope, x=x, group_by=group_by, labels=labels, smooth=smooth)
    return save_figure(figure, output)


def save_figure(figure: "Figure", output: RunPath) -> Path:
    """Write a figure to a file, make its folder, and return the path."""
    target = Path(output).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    return target


def draw_runs(
    runs: Sequence[RunPath] | RunPath,
    *,
    metric: str = RETURN,
    scope: str = "test",
    x: Axis = "steps",
    group_by: Sequence[str] = (),
    labels: Sequence[str] = (),
    smooth: int = 1,
) -> Any:
    """Return the matplotlib figure that `plot_runs` saves. Arguments and errors are the same."""
    opened = open_runs(runs, scope)
    curves = {run.path: smoothed(read_curve(run.path, metric, scope, x), smooth) for run in opened}
    groups = group_runs(opened, group_by=group_by, labels=labels)
    panels = {}
    for env, parts in by_environment(groups).items():
        panels[env] = {part.label: [curves[run.path] for run in part.runs] for part in parts}
    if x == "steps" and all(run.is_offline for run in opened):
        x = "gradient_steps"  # the steps of offline runs, for the label of the axis
    return draw_curves(
        panels,
        metric=metric,
        scope=scope,
        x=x,
        smooth=smooth,
        settings={group.label: group.settings for group in groups if group.settings},
    )


def by_environment(groups: Sequence[RunGroup]) -> dict[str, list[RunGroup]]:
    """Return the groups by environment, each with its runs in that environment. Empty groups are left out."""
    all_runs = itertools.chain.from_iterable(group.runs for group in groups)
    panels: dict[str, list[RunGroup]] = {}
    for env in dict.fromkeys(run.env for run in all_runs):
        parts = [replace(each, runs=tuple(run for run in each.runs if run.env == env)) for each in groups]
        panels[env] = [part for part in parts if part.runs]
    return panels


def draw_curves(
    groups: Mapping[str, Mapping[str, Sequence[Curve]]],
    *,
    metric: str = RETURN,
    scope: str = "test",
    x: Axis = "steps",
    smooth: int = 1,
    settings: Mapping[str, str] | None = None,
) -> Any:
    """Return the matplotlib figure of curves, as `plot_runs` draws them.

    Args:
        groups: curves by the title of their panel and the label of their group.
        metric, scope, x, smooth: as in `plot_runs`.
        settings: settings of groups by label, which are written below the panels as a table.
    """
    figure, panels = new_figure(len(groups), settings or {})
    labels = list(dict.fromkeys(itertools.chain.from_iterable(groups.values())))  # a group has one colour in all panels
    for panel, (title, group) in zip(panels, groups.items(), strict=True):
        bands: set[str] = set()
        for label, curves in group.items():
            _draw_group(panel, label, curves, labels.index(label), bands)
        dress(panel, title, AXES[x], f"{_SCOPES.get(scope, scope)} {_NAMES.get(metric, metric)}", bands)
        if x != "seconds":
            from matplotlib.ticker import EngFormatter

            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    if smooth > 1:
        points = "evaluations" if scope == "test" else "records"
        panels[0].get_figure(root=False).supxlabel(
            f"smoothed: each point is the mean of {smooth} {points}", fontsize="small"
        )
    return figure


def new_figure(num_panels: int, settings: Mapping[str, str] | None = None) -> tuple[Any, list[Any]]:
    """Return a matplotlib figure that needs no display, and its panels, up to three in a row.

    `settings` (texts by label) become a table below the panels.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {install_hint('plot')}") from error

    columns = min(num_panels, 3)
    rows = -(-num_panels // columns)
    width = _PANEL_WIDTH * columns
    height = _PANEL_HEIGHT * rows
    table = _table_rows(settings or {}, width)
    table_height = _LINE_HEIGHT * sum(len(lines) for _, lines in table)
    figure = Figure(figsize=(width, height + table_height), layout="constrained")
    FigureCanvasAgg(figure)  # needs neither a display nor the global state of pyplot
    picture: Any = figure
    if table:
        parts: Any = figure.subfigures(2, 1, height_ratios=(height, table_height))
        picture, below = parts
        _write_table(below, table)

    panels = list(picture.subplots(rows, columns, squeeze=False).flat)
    for unused in panels[num_panels:]:
        unused.set_axis_off()
    return figure, panels[:num_panels]


def _table_rows(settings: Mapping[str, str], width: float) -> list[tuple[str, list[str]]]:
    """Return each label with its text, divided into lines that fit into a picture of this width in inches."""
    longest = max(map(len, settings), default=0)
    letters = int(width / _LETTER_WIDTH) - longest - 4
    return [(label, textwrap.wrap(text, letters) or ["-"]) for label, text in settings.items()]


def _write_table(figure: "SubFigure", table: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Write the rows of a table into a part of a figure, with equal distances between all lines."""
    total = sum(len(lines) for _, lines in table)
    longest = max(len(label) for label, _ in table)
    width, _ = figure.get_figure(root=True).get_size_inches()
    start = (longest + 3) * _LETTER_WIDTH / width
    style: dict[str, Any] = {"family": "monospace", "fontsize": _TABLE_FONT, "va": "top"}
    line = 0
    for label, lines in table:
        figure.text(_LETTER_WIDTH / width, 1 - line / total, picture_text(label), weight="bold", **style)
        for text in lines:
            figure.text(start, 1 - line / total, picture_text(text), **style)
            line += 1


def _draw_group(panel: "Axes", label: str, curves: Sequence[Curve], number: int, bands: set[str]) -> None:
    """Draw the curves of one group, and add the meaning of its band to `bands`."""
    colour = COLOURS[number % len(COLOURS)]
    line = _LINES[number // len(COLOURS) % len(_LINES)]
    label = textwrap.fill(picture_text(label), MAX_LABEL)
    if len(curves) == 1:
        x, values, spread = curves[0]
        panel.plot(x, values, line, color=colour, linewidth=1.8, marker="o", markersize=3, label=label)
        if np.isfinite(spread).any():
            panel.fill_between(x, values - spread, values + spread, color=colour, alpha=0.15, lw=0)
            bands.add("± std over episodes")
        return
    x, values = align_curves(curves)
    interval = iqm_bootstrap(values)
    for row in values:
        panel.plot(x, row, color=colour, linewidth=0.7, alpha=0.25)
    panel.plot(x, interval.value, line, color=colour, linewidth=2.0, label=f"{label}, IQM of {len(curves)} runs")
    panel.fill_between(x, interval.low, interval.high, color=colour, alpha=0.2, lw=0)
    bands.add("95 % bootstrap interval")


def dress(panel: "Axes", title: str, x_label: str, y_label: str, bands: Iterable[str] = ()) -> None:
    """Add title, labels, a grid and a legend to a panel. `bands` are texts of the legend for shaded areas."""
    panel.set_title(picture_text(title))
    panel.set_xlabel(picture_text(x_label))
    panel.set_ylabel(picture_text(y_label))
    panel.grid(True, alpha=0.3, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.01)
    for text in sorted(bands):
        panel.fill_between([], [], color="#777777", alpha=0.3, lw=0, label=text)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(frameon=False, fontsize="small", loc="best")
