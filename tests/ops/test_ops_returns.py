"""Returns: written-out numbers, identities, and the compiled kernels against plain Python."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import examples

from lockstep.ops import discounted_returns, gae, lambda_returns, monte_carlo_returns, n_step_returns, vtrace
from lockstep.ops.device_returns import tensor_lambda_returns

# Environment 0: truncated after row 1 (final value 5), terminated after row 3 (the 7 must not be read).
# Environment 1: nothing ends, the trace is cut after row 3 with a next value of 4.
REWARDS = np.array([[1, 0], [2, 0], [3, 0], [4, 1]], dtype=np.float32)
VALUES = np.array([[1, 0], [1, 1], [2, 0], [2, 2]], dtype=np.float32)
NEXT_VALUES = np.array([[1, 1], [5, 0], [2, 2], [7, 4]], dtype=np.float32)
TERMINATEDS = np.array([[0, 0], [0, 0], [0, 0], [1, 0]], dtype=bool)
TRUNCATEDS = np.array([[0, 0], [1, 0], [0, 0], [0, 0]], dtype=bool)
TRACE = (REWARDS, NEXT_VALUES, TERMINATEDS, TRUNCATEDS)


def test_gae_and_lambda_returns_written_out():
    advantages, targets = gae(REWARDS, VALUES, NEXT_VALUES, TERMINATEDS, TRUNCATEDS, gamma=0.5, lambda_=0.5)
    np.testing.assert_array_equal(advantages, [[1.375, 0.328125], [3.5, -0.6875], [2.5, 1.25], [2.0, 1.0]])
    np.testing.assert_array_equal(lambda_returns(*TRACE, gamma=0.5, lambda_=0.5), targets)
    np.testing.assert_array_equal(targets, [[2.375, 0.328125], [4.5, 0.3125], [4.5, 1.25], [4.0, 3.0]])


def test_discounted_returns_written_out():
    np.testing.assert_array_equal(
        discounted_returns(*TRACE, gamma=0.5), [[3.25, 0.375], [4.5, 0.75], [5.0, 1.5], [4.0, 3.0]]
    )


def test_monte_carlo_returns_written_out():
    returns = monte_carlo_returns(REWARDS, TERMINATEDS, TRUNCATEDS, gamma=0.5)
    np.testing.assert_array_equal(returns, [[2.0, 0.125], [2.0, 0.25], [5.0, 0.5], [4.0, 1.0]])


@pytest.mark.parametrize(
    "n_step, expected",
    [
        (1, [[1.5, 0.5], [4.5, 0.0], [4.0, 1.0], [4.0, 3.0]]),
        (2, [[3.25, 0.0], [4.5, 0.5], [5.0, 1.5], [4.0, 3.0]]),
        (3, [[3.25, 0.25], [4.5, 0.75], [5.0, 1.5], [4.0, 3.0]]),
        (4, [[3.25, 0.375], [4.5, 0.75], [5.0, 1.5], [4.0, 3.0]]),
        (99, [[3.25, 0.375], [4.5, 0.75], [5.0, 1.5], [4.0, 3.0]]),
    ],
)
def test_n_step_returns_written_out(n_step, expected):
    np.testing.assert_array_equal(n_step_returns(*TRACE, gamma=0.5, n_step=n_step), expected)


# ---- plain Python from the definitions, one trace [T], not the recursions of the kernels ----


def end_of_episode(terminateds, truncateds, t):
    """Index of the last row of the episode (or trace) that row `t` is in."""
    while t < len(terminateds) - 1 and not (terminateds[t] or truncateds[t]):
        t += 1
    return t


def plain_n_step(rewards, next_values, terminateds, truncateds, gamma, n_step):
    returns = []
    for t in range(len(rewards)):
        last = min(t + n_step - 1, end_of_episode(terminateds, truncateds, t))
        total = sum(gamma ** (k - t) * rewards[k] for k in range(t, last + 1))
        if not terminateds[last]:
            total += gamma ** (last - t + 1) * next_values[last]
        returns.append(total)
    return returns


def plain_lambda_returns(rewards, next_values, terminateds, truncateds, gamma, lambda_):
    """The forward view: a mixture of all n-step returns of the episode, the longest taking what is left."""
    n_steps = [
        plain_n_step(rewards, next_values, terminateds, truncateds, gamma, n) for n in range(1, len(rewards) + 1)
    ]
    returns = []
    for t in range(len(rewards)):
        rows_left = end_of_episode(terminateds, truncateds, t) - t + 1
        mixture = sum((1 - lambda_) * lambda_ ** (n - 1) * n_steps[n - 1][t] for n in range(1, rows_left))
        returns.append(mixture + lambda_ ** (rows_left - 1) * n_steps[rows_left - 1][t])
    return returns


def plain_gae(rewards, values, next_values, terminateds, truncateds, gamma, lambda_):
    """The sum of equation 16, term by term."""
    advantages = []
    for t in range(len(rewards)):
        total = 0.0
        for k in range(t, end_of_episode(terminateds, truncateds, t) + 1):
            bootstrap = 0.0 if terminateds[k] else gamma * next_values[k]
            total += (gamma * lambda_) ** (k - t) * (rewards[k] + bootstrap - values[k])
        advantages.append(total)
    return advantages


@st.composite
def traces(draw, max_steps=12):
    """`(rewards, values, next_values, terminateds, truncateds)` [T, B], random episode ends.

    `next_values[t]` is `values[t + 1]` inside an episode, as it is for a real trace.
    """
    num_steps, num_envs = draw(st.integers(1, max_steps)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    end_rate = draw(st.sampled_from([0.0, 0.2, 0.6]))
    rewards, values, next_values = rng.normal(size=(3, num_steps, num_envs))
    terminateds, truncateds = rng.random((2, num_steps, num_envs)) < end_rate
    inside = ~(terminateds | truncateds)[:-1]
    next_values[:-1] = np.where(inside, values[1:], next_values[:-1])
    return rewards, values, next_values, terminateds, truncateds


unit = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])
fast = examples(60)


def columns(plain, arrays, *coefficients):
    """The plain function applied to each environment's column."""
    results = [plain(*(a[:, b] for a in arrays), *coefficients) for b in range(arrays[0].shape[1])]
    return np.array(results).T


@fast
@given(trace=traces(), gamma=unit, lambda_=unit)
def test_gae_kernel_equals_the_plain_sum(trace, gamma, lambda_):
    advantages, targets = gae(*trace, gamma=gamma, lambda_=lambda_)
    expected = columns(plain_gae, trace, gamma, lambda_)
    np.testing.assert_allclose(advantages, expected, atol=1e-12)
    np.testing.assert_allclose(targets, expected + trace[1], atol=1e-12)


@fast
@given(trace=traces(), gamma=unit, lambda_=unit)
def test_lambda_returns_kernel_equals_the_forward_view(trace, gamma, lambda_):
    rewards, _, *rest = trace
    returns = lambda_returns(rewards, *rest, gamma=gamma, lambda_=lambda_)
    expected = columns(plain_lambda_returns, (rewards, *rest), gamma, lambda_)
    np.testing.assert_allclose(returns, expected, atol=1e-12)


@fast
@given(trace=traces(), gamma=unit, lambda_=unit)
def test_lambda_returns_of_tensors_equal_the_kernel(trace, gamma, lambda_):
    rewards, _, next_values, terminateds, truncateds = trace
    expected = lambda_returns(rewards, next_values, terminateds, truncateds, gamma=gamma, lambda_=lambda_)
    numbers = [torch.from_numpy(np.where(terminateds, np.nan, next_values)), torch.from_numpy(terminateds)]
    cuts = torch.from_numpy(terminateds | truncateds)
    found = tensor_lambda_returns(torch.from_numpy(rewards), *numbers, cuts, gamma=gamma, lambda_=lambda_)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@fast
@given(trace=traces(), gamma=unit, n_step=st.integers(1, 14))
def test_n_step_returns_kernel_equals_the_plain_sum(trace, gamma, n_step):
    rewards, _, *rest = trace
    returns = n_step_returns(rewards, *rest, gamma=gamma, n_step=n_step)
    np.testing.assert_allclose(returns, columns(plain_n_step, (rewards, *rest), gamma, n_step), atol=1e-12)


@fast
@given(trace=traces(), gamma=unit, lambda_=unit)
def test_value_targets_of_gae_are_the_lambda_returns(trace, gamma, lambda_):
    rewards, _, *rest = trace
    targets = gae(*trace, gamma=gamma, lambda_=lambda_)[1]
    np.testing.assert_allclose(targets, lambda_returns(rewards, *rest, gamma=gamma, lambda_=lambda_), atol=1e-12)


@fast
@given(trace=traces(), gamma=unit)
def test_gae_with_lambda_one_is_monte_carlo_minus_value(trace, gamma):
    rewards, values, next_values, terminateds, truncateds = trace
    terminateds = terminateds | truncateds  # complete episodes: every end is a true end
    terminateds[-1] = True
    advantages = gae(rewards, values, next_values, terminateds, truncateds, gamma=gamma, lambda_=1.0)[0]
    monte_carlo = monte_carlo_returns(rewards, terminateds, truncateds, gamma=gamma)
    np.testing.assert_allclose(advantages, monte_carlo - values, atol=1e-12)


@fast
@given(trace=traces(), gamma=unit)
def test_gae_with_lambda_zero_is_the_one_step_error(trace, gamma):
    rewards, values, *rest = trace
    advantages = gae(*trace, gamma=gamma, lambda_=0.0)[0]
    np.testing.assert_allclose(advantages, n_step_returns(rewards, *rest, gamma=gamma, n_step=1) - values, atol=1e-12)


@fast
@given(first=traces(), second=traces(), ended_by=st.sampled_from(["terminated", "truncated"]), gamma=unit)
def test_two_episodes_in_one_trace_equal_the_two_apart(first, second, ended_by, gamma):
    num_envs = min(first[0].shape[1], second[0].shape[1])
    first, second = ([a[:, :num_envs].copy() for a in trace] for trace in (first, second))
    first[3 if ended_by == "terminated" else 4][-1] = True
    joined = [np.concatenate(pair) for pair in zip(first, second)]

    def everything(rewards, values, *rest):
        return (
            *gae(rewards, values, *rest, gamma=gamma, lambda_=0.9),
            *vtrace(0.1 * values, rewards, values, *rest, gamma=gamma, lambda_=0.9),
            lambda_returns(rewards, *rest, gamma=gamma, lambda_=0.9),
            n_step_returns(rewards, *rest, gamma=gamma, n_step=3),
            monte_carlo_returns(rewards, *rest[1:], gamma=gamma),
        )

    for apart_1, apart_2, together in zip(everything(*first), everything(*second), everything(*joined)):
        np.testing.assert_array_equal(together, np.concatenate([apart_1, apart_2]))


def test_next_values_of_terminated_rows_are_never_read():
    next_values = NEXT_VALUES.copy()
    next_values[TERMINATEDS] = np.nan
    for result in (
        *gae(REWARDS, VALUES, next_values, TERMINATEDS, TRUNCATEDS, gamma=0.9, lambda_=0.9),
        lambda_returns(REWARDS, next_values, TERMINATEDS, TRUNCATEDS, gamma=0.9, lambda_=0.9),
        n_step_returns(REWARDS, next_values, TERMINATEDS, TRUNCATEDS, gamma=0.9, n_step=2),
    ):
        assert np.isfinite(result).all()


def test_a_row_that_both_terminated_and_truncated_counts_as_terminated():
    both = np.array([True])
    advantages, _ = gae([1.0], [0.25], [9.0], both, both, gamma=0.5, lambda_=0.5)
    np.testing.assert_array_equal(advantages, [0.75])


def test_an_invalid_row_after_an_end_changes_no_other_row():
    """The reset row of NEXT_STEP environments lies between two episodes; no other row sees what is in it."""
    rng = np.random.default_rng(0)
    rewards, values, next_values = rng.normal(size=(3, 6))
    terminateds = np.array([0, 0, 1, 0, 0, 0], dtype=bool)
    invalid = 3
    results = []
    for junk, flag in ((0.0, False), (1e6, False), (np.nan, True)):
        rewards[invalid] = values[invalid] = next_values[invalid] = junk
        truncateds = np.zeros(6, dtype=bool)
        truncateds[invalid] = flag
        both = gae(rewards, values, next_values, terminateds, truncateds, gamma=0.9, lambda_=0.9)
        results.append(np.delete(np.stack(both), invalid, axis=1))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_one_and_three_dimensional_traces_equal_their_columns():
    arrays = (REWARDS, VALUES, NEXT_VALUES, TERMINATEDS, TRUNCATEDS)
    both = np.stack(gae(*arrays, gamma=0.9, lambda_=0.8))
    single = np.stack(gae(*(a[:, 1] for a in arrays), gamma=0.9, lambda_=0.8))
    cube = np.stack(gae(*(a.reshape(4, 2, 1) for a in arrays), gamma=0.9, lambda_=0.8))
    np.testing.assert_array_equal(single, both[:, :, 1])
    np.testing.assert_array_equal(cube, both[..., None])


def test_results_keep_the_widest_float_dtype_and_sum_in_float64():
    rewards = np.full(10_000, 0.1, dtype=np.float32)
    zeros = np.zeros(10_000, dtype=bool)
    returns = discounted_returns(rewards, np.zeros_like(rewards), zeros, zeros, gamma=1.0)
    assert returns.dtype == np.float32
    assert returns[0] == np.float32(10_000 * float(np.float32(0.1)))  # a float32 sum is off by 0.1 here
    assert discounted_returns(rewards.astype(np.float64), rewards, zeros, zeros, gamma=1.0).dtype == np.float64
    assert discounted_returns(rewards.astype(np.float16), rewards, zeros, zeros, gamma=1.0).dtype == np.float32
    assert discounted_returns([1, 2], [0, 0], [False, False], [False, True], gamma=1.0).dtype == np.float64


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_coefficients_outside_the_unit_interval_are_refused(wrong):
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\]"):
        discounted_returns(*TRACE, gamma=wrong)
    with pytest.raises(ValueError, match=r"lambda must lie in \[0, 1\]"):
        lambda_returns(*TRACE, gamma=0.9, lambda_=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 1.5])
def test_a_wrong_number_of_steps_is_refused(wrong):
    with pytest.raises(ValueError, match="n_step must be a whole number"):
        n_step_returns(*TRACE, gamma=0.9, n_step=wrong)


def test_shapes_that_differ_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'values': \(4,\)"):
        gae(REWARDS, VALUES[:, 0], NEXT_VALUES, TERMINATEDS, TRUNCATEDS, gamma=0.9, lambda_=0.9)
    with pytest.raises(ValueError, match=r"'truncateds': \(3, 2\)"):
        discounted_returns(REWARDS, NEXT_VALUES, TERMINATEDS, TRUNCATEDS[1:], gamma=0.9)
    with pytest.raises(ValueError, match="one common shape"):
        discounted_returns(1.0, 2.0, False, False, gamma=0.9)


def test_numba_is_loaded_by_the_first_kernel_and_not_by_the_import():
    code = (
        "import sys, lockstep.ops as ops; assert 'numba' not in sys.modules, 'at import';"
        "ops.monte_carlo_returns([1.0], [True], [False], gamma=1.0); assert 'numba' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
