"""V-trace: off-policy corrected value targets and policy-gradient advantages."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lockstep.ops.returns import FloatArray, check_unit_interval, prepare_flags, prepare_floats


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
    """V-trace (Espeholt et al. 2018, arXiv:1802.01561, equations 1 and 4; remark 2 for `lambda_`).

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
        rewards, values, next_values, terminateds, truncateds: `[T, B]`, conventions of
            :mod:`lockstep.ops.returns`.
        gamma: discount in [0, 1].
        lambda_: in [0, 1].
        clip_rho, clip_c, clip_pg_rho: upper limits of the importance weights, > 0; None: no limit.
        weighted: False leaves the factor `min(clip_pg_rho, ratio)` out of `pg_advantages`, for a loss that puts
            in that of the policy as it is by then.

    Returns:
        `(vs, pg_advantages)`, each `[T, B]`.

    Raises:
        ValueError: shapes differ, or a coefficient is outside its range.
    """
    from lockstep.ops import _kernels

    check_unit_interval(gamma=gamma, lambda_=lambda_)
    limits: list[float] = []
    for name, limit in (("clip_rho", clip_rho), ("clip_c", clip_c), ("clip_pg_rho", clip_pg_rho)):
        if limit is not None and not limit > 0.0:
            raise ValueError(f"{name} must be greater than 0, or None for no limit; got {limit!r}.")
        limits.append(math.inf if limit is None else float(limit))
    shape, floats = prepare_floats(log_ratios=log_ratios, rewards=rewards, values=values, next_values=next_values)
    flags = prepare_flags(shape, terminateds=terminateds, truncateds=truncateds)
    vs, pg_advantages = np.empty_like(floats[0]), np.empty_like(floats[0])
    _kernels.vtrace(*floats, *flags, float(gamma), float(lambda_), *limits, bool(weighted), vs, pg_advantages)
    return vs.reshape(shape), pg_advantages.reshape(shape)
