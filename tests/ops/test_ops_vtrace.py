"""V-trace: written-out numbers, the on-policy identity, and the kernel against the sum in the paper."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parts import examples

from lockstep.ops import gae, lambda_returns, vtrace
from lockstep.ops.device_returns import tensor_vtrace

LOG_RATIOS = np.log(np.array([0.5, 2.0, 1.0]))
REWARDS = np.ones(3)
VALUES = np.array([2.0, 1.0, 3.0])
NEXT_VALUES = np.array([1.0, 3.0, 6.0])
NONE = np.zeros(3, dtype=bool)


def vtrace_of_tensors(log_ratios, rewards, values, next_values, terminateds, truncateds, **options):
    """Return the results of `tensor_vtrace` as arrays, for the arguments of `vtrace`."""
    columns = (log_ratios, rewards, values, next_values, terminateds, terminateds | truncateds)
    results = tensor_vtrace(*(torch.tensor(column) for column in columns), **options)
    return tuple(result.numpy() for result in results)


@pytest.mark.parametrize("vtrace", [vtrace, vtrace_of_tensors])
@pytest.mark.parametrize(
    "limits, expected_vs, expected_advantages",
    [
        ({}, [2.25, 3.0, 4.0], [0.25, 2.0, 1.0]),
        ({"clip_rho": 1.5, "clip_c": 1.0, "clip_pg_rho": 3.0}, [2.4375, 3.75, 4.0], [0.4375, 4.0, 1.0]),
    ],
)
def test_vtrace_written_out(vtrace, limits, expected_vs, expected_advantages):
    vs, pg_advantages = vtrace(LOG_RATIOS, REWARDS, VALUES, NEXT_VALUES, NONE, NONE, gamma=0.5, **limits)
    np.testing.assert_allclose(vs, expected_vs, rtol=1e-15)
    np.testing.assert_allclose(pg_advantages, expected_advantages, rtol=1e-15)


@pytest.mark.parametrize("vtrace", [vtrace, vtrace_of_tensors])
def test_vtrace_written_out_with_ends(vtrace):
    """Row 0 terminated (its next value is not read), row 1 truncated with a final value of 3."""
    terminateds, truncateds = np.array([True, False, False]), np.array([False, True, False])
    next_values = np.array([np.nan, 3.0, 6.0])
    vs, pg_advantages = vtrace(LOG_RATIOS, REWARDS, VALUES, next_values, terminateds, truncateds, gamma=0.5)
    np.testing.assert_allclose(vs, [1.5, 2.5, 4.0], rtol=1e-15)
    np.testing.assert_allclose(pg_advantages, [-0.5, 1.5, 1.0], rtol=1e-15)


def plain_vtrace(log_ratios, rewards, values, next_values, ends, gamma, lambda_, limits):
    """Equation 1 as it stands: for each row the whole sum with its products; one trace [T]."""
    terminateds, truncateds = ends
    clip_rho, clip_c, clip_pg_rho = limits
    ratios = np.exp(log_ratios)
    num_steps = len(rewards)
    vs, last_rows = np.empty(num_steps), np.empty(num_steps, dtype=int)
    for s in range(num_steps):
        total, discount, product = 0.0, 1.0, 1.0
        for t in range(s, num_steps):
            bootstrap = 0.0 if terminateds[t] else gamma * next_values[t]
            total += discount * product * min(clip_rho, ratios[t]) * (rewards[t] + bootstrap - values[t])
            discount, product = discount * gamma, product * lambda_ * min(clip_c, ratios[t])
            if terminateds[t] or truncateds[t]:
                break
        vs[s] = values[s] + total
        last_rows[s] = t
    pg_advantages = np.empty(num_steps)
    for s in range(num_steps):
        if terminateds[s]:
            after = 0.0
        elif s == last_rows[s]:
            after = next_values[s]
        else:
            after = lambda_ * vs[s + 1] + (1 - lambda_) * values[s + 1]
        pg_advantages[s] = min(clip_pg_rho, ratios[s]) * (rewards[s] + gamma * after - values[s])
    return vs, pg_advantages


@st.composite
def traces(draw):
    """`(log_ratios, rewards, values, next_values, terminateds, truncateds)` of shape [T]."""
    num_steps = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    end_rate = draw(st.sampled_from([0.0, 0.2, 0.6]))
    log_ratios, rewards, values, next_values = rng.normal(size=(4, num_steps))
    terminateds, truncateds = rng.random((2, num_steps)) < end_rate
    inside = ~(terminateds | truncateds)[:-1]
    next_values[:-1] = np.where(inside, values[1:], next_values[:-1])
    return log_ratios, rewards, values, next_values, terminateds, truncateds


unit = st.sampled_from([0.0, 0.3, 0.9, 1.0])
limit = st.sampled_from([0.5, 1.0, 2.0, None])


@examples(100)
@given(trace=traces(), gamma=unit, lambda_=unit, limits=st.tuples(limit, limit, limit))
def test_vtrace_kernel_equals_the_sum_of_the_paper(trace, gamma, lambda_, limits):
    found = vtrace(*trace, gamma=gamma, lambda_=lambda_, clip_rho=limits[0], clip_c=limits[1], clip_pg_rho=limits[2])
    finite = [np.inf if value is None else value for value in limits]
    expected = plain_vtrace(*trace[:4], trace[4:], gamma, lambda_, finite)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-11)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-11)


@examples(100)
@given(trace=traces(), gamma=unit, lambda_=unit, limits=st.tuples(limit, limit, limit), weighted=st.booleans())
def test_vtrace_of_tensors_equals_the_kernel(trace, gamma, lambda_, limits, weighted):
    clips = dict(zip(("clip_rho", "clip_c", "clip_pg_rho"), limits))
    options = {"gamma": gamma, "lambda_": lambda_, "weighted": weighted, **clips}
    for found, expected in zip(vtrace_of_tensors(*trace, **options), vtrace(*trace, **options)):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@examples(60)
@given(trace=traces(), gamma=unit, lambda_=unit)
def test_vtrace_on_policy_gives_lambda_returns_and_gae(trace, gamma, lambda_):
    _, rewards, values, *rest = trace
    vs, pg_advantages = vtrace(np.zeros_like(rewards), rewards, values, *rest, gamma=gamma, lambda_=lambda_)
    np.testing.assert_allclose(vs, lambda_returns(rewards, *rest, gamma=gamma, lambda_=lambda_), atol=1e-12)
    advantages = gae(rewards, values, *rest, gamma=gamma, lambda_=lambda_)[0]
    np.testing.assert_allclose(pg_advantages, advantages, atol=1e-12)


def test_huge_log_ratios_are_held_by_the_limits():
    vs, pg_advantages = vtrace(np.full(3, 1e4), REWARDS, VALUES, NEXT_VALUES, NONE, NONE, gamma=0.5)
    on_policy = vtrace(np.zeros(3), REWARDS, VALUES, NEXT_VALUES, NONE, NONE, gamma=0.5)
    np.testing.assert_array_equal(vs, on_policy[0])
    np.testing.assert_array_equal(pg_advantages, on_policy[1])


@examples(30)
@given(trace=traces(), limit_of_gradient=st.sampled_from([0.5, 2.0, None]))
def test_vtrace_unweighted_advantages_lack_exactly_the_clipped_ratio(trace, limit_of_gradient):
    options = {"gamma": 0.9, "clip_pg_rho": limit_of_gradient}
    vs, weighted = vtrace(*trace, **options)
    same, plain = vtrace(*trace, **options, weighted=False)
    np.testing.assert_array_equal(same, vs)
    most = np.inf if limit_of_gradient is None else limit_of_gradient
    np.testing.assert_allclose(np.minimum(most, np.exp(trace[0])) * plain, weighted, atol=1e-12)


RLLIB = json.loads((Path(__file__).parent / "vtrace_rllib.json").read_text())


@pytest.mark.parametrize("case", RLLIB, ids=lambda case: f"rho {case['clip_rho']}, pg_rho {case['clip_pg_rho']}")
def test_vtrace_equals_rllibs(case):
    """Its numbers were made once by benchmarks/peers/vtrace_rllib.py."""
    values = np.array(case["values"])
    terminateds = np.array(case["terminateds"])
    vs, advantages = vtrace(
        np.array(case["target_logp"]) - np.array(case["behaviour_logp"]),
        case["rewards"],
        values,
        np.vstack([values[1:], case["bootstrap"]]),
        terminateds,
        np.zeros_like(terminateds),
        gamma=case["gamma"],
        clip_rho=case["clip_rho"],
        clip_pg_rho=case["clip_pg_rho"],
    )
    np.testing.assert_allclose(vs, case["vs"], atol=1e-12)
    np.testing.assert_allclose(advantages, case["pg_advantages"], atol=1e-12)
