"""Compare whole training runs of Lockstep and its peers: the command, the table of medians, the ratios.

A round runs every entry once with a seed of its own. Every run is written to ``results/<name>.json`` as soon as it
ends; the table comes beside it. Where several thread counts were measured, an entry is compared at its faster one.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import report
from runner import Entry, run_rounds


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how its page begins."""

    title: str
    about: str
    """the work in words"""
    name: str
    """of the files in benchmarks/results"""
    work: Mapping[str, Any]
    """what all entries are told: the algorithm, and the steps where the command line does not say them"""
    entries: Mapping[str, Entry]
    verdicts: Callable[[Sequence[Row]], list[str]]
    """lines under the table: the ratios that the project promises"""
    options: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """whole numbers that the command line passes on: name -> text, default"""
    columns: str = (
        "`steady` leaves out the first five updates; compiled entries are compared by it, eager ones by the "
        "whole loop. `return` is the mean of the last 20 training episodes (median over rounds)."
    )
    """what the columns mean"""


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


def measure(comparison: Comparison, options: Any) -> dict[str, Any]:
    """Run all rounds of the entries that are installed."""
    asked = {name: getattr(options, name) for name in comparison.options}
    record: dict[str, Any] = {
        "work": comparison.about,
        "steps": options.steps,
        "rounds": options.rounds,
        "options": {f"--{name}": value for name, value in asked.items()},
        "machine": report.machine(),
    }
    variants = []
    for name in options.only or comparison.entries:
        entry = comparison.entries[name]
        if entry.missing:
            print(f"left out: {name} ({entry.missing})", file=sys.stderr)
            continue
        for threads in options.threads:
            work = {**comparison.work, **asked, "steps": options.steps, "threads": threads}
            variants.append(({"entry": name, "asked_threads": threads}, entry, work))
    if not variants:
        raise SystemExit("nothing to measure")
    return run_rounds(options.name, record, variants, options, tell)


def tell(line: dict[str, Any]) -> str:
    """Return what a run found in a few words."""
    rates = f"{line['steps_per_s']:9,.0f} steps/s, steady {line['steady_steps_per_s']:9,.0f}"
    return f"{rates}, return {line['final_return']}"


def rows_of(comparison: Comparison, record: dict[str, Any]) -> list[Row]:
    """Return the rows, fastest first; failed runs are left out (the foot of the table tells of them)."""
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
    """Return the fastest row of Lockstep (or of the peers), eager, compiled or (None) either.

    Our own lean loop counts as a peer only where the published kind, LeanRL's, was not measured.
    """
    with_lean_peer = any(row.name.startswith("leanrl") for row in rows)
    for row in rows:
        if row.entry.is_ours == ours and compiled in (None, row.entry.compiled):
            if not (row.entry.own_loop and with_lean_peer):
                return row
    return None


def render(comparison: Comparison, record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    rows = rows_of(comparison, record)
    fastest = best(rows, ours=False)
    lines = []
    for row in rows:
        ratio = f"{row.compared / fastest.compared:.2f}" if fastest else "-"
        returns = f"{statistics.median(row.returns):.0f}" if row.returns else "-"
        rates = [report.spread(row.whole), report.spread(row.steady)]
        lines.append([row.name, row.version, str(row.threads), *rates, ratio, returns])
    header = ["entry", "version", "threads", "steps/s, whole loop", "steps/s, steady", "x fastest peer", "return"]
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
    head = [f"# {comparison.title}", "", report.table(header, lines)]
    return "\n".join([*head, *comparison.verdicts(rows), "", *notes, ""])


def main(text: str | None, comparison: Comparison) -> int:
    """Run the command of a comparison."""
    parser = report.parser_of(text)
    parser.add_argument("--steps", type=int, default=comparison.work["steps"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="thread counts, for example: 1 2")
    parser.add_argument("--only", nargs="+", choices=list(comparison.entries), help="some of the entries")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one run")
    for option, (words, default) in comparison.options.items():
        parser.add_argument(f"--{option}", type=int, default=default, help=f"{words} (default {default})")
    return report.command(
        parser,
        comparison.name,
        lambda options: measure(comparison, options),
        lambda record: render(comparison, record),
        rounds=5,
    )
