"""A policy copied, saved by torch, moved to a device: `deepcopy`, `state_dict`, `train`, `eval`, `to`."""

import copy

import numpy as np
import pytest
import torch
from agent_games import game_config
from algorithm_tools import BOX, make_policy
from gymnasium import spaces
from torch import nn

from lockstep import DQNConfig, PPOConfig, SACConfig, SampleBatch, policy_within_training_step
from lockstep.modules import wrap_module
from lockstep.replay import ReplayBuffer
from lockstep.tracking import torch_param_hash

OBS = np.random.default_rng(0).normal(3.0, 5.0, (50, 3)).astype(np.float32)
ACTION = spaces.Box(-1.0, 1.0, (2,), np.float32)


def normalised(seed):
    policy = make_policy(ACTION, seed=seed, normalize_observations=True, normalize_rewards=True)
    policy.connectors.update(OBS * seed, None)
    return policy


@pytest.mark.parametrize(
    "make",
    [
        normalised,
        lambda seed: make_policy(ACTION, config=SACConfig(), seed=seed),
        lambda seed: make_policy(config=DQNConfig(), seed=seed),
    ],
    ids=["ppo", "sac", "dqn"],
)
def test_a_policy_acts_the_same_after_torch_has_saved_and_loaded_it(make, tmp_path):
    policy, other = make(1), make(2)
    before = policy.compute_actions(OBS)
    torch.save(policy.state_dict(), tmp_path / "policy.pt")
    assert (other.compute_actions(OBS) != before).any()
    keys = other.load_state_dict(torch.load(tmp_path / "policy.pt"))  # weights only, torch's default
    assert keys == ([], [])
    np.testing.assert_array_equal(other.compute_actions(OBS), before)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in policy.state_dict().items())


def test_a_state_dict_that_does_not_fit_is_refused_with_all_names_and_nothing_is_changed():
    policy = make_policy(ACTION)
    before, state = policy.compute_actions(OBS), make_policy(ACTION, seed=1).state_dict()
    bad = {**state, "extra": torch.zeros(1), "module.log_std": torch.zeros(3)}
    del bad["module.policy_head.bias"]
    with pytest.raises(
        RuntimeError, match=r"missing \['module.policy_head.bias'\].*unexpected \['extra'\].*log_std has"
    ):
        policy.load_state_dict(bad)
    np.testing.assert_array_equal(policy.compute_actions(OBS), before)
    del bad["module.log_std"]
    keys = policy.load_state_dict(bad, strict=False)
    assert keys.missing_keys == ["module.log_std", "module.policy_head.bias"]
    assert keys.unexpected_keys == ["extra"]
    assert torch.equal(policy.state_dict()["module.policy_head.weight"], state["module.policy_head.weight"])


def test_a_policy_of_several_agents_acts_the_same_after_torch_has_saved_and_loaded_it(tmp_path):
    policy, other = (game_config(debugging={"seed": seed}).build_policy() for seed in (1, 2))
    assert {name.split(".module.")[0] for name in policy.state_dict()} == {"first", "others"}
    torch.save(policy.state_dict(), tmp_path / "policy.pt")
    other.load_state_dict(torch.load(tmp_path / "policy.pt"))
    for mine, theirs in zip(policy.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert other.eval() is other
    assert not any(one.module.training for one in other.acting.values())
    with pytest.raises(RuntimeError, match="missing"):
        other.load_state_dict({})


def test_train_and_eval_switch_dropout_as_in_torch():
    network = nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    module = wrap_module(network, BOX, spaces.Discrete(2))
    config = PPOConfig().environment(observation_space=BOX, action_space=spaces.Discrete(2))
    policy = config.rl_module(rl_module_spec=module).build_policy()
    assert policy.train() is policy
    drawn = [policy.compute_actions(OBS) for _ in range(20)]
    assert any((one != drawn[0]).any() for one in drawn)
    assert policy.eval() is policy
    drawn = [policy.compute_actions(OBS) for _ in range(20)]
    assert all((one == drawn[0]).all() for one in drawn)


def test_to_a_device_keeps_what_it_learned():
    policy = normalised(1)
    assert policy.to("cpu") is policy
    group, config, before = policy.learner_group, policy.config, policy.compute_actions(OBS)
    assert policy.to(torch.device("cpu")).learner_group is group
    rng = policy.get_state()["rng"]
    device = "cuda" if torch.cuda.is_available() else "cpu:0"  # another name: it moves, if not far
    policy.to(device)
    assert policy.learner_group is not group
    assert (policy.config.device, config.device) == (device, "cpu")
    np.testing.assert_allclose(policy.compute_actions(OBS), before, atol=1e-5)
    assert policy.get_state()["rng"] == rng
    assert {parameter.device.type for parameter in policy.parameters()} == {torch.device(device).type}


# -- deep copies ---


def drawn(policy):
    with policy_within_training_step(policy):
        return policy.compute_actions(OBS)


@pytest.mark.parametrize("config, action_space", [(DQNConfig, spaces.Discrete(3)), (SACConfig, ACTION)])
def test_a_deep_copy_acts_and_learns_on_as_the_policy_would_and_changes_nothing_of_it(config, action_space):
    policy = make_policy(action_space, config=config())
    actions = np.zeros(50, np.int64) if config is DQNConfig else np.tanh(OBS[:, :2])
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
