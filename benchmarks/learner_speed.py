"""The learner beside RLlib's and beside a loop written by hand: PPO updates on one rollout, one thread each.

    python benchmarks/setup_peers.py rllib
    python benchmarks/learner_speed.py                            # all networks, about five minutes
    python benchmarks/learner_speed.py --works 64x64 --rounds 9
    python benchmarks/learner_speed.py --device cuda --name learner_speed_cuda
    python benchmarks/learner_speed.py --render                   # the page again, from the raw results

Both sides live in processes of their own for the whole run; a round asks every entry for some updates in turn, and each
round starts at another entry. Building, compiling and two updates of each entry come before the clock. Written to
``results/<name>.json`` (every update) and ``.md`` (medians, their ratios, milliseconds by stage).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import report
from runner import Entry, ask_rounds, check_installed

sys.path.insert(0, str(report.HERE / "peers"))

import learner_work as lw

WORKS = ["64x64", "256x256"]
STAGE_UPDATES = 5
GOALS = (
    ("rllib, episodes", "lockstep eager, episodes", 3.0),
    ("rllib, episodes", "lockstep eager, rollout", 3.0),
    ("rllib, batch", "lockstep eager, batch", 3.0),
    ("rllib, episodes", "lockstep compiled, episodes", 6.0),
    ("rllib, episodes", "lockstep compiled, rollout", 6.0),
    ("rllib, batch", "lockstep compiled, batch", 6.0),
)
BY_HAND = "by hand, plain torch"
OVERHEAD_GOAL = 1.10


LOCKSTEP, RLLIB = Entry("learner_lockstep.py"), Entry("learner_rllib.py", "rllib")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all networks; the raw record is written after each."""
    record: dict[str, Any] = {"machine": report.machine(), "rounds": options.rounds, "works": {}}
    if not options.remote:
        record["device"] = options.device
    entries = [LOCKSTEP] if options.no_peer else [RLLIB, LOCKSTEP]
    check_installed(entries)
    for work in options.works:
        record["works"][work] = measure_work(work, entries, options)
        report.write(options.name, record)
    return record


def measure_work(work: str, entries: list[Entry], options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds of one network."""
    setting = lw.WORKS[work]
    with tempfile.TemporaryDirectory() as folder:
        rollout = Path(folder) / "rollout.npz"
        facts = lw.make_rollout(setting, rollout)
        asked = {"work": work, "rollout": str(rollout), "remote": options.remote}
        asked |= {"device": options.device, "compile": not options.no_compile}
        found = ask_rounds(
            entries,
            asked,
            options,
            lambda name: 1 if "building" in name else setting.updates,
            stages=0 if options.remote else STAGE_UPDATES,
        )
    del found["facts"]
    return {
        "rows": setting.rows,
        "minibatch": setting.minibatch,
        "num_epochs": setting.num_epochs,
        "hiddens": setting.hiddens,
        "rollout": facts,
        **found,
    }


def flat(runs: dict[str, list[list[float]]], kind: str = "seconds") -> list[float]:
    """Return every update of an entry."""
    return [value for values in runs[kind] for value in values]


def ratio(part: dict[str, Any], slow: str, fast: str) -> tuple[float, str]:
    """Return the ratio of the medians and, in words, its range over rounds and that of the processor times."""
    a, b = part["runs"][slow], part["runs"][fast]
    by_round = [statistics.median(x) / statistics.median(y) for x, y in zip(a["seconds"], b["seconds"])]
    whole, processor = [
        statistics.median(flat(a, kind)) / statistics.median(flat(b, kind)) for kind in ("seconds", "processor_seconds")
    ]
    return whole, f"by round {min(by_round):.2f}-{max(by_round):.2f}, processor time {processor:.2f}"


def verdicts(work: str, part: dict[str, Any]) -> list[str]:
    """Return the ratios that the project promises (for the networks of 64 units), and the same for the others."""
    lines = []
    with_goal = work == "64x64"
    for slow, fast, goal in GOALS:
        if slow in part["runs"] and fast in part["runs"]:
            middle, more = ratio(part, slow, fast)
            wanted = f"; goal {goal:g}" if with_goal else ""
            lines.append(f"- {fast} is **{middle:.2f}** x as fast as {slow} ({more}{wanted})")
    if BY_HAND in part["runs"]:
        middle, more = ratio(part, "lockstep eager, batch", BY_HAND)
        wanted = f"; goal at most {OVERHEAD_GOAL:.2f}" if with_goal else ""
        lines.append(f"- lockstep eager, batch takes **{middle:.2f}** x {BY_HAND} ({more}{wanted})")
    return lines


def render_work(work: str, part: dict[str, Any]) -> str:
    """Return the section of one network."""
    lines = []
    for name, runs in part["runs"].items():
        milliseconds, processor = [[1e3 * v for v in flat(runs, k)] for k in ("seconds", "processor_seconds")]
        rate = part["rows"] / statistics.median(flat(runs))
        lines.append([name, f"{rate:,.0f}", report.spread(milliseconds, 1), f"{statistics.median(processor):,.1f}"])
    tables = [report.table(["entry", "steps/s", "ms for an update", "ms of processor time"], lines)]
    rows = [
        [name, *(f"{found[stage]:.1f}" for stage in lw.STAGES), f"{sum(found.values()):.1f}"]
        for name, found in part["stages"].items()
    ]
    if rows:
        tables += ["Milliseconds by stage:\n", report.table(["entry", *lw.STAGES, "sum"], rows)]
    pieces = part["rollout"]["pieces"]
    about = (
        f"CartPole-v1: {part['rows']:,} steps in {pieces} episodes or pieces of one, {part['num_epochs']} epoch(s), "
        f"minibatches of {part['minibatch']}.\n"
    )
    return "\n".join([f"## {work}\n", about, *tables, *verdicts(work, part), ""])


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    parts = record["works"]
    first = next(iter(parts.values()))
    rllib = f"RLlib {first['versions']['rllib']}, " if "rllib" in first["versions"] else ""
    notes = [
        f"One thread, {record['device']}, {record['rounds']} rounds, entries alternating: median (lowest-highest). "
        "steps/s = steps of the rollout / seconds of the whole update. `episodes`: a list of episodes, with the "
        "pipeline (values, advantages); `rollout`: the same as the collector hands them out, views on one store; "
        "`batch`: a finished train batch of tensors.",
        "RLlib's minibatches run over the end of the batch (62 gradient steps for 4,000 rows in four epochs, ours 60: "
        "3 % of its time). Its `rest` holds minibatch slicing and metrics; its value network runs within `loss`, "
        "not `forward`. Stages are timed in updates of their own.",
        "`by hand, plain torch`: `nn.Sequential`, the loss spelled out, flat parameters and gradients, fused Adam "
        "through `optimizer.step()`; it keeps the losses, the KL and the norm of each step.",
        f"{rllib}Lockstep {first['versions']['lockstep']}, PyTorch {first['torch']}. "
        f"{report.machine_line(record['machine'])}",
    ]
    sections = [render_work(work, part) for work, part in parts.items()]
    return "\n".join(["# The update of the learner\n", *sections, *notes, ""])


if __name__ == "__main__":
    os.chdir(report.ROOT)
    command = report.parser_of(__doc__)
    command.add_argument("--works", nargs="+", choices=WORKS, default=WORKS)
    command.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    command.add_argument("--no-compile", action="store_true", help="without the compiled gradient step")
    command.add_argument("--no-peer", action="store_true", help="without RLlib")
    command.add_argument("--timeout", type=float, default=180.0, help="seconds for one request, compiling included")
    command.set_defaults(remote=False)
    raise SystemExit(report.command(command, "learner_speed", measure, render, rounds=9))
