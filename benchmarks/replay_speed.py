"""Replay buffers beside Tianshou's: adding vector steps and drawing batches.

    python benchmarks/replay_speed.py            # 3 rounds, about 2 minutes
    python benchmarks/replay_speed.py --render

Each round runs both libraries in processes of their own, one thread, in alternating order; a figure is the least of
several stretches of calls (processor time). Ratios are taken within a round. Written to ``results/replay_speed.json``
and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import report
import setup_peers

LIBRARIES = ("lockstep", "tianshou")
WORK = {
    "add": "add a step of 8 environments",
    "add_prioritized": "the same, prioritised",
    "add_frames": "add an 84x84 frame, stored once",
    "sample": "draw 256 rows of 100,000",
    "sample_large": "draw 256 rows of 1,000,000",
    "sample_prioritized": "draw 256 rows and update their priorities",
    "sample_frames": "draw 256 rows with 4 frames each, now and next",
    "sample_n_step": "draw 256 rows with 3-step rewards",
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds."""
    report.warn_if_busy()
    record: dict[str, Any] = {"rounds": options.rounds, "machine": report.machine(), "runs": []}
    for round_number in range(options.rounds):
        for library in LIBRARIES if round_number % 2 == 0 else LIBRARIES[::-1]:
            python = report.lockstep_python() if library == "lockstep" else setup_peers.environment_python(library)
            script = f"benchmarks/peers/replay_{library}.py"
            line = report.run_json([str(python), script], threads=1, timeout=300)
            record["runs"].append({"round": round_number, "command": f"python {script}", **line})
            print(f"round {round_number + 1} of {options.rounds}: {library}", flush=True)
    return record


def seconds_of(record: dict[str, Any], library: str, work: str) -> list[float]:
    """One figure for each round; empty where the library has no such thing."""
    runs = [run["seconds"] for run in record["runs"] if run["name"] == library]
    return [seconds[work] for seconds in runs if work in seconds]


def render(record: dict[str, Any]) -> str:
    """The markdown page of a record."""
    rows = []
    for work, text in WORK.items():
        ours, theirs = (seconds_of(record, library, work) for library in LIBRARIES)
        cells = [report.spread([1e6 * value for value in found], 1) if found else "-" for found in (ours, theirs)]
        ratio = f"{statistics.median([b / a for a, b in zip(ours, theirs)]):.1f}" if theirs else "-"
        rows.append([text, *cells, ratio])
    versions = {run["name"]: f"{run['name']} {run['version']}" for run in record["runs"]}
    header = ["microseconds for one call", *(versions[name] for name in LIBRARIES), "times as fast"]
    return (
        "# Replay buffers: speed\n\n`python benchmarks/replay_speed.py`\n\n"
        + report.table(header, rows)
        + "\nTianshou computes n-step returns in the algorithm, so there is no such figure of its buffer.\n\n"
        + f"{record['rounds']} rounds, one thread. {report.machine_line(record['machine'])}\n"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--render", action="store_true", help="only write the table again")
    options = parser.parse_args()
    file = report.RESULTS / "replay_speed.json"
    record = json.loads(file.read_text(encoding="utf-8")) if options.render else measure(options)
    text = render(record)
    report.write("replay_speed", record, text)
    print("\n" + text)


if __name__ == "__main__":
    main()
