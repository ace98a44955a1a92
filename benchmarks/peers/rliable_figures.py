"""rliable's figures for score matrices: JSON on standard input, JSON on standard output.

Run by `benchmarks/numerics/compare_rliable.py` in an environment with rliable, which has no Lockstep.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
from rliable import library, metrics


def figures(case: dict[str, Any], reps: int) -> dict[str, Any]:
    """Return interquartile means, probability of improvement and profiles of both sides, with their intervals."""
    first, second = np.array(case["first"]), np.array(case["second"])  # [runs, tasks]
    thresholds = np.array(case["thresholds"])
    random = np.random.RandomState(0)
    sides = {"first": first, "second": second}
    points, ends = library.get_interval_estimates(
        sides, lambda scores: np.array([metrics.aggregate_iqm(scores)]), reps=reps, random_state=random
    )
    pair = {"pair": (first, second)}
    chance, chance_ends = library.get_interval_estimates(
        pair, metrics.probability_of_improvement, reps=reps // 10, random_state=random
    )
    profiles, profile_ends = library.create_performance_profile(sides, thresholds, reps=reps // 10)
    return {
        "iqm": [float(points[side][0]) for side in sides],
        "iqm ends": [ends[side][:, 0].tolist() for side in sides],
        "improvement": float(chance["pair"]),
        "improvement ends": np.ravel(chance_ends["pair"]).tolist(),
        "profile": [np.asarray(profiles[side]).tolist() for side in sides],
        "profile ends": [np.asarray(profile_ends[side]).tolist() for side in sides],
    }


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    found = [figures(case, asked["reps"]) for case in asked["cases"]]
    json.dump({"rliable": version("rliable"), "scipy": version("scipy"), "figures": found}, sys.stdout)
