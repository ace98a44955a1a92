"""Learners in Ray actors beside RLlib's: PPO updates of 1 and 2 learners, and the time to build a group of 2.

    python benchmarks/setup_peers.py rllib
    python benchmarks/remote_learners.py                          # the first three networks
    python benchmarks/remote_learners.py --works 64x64 --rounds 5 --name trial
    python benchmarks/remote_learners.py --render                 # the page again, from the raw results

One thread for each learner. Both sides live in processes of their own, each with its own Ray, for the whole run; a
round asks every entry for some updates in turn. Written to ``results/<name>.json`` (every update) and ``.md``.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import learner_speed as ls
import report

WORKS = ["64x64", "256x256", "1024x1024", "2048x2048"]
SMALL_GOAL, SCALING_GOAL = 3.0, 1.6
LARGE = ("1024x1024", "2048x2048")
RATIOS = [
    (f"rllib, {which}, {source}", f"lockstep, {which}, {ours}")
    for which in ("1 learner", "2 learners")
    for source, ours in (("episodes", "episodes"), ("episodes", "rollout"), ("batch", "batch"))
]


def by_round(part: dict[str, Any], slow: str, fast: str) -> str:
    """Return the ratio of the medians of the wall-clock times, and the lowest and highest of one round."""
    first, second = part["runs"][slow], part["runs"][fast]
    rounds = [statistics.median(x) / statistics.median(y) for x, y in zip(first["seconds"], second["seconds"])]
    whole = statistics.median(ls.flat(first)) / statistics.median(ls.flat(second))
    return f"**{whole:.2f}** (by round {min(rounds):.2f}-{max(rounds):.2f}"


def render_work(work: str, part: dict[str, Any]) -> str:
    """Return the section of one network."""
    lines = []
    for name, runs in part["runs"].items():
        seconds = ls.flat(runs)
        rate = "" if "building" in name else f"{part['rows'] / statistics.median(seconds):,.0f}"
        lines.append([name, rate, report.spread([1e3 * value for value in seconds], 1)])
    verdicts = []
    for slow, fast in RATIOS:
        if slow in part["runs"]:
            goal = f"; goal {SMALL_GOAL:g}" if work == "64x64" else "; goal 1"
            verdicts.append(f"- {fast} is {by_round(part, slow, fast)}{goal}) x as fast as {slow}")
    if "rllib, building 2" in part["runs"]:
        ratio = by_round(part, "rllib, building 2", "lockstep, building 2")
        verdicts.append(f"- a group of 2 is built {ratio}) x as fast as RLlib's")
    for source in ("episodes", "rollout", "batch"):
        one, two = f"lockstep, 1 learner, {source}", f"lockstep, 2 learners, {source}"
        goal = f"; goal {SCALING_GOAL:g} on 2 cores" if work in LARGE else ""
        verdicts.append(f"- {two}: {by_round(part, one, two)}{goal}) x as fast as 1")
    about = (
        f"CartPole-v1: {part['rows']:,} steps in {part['rollout']['pieces']} episodes or pieces of one, "
        f"{part['num_epochs']} epochs, minibatches of {part['minibatch']:,} rows over all learners.\n"
    )
    table = report.table(["entry", "steps/s", "ms for an update (or to build)"], lines)
    return "\n".join([f"## {work}\n", about, table, *verdicts, ""])


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    parts = record["works"]
    first = next(iter(parts.values()))
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    notes = [
        f"One thread for each learner, {record['rounds']} rounds, entries alternating: median (lowest-highest) of the "
        "wall-clock time in the driver. steps/s = steps of the rollout / seconds of the whole update, sharding, the "
        "object store and both ways included. `rollout`: episodes that are views on one store, as the collector hands "
        "them out. RLlib's sizes are those of each learner, so they are divided: both make equally many gradient steps "
        "on equally many rows (RLlib a few more, its minibatches run over the end of the batch).",
        f"{versions}, PyTorch {first['torch']}. {report.machine_line(record['machine'])}",
    ]
    return "\n".join(
        ["# Learners in Ray actors\n", *(render_work(work, part) for work, part in parts.items()), *notes, ""]
    )


if __name__ == "__main__":
    os.chdir(report.ROOT)
    command = report.parser_of(__doc__)
    command.add_argument("--works", nargs="+", choices=WORKS, default=WORKS[:3])
    command.add_argument("--no-peer", action="store_true", help="without RLlib")
    command.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    command.set_defaults(remote=True, device="cpu", no_compile=True)
    raise SystemExit(report.command(command, "remote_learners", ls.measure, render, rounds=7))
