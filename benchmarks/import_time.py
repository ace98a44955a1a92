"""How long ``import lockstep`` takes beside ``import torch``, in fresh processes, alternately.

    python benchmarks/import_time.py [--rounds 9]

Each figure is a whole process, from its start to its end, so that nothing a module does at exit is missed; the
first round warms the file cache, writes the bytecode (also where PYTHONDONTWRITEBYTECODE is set) and is thrown away.
Written to ``results/import_time.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from typing import Any

import report

STATEMENTS = {"nothing": "pass", "torch": "import torch", "lockstep": "import lockstep"}
GOAL = 0.5


def seconds_of(statement: str) -> float:
    """Return the wall time of a fresh interpreter that runs the statement."""
    environment = report.thread_environment(1)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    subprocess.run([report.lockstep_python(), "-c", statement], check=True, env=environment, cwd=report.ROOT)
    return round(time.perf_counter() - began, 4)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the seconds of each statement in each round."""
    record: dict[str, Any] = {"rounds": options.rounds, "machine": report.machine()}
    seconds: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for number in range(options.rounds + 1):
        for name, statement in STATEMENTS.items():
            spent = seconds_of(statement)
            if number > 0:
                seconds[name].append(spent)
    record["seconds"] = seconds
    return record


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    seconds = record["seconds"]
    lines = [[f"`{STATEMENTS[name]}`", report.spread(values, 3)] for name, values in seconds.items()]
    beyond = statistics.median(a - b for a, b in zip(seconds["lockstep"], seconds["torch"]))
    return "\n".join(
        [
            "# Import time",
            "",
            report.table(["process", "seconds"], lines),
            f"- lockstep beyond torch (median of the rounds' differences): **{beyond:.3f} s** (goal {GOAL} s)",
            "",
            f"{record['rounds']} rounds: median (lowest-highest). {report.machine_line(record['machine'])}",
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(report.command(report.parser_of(__doc__), "import_time", measure, render, rounds=9))
