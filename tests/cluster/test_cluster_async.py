"""IMPALA with env runners in real Ray actors: in step it is the synchronous run, a killed runner is replaced."""

import os
import signal

import numpy as np
import pytest
import torch

from lockstep import IMPALAConfig

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.faults


def trained(num_runners, max_lag, num_envs, on_epoch=None, num_learners=0):
    """A trainer after 8 updates of 64 steps."""
    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=num_runners, num_envs_per_env_runner=num_envs, num_cpus_per_env_runner=0.5)
        .learners(num_learners=num_learners)
        .training(train_batch_size=64, lr=1e-2, max_lag=max_lag)
        .rl_module(model_config={"hiddens": (8,)})
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=512, steps_per_epoch=256)
        .debugging(seed=3)
    )
    trainer = config.build_trainer()
    try:
        for epoch in trainer:
            if on_epoch is not None:
                on_epoch(trainer, epoch)
    finally:
        trainer.train_collector.close()
        trainer.policy.bring_home()
    return trainer


def weights_of(trainer):
    return torch.cat([p.detach().reshape(-1) for p in trainer.policy.module.parameters()]).numpy()


@pytest.mark.parametrize(("num_learners", "rtol", "atol"), [(0, 0.0, 0.0), (2, 1e-3, 1e-4)])
def test_max_lag_0_with_remote_runners_and_learners_is_the_run_in_one_process(cluster, num_learners, rtol, atol):
    there = trained(2, 0, 2, num_learners=num_learners)
    np.testing.assert_allclose(weights_of(there), weights_of(trained(0, 0, 4)), rtol=rtol, atol=atol)


@pytest.mark.parametrize(("num_learners", "kills"), [(1, False), (2, False), (0, True)])
def test_every_step_is_accounted_for_while_remote_runners_collect_and_one_is_killed(cluster, num_learners, kills):
    stats = []

    def account(trainer, epoch):
        collector = trainer.train_collector
        if kills and epoch.epoch == 1:
            os.kill(collector.group.process_ids()[1], signal.SIGKILL)
        else:
            collector.get_state()  # waits for what is under way
            stats.append(collector.get_stats())

    trainer = trained(2, 2, 2, account, num_learners)
    last = stats[-1]
    assert last["num_restarts"] == int(kills)
    assert trainer.env_step == last["num_steps_collected"] == 512
    assert last["num_steps_sampled"] == sum(last[f"num_steps_{name}"] for name in ("collected", "dropped", "waiting"))
    lag = trainer.policy.last_results["default_policy"]["diff_num_grad_updates_vs_sampler_policy"]
    assert 0 <= lag <= 2
