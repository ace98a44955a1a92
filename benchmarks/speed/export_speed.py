"""Measure one action by `act.py` at batch 1 beside `policy.compute_single_action`, on one core.

    taskset -c 0 python benchmarks/speed/export_speed.py

For each policy, two layers of 64 units: microseconds for one action, the median of several rounds in which both are
called in turn. Writes benchmarks/results/export_speed.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import runpy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from gymnasium import spaces

from lockstep import Policy, get_config
from lockstep.tracking import versions

RESULTS = Path(__file__).resolve().parents[1] / "results"
CALLS = 2_000
BOX, CHOICES = spaces.Box(-1.0, 1.0, (8,), np.float32), spaces.Discrete(4)
POLICIES: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "PPO, Discrete": ("ppo", CHOICES, {}, {}),
    "PPO, Discrete, normalised": ("ppo", CHOICES, {}, {"normalize_observations": True}),
    "SAC, Box": ("sac", spaces.Box(-2.0, 2.0, (2,), np.float32), {}, {}),
    "PPO, Discrete, normalised, 4 frames": ("ppo", CHOICES, {}, {"normalize_observations": True, "frame_stack": 4}),
    "PPO, Discrete, LSTM": ("ppo", CHOICES, {"recurrent": "lstm", "recurrent_size": 64}, {}),
}


def make(algorithm: str, actions: Any, model: dict[str, Any], environment: dict[str, Any]) -> Policy:
    """Return an untrained policy."""
    config = get_config(algorithm).environment(**environment).rl_module(model_config={"hiddens": (64, 64), **model})
    group = config.build_learner_group(spaces=(BOX, actions))
    return Policy(config, group, observation_space=BOX, action_space=actions)


def measure(policy: Policy, rounds: int) -> dict[str, float]:
    """Return the microseconds for one action of both."""
    with tempfile.TemporaryDirectory() as parent:
        folder = policy.export(Path(parent) / "exported")
        actor = runpy.run_path(str(folder / "act.py"))["Actor"](folder)
        session = actor.run
    obs = np.random.default_rng(0).normal(size=(CALLS, 8)).astype(np.float32)
    feeds = {**actor.state, "obs": obs[:1]}
    times: dict[str, list[float]] = {"act.py": [], "compute_single_action": [], "onnxruntime alone": []}
    for _ in range(rounds):
        began = time.perf_counter()
        for row in obs:
            actor.act(row)
        times["act.py"].append(time.perf_counter() - began)
        began, state = time.perf_counter(), None
        for row in obs:
            result = policy.compute_single_action(row, state)
            state = result[1] if policy.is_stateful else None
        times["compute_single_action"].append(time.perf_counter() - began)
        began = time.perf_counter()
        for _ in obs:
            session(None, feeds)
        times["onnxruntime alone"].append(time.perf_counter() - began)
    return {name: round(statistics.median(each) / CALLS * 1e6, 2) for name, each in times.items()}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of 2,000 actions each")
    rounds = parser.parse_args().rounds
    found = {name: measure(make(*parts), rounds) for name, parts in POLICIES.items()}
    record = {"microseconds": found, "cores": len(os.sched_getaffinity(0)), "cpu": cpu(), "versions": versions()}
    (RESULTS / "export_speed.json").write_text(json.dumps(record, indent=2) + "\n")
    lines = ["# One action of an exported policy", ""]
    lines += [f"Microseconds on one core ({cpu()}), batch 1, layers of 64 and 64 units.", ""]
    lines += ["| policy | act.py | onnxruntime alone | compute_single_action |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {each['act.py']:.1f} | {each['onnxruntime alone']:.1f} | {each['compute_single_action']:.1f} |"
        for name, each in found.items()
    ]
    text = "\n".join([*lines, "", "`taskset -c 0 python benchmarks/speed/export_speed.py`", ""])
    (RESULTS / "export_speed.md").write_text(text)
    print(text)


def cpu() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
