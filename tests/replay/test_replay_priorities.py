"""Prioritised drawing: probabilities, weights, and what new and overwritten rows get."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from replay_tools import rows

from lockstep.replay import (
    MultiAgentReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)


def filled(number=10, **options):
    buffer = PrioritizedVectorReplayBuffer(2 * number, 2, **options)
    for step in range(number):
        buffer.add(rows(2, step))
    return buffer


def test_rows_are_drawn_in_proportion_to_errors_to_the_power_of_alpha():
    buffer = filled(alpha=0.5, epsilon=1e-9)
    errors = np.arange(20.0) ** 2
    buffer.update_weight(np.arange(20), -errors)
    counts = np.bincount(buffer.sample_indices(100_000), minlength=20)
    np.testing.assert_allclose(counts / 100_000, np.arange(20) / 190, atol=0.005)


def test_weights_are_n_p_to_the_minus_beta_over_the_maximum():
    buffer = filled(alpha=0.6, beta=0.4, epsilon=0.01)
    errors = np.arange(20.0)
    buffer.update_weight(np.arange(20), errors)
    batch = buffer.sample(64)
    priorities = (errors + 0.01) ** 0.6
    expected = (20 * priorities / priorities.sum()) ** -0.4
    expected = expected[batch["batch_indexes"]]
    np.testing.assert_allclose(batch["weights"], expected / expected.max(), rtol=1e-5)
    assert batch["weights"].dtype == np.float32
    assert batch["weights"].max() == 1.0


def test_beta_follows_a_schedule_on_vector_buffers_too():
    buffer = PrioritizedVectorReplayBuffer(40, 2, alpha=1.0, beta=[[0, 0.0], [20, 1.0]])
    betas = []
    for step in range(12):
        buffer.add(rows(2, step))
        buffer.update_weight([0, 1], [3.0, 1.0])
        buffer.sample(4)
        betas.append(buffer.priorities.beta.value)
    np.testing.assert_allclose(betas, np.minimum(np.arange(2, 25, 2) / 20, 1))


@pytest.mark.parametrize("build", [lambda: PrioritizedReplayBuffer(10), lambda: PrioritizedVectorReplayBuffer(10, 1)])
@pytest.mark.parametrize("beta", [0.9, [[0, 0.0], [20, 1.0]], lambda step: step / 20])
def test_beta_that_is_set_is_the_one_of_the_weights_and_of_the_states(tmp_path, build, beta):
    made_with = (PrioritizedVectorReplayBuffer(10, 1, beta=beta), build())
    for buffer in made_with:
        for step in range(6):
            buffer.add(rows(1, step))
        buffer.update_weight(np.arange(6), np.arange(1.0, 7.0))
    expected, buffer = made_with
    buffer.beta = beta
    weights = expected.sample(32)["weights"]
    np.testing.assert_array_equal(buffer.sample(32)["weights"], weights)
    assert buffer.beta == expected.beta == pytest.approx(0.9 if beta == 0.9 else 0.3)
    state = buffer.get_state()
    loaded = ReplayBuffer.load(buffer.save(tmp_path / "b"), beta=beta if callable(beta) else None)
    twins = [copy.deepcopy(buffer), loaded]
    if not callable(beta):
        twins.append(build())
        twins[-1].set_state(state)
    after = buffer.sample(32)["weights"]
    for twin in twins:
        np.testing.assert_array_equal(twin.sample(32)["weights"], after)


def test_beta_that_cannot_be_set_is_refused():
    buffer = filled()
    for bad, error in ((-0.1, ValueError), ([[0, 0.4], [9, -1]], ValueError), ("high", TypeError)):
        with pytest.raises(error, match="beta"):
            buffer.beta = bad
    for uniform in (ReplayBuffer(3), VectorReplayBuffer(4, 2)):
        with pytest.raises(ValueError, match="not prioritised"):
            uniform.beta = 0.5
        assert not hasattr(uniform, "beta")
    several = MultiAgentReplayBuffer({"p": ["a"]}, 1, lambda _, number: PrioritizedVectorReplayBuffer(4, number))
    with pytest.raises(AttributeError, match="beta"):
        several.beta = 0.5


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_new_rows_get_the_largest_error_and_overwritten_ones_lose_theirs(alpha):
    buffer = PrioritizedReplayBuffer(4, alpha=alpha, epsilon=1e-9)
    for step in range(4):
        buffer.add(rows(1, step))
    assert buffer.priorities.tree.values.tolist() == [1, 1, 1, 1]
    buffer.update_weight(torch.tensor([0, 1, 1]), torch.tensor([-5.0, 3.0, 2.0]))
    buffer.add(rows(1, 4))
    np.testing.assert_allclose(buffer.priorities.tree.values, np.power([5, 2, 1, 1], alpha))
    buffer.update_weight([0], [0.5])
    buffer.add(rows(1, 5))
    np.testing.assert_allclose(buffer.priorities.tree.values, np.power([0.5, 5, 1, 1], alpha))


def test_emptying_forgets_priorities():
    buffer = filled()
    buffer.reset()
    assert buffer.priorities.tree.total == 0
    buffer.add(rows(2))
    assert set(buffer.sample_indices(50).tolist()) == {0, 1}


def test_rows_whose_stack_is_lost_are_not_drawn_but_keep_their_priority():
    buffer = PrioritizedReplayBuffer(6, alpha=1.0, stack_num=3)
    for step in range(8):
        buffer.add(rows(1, step))
    buffer.update_weight(np.arange(6), np.full(6, 1e-3))
    buffer.update_weight([2, 3], [1e6, 1e6])  # the two oldest
    assert set(buffer.sample_indices(500).tolist()) == {0, 1, 4, 5}
    buffer.update_weight([0, 1, 4, 5], [1e-2, 2e-2, 3e-2, 4e-2])
    drawn = np.bincount(buffer.sample_indices(8000), minlength=6) / 8000
    np.testing.assert_allclose(drawn, [0.1, 0.2, 0.0, 0.0, 0.3, 0.4], atol=0.02)


def test_priorities_refuse_options_that_are_not_allowed():
    buffer = filled()
    with pytest.raises(ValueError, match="one for each"):
        buffer.update_weight([0, 1], [1.0])
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not finite"):
            buffer.update_weight([0], [bad])
    with pytest.raises(ValueError, match="not prioritised"):
        ReplayBuffer(3).update_weight([0], [1.0])
    with pytest.raises(TypeError, match="beta"):
        PrioritizedReplayBuffer(3, beta="high")
