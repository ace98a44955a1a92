"""Returns, advantages and V-trace of time-major rewards (numpy in, numpy out, compiled on first use).

Conventions of every function here, `T` time steps, `B` environments:

* Arrays are `[T, B]`; `[T]` and `[T, ...]` work too, everything after time being independent traces.
* `next_values[t]` is the value of the *true* observation that follows step `t`: where an episode was
  truncated, the value of its final observation, not of the observation after the reset.
* A `terminated` row bootstraps zero (its next value is never read), a `truncated` row bootstraps
  `next_values[t]`; both end the recursion, so neighbouring episodes in one trace never mix. Row `T - 1`
  bootstraps `next_values[T - 1]` unless it terminated.
* A row that is no transition (the reset row after a finished episode) gets a number that means nothing and
  changes no other row, because the row before it is done; mask it out.
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
    """Return generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    `A[t] = delta[t] + gamma * lambda * (1 - done[t]) * A[t + 1]` with
    `delta[t] = r[t] + gamma * (1 - terminated[t]) * next_values[t] - values[t]`.

    Args:
        rewards: `[T, B]`.
        values: `[T, B]`, value of the observation acted on.
        next_values, terminateds, truncateds: `[T, B]`, see the module's conventions.
        gamma: discount in [0, 1].
        lambda_: 0 = one-step temporal difference, 1 = discounted return minus value.

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
    """Return the discounted rewards up to the end of the episode or trace, bootstrapped unless it terminated.

    Equal to `lambda_returns` with `lambda_=1`; `[T, B]`. Errors as in `gae`.
    """
    return lambda_returns(rewards, next_values, terminateds, truncateds, gamma=gamma, lambda_=1.0)


def monte_carlo_returns(
    rewards: npt.ArrayLike,
    terminateds: npt.ArrayLike,
    truncateds: npt.ArrayLike,
    *,
    gamma: float,
) -> FloatArray:
    """Return the discounted sum of the rewards that were really seen: nothing is bootstrapped, truncated or not.

    Unbiased only for episodes that terminated inside the trace; `[T, B]`. Errors as in `gae`.
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

    `G[t] = sum(gamma**k * r[t + k] for k < m) + gamma**m * next_values[t + m - 1]`, where `m` is `n_step`
    or the number of rows to the end of the episode or trace, whichever is less; the last term is zero where
    terminated.

    Returns:
        `[T, B]`.

    Raises:
        ValueError: `n_step < 1`, and as in `gae`.
    """
    if n_step < 1 or int(n_step) != n_step:
        raise ValueError(f"n_step must be a whole number of at least 1, got {n_step!r}.")
    if n_step >= len(np.atleast_1d(rewards)):  # the horizon is never reached: the same numbers in O(T)
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
    """Return V-trace targets and advantages.

    Espeholt et al. 2018, arXiv:1802.01561, equations 1 and 4; remark 2 for `lambda_`.

    With `rho = min(clip_rho, exp(log_ratios))`, `c = lambda * min(clip_c, exp(log_ratios))` and
    `delta[t] = r[t] + gamma * (1 - terminated[t]) * next_values[t] - values[t]`:

        vs[t] = values[t] + rho[t] * delta[t] + gamma * c[t] * (1 - done[t]) * (vs[t + 1] - values[t + 1])
        pg_advantages[t] = min(clip_pg_rho, ratio[t]) * (r[t] + gamma * q[t + 1] - values[t])

    where `q[t + 1]` is `(1 - lambda) * values[t + 1] + lambda * vs[t + 1]`, and `next_values[t]` or zero
    where the episode or trace ends. On-policy (`log_ratios = 0`), `vs` are the lambda returns and
    `pg_advantages` are GAE's. Inside an episode `values[t + 1]` and `next_values[t]` are taken to be equal.

    Args:
        log_ratios: `[T, B]`, log-probability of the taken action under the learned policy minus that under
            the policy that acted.
        rewards, values, next_values, terminateds, truncateds: `[T, B]`, see the module's
            conventions.
        gamma: discount in [0, 1].
        lambda_: in [0, 1].
        clip_rho, clip_c, clip_pg_rho: upper limits of the importance weights, > 0; None: no limit.
        weighted: False leaves the factor `min(clip_pg_rho, ratio)` out of `pg_advantages`, for a loss that puts
            in that of the policy as it is by then.

    Returns:
        `(vs, pg_advantages)`, each `[T, B]`.

    Raises:
        ValueError: shapes differ, or `gamma` or `lambda_` is outside [0, 1].
    """
    _check_unit_interval(gamma=gamma, lambda_=lambda_)
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
    """Call a kernel with contiguous `[T, B]` arrays, floats of one dtype; return what it fills in, in their shape."""
    from lockstep.ops import _return_kernels

    given = {**floats, "terminateds": terminateds, "truncateds": truncateds}
    arrays = {name: np.asarray(array) for name, array in given.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    shape = shapes["rewards"]
    if len(shape) == 0 or any(other != shape for other in shapes.values()):
        raise ValueError(f"Arrays must have one common shape [T] or [T, B, ...], got {shapes}.")
    found = [arrays[name].dtype for name in floats]
    sizes = [dtype.itemsize for dtype in found if dtype.kind == "f"]
    float_type = np.float32 if sizes and max(sizes) <= 4 else np.float64
    flat = []
    for name, array in arrays.items():
        array = np.ascontiguousarray(array, dtype=float_type if name in floats else np.bool_)
        flat.append(array if array.ndim == 2 else array.reshape(shape[0], -1 if array.size else 0))
    filled = [np.empty_like(flat[0]) for _ in range(results)]
    getattr(_return_kernels, kernel)(*flat, *coefficients, *filled)
    return [array.reshape(shape) for array in filled]
