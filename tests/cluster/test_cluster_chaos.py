"""Chaos: every process of a run is killed again and again, and the run is the undisturbed one, bit for bit."""

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
import torch

from lockstep import IMPALAConfig

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.faults
NUM_UPDATES = int(os.environ.get("CHAOS_UPDATES", "1200"))
"""of the two runs; 20,000 are some ten minutes on a quiet machine"""
EVERY_S = 5.0


class Chaos(threading.Thread):
    """Kills one process of a trainer, a learner or an env runner in turn, every 5 s until it is stopped.

    While one is being replaced none is killed: on a busy machine that may take longer than 5 s. The other learner is
    all that knows the state, and runners that never live to answer would not get on.
    """

    def __init__(self, trainer):
        super().__init__(daemon=True)
        self.groups = {"learner": trainer.policy.learner_group._backend, "env runner": trainer.train_collector.group}
        self.killed, self.is_over = dict.fromkeys(self.groups, 0), threading.Event()

    def run(self):
        choose, kind = random.Random(0), "env runner"
        while not self.is_over.wait(EVERY_S):
            all_have_answered = all(runner.has_answered for runner in self.groups["env runner"]._runners)
            if not all_have_answered or not self.groups["learner"]._is_complete:
                continue
            kind = "learner" if kind == "env runner" else "env runner"
            with suppress(ProcessLookupError):
                os.kill(choose.choice(self.groups[kind].process_ids()), signal.SIGKILL)
                self.killed[kind] += 1


def trained(disturbs):
    """Return weights, statistics of the collector, and the kills, after `NUM_UPDATES` updates of 64 steps."""
    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.5)
        .learners(num_learners=2, num_cpus_per_learner=1)
        .training(train_batch_size=64, lr=1e-3, max_lag=1, fixed_lag=True)
        .rl_module(model_config={"hiddens": (16,)})
        .fault_tolerance(
            num_standby_processes=1, max_learner_restarts=999, max_env_runner_restarts=999, max_restarts_in_window=99
        )
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=64 * NUM_UPDATES, steps_per_epoch=64 * NUM_UPDATES // 4)
        .debugging(seed=3)
    )
    trainer = config.build_trainer()
    chaos = Chaos(trainer)
    if disturbs:
        chaos.start()
    try:
        for _ in trainer:
            pass
        chaos.is_over.set()
        stats = {**trainer.train_collector.get_stats(), **trainer.policy.learner_group.get_stats()}
    finally:
        chaos.is_over.set()
        trainer.train_collector.close()
        trainer.policy.use_local_learner()
    weights = torch.cat([p.detach().reshape(-1) for p in trainer.policy.module.parameters()]).numpy()
    return weights, stats, chaos.killed


@pytest.mark.timeout(1200)  # three minutes where the processor is free
def test_a_run_whose_processes_are_killed_is_the_undisturbed_one(cluster):
    expected, _, _ = trained(False)
    started = time.monotonic()
    found, stats, killed = trained(True)
    print(f"{killed} killed in {time.monotonic() - started:.0f} s", stats)
    assert min(killed.values()) >= 1
    assert stats["num_restarts"] >= 1
    np.testing.assert_array_equal(found, expected)
    assert "LearnerWorker" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
