"""A collector made by hand gives its policy as many frames as the policy's configuration says."""

import numpy as np
import pytest

from lockstep import Collector, DQNConfig, OffpolicyTrainer, Policy
from lockstep.envs import make_vector
from lockstep.replay import VectorReplayBuffer


@pytest.fixture
def policy():
    return DQNConfig().environment("CartPole-v1", frame_stack=4).debugging(seed=1).build_policy()


def trainer_of(policy, **options):
    buffer = VectorReplayBuffer(1_000, 2, **options)
    collector = Collector(policy, make_vector("CartPole-v1", num_envs=2), buffer, exploration_noise=True)
    amounts = {"max_epoch": 1, "step_per_epoch": 200, "step_per_collect": 20, "update_per_step": 0.1, "batch_size": 16}
    return OffpolicyTrainer(policy, train_collector=collector, **amounts, seed=1)


def test_frame_stacks_by_hand_and_from_replay_train_equal_weights(policy):
    trainer = trainer_of(policy)
    assert trainer.run().gradient_step == 20
    assert trainer.train_collector.buffer.sample(8)["obs"].shape == (8, 4, 4)
    other = DQNConfig().environment("CartPole-v1", frame_stack=4).debugging(seed=1).build_policy()
    trainer_of(other, stack_num=4, save_only_last_obs=True, ignore_obs_next=True).run()
    for mine, its in zip(policy.module.parameters(), other.module.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), its.detach().numpy())


def test_a_saved_policy_with_frame_stacks_is_evaluated_without_options(policy, tmp_path):
    policy.save_to_path(tmp_path / "policy")
    loaded = Policy.from_checkpoint(tmp_path / "policy")
    returns = [Collector(one, "CartPole-v1", seed=1).collect(n_episode=3).returns.tolist() for one in (policy, loaded)]
    assert returns[0] == returns[1]
