"""The learner beside RLlib's and beside a loop written by hand: PPO updates on one rollout, one thread each.

    python benchmarks/peers/setup_peers.py rllib
    python benchmarks/speed/learner_speed.py                          # in this process, about five minutes
    python benchmarks/speed/learner_speed.py --works 64x64 --rounds 9
    python benchmarks/speed/learner_speed.py --remote                 # 1 and 2 learners in Ray actors, building a group
    python benchmarks/speed/learner_speed.py --render                 # the page again, from the raw results

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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Entry, ask_rounds, check_installed

sys.path.insert(0, str(report.HERE / "peers"))

import learner_work as lw

STAGE_UPDATES = 5
LOCKSTEP, RLLIB = Entry("learner_lockstep.py"), Entry("learner_rllib.py", "rllib")
SOURCES = (("episodes", "episodes"), ("episodes", "rollout"), ("batch", "batch"))
"""of RLlib, of Lockstep"""
WORKS = {False: ["64x64", "256x256"], True: ["64x64", "256x256", "1024x1024"]}
"""by `--remote`"""
PAIRS = {
    False: [
        *((f"rllib, {a}", f"lockstep eager, {b}", {"64x64": 3.0}) for a, b in SOURCES),
        *((f"rllib, {a}", f"lockstep compiled, {b}", {"64x64": 6.0}) for a, b in SOURCES),
        ("by hand, plain torch", "lockstep eager, batch", {"64x64": 0.91}),
    ],
    True: [
        *(
            (f"rllib, {which}, {a}", f"lockstep, {which}, {b}", {**dict.fromkeys(lw.WORKS, 1.0), "64x64": 3.0})
            for which in ("1 learner", "2 learners")
            for a, b in SOURCES
        ),
        ("rllib, building 2", "lockstep, building 2", {}),
        *((f"lockstep, 1 learner, {b}", f"lockstep, 2 learners, {b}", {"1024x1024": 1.6}) for _, b in SOURCES),
    ],
}
"""by `--remote`: the slow entry, the fast one, how many times as fast by network"""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all networks; the raw record is written after each."""
    record: dict[str, Any] = {"machine": report.machine(), "rounds": options.rounds, "remote": options.remote}
    record |= {"device": options.device, "works": {}}
    entries = [LOCKSTEP] if options.no_peer else [RLLIB, LOCKSTEP]
    check_installed(entries)
    for work in options.works or WORKS[options.remote]:
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
    sizes = {name: getattr(setting, name) for name in ("rows", "minibatch", "num_epochs", "hiddens")}
    return {**sizes, "rollout": facts, **found}


def flat(runs: dict[str, list[list[float]]], kind: str = "seconds") -> list[float]:
    """Return every update of an entry."""
    return [value for values in runs[kind] for value in values]


def verdict(work: str, part: dict[str, Any], slow: str, fast: str, goals: dict[str, float]) -> str:
    """Return the ratio of the medians, its range over rounds, and that of the processor times."""
    a, b = part["runs"][slow], part["runs"][fast]
    by_round = [statistics.median(x) / statistics.median(y) for x, y in zip(a["seconds"], b["seconds"])]
    whole, processor = (
        statistics.median(flat(a, kind)) / statistics.median(flat(b, kind)) for kind in ("seconds", "processor_seconds")
    )
    more = f"by round {min(by_round):.2f}-{max(by_round):.2f}"
    more += "" if "learner" in fast or "building" in fast else f", processor time {processor:.2f}"
    more += f"; goal {goals[work]:g}" if work in goals else ""
    return f"- {fast} is **{whole:.2f}** x as fast as {slow} ({more})"


def render_work(work: str, part: dict[str, Any], remote: bool) -> str:
    """Return the section of one network."""
    lines = []
    for name, runs in part["runs"].items():
        rate = "" if "building" in name else f"{part['rows'] / statistics.median(flat(runs)):,.0f}"
        milliseconds, processor = ([1e3 * v for v in flat(runs, kind)] for kind in ("seconds", "processor_seconds"))
        cells = [] if remote else [f"{statistics.median(processor):,.1f}"]
        lines.append([name, rate, report.spread(milliseconds, 1), *cells])
    header = ["entry", "steps/s", "ms for an update (or to build)" if remote else "ms for an update"]
    tables = [report.table([*header, *([] if remote else ["ms of processor time"])], lines)]
    rows = [
        [name, *(f"{found[stage]:.1f}" for stage in lw.STAGES), f"{sum(found.values()):.1f}"]
        for name, found in part.get("stages", {}).items()
    ]
    if rows:
        tables += ["Milliseconds by stage:\n", report.table(["entry", *lw.STAGES, "sum"], rows)]
    about = (
        f"CartPole-v1: {part['rows']:,} steps in {part['rollout']['pieces']} episodes or pieces of one, "
        f"{part['num_epochs']} epoch(s), minibatches of {part['minibatch']:,} rows over all learners.\n"
    )
    pairs = [pair for pair in PAIRS[remote] if pair[0] in part["runs"] and pair[1] in part["runs"]]
    return "\n".join([f"## {work}\n", about, *tables, *(verdict(work, part, *pair) for pair in pairs), ""])


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    parts, remote = record["works"], record["remote"]
    first = next(iter(parts.values()))
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    notes = [
        f"One thread for each learner, {record['device']}, {record['rounds']} rounds, entries alternating: median "
        "(lowest-highest). steps/s = steps of the rollout / seconds of the whole update, with remote learners the wall "
        "clock in the driver. `episodes`: a list of episodes, with the pipeline (values, advantages); `rollout`: the "
        "same as the collector hands them out, views on one store; `batch`: a finished train batch of tensors.",
        "RLlib's minibatches run over the end of the batch (62 gradient steps for 4,000 rows in four epochs, ours 60: "
        "3 % of its time), and its sizes are those of each learner, so they are divided.",
    ]
    if not remote:
        notes += [
            "RLlib's `rest` holds minibatch slicing and metrics; its value network runs within `loss`, not `forward`. "
            "Stages are timed in updates of their own.",
            "`by hand, plain torch`: `nn.Sequential`, the loss spelled out, flat parameters and gradients, fused Adam "
            "through `optimizer.step()`; it keeps the losses, the KL and the norm of each step.",
        ]
    notes.append(f"{versions}, PyTorch {first['torch']}. {report.machine_line(record['machine'])}")
    title = "# Learners in Ray actors\n" if remote else "# The update of the learner\n"
    return "\n".join([title, *(render_work(work, part, remote) for work, part in parts.items()), *notes, ""])


if __name__ == "__main__":
    os.chdir(report.ROOT)
    command = report.parser_of(__doc__)
    command.add_argument("--remote", action="store_true", help="learners in Ray actors")
    command.add_argument("--works", nargs="+", choices=list(lw.WORKS), help="some of the networks")
    command.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    command.add_argument("--no-compile", action="store_true", help="without the compiled gradient step")
    command.add_argument("--no-peer", action="store_true", help="without RLlib")
    command.add_argument("--timeout", type=float, default=300.0, help="seconds for one request, compiling included")
    names = {False: "learner_speed", True: "remote_learners"}
    raise SystemExit(report.command(command, lambda options: names[options.remote], measure, render, rounds=7))
