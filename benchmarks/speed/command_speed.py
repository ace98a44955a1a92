"""The command `lockstep`: its help, the way to the first training step, and its part for checkpoints and logs.

    python benchmarks/speed/command_speed.py                  # writes results/command_speed.json and .md
    python benchmarks/speed/command_speed.py --checkout ../main --name command_speed_before --rounds 3

Each measurement is a process, all in turn: `import torch` (what the others are compared with), `lockstep --help`,
`lockstep train ppo CartPole-v1` up to its first training step, and whole runs of it. Seconds are the processor's. The
share of "checkpoints, logs" in a run's training time is that of its summary, by the clock and by the processor; by
the clock it has the waiting for the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import alternate

TRAIN = ("train", "ppo", "CartPole-v1")
RUN = "import sys; from lockstep.cli import main; sys.exit(main(sys.argv[1:]))"
FIRST_STEP = f"""
import os, lockstep.trainer
lockstep.trainer.OnpolicyTrainer.training_step = lambda *_: os._exit(0)
{RUN}
"""
BY_PROCESSOR = f"import time; time.monotonic = time.perf_counter = time.process_time; {RUN}"
# The process ends at once, as that of the first step does: torch takes a quarter of its import again to end.
IMPORT_TORCH = "import os, torch; os._exit(0)"
STARTS = {"import torch": (IMPORT_TORCH,), "--help": (RUN, "--help"), "first step": (FIRST_STEP, *TRAIN)}


def run_process(words: tuple[str, ...], checkout: str, folder: str) -> float:
    """Run Python code with arguments in a process of its own; return the processor's seconds of it and its children."""
    environment = {
        **report.thread_environment(1),
        "PYTHONPATH": str(Path(checkout).resolve()),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": f"{tempfile.gettempdir()}/command_speed_bytecode",  # as an installed package has it
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *words], env=environment, cwd=folder, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)


def logs_share(code: str, steps: int, checkout: str) -> dict[str, float]:
    """Train in a process; return the seconds and the share of "checkpoints, logs", and the seconds of all stages."""
    with tempfile.TemporaryDirectory() as folder:
        run_process((code, *TRAIN, "--total-steps", str(steps)), checkout, folder)
        (file,) = Path(folder).glob("runs/*/summary.json")
        summary = json.loads(file.read_text())
    total = summary["timing"]["total_time"]
    logs = total - sum(summary["seconds_by_stage"].values())
    return {"logs": round(logs, 3), "total": round(total, 3), "share": round(logs / total, 4)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all in turn."""
    record: dict[str, Any] = {"steps": options.steps, "machine": report.machine(), "starts": [], "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        for words in STARTS.values():
            run_process(words, options.checkout, folder)  # so that all bytecode is there
        for number, name in alternate(list(STARTS), options.rounds):
            seconds = run_process(STARTS[name], options.checkout, folder)
            record["starts"].append({"name": name, "round": number, "seconds": seconds})
            report.write(options.name, record)
    for number, steps in alternate(options.steps, options.rounds):
        for clock, code in (("clock", RUN), ("processor", BY_PROCESSOR)):
            found = logs_share(code, steps, options.checkout)
            load = round(os.getloadavg()[0], 2)
            run = {"steps": steps, "by": clock, "round": number, "load_average": load, **found}
            record["runs"].append(run)
            report.write(options.name, record)
            print(run, flush=True)
    return record


def render(record: dict[str, Any]) -> str:
    """Return the page: medians with the range."""
    seconds = {name: [run["seconds"] for run in record["starts"] if run["name"] == name] for name in STARTS}
    torch = min(seconds["import torch"])
    starts = [
        [name, report.spread(values, 2), f"{min(values):.2f}", f"{min(values) / torch:.2f}"]
        for name, values in seconds.items()
    ]
    shares = []
    for steps in record["steps"]:
        for clock in ("clock", "processor"):
            runs = [run for run in record["runs"] if run["steps"] == steps and run["by"] == clock]
            percent = report.spread([100 * run["share"] for run in runs], 1)
            cells = [report.spread([run[key] for run in runs], 2) for key in ("logs", "total")]
            shares.append([f"{steps:,} steps, by the {clock}", percent, *cells])
    return "\n".join(
        [
            "# The command `lockstep`",
            "",
            report.table(["processor seconds", "median", "least", "least / least of torch"], starts),
            report.table(["`lockstep train ppo CartPole-v1`", "checkpoints, logs: %", "seconds", "of"], shares),
            f"Median (lowest-highest). {report.machine_line(record['machine'])}",
            "",
        ]
    )


def main() -> int:
    """Measure all."""
    parser = report.parser_of(__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[30_000, 100_000])
    parser.add_argument("--checkout", default=str(report.ROOT), help="folder of the revision that is measured")
    return report.command(parser, "command_speed", measure, render, rounds=5)


if __name__ == "__main__":
    raise SystemExit(main())
