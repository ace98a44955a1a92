"""Two settings of one recipe, seed by seed: do they learn the same?

    python benchmarks/learning.py sac Pendulum-v1 --compile --set rl_module.model_config.hiddens=[256,256] \\
        --set reporting.total_steps=10000 --name sac_learning_float32
    python benchmarks/learning.py sac Pendulum-v1 --compile --set rl_module.model_config.hiddens=[256,256] \\
        --set reporting.total_steps=10000 --set framework.mixed_precision=true --name sac_learning_bfloat16
    python benchmarks/compare_learning.py sac_learning_float32 sac_learning_bfloat16 --name sac_learning

(``td3`` in place of ``sac`` for TD3.) Reads what ``learning.py`` wrote and writes ``results/<name>.md``: at each
evaluation, and of the 50 episodes after training, the mean over seeds of both, and the second minus the first with its
95 % interval (Student's t). The same seeds begin with the same weights and are evaluated on the same episodes: their
differences are taken seed by seed (otherwise Welch's interval of independent runs). Two settings are called equal where
0 lies in the interval.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

import report

STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % points of Student's t for 1, 2, ... degrees of freedom; above, the last is still on the safe side"""


def student(degrees: float) -> float:
    """Return the point for so many degrees of freedom, rounded down."""
    return STUDENT_95[min(max(int(degrees), 1), len(STUDENT_95)) - 1]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half the width of its 95 % interval."""
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half


def difference(first: Sequence[float], second: Sequence[float], same_seeds: bool) -> tuple[float, float]:
    """Return the mean of the second minus that of the first, and half the width of its 95 % interval."""
    if same_seeds:
        return interval([there - here for here, there in zip(first, second)])
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    among = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second)))
    degrees = sum(parts) ** 2 / among if among else 1.0
    return statistics.fmean(second) - statistics.fmean(first), student(degrees) * math.sqrt(sum(parts))


def series(record: dict[str, Any]) -> dict[str, list[float]]:
    """Return the returns over seeds: at each evaluation, of all after the first fifth, and after training."""
    curves = [run["curve"] for run in record["runs"]]
    found = {f"{point[0][0]:,} steps": [step[1] for step in point] for point in zip(*curves)}
    found["mean of the evaluations after the first fifth"] = [
        statistics.fmean(value for _, value in curve[len(curve) // 5 :]) for curve in curves
    ]
    found[f"{record['runs'][0]['final_episodes']} episodes after training"] = [
        run["final_return"] for run in record["runs"]
    ]
    return found


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return `{"section.option": value}`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def differing(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Return the options in which two configurations differ: `section.option`, here, there."""
    here, there = flat(first), flat(second)
    return "; ".join(
        f"`{name}` ({here.get(name)}, {there.get(name)})"
        for name in dict.fromkeys([*here, *there])
        if here.get(name) != there.get(name)
    )


def render(names: Sequence[str]) -> str:
    """Return the page's text."""
    records = [json.loads((report.RESULTS / f"{name}.json").read_text()) for name in names]
    seeds = [[run["seed"] for run in record["runs"]] for record in records]
    rows, unequal = [], []
    for (label, first), second in zip(series(records[0]).items(), series(records[1]).values()):
        apart, half = difference(first, second, seeds[0] == seeds[1])
        cells = [f"{mean:,.1f} +- {width:,.1f}" for mean, width in map(interval, (first, second))]
        rows.append([label, *cells, f"{apart:+,.1f} +- {half:,.1f}"])
        if abs(apart) > half:
            unequal.append(label)
    medians = ", ".join(f"{name}: {record['median']:,.1f}" for name, record in zip(names, records))
    seconds = ", ".join(f"{name}: {record['median_seconds']:,.0f}" for name, record in zip(names, records))
    facts = records[0]["machine"]
    count = f"the same {len(seeds[0])}" if seeds[0] == seeds[1] else f"{len(seeds[0])} and {len(seeds[1])}"
    lines = [
        f"{records[0]['algorithm'].upper()} on {records[0]['environment']}, {count} seeds. "
        f"What differs: {differing(records[0]['config'], records[1]['config'])}.",
        "",
        report.table(["mean return", *names, "second minus first"], rows),
        f"With +- half of the 95 % interval. Medians after training: {medians}. Seconds a seed, evaluations included: "
        f"{seconds}.",
        "",
        f"Apart by more than the interval: {', '.join(unequal) if unequal else 'nowhere'} ({len(rows)} comparisons; "
        "of 20 that are equal about one is).",
        "",
        report.machine_line(facts),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs=2, help="names in results/, without .json")
    parser.add_argument("--name", required=True, help="of the page that is written")
    options = parser.parse_args()
    text = render(options.results)
    (report.RESULTS / f"{options.name}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
