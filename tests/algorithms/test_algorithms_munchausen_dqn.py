"""Munchausen DQN: targets worked out by hand, an implementation apart, its limits soft DQN and DQN, masks."""

import numpy as np
import pytest
import torch
from algorithm_tools import MODULE
from gymnasium import spaces

from lockstep import MunchausenDQNConfig, SampleBatch, get_config

STATES, TWO = spaces.Discrete(3), spaces.Discrete(2)
ONLINE = np.array([[1.0, 2.0], [4.0, 3.0], [0.5, 0.0]])  # [state, action]
TARGET = np.array([[1.0, 2.0], [0.0, 0.0], [5.0, 7.0]])
GAMMA, TEMPERATURE, COEFF = 0.9, 0.5, 0.8


def learner_of(observations=STATES, actions=TWO, algorithm="munchausen_dqn", **training):
    """A learner in float64 whose values are the table `ONLINE` and whose target network's are `TARGET`."""
    config = get_config(algorithm).framework(dtype="float64").training(gamma=GAMMA, lr=1e-2, **training)
    learner = config.rl_module(model_config={"hiddens": ()}).build_learner(spaces=(observations, actions))
    if observations is STATES:
        target = learner.registered[f"{MODULE}/target"].module
        for module, table in ((learner.module[MODULE], ONLINE), (target, TARGET)):
            with torch.no_grad():
                module.policy_head.weight.copy_(torch.from_numpy(table.T))
                module.policy_head.bias.zero_()
    return learner


def munchausen(**training):
    options = {"munchausen_coeff": COEFF, "entropy_temperature": TEMPERATURE, **training}
    return learner_of(**options)


def rows(**more):
    return SampleBatch(
        obs=np.array([0, 0, 1, 2]),
        actions=np.array([0, 1, 0, 0]),
        rewards=np.array([1.0, -1.0, 0.5, 2.0]),
        new_obs=np.array([1, 2, 0, 1]),
        terminateds=np.array([False, False, True, False]),
        **more,
    )


def errors_of(learner, batch):
    learner.update_from_batch(batch)
    return learner.row_errors[MODULE].numpy()


def written_out(batch, coeff, temperature, lowest):
    """The temporal differences of equation 1, sum by sum, in the form of the paper."""
    found = []
    for obs, action, reward, new_obs, terminated in zip(
        batch["obs"], batch["actions"], batch["rewards"], batch["new_obs"], batch["terminateds"]
    ):
        policy = np.exp(TARGET[obs] / temperature) / np.exp(TARGET[obs] / temperature).sum()
        bonus = coeff * np.clip(temperature * np.log(policy[action]), lowest, 0.0)
        after = np.exp(TARGET[new_obs] / temperature) / np.exp(TARGET[new_obs] / temperature).sum()
        soft = sum(p * (q - temperature * np.log(p)) for p, q in zip(after, TARGET[new_obs]))
        found.append(ONLINE[obs, action] - (reward + bonus + GAMMA * (not terminated) * soft))
    return np.array(found)


def test_targets_are_those_worked_out_by_hand():
    """State 1 of the target network has two equal values, so its policy is one half each, and its value 0.5 log 2."""
    likely, unlikely = -np.log1p(np.exp(-2.0)), -2.0 - np.log1p(np.exp(-2.0))  # of 2 and 1 over a temperature of 0.5
    after_two = 7.0 + 0.5 * np.log1p(np.exp(-4.0))
    expected = [
        1.0 - (1.0 + 0.8 * -1.0 + 0.9 * 0.5 * np.log(2.0)),  # 0.5 * -2.127 is cut off at -1
        2.0 - (-1.0 + 0.8 * 0.5 * likely + 0.9 * after_two),
        4.0 - (0.5 + 0.8 * 0.5 * np.log(0.5)),  # the episode is over
        0.5 - (2.0 + 0.8 * -1.0 + 0.9 * 0.5 * np.log(2.0)),  # 0.5 * -4.018
    ]
    assert 0.5 * unlikely < -1.0
    np.testing.assert_allclose(errors_of(munchausen(), rows()), expected, rtol=1e-12)


@pytest.mark.parametrize("lowest", [0.0, -0.3, -1.0, -100.0])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
def test_errors_and_loss_are_those_of_the_papers_sums(temperature, lowest):
    batch, weights = rows(), np.array([0.5, 1.0, 2.0, 0.25])
    expected = written_out(batch, COEFF, temperature, lowest)
    learner = munchausen(entropy_temperature=temperature, lowest_log_policy=lowest)
    results = learner.update_from_batch(rows(weights=weights))[MODULE]
    np.testing.assert_allclose(learner.row_errors[MODULE].numpy(), expected, rtol=1e-10)
    assert results["qf_loss"] == pytest.approx(np.mean(weights * 0.5 * expected**2), rel=1e-10)


def test_without_the_logarithm_it_is_soft_dqn():
    """Targets are reward and discounted log-sum-exp, whatever the action."""
    batch = rows()
    soft = TEMPERATURE * np.log(np.exp(TARGET[batch["new_obs"]] / TEMPERATURE).sum(1))
    expected = ONLINE[batch["obs"], batch["actions"]] - batch["rewards"] - GAMMA * ~batch["terminateds"] * soft
    np.testing.assert_allclose(errors_of(munchausen(munchausen_coeff=0.0), batch), expected, rtol=1e-12)


def test_with_hardly_any_temperature_and_without_the_logarithm_it_is_dqn():
    cold = errors_of(munchausen(munchausen_coeff=0.0, entropy_temperature=1e-6), rows())
    plain = errors_of(learner_of(algorithm="dqn", double_q=False), rows())
    np.testing.assert_allclose(cold, plain, atol=1e-5)


def test_small_temperatures_and_large_values_stay_finite():
    learner = munchausen(entropy_temperature=1e-3)
    with torch.no_grad():
        learner.registered[f"{MODULE}/target"].module.policy_head.weight.mul_(1e3)
    assert np.isfinite(errors_of(learner, rows())).all()


def test_forbidden_actions_have_no_part_in_the_policy():
    """With one action allowed the policy is sure: no bonus, and the value of that action."""
    observations = spaces.Dict(observations=spaces.Box(-1, 1, (3,), np.float32), action_mask=spaces.MultiBinary(2))
    learner = learner_of(observations, munchausen_coeff=COEFF, entropy_temperature=TEMPERATURE)
    rng, number = np.random.default_rng(0), 6
    seen = [rng.normal(size=(number, 3)) for _ in range(2)]
    masks = np.array([[1, 0]] * 3 + [[0, 1]] * 3)
    allowed = masks.argmax(1)
    batch = SampleBatch(
        obs={"observations": seen[0], "action_mask": masks},
        new_obs={"observations": seen[1], "action_mask": masks},
        actions=allowed,
        rewards=rng.normal(size=number),
        terminateds=np.zeros(number, bool),
    )
    target = learner.registered[f"{MODULE}/target"].module
    with torch.no_grad():
        here, after = (target.policy_head(torch.from_numpy(each)).numpy()[np.arange(number), allowed] for each in seen)
    expected = here - (batch["rewards"] + GAMMA * after)  # the network that learns begins with the same values
    np.testing.assert_allclose(errors_of(learner, batch), expected, rtol=1e-10)


def test_the_bonus_is_reported_and_defaults_are_the_papers():
    training = MunchausenDQNConfig().training
    assert (training.munchausen_coeff, training.entropy_temperature, training.lowest_log_policy) == (0.9, 0.03, -1.0)
    results = munchausen().update_from_batch(rows())[MODULE]
    policies = [0.8 * -1.0, 0.8 * 0.5 * -np.log1p(np.exp(-2.0)), 0.8 * 0.5 * np.log(0.5), 0.8 * -1.0]
    assert results["bonus"] == pytest.approx(np.mean(policies))
