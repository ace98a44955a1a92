"""How long ``make train`` takes after set-up: the whole process, imports, training and evaluation included.

    make setup
    python benchmarks/train_time.py [--seeds 5]

The command is taken from the Makefile (its last line for ``train``) and run in an empty folder, once for each
seed; its ``summary.json`` must tell a mean evaluation return of 475 or more, otherwise the run counts as failed.
Written to ``results/train_time.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import report

GOAL_RETURN = 475.0
GOAL_SECONDS = 15.0


def command_of_make() -> list[str]:
    """Return what ``make train`` runs once everything is installed."""
    said = subprocess.run(["make", "-n", "train"], cwd=report.ROOT, capture_output=True, text=True, check=True)
    return shlex.split(said.stdout.strip().splitlines()[-1])


def one_run(command: list[str], seed: int, timeout: float) -> dict[str, Any]:
    """Run the command with a seed in an empty folder; its wall time and what its summary says."""
    program = str(report.ROOT / command[0])
    arguments = [*command[1:], "--seed", str(seed)]
    asked = {"seed": seed, "command": " ".join([Path(program).name, *arguments])}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {**asked, "error": f"{type(error).__name__}: no result"}
        seconds = round(time.perf_counter() - began, 3)
        summaries = sorted(Path(folder).rglob("summary.json"))
        if done.returncode != 0 or not summaries:
            return {**asked, "seconds": seconds, "error": report.last_words(done)}
        summary = json.loads(summaries[-1].read_text(encoding="utf-8"))
    run = {**asked, "seconds": seconds, "final_return": summary["final_return"]}
    run["steps"] = summary.get("train_step")
    if run["final_return"] is None or run["final_return"] < GOAL_RETURN:
        run["error"] = f"the last evaluation's mean return is {run['final_return']}, below {GOAL_RETURN:.0f}"
    return run


def render(record: dict[str, Any]) -> str:
    """Return the markdown page of a record."""
    good = [run for run in record["runs"] if "error" not in run]
    lines = [
        [str(run["seed"]), f"{run['seconds']:.2f}", f"{run['steps']:,}", f"{run['final_return']:.1f}"] for run in good
    ]
    notes = []
    if good:
        seconds = [run["seconds"] for run in good]
        notes.append(
            f"- command to {GOAL_RETURN:.0f}: **{statistics.median(seconds):.1f} s** median, {max(seconds):.1f} s "
            f"slowest (goal {GOAL_SECONDS:.0f} s)"
        )
    notes += [f"- seed {run['seed']} failed: {run['error']}" for run in record["runs"] if "error" in run]
    header = ["seed", "seconds", "environment steps", "last evaluation"]
    foot = f"`{record['command']}`. {report.machine_line(record['machine'])}"
    return "\n".join(["# `make train` after set-up", "", report.table(header, lines), *notes, "", foot, ""])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the command with each seed."""
    command = command_of_make()
    shown = " ".join([Path(command[0]).name, *command[1:]])
    record: dict[str, Any] = {"command": shown, "machine": report.machine(), "runs": []}
    for seed in range(options.seeds):
        run = one_run(command, seed, options.timeout)
        record["runs"].append(run)
        report.write(options.name, record)
        print(f"[{seed + 1}/{options.seeds}] {run.get('error') or str(run['seconds']) + ' s'}", flush=True)
    return record


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--seeds", type=int, default=5, help="how many runs, with the seeds 0, 1, ...")
    command.add_argument("--timeout", type=float, default=300.0, help="seconds for one run")
    raise SystemExit(report.command(command, "train_time", measure, render))
