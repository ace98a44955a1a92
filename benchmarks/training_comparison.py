"""What the comparisons of whole training runs share: entries, rounds, the raw record, the table.

A round runs every entry once, in a process of its own; each round starts at another entry and has a seed of its own, so
that slow drifts of the machine fall on all alike. Every run is written to ``results/<name>.json`` as soon as it ends;
the table of medians comes beside it. Where several thread counts were measured, an entry is compared at its faster one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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

    @property
    def is_ours(self) -> bool:
        """Whether it runs Lockstep."""
        return self.environment is None

    def missing(self) -> str | None:
        """Why the entry cannot run here, or None."""
        if not (report.HERE / "peers" / self.script).exists():
            return f"no benchmarks/peers/{self.script}"
        if self.environment is not None and not setup_peers.is_ready(self.environment):
            return f"run: python benchmarks/setup_peers.py {self.environment}"
        return None


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how its page begins."""

    title: str
    work: str
    name: str
    """of the files in benchmarks/results"""
    steps: int
    """environment steps of one run, where nothing else is said"""
    entries: Mapping[str, Entry]
    verdicts: Callable[[Sequence[Row]], list[str]]
    """lines under the table: the ratios that the project promises"""
    passed_on: tuple[tuple[str, str, int], ...] = ()
    """whole numbers that the scripts take beside the common options: name, text, default"""
    columns: str = (
        "`steady` leaves out the first five updates; compiled entries are compared by it, eager ones by the "
        "whole loop. `return` is the mean of the last 20 training episodes (median over rounds)."
    )
    """what the columns mean"""


def one_run(
    comparison: Comparison, name: str, options: argparse.Namespace, round_number: int, threads: int
) -> dict[str, Any]:
    """Run the entry once; the script's own line with what was asked, or with ``error``."""
    entry = comparison.entries[name]
    script = os.path.join("benchmarks", "peers", entry.script)
    arguments = [script, *entry.arguments, "--steps", str(options.steps), "--threads", str(threads)]
    arguments += ["--seed", str(round_number)]
    for option, _, _ in comparison.passed_on:
        arguments += [option, str(getattr(options, option.strip("-")))]
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


def measure(comparison: Comparison, names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; writes the raw record after each run and shows what is going on."""
    record: dict[str, Any] = {
        "work": comparison.work,
        "steps": options.steps,
        "rounds": options.rounds,
        "options": {option: getattr(options, option.strip("-")) for option, _, _ in comparison.passed_on},
        "machine": report.machine(),
        "runs": [],
    }
    report.warn_if_busy()
    variants = [(name, threads) for name in names for threads in options.threads]
    total, began = options.rounds * len(variants), time.perf_counter()
    for round_number in range(options.rounds):
        shift = round_number * len(variants) // options.rounds
        for name, threads in variants[shift:] + variants[:shift]:
            run = one_run(comparison, name, options, round_number, threads)
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
    entry: Entry
    threads: int
    version: str
    whole: list[float]
    steady: list[float]
    returns: list[float]

    @property
    def compared(self) -> float:
        """The median rate that the entry is compared by."""
        return statistics.median(self.steady if self.entry.compiled else self.whole)


def rows_of(comparison: Comparison, record: dict[str, Any]) -> list[Row]:
    """The rows, fastest first; failed runs are left out (the foot of the table tells of them)."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        if "error" not in run:
            groups.setdefault((run["entry"], run["asked_threads"]), []).append(run)
    rows = [
        Row(
            name,
            comparison.entries[name],
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
        if row.entry.is_ours == ours and compiled in (None, row.entry.compiled):
            if not (row.entry.own_loop and with_lean_peer):
                return row
    return None


def render(comparison: Comparison, record: dict[str, Any]) -> str:
    """The markdown page of a record."""
    rows = rows_of(comparison, record)
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
    asked = "".join(f"; {option} {value}" for option, value in record.get("options", {}).items())
    failed = [run for run in record["runs"] if "error" in run]
    torch_versions = sorted({run["torch"] for run in record["runs"] if "torch" in run})
    notes = [
        f"{record['work']}{asked}; {record['steps']:,} steps, {record['rounds']} rounds: median (lowest-highest).",
        comparison.columns,
        f"PyTorch {', '.join(torch_versions)}. {report.machine_line(record['machine'])}",
    ]
    if failed:
        notes.append(f"{len(failed)} run(s) failed: {', '.join(sorted({run['entry'] for run in failed}))}.")
    return "\n".join(
        [f"# {comparison.title}", "", report.table(header, lines), *comparison.verdicts(rows), "", *notes, ""]
    )


def main(comparison: Comparison) -> int:
    """The command line of a comparison."""
    parser = argparse.ArgumentParser(description=f"Compare Lockstep and its peers: {comparison.title}.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=comparison.steps)
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="thread counts, for example: 1 2")
    parser.add_argument("--only", nargs="+", choices=list(comparison.entries), help="some of the entries")
    parser.add_argument("--name", default=comparison.name, help="name of the files in benchmarks/results")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    for option, text, default in comparison.passed_on:
        parser.add_argument(option, type=int, default=default, help=f"{text} (default {default})")
    options = parser.parse_args()
    if options.render:
        record = json.loads((report.RESULTS / f"{options.name}.json").read_text(encoding="utf-8"))
    else:
        names = []
        for name in options.only or comparison.entries:
            if reason := comparison.entries[name].missing():
                print(f"left out: {name} ({reason})", file=sys.stderr)
            else:
                names.append(name)
        if not names:
            parser.error("nothing to measure")
        record = measure(comparison, names, options)
    text = render(comparison, record)
    report.write(options.name, record, text)
    print("\n" + text)
    return 1 if any("error" in run for run in record["runs"]) else 0
