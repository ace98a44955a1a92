"""IMPALA and APPO over real Ray actors: in step the run is that of one process, and lost runners are replaced."""

import os
import signal

import numpy as np
import pytest
import torch
from agent_games import BitGame, CountingGame, game_config

from lockstep import APPOConfig, IMPALAConfig

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.faults


def trained(num_runners, max_lag, num_envs, on_epoch=None, num_learners=0, fixed_lag=True):
    """A trainer after 8 updates of 64 steps."""
    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=num_runners, num_envs_per_env_runner=num_envs, num_cpus_per_env_runner=0.5)
        .learners(num_learners=num_learners)
        .training(train_batch_size=64, lr=1e-2, max_lag=max_lag, fixed_lag=fixed_lag)
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
        trainer.policy.use_local_learner()
    return trainer


def weights_of(trainer):
    return torch.cat([p.detach().reshape(-1) for p in trainer.policy.module.parameters()]).numpy()


def test_a_fixed_lag_over_remote_runners_is_one_run_however_many_there_are(cluster):
    """Bit for bit, and in a second run too."""
    runs = [trained(num_runners, 1, 4 // num_runners) for num_runners in (1, 2, 2, 4)]
    for other in runs[1:]:
        np.testing.assert_array_equal(weights_of(runs[0]), weights_of(other))
        assert other.policy.last_results["default_policy"]["diff_num_grad_updates_vs_sampler_policy"] == 1.0


@pytest.mark.parametrize(("num_learners", "rtol", "atol"), [(0, 0.0, 0.0), (2, 1e-3, 1e-4)])
def test_max_lag_0_with_remote_runners_and_learners_equals_one_process(cluster, num_learners, rtol, atol):
    there = trained(2, 0, 2, num_learners=num_learners)
    np.testing.assert_allclose(weights_of(there), weights_of(trained(0, 0, 4)), rtol=rtol, atol=atol)


@pytest.mark.parametrize(("num_learners", "kills"), [(1, False), (2, False), (0, True)])
def test_every_step_counts_while_runners_collect_and_one_is_killed(cluster, num_learners, kills):
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


def trained_on_game(algorithm, num_runners, num_learners):
    """Returns and weights of several agents after 6 updates, in step."""
    config = game_config(CountingGame, algorithm).framework(dtype="float64").training(train_batch_size=32, max_lag=0)
    config.env_runners(
        num_env_runners=num_runners, num_envs_per_env_runner=4 // max(1, num_runners), num_cpus_per_env_runner=0.5
    )
    config.learners(num_learners=num_learners).reporting(total_steps=192, steps_per_epoch=64)
    trainer = config.build_trainer()
    returns = [epoch.train_collect_stat.agent_returns for epoch in trainer.run().history]
    weights = trainer.policy.learner_group.get_weights()
    trainer.close()
    return returns, weights


@pytest.mark.parametrize(("algorithm", "num_learners"), [(IMPALAConfig, 0), (IMPALAConfig, 2), (APPOConfig, 2)])
def test_multi_agent_max_lag_0_over_processes_equals_one_process(cluster, algorithm, num_learners):
    returns, weights = trained_on_game(algorithm, 2, num_learners)
    expected_returns, expected = trained_on_game(algorithm, 0, 0)
    assert returns == expected_returns
    for module_id, parameters in expected.items():
        for name, array in parameters.items():
            np.testing.assert_allclose(weights[module_id][name], array, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("algorithm", [IMPALAConfig, APPOConfig])
def test_two_agents_learn_their_bits_while_two_remote_runners_collect(cluster, algorithm):
    config = game_config(BitGame, algorithm).training(train_batch_size=256, lr=3e-2, max_lag=2)
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=8, num_cpus_per_env_runner=0.5)
    config.evaluation(evaluation_duration=16, evaluation_num_envs=16)
    trainer = config.reporting(total_steps=256 * 40, steps_per_epoch=2560).build_trainer()
    info, stats = trainer.run(), trainer.train_collector.get_stats()
    trainer.close()
    assert info.history[-1].test_collect_stat.agent_returns == ((1.0, 1.0),) * 16
    assert stats["num_steps_collected"] == 256 * 40
    assert stats["num_steps_sampled"] == sum(stats[f"num_steps_{n}"] for n in ("collected", "dropped", "waiting"))
