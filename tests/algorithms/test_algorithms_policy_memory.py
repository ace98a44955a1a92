"""`Policy` with a recurrent module: the state goes in and out by hand, and is part of a run's checkpoint."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep import PPOConfig
from lockstep.algorithms.policy import Policy

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


def config(kind="lstm", action_space=None):
    return (
        PPOConfig()
        .environment(observation_space=BOX, action_space=action_space or spaces.Discrete(3, start=1))
        .rl_module(model_config={"hiddens": (4,), "recurrent": kind, "recurrent_size": 4, "policy_gain": 1.0})
    )


def obs(steps=5, rows=2, seed=0):
    return np.random.default_rng(seed).normal(size=(steps, rows, 3)).astype(np.float32)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_actions_and_state_go_from_step_to_step(kind):
    policy, x = config(kind).build_policy(), obs()
    inputs = policy.module.forward_train({"obs": torch.from_numpy(x).transpose(0, 1)})["action_dist_inputs"]
    expected = policy.module.action_dist_cls.from_inputs(inputs).mode().numpy() + 1
    assert len(np.unique(expected)) > 1
    state = None
    for t in range(5):
        actions, state = policy.compute_actions(x[t], state, explore=False)
        assert np.array_equal(actions, expected[:, t])
    assert {name: leaf.shape for name, leaf in state.items()} == dict.fromkeys(
        ("h", "c") if kind == "lstm" else ("h",), (2, 4)
    )


def test_single_actions_take_and_give_a_state_without_rows():
    policy, x = config().build_policy(), obs(rows=1)
    state, many = None, None
    for t in range(5):
        action, state = policy.compute_single_action(x[t, 0], state)
        actions, many = policy.compute_actions(x[t], many, explore=False)
        assert isinstance(action, int)
        assert action == actions[0]
        assert all(np.array_equal(state[name], many[name][0]) for name in state)
    assert state["h"].shape == (4,)


def test_a_state_that_does_not_fit_is_refused_with_both_shapes():
    policy = config("gru").build_policy()
    with pytest.raises(ValueError, match=r"\{'h': \(3, 4\)\}, expected \{'h': \(2, 4\)\}; None begins episodes"):
        policy.compute_actions(obs()[0], policy.get_initial_state(3))
    with pytest.raises(ValueError, match="expected"):
        policy.compute_actions(obs()[0], np.zeros((2, 4)))


def test_a_policy_without_memory_has_no_state():
    policy = config(None).build_policy()
    assert not policy.is_stateful
    assert policy.get_initial_state(3) == {}
    assert isinstance(policy.compute_actions(obs()[0]), np.ndarray)
    with pytest.raises(TypeError, match="DefaultActorCriticModule has no memory; use act"):
        policy.act_with_state(obs()[0], None, {})


def test_policy_with_memory_round_trips_through_a_checkpoint(tmp_path):
    policy, x = config().build_policy(), obs()
    again = Policy.from_checkpoint(policy.save_to_path(tmp_path / "policy"))
    assert again.is_stateful
    state = other = None
    for t in range(5):
        actions, state = policy.compute_actions(x[t], state)
        same, other = again.compute_actions(x[t], other)
        assert np.array_equal(actions, same)
        assert np.array_equal(state["c"], other["c"])
