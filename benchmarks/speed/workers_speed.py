"""Environments in worker processes: Lockstep's beside gymnasium's, Stable-Baselines3's and EnvPool.

    python benchmarks/peers/setup_peers.py sb3
    python benchmarks/speed/workers_speed.py               # about four minutes
    python benchmarks/speed/workers_speed.py --costs computes-20us --rounds 3
    python benchmarks/speed/workers_speed.py --render      # the page again, from the raw results

8 and 64 Python environments, each in a process of its own: `make_vector(mode="async")`, gymnasium's `AsyncVectorEnv`
and Stable-Baselines3's `SubprocVecEnv`, all forked and else at their defaults. A step of an environment computes for
20 microseconds or 2 milliseconds (it keeps a core busy), or waits for 2 milliseconds (it sleeps, as one does whose
simulator runs elsewhere). The fourth is gymnasium's CartPole-v1. There EnvPool is shown too: it runs its own C++
environments in threads and no Python environment, so it is no peer. `lockstep sync` steps them in one process.

Each call makes vector steps for about a quarter of a second. Processor time is that of all processes together. A round
asks every entry in turn. Written to ``results/<name>.json`` (every call) and ``.md``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Entry, ask_rounds, check_installed

sys.path.insert(0, str(report.HERE / "peers"))

from workers_work import COSTS

OURS, PEERS = "lockstep async", ("gymnasium", "sb3")
SIZES = (8, 64)
CALLS = 2
"""in a round"""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds of each cost and number of environments."""
    entries = [Entry("workers_lockstep.py"), Entry("workers_sb3.py", "sb3")]
    check_installed(entries)
    record: dict[str, Any] = {"machine": report.machine(), "works": []}
    for cost in options.costs:
        for num_envs in options.sizes:
            steps = COSTS[cost].steps[num_envs]
            work = {"work": f"{num_envs} environments, {cost}", "cost": cost, "num_envs": num_envs}
            found = ask_rounds(entries, work, options, lambda _: CALLS)
            record["versions"] = found["versions"] | {"gymnasium": found["facts"]["lockstep"]["gymnasium"]}
            record["works"].append({"cost": cost, "num_envs": num_envs, "steps": steps, "runs": found["runs"]})
            report.write(options.name, record)
    return record


def render(record: dict[str, Any]) -> str:
    """Return the page."""
    rows = []
    for work in record["works"]:
        runs, num_envs = work["runs"], work["num_envs"]
        by_round = {name: [statistics.median(calls) for calls in run["seconds"]] for name, run in runs.items()}
        processor = {
            name: statistics.median(value for calls in run["processor_seconds"] for value in calls)
            for name, run in runs.items()
        }
        best = min(PEERS, key=lambda peer: statistics.median(by_round[peer]))
        for name, seconds in by_round.items():
            middle = statistics.median(seconds)
            ratio = processor_ratio = ""
            if name == OURS:
                pairs = [theirs / ours for theirs, ours in zip(by_round[best], seconds)]
                ratio = f"**{statistics.median(pairs):.2f}** ({min(pairs):.2f}-{max(pairs):.2f}) {best}"
                processor_ratio = f"{min(processor[peer] for peer in PEERS) / processor[name]:.2f}"
            rows.append(
                [
                    f"{work['cost']}, {num_envs}",
                    name,
                    f"{1e6 * middle / work['steps']:,.0f}",
                    f"{num_envs * work['steps'] / middle:,.0f}",
                    f"{1e6 * processor[name] / work['steps'] / num_envs:,.1f}",
                    ratio,
                    processor_ratio,
                ]
            )
    header = [
        "a step, environments",
        "entry",
        "us for a vector step",
        "steps/s",
        "us of processor time for a step of one",
        "x the faster of gymnasium and sb3 (by round)",
        "in processor time",
    ]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    notes = (
        "Medians over the rounds. EnvPool runs C++ environments of its own in threads, no Python environments: it is "
        "no peer. `lockstep sync` steps all environments in one process."
    )
    lines = ["# Environments in worker processes", "", report.machine_line(record["machine"]), versions + ".", ""]
    return "\n".join([*lines, notes, "", report.table(header, rows)])


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--costs", nargs="+", choices=list(COSTS), default=list(COSTS))
    command.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    command.add_argument("--timeout", type=float, default=300.0, help="seconds for one answer")
    raise SystemExit(report.command(command, "workers_speed", measure, render, rounds=5))
