"""Returns, advantages and V-trace targets of time-major numpy arrays, compiled on first use.

Conventions of every function here, with `T` time steps and `B` environments:

* Arrays are `[T, B]`. `[T]` and `[T, ...]` work too: all dimensions after time are independent traces.
* `next_values[t]` is the value of the *true* observation that follows step `t`. Where an episode was truncated, that is
  the value of its final observation, not of the observation after the reset.
* A `terminated` row bootstraps zero (its next value is never read), a `truncated` row bootstraps `next_values[t]`. Both
  end the recursion, so neighbouring episodes in one trace never mix. Row `T - 1` bootstraps `next_values[T - 1]` unless
  it terminated.
* A row that is not a transition (the reset row after a finished episode) gets a meaningless number and changes no other
  row, because the row before it is done. Mask it out.
* Sums run in float64. Results have the widest float dtype among the inputs (float16 counts as float32).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]
"""`[T, B]` array of float32 or float64."""


def gae(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    next_values: npt.ArrayLike,
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    *,
    gamma: float,
    lambda_: float,
) -> tuple[FloatArray, FloatArray]:
    """Return generalized advantage estimates and value targets (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    `A[t] = delta[t] + gamma * lambda * (1 - done[t]) * A[t + 1]` with
    `delta[t] = r[t] + gamma * (1 - terminated[t]) * next_values[t] - values[t]`.

    Args:
        rewards: `[T, B]`.
        values: `[T, B]`, value of the observation acted on.
        next_values, terminateds, truncateds: `[T, B]`, see the module's conventions.
        gamma: Discount in [0, 1].
        lambda_: In [0, 1]. 0 = one-step temporal difference, 1 = discounted return minus value.

    Returns:
        `(advantages, value_targets)`, each `[T, B]`; `value_targets = advantages + values`.

    Raises:
        ValueError: shapes differ, or `gamma` or `lambda_` is outside [0, 1].
    """
    _check_unit_interval(gamma=gamma, lambda_=lambda_)
    floats = {"rewards": rewards, "values": values, "next_values": next_values}
    advantages, value_targets = _run("gae", floats, terminateds, truncateds, float(gamma), float(lambda_), results=2)
    return advantages, value_targets


def lambda_returns(
    rewards: npt.ArrayLike,
    next_values: npt.ArrayLike,
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    *,
    gamma: float,
    lambda_: float,
) -> FloatArray:
    """Return TD(lambda) returns (Sutton and Barto 2018, equation 12.18 in its recursive form).

    `G[t] = r[t] + gamma * ((1 - lambda) * next_values[t] + lambda * G[t + 1])`, with zero in place of the
    bracket where terminated and `next_values[t]` where truncated or at the end of the trace.

    Returns:
        `[T, B]`. Errors as in `gae`.
    """
    _check_unit_interval(gamma=gamma, lambda_=lambda_)
    floats = {"rewards": rewards, "next_values": next_values}
    return _run("lambda_returns", floats, terminateds, truncateds, float(gamma), float(lambda_))[0]


def discounted_returns(
    rewards: npt.ArrayLike,
    next_values: npt.ArrayLike,
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    *,
    gamma: float,
) -> FloatArray:
    """Return the discounted returns to the end of the episode or trace, bootstrapped unless it terminated.

    The same as `lambda_returns` with `lambda_=1`.

    Returns:
        `[T, B]`. Errors as in `gae`.
    """
    return lambda_returns(rewards, next_values, terminateds, truncateds, gamma=gamma, lambda_=1.0)


def monte_carlo_returns(
    rewards: npt.ArrayLike,
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    *,
    gamma: float,
) -> FloatArray:
    """Return the discounted sums of the observed rewards, without a bootstrap where an episode or trace is cut off.

    They are unbiased only for episodes that terminated inside the trace.

    Returns:
        `[T, B]`. Errors as in `gae`.
    """
    next_values = np.zeros(np.shape(rewards), dtype=np.float32)
    return lambda_returns(rewards, next_values, terminateds, truncateds, gamma=gamma, lambda_=1.0)


def n_step_returns(
    rewards: npt.ArrayLike,
    next_values: npt.ArrayLike,
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    *,
    gamma: float,
    n_step: int,
) -> FloatArray:
    """Return n-step returns (Sutton and Barto 2018, equation 7.1).

    `G[t] = sum(gamma**k * r[t + k] for k < m) + gamma**m * next_values[t + m - 1]`, where `m` is the smaller one of
    `n_step` and the number of rows to the end of the episode or trace. The last term is zero if the episode terminated
    within these rows.

    Returns:
        `[T, B]`.

    Raises:
        ValueError: `n_step` is less than 1 or not whole, and as in `gae`.
    """
    if n_step < 1 or int(n_step) != n_step:
        raise ValueError(f"n_step must be a whole number of at least 1, got {n_step!r}.")
    if n_step >= len(np.atleast_1d(rewards)):
        # No horizon lies within the trace: `lambda_returns` computes the same bits in O(T) instead of O(T * n_step).
        return discounted_returns(rewards, next_values, terminateds, truncateds, gamma=gamma)
    _check_unit_interval(gamma=gamma)
    floats = {"rewards": rewards, "next_values": next_values}
    return _run("n_step_returns", floats, terminateds, truncateds, float(gamma), int(n_step))[0]


def vtrace(
    log_ratios: npt.ArrayLike,
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    next_values: npt.ArrayLike,
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    *,
    gamma: float,
    lambda_: float = 1.0,
    clip_rho: float | None = 1.0,
    clip_c: float | None = 1.0,
    clip_pg_rho: float | None = 1.0,
    weighted: bool = True,
) -> tuple[FloatArray, FloatArray]:
    """Return V-trace targets and policy-gradient advantages.

    Espeholt et al. 2018, arXiv:1802.01561, equations 1 and 4, and remark 2 for `lambda_`.

    With `rho = min(clip_rho, exp(log_ratios))`, `c = lambda * min(clip_c, exp(log_ratios))` and
    `delta[t] = r[t] + gamma * (1 - terminated[t]) * next_values[t] - values[t]`:

        vs[t] = values[t] + rho[t] * delta[t] + gamma * c[t] * (1 - done[t]) * (vs[t + 1] - values[t + 1])
        pg_advantages[t] = min(clip_pg_rho, ratio[t]) * (r[t] + gamma * q[t + 1] - values[t])

    where `q[t + 1]` is `(1 - lambda) * values[t + 1] + lambda * vs[t + 1]` inside an episode. Where the trace is cut
    off `q[t + 1]` is `next_values[t]`, and zero where the episode terminated. On-policy (`log_ratios = 0`) `vs` are the
    lambda returns and `pg_advantages` the generalized advantage estimates. Inside an episode `values[t + 1]` and
    `next_values[t]` are assumed to be equal.

    Args:
        log_ratios: `[T, B]`, log-probability of the taken action under the learned policy minus its log-probability
            under the policy that acted.
        rewards, values, next_values, terminateds, truncateds: `[T, B]`, see the module's conventions.
        gamma: Discount in [0, 1].
        lambda_: In [0, 1].
        clip_rho, clip_c, clip_pg_rho: Upper limits of the importance weights, > 0. None sets no limit.
        weighted: False leaves the factor `min(clip_pg_rho, ratio)` out of `pg_advantages`, for a loss that multiplies
            by the current policy's ratio itself.

    Returns:
        `(vs, pg_advantages)`, each `[T, B]`.

    Raises:
        ValueError: shapes differ, or `gamma` or `lambda_` is outside [0, 1].
    """
    _check_unit_interval(gamma=gamma, lambda_=lambda_)
    # inf instead of None, so that the kernel is compiled for one type of these arguments.
    limits = [math.inf if limit is None else float(limit) for limit in (clip_rho, clip_c, clip_pg_rho)]
    floats = {"log_ratios": log_ratios, "rewards": rewards, "values": values, "next_values": next_values}
    coefficients = (float(gamma), float(lambda_), *limits, bool(weighted))
    vs, pg_advantages = _run("vtrace", floats, terminateds, truncateds, *coefficients, results=2)
    return vs, pg_advantages


def _check_unit_interval(**coefficients: float) -> None:
    """Raise `ValueError` for a coefficient outside [0, 1] (NaN included)."""
    for name, value in coefficients.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name.rstrip('_')} must lie in [0, 1], got {value!r}.")


def _run(
    kernel: str,
    floats: Mapping[str, npt.ArrayLike],
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    *coefficients: float,
    results: int = 1,
) -> list[FloatArray]:
    """Return the arrays that a kernel writes, in the shape of its input.

    Args:
        kernel: Name of a function of `_return_kernels`.
        floats: Its float arrays by name, in the order of its parameters. `"rewards"` is one of them.
        terminateds, truncateds: As in the module's conventions.
        coefficients: Its numbers.
        results: Number of arrays that it writes, which are its last arguments.

    Raises:
        ValueError: The arrays differ in shape or have no dimension.
    """
    from lockstep.ops import _return_kernels

    inputs = {**floats, "terminateds": terminateds, "truncateds": truncateds}
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    shape = shapes["rewards"]
    if len(shape) == 0 or any(other != shape for other in shapes.values()):
        raise ValueError(f"Arrays must have one common shape [T] or [T, B, ...], got {shapes}.")

    # One float dtype for all arrays: numba compiles a kernel for each combination of dtypes that it meets.
    dtypes = [arrays[name].dtype for name in floats]
    sizes = [dtype.itemsize for dtype in dtypes if dtype.kind == "f"]
    float_type = np.float32 if sizes and max(sizes) <= 4 else np.float64

    flat_arrays = []
    for name, array in arrays.items():
        array = np.ascontiguousarray(array, dtype=float_type if name in floats else np.bool_)
        if array.ndim != 2:
            # -1 cannot be worked out for an empty array.
            num_traces = -1 if array.size else 0
            array = array.reshape(shape[0], num_traces)
        flat_arrays.append(array)

    outputs = [np.empty_like(flat_arrays[0]) for _ in range(results)]
    getattr(_return_kernels, kernel)(*flat_arrays, *coefficients, *outputs)
    return [output.reshape(shape) for output in outputs]
