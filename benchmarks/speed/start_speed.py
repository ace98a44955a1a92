"""Whole runs with process start: eager, compiled for the first time, and compiled with the code kept; in turn.

    python benchmarks/speed/start_speed.py                       # writes results/start_speed.json and .md
    python benchmarks/speed/start_speed.py --only ppo --rounds 1 --steps 20480

102,400 steps at the algorithms' defaults (PPO and DQN on CartPole-v1, SAC on Pendulum-v1), each run a process. A first
start has an empty cache folder, the second the folder that it left. Beside the clock, the processor's seconds of the
run's own process are kept: where other work shares the machine, only they can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from runner import alternate

ENVIRONMENTS = {"ppo": "CartPole-v1", "dqn": "CartPole-v1", "sac": "Pendulum-v1"}
STARTS = ("eager", "first", "second")


def run_here(algorithm: str, start: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train in this process; return the hash of the final weights and what was spent so far."""
    import hashlib

    from lockstep import get_config

    config = get_config(algorithm).environment(ENVIRONMENTS[algorithm]).evaluation(evaluation_interval=0)
    config.debugging(seed=options.seed).reporting(total_steps=options.steps)
    config.framework(compile=start != "eager", compile_after=options.compile_after)
    trainer = config.build_trainer()
    trainer.run()
    weights = trainer.policy.learner_group.get_weights()["default_policy"]
    digest = hashlib.sha256(b"".join(value.tobytes() for value in weights.values())).hexdigest()[:16]
    return {"weights": digest, "processor_seconds": round(time.process_time(), 2)}


def run_process(algorithm: str, start: str, options: argparse.Namespace, seed: int, folder: str) -> dict[str, Any]:
    """Run one start in a process of its own."""
    words = [sys.executable, __file__, "--one", algorithm, start, "--steps", str(options.steps), "--seed", str(seed)]
    words += ["--compile-after", str(options.compile_after)]
    environment = {
        **report.thread_environment(1),
        "XDG_CACHE_HOME": folder,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "PYTHONPATH": str(report.ROOT),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": f"{tempfile.gettempdir()}/start_speed_bytecode",  # as an installed package has it
    }
    load, began = round(os.getloadavg()[0], 2), time.perf_counter()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=report.ROOT, check=False)
    seconds = round(time.perf_counter() - began, 2)
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": report.last_words(done)}
    facts = {"algorithm": algorithm, "start": start, "seed": seed, "load_average": load}
    return {**facts, "seconds": seconds, **found}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all in turn."""
    record: dict[str, Any] = {
        "steps": options.steps,
        "compile_after": options.compile_after,
        "machine": report.machine(),
        "runs": [],
    }
    for number, algorithm in alternate(options.only, options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for start in STARTS if number % 2 == 0 else (*STARTS[1:], STARTS[0]):
                run = run_process(algorithm, start, options, number, folder)
                record["runs"].append(run)
                report.write(options.name, record)
                print(run, flush=True)
    return record


def render(record: dict[str, Any]) -> str:
    """Return the page: medians and ratios of medians."""
    lines = []
    for algorithm in ENVIRONMENTS:
        runs = [run for run in record["runs"] if run["algorithm"] == algorithm and "error" not in run]
        for key, words in (("seconds", "by the clock"), ("processor_seconds", "processor, own process")):
            found = {start: [run[key] for run in runs if run["start"] == start] for start in STARTS}
            if all(found.values()):
                middle = {start: statistics.median(values) for start, values in found.items()}
                ratios = [f"{middle['eager'] / middle[start]:.2f}" for start in STARTS[1:]]
                cells = [report.spread(values, 1) for values in found.values()]
                lines.append([f"{algorithm}, {words}", *cells, *ratios])
    header = ["seconds of a whole run", *STARTS, "eager / first", "eager / second"]
    pairs = {(run["algorithm"], run["seed"]): set[str]() for run in record["runs"]}
    for run in record["runs"]:
        if run["start"] != "eager" and "weights" in run:
            pairs[run["algorithm"], run["seed"]].add(run["weights"])
    same = sum(len(hashes) == 1 for hashes in pairs.values())
    return "\n".join(
        [
            "# Compiled code that is kept",
            "",
            report.table(header, lines),
            f"{record['steps']:,} steps, compiled code after {record['compile_after']:,} gradient steps; process start "
            f"included; median (lowest-highest). First and second start ended "
            f"with the same weights in {same} of {len(pairs)} pairs. {report.machine_line(record['machine'])}",
            "",
        ]
    )


def main() -> int:
    """Measure all, or run one here."""
    parser = report.parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=102_400)
    parser.add_argument("--only", nargs="+", default=list(ENVIRONMENTS), choices=list(ENVIRONMENTS))
    parser.add_argument("--one", nargs=2, metavar=("ALGORITHM", "START"), help="run one, in this process")
    parser.add_argument("--compile-after", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options, _ = parser.parse_known_args()
    if options.one:
        print(json.dumps(run_here(*options.one, options)))
        return 0
    return report.command(parser, "start_speed", measure, render, rounds=5)


if __name__ == "__main__":
    raise SystemExit(main())
