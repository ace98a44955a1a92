"""Copies of a policy: independent, complete, and never pickled."""

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep import DQNConfig, PPOConfig, SACConfig, SampleBatch, policy_within_training_step
from lockstep.replay import ReplayBuffer
from lockstep.tracking import torch_param_hash

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
OBS = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)


def policy_of(config, action_space, **environment):
    config.rl_module(model_config={"hiddens": (4,)}).debugging(seed=5)
    return config.environment(observation_space=BOX, action_space=action_space, **environment).build_policy()


def drawn(policy):
    with policy_within_training_step(policy):
        return policy.compute_actions(OBS)


@pytest.mark.parametrize("config, action_space", [(DQNConfig, spaces.Discrete(3)), (SACConfig, BOX)])
def test_a_deep_copy_acts_and_learns_on_as_the_policy_would_and_changes_nothing_of_it(config, action_space):
    policy = policy_of(config(), action_space)
    actions = np.zeros(50, np.int64) if config is DQNConfig else OBS
    ended = np.zeros(50, np.bool_)
    columns = {"obs": OBS, "actions": actions, "rewards": OBS[:, 0], "new_obs": OBS[::-1].copy()}
    buffer = ReplayBuffer.from_batch(SampleBatch(**columns, terminateds=ended, truncateds=ended))

    def learn(learner, memory):
        with policy_within_training_step(learner):
            learner.update(8, memory, repeat=3)
        return torch_param_hash(learner.module), learner.learner_group.learner.get_state()

    learn(policy, buffer)
    drawn(policy)
    before, twin = torch_param_hash(policy.module), copy.deepcopy(policy)
    assert torch_param_hash(twin.module) == before
    later = learn(twin, copy.deepcopy(buffer))[0]
    moved = drawn(twin)
    assert later != before == torch_param_hash(policy.module)
    assert learn(policy, buffer)[0] == later  # optimizers and target networks were copied too
    np.testing.assert_array_equal(drawn(policy), moved)


def test_a_deep_copy_has_the_statistics_of_the_observations_of_its_own():
    policy = policy_of(PPOConfig(), BOX, normalize_observations=True)
    policy.connectors.obs.update(OBS * 3.0 + 1.0)
    twin = copy.deepcopy(policy)
    np.testing.assert_array_equal(twin.compute_actions(OBS), policy.compute_actions(OBS))
    kept = policy.compute_actions(OBS)
    twin.connectors.obs.update(OBS - 9.0)
    np.testing.assert_array_equal(policy.compute_actions(OBS), kept)
    assert not np.array_equal(twin.compute_actions(OBS), kept)


def test_a_deep_copy_keeps_a_module_of_the_users_own():
    module = policy_of(PPOConfig(), BOX).module
    policy = PPOConfig().environment(observation_space=BOX, action_space=BOX).rl_module(rl_module_spec=module)
    policy = policy.build_policy()
    twin = copy.deepcopy(policy)
    assert type(twin.module) is type(module)
    assert twin.module is not policy.module
    assert all(torch.equal(a, b) for a, b in zip(twin.module.parameters(), policy.module.parameters(), strict=True))


def test_a_policy_is_not_pickled_and_the_error_says_what_to_do_instead():
    with pytest.raises(TypeError, match=r"write it with save_to_path\(path\), read it with from_checkpoint"):
        pickle.dumps(policy_of(PPOConfig(), BOX))
