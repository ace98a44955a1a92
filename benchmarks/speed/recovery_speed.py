"""What the death of a learner, or of an env runner, costs a run: with a standby process and without.

    python benchmarks/speed/recovery_speed.py       # about five minutes; writes results/recovery_speed.json and .md

IMPALA on CartPole-v1 with a fixed lag, two learners and two env runners in Ray actors. In every sixth epoch of 20
updates one of them is killed (kill -9), 0.2 s after its begin. Its cost is what the epoch took above the median of the
epochs in which nothing happens. Each run is a process; all end with the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report

UPDATES, EVERY, STEPS = 20, 6, 64
KINDS = ("learner", "env runner")


def measure_one(kind: str, standby: int, kills: int) -> dict[str, Any]:
    """Return the seconds of epochs with a death and without, and the hash of the final weights."""
    from lockstep import IMPALAConfig

    epochs = EVERY * (kills + 1)
    config = IMPALAConfig().environment("CartPole-v1").learners(num_learners=2, num_cpus_per_learner=1)
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.5)
    config.training(train_batch_size=STEPS, fixed_lag=True).rl_module(model_config={"hiddens": (64, 64)})
    config.fault_tolerance(
        num_standby_processes=standby,
        max_learner_restarts=kills,
        max_env_runner_restarts=kills,
        max_restarts_in_window=kills,
    )
    config.evaluation(evaluation_interval=0).debugging(seed=0)
    config.reporting(total_steps=STEPS * UPDATES * epochs, steps_per_epoch=STEPS * UPDATES)
    trainer = config.build_trainer()
    group = trainer.policy.learner_group._backend if kind == "learner" else trainer.train_collector.group
    seconds: dict[str, list[float]] = {"death": [], "usual": []}
    try:
        for epoch in range(epochs):
            dies = epoch % EVERY == EVERY - 1 and epoch > EVERY
            if dies:
                threading.Timer(0.2, os.kill, (group.process_ids()[epoch % 2], signal.SIGKILL)).start()
            began = time.perf_counter()
            next(trainer)
            if epoch >= EVERY:
                seconds["death" if dies else "usual"].append(round(time.perf_counter() - began, 3))
        weights = trainer.policy.learner_group.get_weights()["default_policy"]
    finally:
        trainer.train_collector.close()
        trainer.policy.use_local_learner()
    digest = hashlib.sha256(b"".join(value.tobytes() for value in weights.values())).hexdigest()[:16]
    return {"kind": kind, "standby": standby, **seconds, "weights": digest}


def main() -> None:
    """Measure all in turn, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--one", nargs=2, help="measure one, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_one(options.one[0], int(options.one[1]), options.kills)))
        return
    report.warn_if_busy()
    record: dict[str, Any] = {"machine": report.machine(), "revision": report.revision(), "runs": []}
    for _ in range(options.rounds):
        for kind in KINDS:
            for standby in (0, 1):
                words = ["--one", kind, str(standby), "--kills", str(options.kills)]
                record["runs"].append(report.run_json([sys.executable, __file__, *words]))
                print(record["runs"][-1], flush=True)
    rows = []
    for kind in KINDS:
        for standby in (0, 1):
            runs = [run for run in record["runs"] if (run["kind"], run["standby"]) == (kind, standby)]
            usual = statistics.median(second for run in runs for second in run["usual"])
            costs = [second - usual for run in runs for second in run["death"]]
            rows.append([kind, str(standby), str(len(costs)), f"{usual:.2f}", report.spread(costs, 2)])
    header = ["killed", "standby processes", "deaths", "s for a usual epoch", "s that a death costs: median (range)"]
    hashes = len({run["weights"] for run in record["runs"]})
    lines = ["# What the death of a process costs", "", report.table(header, rows), ""]
    lines += [f"Different final weights of all {len(record['runs'])} runs: {hashes}.", ""]
    lines.append(report.machine_line(record["machine"]))
    report.write("recovery_speed", record, "\n".join(lines))


if __name__ == "__main__":
    main()
