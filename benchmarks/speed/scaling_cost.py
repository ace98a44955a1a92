"""Where more learners stop paying: times measured here, and what follows from them for a cluster.

    python benchmarks/speed/scaling_cost.py                           # about a minute
    python benchmarks/speed/scaling_cost.py --hop-us 20 --gbit 100    # another network between the machines
    python benchmarks/speed/scaling_cost.py --render
    python benchmarks/speed/scaling_cost.py --floor                   # what two learners on this machine can be at most

Measured, with one thread: a gradient step of PPO for two networks and several numbers of rows, by the processor's time
(least squares: a fixed part and a part for each row). From these, with the counts of `docs/scaling.md` (3 meetings for
each gradient step; a ring of n learners makes 2 (n - 1) hops and moves 2 (n - 1) / n times the gradient through each of
them): steps trained per second for n learners that are on n machines. Written to ``results/scaling_cost.json`` and
``.md``.

`--floor` prints the seconds of a gradient step of 1024x1024 with 2,000 rows in one process, and with 1,000 in each of
two that work at once and exchange nothing. Two learners cannot gain more than the ratio.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gymnasium as gym
import numpy as np
import report
import torch
from works import made_up_batch

from lockstep import PPOConfig

NETWORKS = {"64x64": (64, 64), "1024x1024": (1024, 1024)}
ROWS = (64, 256, 1024)
MEETINGS = 3
"""for each gradient step of PPO"""
ROW_BYTES = 44
"""of CartPole: observation, action, log-probability, advantage, value target, reward, ends"""
MINIBATCHES = {"64x64": (256, 4096), "1024x1024": (2048, 16384)}
LEARNERS = (1, 2, 4, 8, 16, 32, 64)


def gradient_steps(name: str) -> dict[str, Any]:
    """Measure the seconds of a gradient step by rows, and fit the straight line through them."""
    total = 4 * max(ROWS)
    batch = made_up_batch(total)
    spaces = {"observation_space": gym.spaces.Box(-5.0, 5.0, (4,)), "action_space": gym.spaces.Discrete(2)}
    config = PPOConfig().environment(**spaces).rl_module(model_config={"hiddens": NETWORKS[name]})
    group = config.training(train_batch_size=total, minibatch_size=64).build_learner_group()
    seconds = {}
    for rows in ROWS:
        found = []
        for _ in range(4):
            began = time.process_time()
            group.update_from_batch(batch, minibatch_size=rows, shuffle_batch_per_epoch=True)
            found.append((time.process_time() - began) * rows / total)
        seconds[rows] = min(found[1:])
    per_row, fixed = np.polyfit(list(seconds), list(seconds.values()), 1)
    parameters = sum(parameter.numel() for parameter in group.learner.module.parameters())
    return {"seconds": seconds, "fixed": max(fixed, 0.0), "per_row": per_row, "num_bytes": 4 * parameters}


def rate(step: dict[str, Any], minibatch: int, learners: int, hop: float, bytes_per_s: float) -> float:
    """Return steps trained per second: rows / (gradient step + meetings + gradient + rows through the driver)."""
    local = step["fixed"] + step["per_row"] * minibatch / learners
    small = MEETINGS * 2 * (learners - 1) * hop
    gradient = 2 * (learners - 1) / learners * step["num_bytes"] / bytes_per_s
    rows = 0.0 if learners == 1 else minibatch * ROW_BYTES / bytes_per_s
    return float(minibatch / (local + small + gradient + rows))


def render(record: dict[str, Any]) -> str:
    """Return the page."""
    steps = record["steps"]
    rows = [
        [name, f"{each['num_bytes'] / 1e6:.2f}", f"{1e3 * each['fixed']:.2f}", f"{1e6 * each['per_row']:.2f}"]
        for name, each in steps.items()
    ]
    lines = ["# What more learners cost\n", report.table(["network", "MB of gradient", "ms fixed", "us a row"], rows)]
    hop, speed = record["hop_us"] * 1e-6, record["gbit"] * 1e9 / 8
    rows = []
    for name, each in steps.items():
        for minibatch in MINIBATCHES[name]:
            one = rate(each, minibatch, 1, hop, speed)
            ratios = [f"{rate(each, minibatch, n, hop, speed) / one:.1f}" for n in LEARNERS[1:]]
            rows.append([f"{name}, minibatches of {minibatch:,}", f"{one:,.0f}", *ratios])
    header = ["computed", "steps/s of 1", *(f"{n} learners, x" for n in LEARNERS[1:])]
    about = f"Each learner on a machine of its own, {record['hop_us']:g} us a hop, {record['gbit']:g} Gbit/s:\n"
    return "\n".join([*lines, about, report.table(header, rows), report.machine_line(record["machine"]), ""])


def step_seconds(rows: int, steps: int) -> float:
    """Return the median seconds of a gradient step of 1024x1024 by the clock."""
    torch.set_num_threads(1)
    spaces = {"observation_space": gym.spaces.Box(-5.0, 5.0, (4,)), "action_space": gym.spaces.Discrete(2)}
    config = PPOConfig().environment(**spaces).rl_module(model_config={"hiddens": NETWORKS["1024x1024"]})
    group = config.training(train_batch_size=rows, minibatch_size=rows).build_learner_group()
    batch, found = made_up_batch(rows), []
    for _ in range(steps):
        began = time.perf_counter()
        group.update_from_batch(batch)
        found.append(time.perf_counter() - began)
    return statistics.median(found[2:])


def floor() -> None:
    """Print what two learners can gain at most on this machine, three times."""
    for _ in range(3):
        alone = step_seconds(2000, 12)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            halves = pool.starmap(step_seconds, [(1000, 24)] * 2)
        print(f"2,000 rows alone {alone:.3f} s, 1,000 beside another {max(halves):.3f} s: {alone / max(halves):.2f}x")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure gradient steps."""
    if options.floor:
        sys.exit(floor())
    torch.set_num_threads(1)
    record: dict[str, Any] = {"machine": report.machine(), "hop_us": options.hop_us, "gbit": options.gbit}
    record["steps"] = {name: gradient_steps(name) for name in NETWORKS}
    return record


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--hop-us", type=float, default=50.0, help="from one machine to the next, microseconds")
    command.add_argument("--gbit", type=float, default=10.0, help="between machines, Gbit/s")
    command.add_argument("--floor", action="store_true", help="only print what two learners here can be at most")
    raise SystemExit(report.command(command, "scaling_cost", measure, render))
