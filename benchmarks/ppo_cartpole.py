"""PPO on CartPole-v1: Lockstep and its peers, alternately, in processes of their own.

    python benchmarks/ppo_cartpole.py                      # 5 rounds of 65,536 steps, one thread each
    python benchmarks/ppo_cartpole.py --threads 1 2        # each of them with one thread and with two
    python benchmarks/ppo_cartpole.py --only lockstep sb3 --rounds 2 --name quick
    python benchmarks/ppo_cartpole.py --render             # the table again, from the raw results

A round runs every entry once; each round starts at another entry and has a seed of its own, so that slow
drifts of the machine fall on all alike. Every run is written to ``results/<name>.json`` as soon as it
ends; the table of medians comes beside it. Where several thread counts were measured, an entry is compared at
its faster one. Eager entries are compared over the whole loop, compiled ones after their first updates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import report
import setup_peers


@dataclass(frozen=True)
class Entry:
    """One row of the table: a script of ``peers/`` in an environment (None: the project's own)."""

    script: str
    environment: str | None
    arguments: tuple[str, ...] = ()
    compiled: bool = False
    own_loop: bool = False
    """a loop of ours, leaner than anything published: shown, but no peer"""

    @property
    def python(self) -> str:
        """The interpreter."""
        if self.environment is None:
            return report.lockstep_python()
        return str(setup_peers.environment_python(self.environment))

    def missing(self) -> str | None:
        """Why the entry cannot run here, or None."""
        if not (report.HERE / "peers" / self.script).exists():
            return f"no benchmarks/peers/{self.script}"
        if self.environment is not None and not setup_peers.is_ready(self.environment):
            return f"run: python benchmarks/setup_peers.py {self.environment}"
        return None


ENTRIES = {
    "lockstep": Entry("lockstep_ppo.py", None),
    "lockstep-compiled": Entry("lockstep_ppo.py", None, ("--compile",), compiled=True),
    "sb3": Entry("sb3_ppo.py", "sb3"),
    "tianshou": Entry("tianshou_ppo.py", "tianshou"),
    "rllib": Entry("rllib_ppo.py", "rllib"),
    "torchrl": Entry("torchrl_ppo.py", "torchrl"),
    "cleanrl-style": Entry("cleanrl_style.py", "cleanrl"),
    "leanrl-style": Entry("leanrl_style.py", "cleanrl"),
    "leanrl-style-compiled": Entry("leanrl_style.py", "cleanrl", ("--compile",), compiled=True),
    "own-lean": Entry("cleanrl_style.py", "cleanrl", ("--lean",), own_loop=True),
    "own-lean-compiled": Entry("cleanrl_style.py", "cleanrl", ("--compile",), compiled=True, own_loop=True),
}


def is_lockstep(name: str) -> bool:
    """Whether the entry is ours."""
    return ENTRIES[name].environment is None


def one_run(name: str, options: argparse.Namespace, round_number: int, threads: int) -> dict[str, Any]:
    """Run the entry once; the script's own line with what was asked, or with ``error``."""
    entry = ENTRIES[name]
    script = os.path.join("benchmarks", "peers", entry.script)
    arguments = [script, *entry.arguments, "--steps", str(options.steps), "--threads", str(threads)]
    arguments += ["--seed", str(round_number)]
    asked = {
        "entry": name,
        "round": round_number,
        "asked_threads": threads,
        "command": "python " + " ".join(arguments),
        "load_average": round(os.getloadavg()[0], 2),
    }
    began = time.perf_counter()
    try:
        line = report.run_json([entry.python, *arguments], threads=threads, timeout=options.timeout)
    except report.RunFailed as error:
        line = {"error": str(error)}
    return {**asked, "seconds_process": round(time.perf_counter() - began, 2), **line}


def measure(names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; writes the raw record after each run and shows what is going on."""
    record: dict[str, Any] = {
        "work": "PPO, CartPole-v1, 8 environments x 128 steps, 4 epochs, minibatch 256, two 64x64 networks",
        "steps": options.steps,
        "rounds": options.rounds,
        "machine": report.machine(),
        "runs": [],
    }
    report.warn_if_busy()
    variants = [(name, threads) for name in names for threads in options.threads]
    total, began = options.rounds * len(variants), time.perf_counter()
    for round_number in range(options.rounds):
        shift = round_number * len(variants) // options.rounds
        for name, threads in variants[shift:] + variants[:shift]:
            run = one_run(name, options, round_number, threads)
            record["runs"].append(run)
            report.write(options.name, record)
            done = len(record["runs"])
            left = (time.perf_counter() - began) / done * (total - done)
            said = f"{run['steps_per_s']:9,.0f} steps/s, steady {run['steady_steps_per_s']:9,.0f}, return " \
                f"{run['final_return']}" if "error" not in run else "FAILED: " + run["error"]  # fmt: skip
            print(
                f"[{done:3}/{total}] {name:22} {threads} thread(s) {said}  ({left / 60:.1f} min left)",
                flush=True,
            )
    return record


@dataclass(frozen=True)
class Row:
    """The runs of one entry at one thread count."""

    name: str
    threads: int
    version: str
    whole: list[float]
    steady: list[float]
    returns: list[float]

    @property
    def compared(self) -> float:
        """The median rate that the entry is compared by."""
        return statistics.median(self.steady if ENTRIES[self.name].compiled else self.whole)


def rows_of(record: dict[str, Any]) -> list[Row]:
    """The rows, fastest first; failed runs are left out (the foot of the table tells of them)."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        if "error" not in run:
            groups.setdefault((run["entry"], run["asked_threads"]), []).append(run)
    rows = [
        Row(
            name,
            threads,
            runs[0]["version"],
            [run["steps_per_s"] for run in runs],
            [run["steady_steps_per_s"] for run in runs],
            [run["final_return"] for run in runs if run["final_return"] is not None],
        )
        for (name, threads), runs in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.compared)


def best(rows: Sequence[Row], *, ours: bool, compiled: bool | None = None) -> Row | None:
    """The fastest row of Lockstep (or of the peers), eager, compiled or (None) either.

    Our own lean loop counts as a peer only where the published kind, LeanRL's, was not measured.
    """
    with_lean_peer = any(row.name.startswith("leanrl") for row in rows)
    for row in rows:
        entry = ENTRIES[row.name]
        if is_lockstep(row.name) == ours and compiled in (None, entry.compiled):
            if not (entry.own_loop and with_lean_peer):
                return row
    return None


def verdicts(rows: Sequence[Row]) -> list[str]:
    """The ratios that the project promises, where both sides were measured; those to our own lean loop beside them."""
    eager, compiled = best(rows, ours=True, compiled=False), best(rows, ours=True, compiled=True)
    any_peer, eager_peer = best(rows, ours=False), best(rows, ours=False, compiled=False)
    sb3 = next((row for row in rows if row.name == "sb3"), None)
    wanted = [(eager, sb3, 2.5), (eager, eager_peer, 2.0), (compiled, any_peer, 3.0)]
    lines = [
        f"- {ours.name} / {peer.name}: **{ours.compared / peer.compared:.2f}** (goal {goal})"
        for ours, peer, goal in wanted
        if ours is not None and peer is not None
    ]
    for row in rows:
        ours = compiled if ENTRIES[row.name].compiled else eager
        if ENTRIES[row.name].own_loop and ours is not None and any(r.name.startswith("leanrl") for r in rows):
            lines.append(f"- {ours.name} / {row.name}: {ours.compared / row.compared:.2f} (a loop of ours, no peer)")
    return lines


def render(record: dict[str, Any]) -> str:
    """The markdown page of a record."""
    rows = rows_of(record)
    fastest = best(rows, ours=False)
    lines = []
    for row in rows:
        ratio = f"{row.compared / fastest.compared:.2f}" if fastest else "-"
        returns = f"{statistics.median(row.returns):.0f}" if row.returns else "-"
        steady = report.spread(row.steady)
        lines.append([row.name, row.version, str(row.threads), report.spread(row.whole), steady, ratio, returns])
    header = [
        "entry",
        "version",
        "threads",
        "steps/s, whole loop",
        "steps/s, steady",
        "x fastest peer",
        "return",
    ]
    failed = [run for run in record["runs"] if "error" in run]
    torch_versions = sorted({run["torch"] for run in record["runs"] if "torch" in run})
    notes = [
        f"{record['work']}; {record['steps']:,} steps, {record['rounds']} rounds: median (lowest-highest).",
        "`steady` leaves out the first five updates; compiled entries are compared by it, eager ones by the "
        "whole loop. `return` is the mean of the last 20 training episodes (median over rounds).",
        f"PyTorch {', '.join(torch_versions)}. {report.machine_line(record['machine'])}",
    ]
    if failed:
        notes.append(f"{len(failed)} run(s) failed: {', '.join(sorted({run['entry'] for run in failed}))}.")
    return "\n".join(["# PPO on CartPole-v1", "", report.table(header, lines), *verdicts(rows), "", *notes, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare Lockstep and its peers: PPO on CartPole-v1.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=65_536)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="thread counts, for example: 1 2")
    parser.add_argument("--only", nargs="+", choices=list(ENTRIES), help="some of the entries")
    parser.add_argument("--name", default="ppo_cartpole", help="name of the files in benchmarks/results")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    options = parser.parse_args()
    if options.render:
        record = json.loads((report.RESULTS / f"{options.name}.json").read_text(encoding="utf-8"))
    else:
        names = []
        for name in options.only or ENTRIES:
            if reason := ENTRIES[name].missing():
                print(f"left out: {name} ({reason})", file=sys.stderr)
            else:
                names.append(name)
        if not names:
            parser.error("nothing to measure")
        record = measure(names, options)
    text = render(record)
    report.write(options.name, record, text)
    print("\n" + text)
    return 1 if any("error" in run for run in record["runs"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
