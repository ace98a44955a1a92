"""Compiled loops of :mod:`lockstep.ops.returns`.

This file imports numba, so it is imported when a kernel is first called. Arrays are C-contiguous `[T, B]`. Sums run in
float64 whatever the dtype of the arrays. The kernels walk backwards through time and keep the result of row `t + 1` in
one `[B]` array, `carry`. They trust their input: the callers check shapes and dtypes.

A value that must not be used, such as the bootstrap of a terminated row, is never read into a sum. So a NaN there does
no harm.
"""

# numba infers the types of the kernels below.
# mypy: disallow-untyped-defs=False

from __future__ import annotations

import numpy as np

from lockstep.ops.compiling import compiled


@compiled
def gae(rewards, values, next_values, terminateds, truncateds, gamma, lambda_, advantages, value_targets):
    """Write generalized advantage estimates to `advantages` and `value_targets`."""
    num_steps, num_envs = rewards.shape
    carry = np.zeros(num_envs, dtype=np.float64)
    decay = gamma * lambda_
    for t in range(num_steps - 1, -1, -1):
        for b in range(num_envs):
            value = np.float64(values[t, b])
            advantage = np.float64(rewards[t, b]) - value
            if not terminateds[t, b]:
                advantage += gamma * np.float64(next_values[t, b])
                if not truncateds[t, b]:
                    advantage += decay * carry[b]
            carry[b] = advantage
            advantages[t, b] = advantage
            value_targets[t, b] = advantage + value


@compiled
def lambda_returns(rewards, next_values, terminateds, truncateds, gamma, lambda_, returns):
    """Write TD(lambda) returns to `returns`."""
    num_steps, num_envs = rewards.shape
    carry = np.zeros(num_envs, dtype=np.float64)
    for t in range(num_steps - 1, -1, -1):
        for b in range(num_envs):
            total = np.float64(rewards[t, b])
            if not terminateds[t, b]:
                bootstrap = np.float64(next_values[t, b])
                if t < num_steps - 1 and not truncateds[t, b]:
                    # With lambda 1 the next values inside an episode are not read: they may be NaN.
                    if lambda_ == 1.0:
                        bootstrap = carry[b]
                    else:
                        bootstrap = (1.0 - lambda_) * bootstrap + lambda_ * carry[b]
                total += gamma * bootstrap
            carry[b] = total
            returns[t, b] = total


@compiled
def n_step_returns(rewards, next_values, terminateds, truncateds, gamma, n_step, returns):
    """Write n-step returns to `returns`, in `O(T * n_step)` operations.

    A return is summed from its last reward backwards, in the order of `lambda_returns`. So a trace that ends before the
    horizon gives the bits of `lambda_returns`, which the caller uses for that.
    """
    num_steps, num_envs = rewards.shape
    for t in range(num_steps):
        for b in range(num_envs):
            # The last row whose reward counts: that of the horizon, or that of the end of the episode or trace.
            last = t
            horizon = min(t + n_step, num_steps) - 1
            while last < horizon and not terminateds[last, b] and not truncateds[last, b]:
                last += 1
            total = np.float64(rewards[last, b])
            if not terminateds[last, b]:
                total += gamma * np.float64(next_values[last, b])
            for k in range(last - 1, t - 1, -1):
                total = np.float64(rewards[k, b]) + gamma * total
            returns[t, b] = total


@compiled
def vtrace(
    log_ratios,
    rewards,
    values,
    next_values,
    terminateds,
    truncateds,
    gamma,
    lambda_,
    clip_rho,
    clip_c,
    clip_pg_rho,
    weighted,
    vs,
    pg_advantages,
):
    """Write V-trace targets to `vs` and policy-gradient advantages to `pg_advantages`.

    `carry` holds `vs[t + 1] - V(x[t + 1])`, the correction of the next row.
    """
    num_steps, num_envs = rewards.shape
    carry = np.zeros(num_envs, dtype=np.float64)
    for t in range(num_steps - 1, -1, -1):
        for b in range(num_envs):
            ratio = np.exp(np.float64(log_ratios[t, b]))
            value = np.float64(values[t, b])
            one_step = np.float64(rewards[t, b]) - value
            correction = 0.0
            if not terminateds[t, b]:
                one_step += gamma * np.float64(next_values[t, b])
                if not truncateds[t, b]:
                    correction = gamma * lambda_ * carry[b]
            carry[b] = min(clip_rho, ratio) * one_step + min(clip_c, ratio) * correction
            vs[t, b] = value + carry[b]
            weight = min(clip_pg_rho, ratio) if weighted else 1.0
            pg_advantages[t, b] = weight * (one_step + correction)
