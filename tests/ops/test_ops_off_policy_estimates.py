"""Importance sampling and fitted Q evaluation against numbers that are written out."""

import numpy as np
import pytest

from lockstep.ops.off_policy_estimates import (
    discrete_fitted_q_evaluation,
    effective_number,
    fitted_q_evaluation,
    importance_sampling,
    padded,
    weighted_importance_sampling,
)

RATIOS = padded([np.log([2.0, 0.5]), np.log([0.5])])
"""products of ratios: 2, 1 in the first episode; 0.5 in the second, which ends and keeps it"""
REWARDS = padded([np.array([1.0, 3.0]), np.array([4.0])])


def test_importance_sampling_weighs_each_reward_by_the_ratios_up_to_it():
    np.testing.assert_allclose(importance_sampling(RATIOS, REWARDS, 0.5), [2 * 1 + 0.5 * 1 * 3, 0.5 * 4])
    np.testing.assert_allclose(importance_sampling(np.zeros((2, 2)), REWARDS, 1.0), [4.0, 4.0])


def test_weighted_importance_sampling_divides_by_all_ratios():
    first, second = (2 * 1 + 0.5 * 4) / 2.5, (1 * 3 + 0.5 * 0) / 1.5
    counts = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 1.0]])
    expected = [first + 0.5 * second, 1 + 0.5 * 3, 4.0]
    np.testing.assert_allclose(weighted_importance_sampling(RATIOS, REWARDS, 0.5, counts), expected)


def test_ratios_of_any_size_and_of_impossible_actions_do_not_overflow():
    huge = padded([np.array([800.0]), np.array([801.0])])
    found = weighted_importance_sampling(huge, padded([np.array([1.0]), np.array([2.0])]), 1.0, np.ones((1, 2)))
    np.testing.assert_allclose(found, [(1 + 2 * np.e) / (1 + np.e)])
    never = np.full((2, 1), -np.inf)
    assert weighted_importance_sampling(never, np.ones((2, 1)), 1.0, np.ones((1, 2))).tolist() == [0.0]
    assert effective_number(never) == 0.0


def test_the_effective_number_is_that_of_equal_weights():
    assert effective_number(np.zeros((5, 3))) == pytest.approx(5.0)
    assert effective_number(np.log([[3.0], [1.0]])) == pytest.approx(16 / 10)


def test_fitted_q_evaluation_solves_the_equations_of_a_chain():
    """Two states: the first leads to the second with reward 1, the second to itself or the end with reward 2."""
    features = np.eye(2)[[0, 1, 1]]
    following = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    found, converged = fitted_q_evaluation(features, following, np.array([1.0, 2.0, 2.0]), 0.5, np.ones(3), ridge=0.0)
    second = 2 / (1 - 0.5 * 0.5)
    assert converged
    np.testing.assert_allclose(found, [1 + 0.5 * second, second], rtol=1e-6)
    weights = np.array([1.0, 1.0, 3.0])  # the end is three times as likely
    found, _ = fitted_q_evaluation(features, following, np.array([1.0, 2.0, 2.0]), 0.5, weights, ridge=0.0)
    np.testing.assert_allclose(found[1], 2 / (1 - 0.5 * 0.25), rtol=1e-6)


@pytest.mark.parametrize("max_step_size", [0, 1 << 22], ids=["rows", "matrix"])
def test_discrete_fitted_q_evaluation_equals_that_of_action_features(max_step_size):
    rng = np.random.default_rng(0)
    states, next_states = rng.normal(size=(2, 60, 3))
    next_states[::7] = 0.0
    actions = rng.integers(4, size=60)
    actions[actions == 2] = 3  # one that nobody took
    probabilities = rng.dirichlet(np.ones(4), 60)
    rewards, weights = rng.normal(size=60), rng.integers(3, size=60).astype(float)
    places = np.eye(4)[actions]
    features, following = (
        (shares[:, :, None] * rows[:, None, :]).reshape(60, 12)
        for shares, rows in ((places, states), (probabilities, next_states))
    )
    expected, _ = fitted_q_evaluation(features, following, rewards, 0.5, weights)
    found, converged = discrete_fitted_q_evaluation(
        states, actions, next_states, probabilities, rewards, 0.5, weights, max_step_size=max_step_size
    )
    assert converged
    np.testing.assert_allclose(found.reshape(-1), expected, atol=1e-7)


def test_values_that_grow_without_bound_are_told():
    features, following = np.array([[1.0]]), np.array([[3.0]])
    found, converged = fitted_q_evaluation(features, following, np.array([1.0]), 0.9, np.ones(1))
    assert not converged
    assert np.isfinite(found).all()
