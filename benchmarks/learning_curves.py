"""Draws learning curves of committed results, with what others published beside them.

    python benchmarks/learning_curves.py

Reads ``results/*.json`` of ``learning.py``, ``results/simple_spread.jsonl``, and ``results/published_curves.json``
(each with its source and how it was read), and writes ``docs/images/learning_*.png``. Needs matplotlib
(``lockstep-rl[plot]``).
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import report

IMAGES = report.ROOT / "docs" / "images"
OURS, OTHER, PUBLISHED = "#0072B2", "#D55E00", ("#D55E00", "#009E73")


def results(name: str) -> list[dict[str, Any]]:
    """Return the runs of a result; none where it is not there."""
    file = report.RESULTS / f"{name}.json"
    return list(json.loads(file.read_text())["runs"]) if file.exists() else []


def lines_by_seed(name: str, **chosen: str) -> list[dict[str, Any]]:
    """Return a run for each seed of the lines of evaluations that have these values."""
    file, curves = report.RESULTS / f"{name}.jsonl", {}
    for line in map(json.loads, file.read_text().splitlines() if file.exists() else ()):
        if all(line[key] == value for key, value in chosen.items()):
            curves.setdefault(line["seed"], []).append([line["env_steps"], line["return"]])
    return [{"seed": seed, "curve": curve} for seed, curve in sorted(curves.items())]


def draw_seeds(axes: Any, runs: list[dict[str, Any]], label: str, colour: str, key: str = "curve") -> None:
    """Draw each seed as a thin line, their median as a thick one."""
    steps = [step for step, _ in runs[0][key]]
    for run in runs:
        axes.plot([step for step, _ in run[key]], [value for _, value in run[key]], color=colour, lw=0.7, alpha=0.45)
    medians = [statistics.median(values) for values in zip(*([value for _, value in run[key]] for run in runs))]
    axes.plot(steps, medians, color=colour, lw=2.2, label=f"{label}, median of {len(runs)} seeds")


def draw_published(axes: Any, task: str, last_step: int) -> None:
    """Draw what others reached up to a step: a line with a band, or points with bars."""
    published = json.loads((report.RESULTS / "published_curves.json").read_text())[task]
    for colour, entry in zip(PUBLISHED, published):
        points = [point for point in entry["points"] if point[0] <= last_step]
        steps, values = [point[0] for point in points], [point[1] for point in points]
        spread = [point[2] or 0.0 for point in points]
        if len(points) > 3:
            axes.plot(steps, values, color=colour, lw=1.6, ls="--", label=entry["who"])
            low = [value - width for value, width in zip(values, spread)]
            axes.fill_between(steps, low, [value + width for value, width in zip(values, spread)], color=colour,
                              alpha=0.12, lw=0)  # fmt: skip
        else:
            axes.errorbar(steps, values, spread, color=colour, fmt="D", ms=6, capsize=3, label=entry["who"], zorder=5)


def picture(name: str, title: str, ylabel: str) -> tuple[Any, Any]:
    """Return a figure's axes and what saves it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)

    def save() -> None:
        axes.legend(fontsize=8, frameon=False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
        figure.tight_layout()
        figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)

    return axes, save


def main() -> None:
    """Draw each picture whose results are there."""
    report.parser_of(__doc__).parse_args()
    runs = results("learning_sac_HalfCheetah-v4")
    if runs:
        axes, save = picture("learning_sac_half_cheetah", "SAC, HalfCheetah-v4", "return, most likely actions")
        draw_seeds(axes, runs, "Lockstep (lr 3e-4)", OURS)
        draw_published(axes, "HalfCheetah", 300_000)
        save()
    runs = results("minatar_breakout")
    if runs:
        axes, save = picture("learning_dqn_minatar", "DQN, MinAtar Breakout", "return")
        draw_seeds(axes, runs, "Lockstep, most likely actions", OURS)
        draw_seeds(axes, runs, "Lockstep while training", "#56B4E9", "training_curve")
        draw_published(axes, "Breakout", 1_000_000)
        save()
    runs = lines_by_seed("simple_spread", algorithm="mappo")
    if runs:
        axes, save = picture("learning_simple_spread", "simple_spread, three agents", "return of all agents together")
        draw_seeds(axes, runs, "MAPPO", OURS)
        draw_seeds(axes, lines_by_seed("simple_spread", algorithm="ippo"), "IPPO", OTHER)
        for entry in json.loads((report.RESULTS / "published_curves.json").read_text())["simple_spread"]:
            axes.axhline(entry["points"][0][1], color="#009E73", lw=1.4, ls="--", label=entry["who"])
        save()
    for name in ("sac", "td3"):
        runs = results(f"{name}_learning_float32")
        if runs:
            title = f"{name.upper()}, Pendulum-v1, 256 x 256"
            axes, save = picture(f"learning_{name}_bfloat16", title, "return, most likely actions")
            draw_seeds(axes, runs, "float32", OURS)
            draw_seeds(axes, results(f"{name}_learning_bfloat16"), "products in bfloat16", OTHER)
            save()


if __name__ == "__main__":
    main()
