"""Loss terms, one number for each row: the learner decides which rows count and by what to divide."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from lockstep.ops.distributions import Distribution


def clipped_surrogate_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    *,
    clip_param: float | Tensor,
    dual_clip: float | None = None,
) -> Tensor:
    """Return PPO's clipped objective, negated (Schulman et al. 2017, arXiv:1707.06347, equation 7).

    `-min(ratio * A, clip(ratio, 1 - clip_param, 1 + clip_param) * A)` with `ratio = exp(logp - old_logp)`.

    Args:
        logp: `[N]`, log-probability of the taken actions under the policy being learned.
        old_logp: `[N]`, the same under the policy that acted (no gradient expected).
        advantages: `[N]`.
        clip_param: > 0, the paper's epsilon; a 0-d tensor is taken as it is, without a check.
        dual_clip: None, or c > 1: where `A < 0` the objective is at least `c * A` (Ye et al. 2020,
            arXiv:1912.09729, equation 5), which bounds the loss for large ratios.

    Returns:
        `[N]`, to be minimised.

    Raises:
        ValueError: `clip_param <= 0` or `dual_clip <= 1`.
    """
    if not isinstance(clip_param, Tensor) and not clip_param > 0.0:
        raise ValueError(f"clip_param must be greater than 0, got {clip_param!r}.")
    negated = -advantages
    # clip(ratio) * A never exceeds A + clip_param * |A|, and equals it wherever it is the smaller of the two.
    bound = negated - clip_param * advantages.abs()
    loss = torch.clamp(torch.exp(logp - old_logp) * negated, min=bound)
    if dual_clip is not None:
        if not dual_clip > 1.0:
            raise ValueError(f"dual_clip must be greater than 1, or None to switch it off; got {dual_clip!r}.")
        loss = torch.where(advantages < 0.0, torch.minimum(loss, dual_clip * negated), loss)
    return loss


def clipped_value_loss(
    values: Tensor,
    value_targets: Tensor,
    old_values: Tensor | None = None,
    clip_param: float | None = None,
) -> Tensor:
    """Return half the squared error of the values; with `clip_param`, the larger of that and that of clipped values.

    The clipped form is that of OpenAI baselines' PPO2: `v_clipped = old + clip(v - old, -clip_param,
    clip_param)`, `0.5 * max((v - target)**2, (v_clipped - target)**2)`.

    Args:
        values, value_targets: `[N]`.
        old_values: `[N]`, the values at collection; needed when `clip_param` is given.
        clip_param: > 0, in units of the value; None: no clipping.

    Returns:
        `[N]`.

    Raises:
        ValueError: `clip_param` without `old_values`, or not positive.
    """
    squared_error = (values - value_targets).square()
    if clip_param is None:
        return 0.5 * squared_error
    if old_values is None or not clip_param > 0.0:
        given = "no old_values" if old_values is None else f"clip_param={clip_param!r}"
        raise ValueError(f"Clipping values needs old_values and a clip_param greater than 0; got {given}.")
    clipped = old_values + (values - old_values).clamp(-clip_param, clip_param)
    return 0.5 * torch.maximum(squared_error, (clipped - value_targets).square())


KlEstimator = Literal["k1", "k2", "k3"]


def approximate_kl(logp: Tensor, old_logp: Tensor, *, estimator: KlEstimator = "k3") -> Tensor:
    """Estimate `KL(old || new)` from actions drawn from the old policy (Schulman 2020, "Approximating KL").

    With `x = logp - old_logp`: `k1 = -x` (unbiased, large variance), `k2 = x**2 / 2` (biased, small
    variance), `k3 = exp(x) - 1 - x` (unbiased, never negative).

    Returns:
        `[N]`; average it over rows.

    Raises:
        ValueError: unknown estimator.
    """
    log_ratio = logp - old_logp
    if estimator == "k3":
        return torch.expm1(log_ratio) - log_ratio
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    raise ValueError(f"Unknown KL estimator {estimator!r}; allowed are 'k1', 'k2' and 'k3'.")


def imitation_loss(dist: Distribution, actions: Tensor, *, kind: Literal["log_prob", "mse"] = "log_prob") -> Tensor:
    """Return how far a policy is from actions: `-log pi(a | s)`, or the squared distance of its most likely action.

    Args:
        dist: of `N` rows.
        actions: `[N]` or `[N, A]`, as learned from.
        kind: `"mse"`: the mean over the `A` entries of a continuous action.

    Returns:
        `[N]`, to be minimised.
    """
    if kind == "mse":
        return (dist.mode() - actions).square().mean(-1)
    return -dist.log_prob(actions)


def exponential_weights(advantages: Tensor, temperature: float, limit: float | None = None) -> Tensor:
    """Return how much each action counts in advantage-weighted imitation: `min(exp(temperature * A), limit)`.

    Wang et al. 2018, algorithm 1; Kostrikov et al. 2021, arXiv:2110.06169, equation 7.

    Returns:
        `[N]`; finite for every finite advantage where there is a limit.
    """
    exponents = temperature * advantages
    if limit is None:
        return exponents.exp()
    return exponents.clamp(max=math.log(limit)).exp()


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Return `|tau - 1(u < 0)| u^2`, smallest where a value is the `tau`-expectile.

    Kostrikov et al. 2021, arXiv:2110.06169, equation 5; `tau = 0.5` gives half the squared error.

    Args:
        errors: `[N]`, target minus value.
        expectile: tau, in (0, 1).

    Returns:
        `[N]`.
    """
    return torch.where(errors < 0.0, 1.0 - expectile, expectile) * errors.square()
