"""A pipeline of a user's own on Ray: runners sample and learners learn as one process does."""

import numpy as np
import pytest
from picture_env import PictureEnv, see, turn

from lockstep import DQNConfig, PPOConfig

ray = pytest.importorskip("ray")


def trained(config, num_learners, num_env_runners):
    config.environment(PictureEnv, normalize_rewards=True).debugging(seed=3).framework(dtype="float64")
    config.rl_module(model_config={"hiddens": (4,)}).evaluation(evaluation_interval=0)
    config.env_runners(
        num_env_runners=num_env_runners,
        num_envs_per_env_runner=4 // max(1, num_env_runners),
        num_cpus_per_env_runner=0.5,
        env_to_module_connector=see,
        module_to_env_connector=turn,
    )
    config.learners(num_learners=num_learners, learner_timeout_s=60.0)
    trainer = config.build_trainer()
    try:
        trainer.run()
        return {name: tensor.numpy() for name, tensor in trainer.policy.state_dict().items()}
    finally:
        trainer.close()


def ppo():
    return PPOConfig().training(train_batch_size=32, minibatch_size=8, lr=1e-2).reporting(total_steps=64)


def dqn():
    config = DQNConfig().training(train_batch_size=8, lr=1e-2).reporting(total_steps=64)
    return config.replay(learning_starts=24, capacity=100, update_per_step=0.25)


@pytest.mark.parametrize("make", [ppo, dqn])
def test_two_learners_and_two_runners_are_one_with_statistics(make, cluster):
    one, several = trained(make(), 0, 0), trained(make(), 2, 2)
    assert one.keys() == several.keys()
    assert any("connectors" in name for name in one)
    for name, value in one.items():
        np.testing.assert_allclose(several[name], value, rtol=0, atol=1e-12, err_msg=name)
