"""IMPALA and APPO with a fixed lag beside free running: steps per second of whole runs, in turn.

    python benchmarks/speed/lag_speed.py            # about four minutes; writes results/lag_speed.json and .md

CartPole-v1, two env runners of 8 environments each in processes of their own, 1,024 steps for an update, 4 passes in
minibatches of 256. Each run is a process; counting begins with the third update. Written: every run, the ratio of
medians, and whether the final weights were the same in all runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report

UPDATES, SKIPPED = 60, 2


def measure_one(algorithm: str, fixed: bool) -> dict[str, Any]:
    """Return steps per second of one run, and the hash of its final weights."""
    from lockstep import get_config
    from lockstep.trainer.callbacks import Callback

    class Clock(Callback):
        """Takes the time of each update's end."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def on_event(self, event: Any) -> None:
            if type(event).__name__ == "UpdateEnd":
                self.times.append(time.perf_counter())

    config = get_config(algorithm).environment("CartPole-v1")
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=8, num_cpus_per_env_runner=0.5)
    config.training(train_batch_size=1024, minibatch_size=256, num_epochs=4, fixed_lag=fixed)
    config.reporting(total_steps=1024 * UPDATES, steps_per_epoch=1024 * UPDATES).evaluation(evaluation_interval=0)
    clock = Clock()
    trainer = config.debugging(seed=0).build_trainer(callbacks=[clock])
    try:
        trainer.run()
    finally:
        trainer.train_collector.close()
    seconds = clock.times[-1] - clock.times[SKIPPED]
    weights = trainer.policy.learner_group.get_weights()["default_policy"]
    digest = hashlib.sha256(b"".join(value.tobytes() for value in weights.values())).hexdigest()[:16]
    return {"steps_per_s": 1024 * (len(clock.times) - 1 - SKIPPED) / seconds, "weights": digest}


def main() -> None:
    """Measure all in turn, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, help="measure one, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_one(options.one[0], options.one[1] == "fixed")))
        return
    record: dict[str, Any] = {"machine": report.machine(), "revision": report.revision(), "runs": {}}
    for _ in range(options.rounds):
        for algorithm in ("impala", "appo"):
            for lag in ("fixed", "free"):
                found = report.run_json([sys.executable, __file__, "--one", algorithm, lag])
                record["runs"].setdefault(f"{algorithm} {lag}", []).append(found)
                print(algorithm, lag, found, flush=True)
    rows = []
    for name, runs in record["runs"].items():
        speeds = [run["steps_per_s"] for run in runs]
        algorithm = name.split()[0]
        free = statistics.median(run["steps_per_s"] for run in record["runs"][f"{algorithm} free"])
        kinds = len({run["weights"] for run in runs})
        rows.append(
            [
                name,
                f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f})",
                f"{statistics.median(speeds) / free:.2f}",
                f"{kinds} of {len(runs)}",
            ]
        )
    header = ["", "steps/s: median (lowest-highest)", "x free running", "different final weights"]
    lines = [
        "# A fixed lag beside free running",
        "",
        report.machine_line(record["machine"]),
        "",
        report.table(header, rows),
    ]
    report.write("lag_speed", record, "\n".join(lines))


if __name__ == "__main__":
    main()
