"""The same random operations on RLlib's batches and episodes and on Lockstep's: every difference is a listed one.

    python benchmarks/peers/setup_peers.py rllib       # once
    python benchmarks/numerics/compare_data_rllib.py      # 1,600 sequences, about 2 minutes
    python benchmarks/numerics/compare_data_rllib.py --batch 30 --sequence 30 --episode 30 --multi 10 --lenient

Sequences are drawn here from a seed, written as JSON, played by each library in a process of its own, and their traces
compared step by step. A step may differ only in a situation that ``data_differences.md`` lists; a listed situation that
never differs is an error too (``--lenient`` leaves that out, for short runs). Written to
``results/data_vs_rllib.json`` and ``.md``; exit status 0 where all is as listed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import Entry, check_installed

sys.path.insert(0, str(report.HERE / "peers"))
import data_agents
import data_batches
import data_episodes
from data_forms import Draw

LIST = Path(__file__).with_name("data_differences.md")
DEFAULTS = {"batch": 300, "sequence": 400, "episode": 500, "multi": 400}
MAKERS = {
    "batch": data_batches.batch_sequence,
    "sequence": data_batches.sequence_sequence,
    "episode": data_episodes.episode_sequence,
    "multi": data_agents.multi_sequence,
}


def sequences_of(seed: int, counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return as many random sequences of each kind; the same seed gives the same ones."""
    return [
        {"kind": kind, "number": number, "steps": MAKERS[kind](Draw([seed, *kind.encode(), number]))}
        for kind, count in counts.items()
        for number in range(count)
    ]


def mended() -> dict[str, list[str]]:
    """Return the rows of the list: name -> RLlib, Lockstep, contract."""
    rows: dict[str, list[str]] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4:
            rows[cells[0].strip("`")] = cells[1:]
    return rows


def differs(ours: Any, theirs: Any, path: str = "") -> str:
    """Return where two results differ, or the empty string. Both raising counts as the same."""
    if theirs == {"values": []} and is_empty(ours):
        return ""  # an empty list of RLlib's tells neither shape nor nesting
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if "error" in ours or "error" in theirs:
            return "" if "error" in ours and "error" in theirs else f"{path}: only one raises"
        for key in {**ours, **theirs}:
            if key not in ours or key not in theirs:
                if key in ("dtype", "shape"):  # a list has neither
                    continue
                return f"{path}/{key} is in one only"
            if found := differs(ours[key], theirs[key], f"{path}/{key}"):
                return found
        return ""
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return f"{path}: {len(ours)} and {len(theirs)} items"
        found = (differs(*pair, f"{path}/{number}") for number, pair in enumerate(zip(ours, theirs)))
        return next(filter(None, found), "")
    same = ours == theirs and isinstance(ours, bool) == isinstance(theirs, bool)
    return "" if same else f"{path}: {str(ours)[:60]} and {str(theirs)[:60]}"


def is_empty(shown: Any) -> bool:
    """Return whether a tree of arrays has no rows."""
    if isinstance(shown, dict) and "values" in shown:
        return bool(shown["values"] == [])
    return isinstance(shown, dict) and bool(shown) and "error" not in shown and all(map(is_empty, shown.values()))


def play(sequences: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return what each library says of itself, and its traces."""
    said, traces = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "sequences.json"
        source.write_text(json.dumps(sequences), encoding="utf-8")
        for name, environment in (("lockstep", None), ("rllib", "rllib")):
            target = Path(folder) / f"{name}.json"
            work = {"library": name, "source": str(source), "target": str(target)}
            said[name] = report.run_json(Entry("data_player.py", environment).command(work), timeout=900)
            traces[name] = json.loads(target.read_text(encoding="utf-8"))
    return said, traces


def compared(
    sequences: list[dict[str, Any]], traces: dict[str, list[Any]]
) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield for each step: where it is, its operation, its marks, and where the results differ."""
    for sequence, ours, theirs in zip(sequences, traces["lockstep"], traces["rllib"], strict=True):
        for number, (step, mine, other) in enumerate(zip(sequence["steps"], ours, theirs, strict=True)):
            where = f"{sequence['kind']} {sequence['number']}, step {number}"
            found = differs(mine["result"], other["result"])
            if mine["marks"] != other["marks"]:
                yield where, step["op"], [], f"marks {mine['marks']} and {other['marks']}"
                break
            yield where, step["op"], mine["marks"], found
            if found and not mine["marks"]:
                break  # what follows goes on from different objects


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Play and compare all sequences."""
    counts = {kind: getattr(options, kind) for kind in DEFAULTS}
    check_installed([Entry("data_player.py", "rllib")])
    sequences = sequences_of(options.seed, counts)
    said, traces = play(sequences)
    operations: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    different: Counter[str] = Counter()
    unlisted, equal = [], 0
    listed = mended()
    for where, operation, marks, found in compared(sequences, traces):
        operations[operation] += 1
        if len(marks) == 1:
            seen[marks[0]] += 1
            different[marks[0]] += bool(found)
        if found and not any(mark in listed for mark in marks):
            unlisted.append({"where": where, "operation": operation, "marks": marks, "difference": found})
        equal += not found
    never = [name for name in listed if not different[name]]
    return {
        "machine": report.machine(),
        "seed": options.seed,
        "sequences": counts,
        "versions": {name: line["version"] for name, line in said.items()},
        "steps": sum(operations.values()),
        "equal": equal,
        "operations": dict(sorted(operations.items())),
        "situations": {name: {"seen": seen[name], "different": different[name]} for name in sorted(seen)},
        "unlisted": unlisted,
        "listed_but_never_different": [] if options.lenient else never,
    }


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    listed = mended()
    rows = [
        [f"`{name}`", f"{counts['different']} of {counts['seen']}", *listed.get(name, ["", "", ""])]
        for name, counts in record["situations"].items()
    ]
    sequences = ", ".join(f"{count} {kind}" for kind, count in record["sequences"].items())
    lines = ["# Batches and episodes beside RLlib's: the same operations, the same results", ""]
    lines += [
        f"{sum(record['sequences'].values()):,} random sequences ({sequences}; seed {record['seed']}), "
        f"{record['steps']:,} operations: {record['equal']:,} give the same in both libraries (values, shapes, dtypes, "
        "order, or an error in both). The others are in one of the situations below, which are listed in "
        "[data_differences.md](../numerics/data_differences.md).",
        "",
        f"Differences that are not listed: **{len(record['unlisted'])}**. "
        f"Listed situations that never differed: **{len(record['listed_but_never_different'])}**.",
        "",
        report.table(["situation", "different", "RLlib", "Lockstep", "contract"], rows),
        "Operations: " + ", ".join(f"`{name}` {count}" for name, count in record["operations"].items()) + ".",
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in record["versions"].items()) + ". "
        f"{report.machine_line(record['machine'])}",
        "",
    ]
    lines += [f"- {item['where']}, `{item['operation']}`: {item['difference']}" for item in record["unlisted"][:50]]
    lines += [f"- never different: `{name}`" for name in record["listed_but_never_different"]]
    return "\n".join(lines)


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    for kind, count in DEFAULTS.items():
        command.add_argument(f"--{kind}", type=int, default=count, help=f"sequences of this kind (default {count})")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--lenient", action="store_true", help="a listed situation need not be met")
    raise SystemExit(report.command(command, "data_vs_rllib", compare, render))
