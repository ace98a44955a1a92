"""The figures of `lockstep compare` beside rliable's, on the same scores.

    python3 -m venv .bench/rliable && .bench/rliable/bin/pip install rliable==1.2.0 'pandas<3'    # once
    python benchmarks/numerics/compare_rliable.py --python .bench/rliable/bin/python

Point estimates (interquartile mean, probability of improvement, performance profile) must agree within 1e-9. Intervals
are drawn at random by both: beside how far their ends are apart stands how far those of two seeds of Lockstep are.
rliable takes tables with equally many runs for each task. Written to `results/compare_rliable.md` and `.json`; exit
status 0 where all agree.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.analysis import improvement_bootstrap, iqm_bootstrap, performance_profile

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "results"
LIMIT = 1e-9
SIZES = ((3, 3, 1), (4, 5, 1), (5, 7, 1), (6, 6, 2), (10, 10, 1), (10, 9, 5), (11, 13, 3), (50, 40, 8))
"""runs of the first, runs of the second, tasks"""
Case = dict[str, Any]


def cases() -> list[Case]:
    """Return score tables: normal ones, ones with many ties, ones with outliers."""
    rng, found = np.random.default_rng(0), []
    for ours, theirs, tasks in SIZES:
        for kind in ("normal", "ties", "outliers"):
            first, second = rng.normal(0.3, 1.0, (ours, tasks)), rng.normal(0.0, 1.0, (theirs, tasks))
            if kind == "ties":
                first, second = np.round(first), np.round(second)
            if kind == "outliers":
                first, second = first**5, second**5
            thresholds = np.linspace(min(first.min(), second.min()), max(first.max(), second.max()), 21)
            found.append(
                {
                    "name": f"{ours} and {theirs} runs, {tasks} tasks, {kind}",
                    "first": first.tolist(),
                    "second": second.tolist(),
                    "thresholds": thresholds.tolist(),
                }
            )
    return found


def ours(case: Case, num_resamples: int, seed: int = 0) -> dict[str, Any]:
    """Return Lockstep's figures in the form of `peers/rliable_figures.py`."""
    sides = [list(np.array(case[side]).T) for side in ("first", "second")]
    few = {"num_resamples": num_resamples // 10, "seed": seed}
    means = [iqm_bootstrap(side, num_resamples=num_resamples, seed=seed) for side in sides]
    chance = improvement_bootstrap(*sides, **few)
    shares = [performance_profile(side, np.array(case["thresholds"]), **few) for side in sides]
    return {
        "iqm": [float(mean.value) for mean in means],
        "iqm ends": [[float(mean.low), float(mean.high)] for mean in means],
        "improvement": float(chance.value),
        "improvement ends": [float(chance.low), float(chance.high)],
        "profile": [share.value.tolist() for share in shares],
        "profile ends": [[share.low.tolist(), share.high.tolist()] for share in shares],
    }


def apart(mine: dict[str, Any], theirs: dict[str, Any], name: str) -> float:
    """Return the largest difference of a figure."""
    return float(np.abs(np.array(mine[name]) - np.array(theirs[name])).max())


def ends_apart(mine: dict[str, Any], theirs: dict[str, Any], name: str) -> float:
    """Return the mean difference of the intervals' ends, as a share of their mean width."""
    points = (21,) if name == "profile" else ()
    first, second = (np.array(found[f"{name} ends"], float).reshape(-1, 2, *points) for found in (mine, theirs))
    width = np.mean(second[:, 1] - second[:, 0])
    return float(np.abs(first - second).mean() / (width or 1.0))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare Lockstep's statistics with rliable's.")
    parser.add_argument("--python", required=True, help="an interpreter that has rliable")
    parser.add_argument("--reps", type=int, default=20_000, help="resamples (a tenth for the slower figures)")
    options = parser.parse_args()
    asked = {"cases": cases(), "reps": options.reps}
    done = subprocess.run(
        [options.python, str(HERE / "peers/rliable_figures.py")],
        input=json.dumps(asked), capture_output=True, text=True, check=True,
    )  # fmt: skip
    peer = json.loads(done.stdout)
    rows = []
    for case, theirs in zip(asked["cases"], peer["figures"]):
        mine = ours(case, options.reps)
        points = {name: apart(mine, theirs, name) for name in ("iqm", "improvement", "profile")}
        ends = {name: ends_apart(mine, theirs, name) for name in points}
        other = ours(case, options.reps, seed=1)
        noise = {name: ends_apart(mine, other, name) for name in points}
        rows.append(
            {"case": case["name"], "points": points, "ends": ends, "noise": noise, "lockstep": mine, "rliable": theirs}
        )
    worst = {name: max(row["points"][name] for row in rows) for name in rows[0]["points"]}

    def mean(kind: str, name: str) -> float:
        return float(np.mean([row[kind][name] for row in rows]))

    agree = max(worst.values()) <= LIMIT
    lines = [
        f"rliable {peer['rliable']} (SciPy {peer['scipy']}), {len(rows)} tables of scores, {options.reps:,} resamples "
        f"of interquartile means, {options.reps // 10:,} of the others.",
        "",
        "| scores | IQM apart | improvement apart | profile apart | ends of IQM | of improvement | of profile |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = [f"{value:.1e}" for value in row["points"].values()]
        cells += [f"{value:.1%} ({row['noise'][name]:.1%})" for name, value in row["ends"].items()]
        lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Largest difference of a point estimate: {max(worst.values()):.1e} (allowed: {LIMIT:.0e}).",
        "",
        "The last three columns: the mean difference of the intervals' ends as a share of their mean width; in "
        "brackets that of two seeds of Lockstep. Over all tables: "
        + ", ".join(f"{name} {mean('ends', name):.1%} ({mean('noise', name):.1%})" for name in worst)
        + ".",
    ]
    (RESULTS / "compare_rliable.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = json.dumps({"asked": asked, "rows": rows, "rliable": peer["rliable"], "scipy": peer["scipy"]})
    (RESULTS / "compare_rliable.json").write_text(text + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
