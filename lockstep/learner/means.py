"""Means, statistics and decisions over the rows of all learners, so that n learners equal one (house, decision 7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lockstep.learner.reduction import Reducer
from lockstep.ops import RunningMoments, explained_variance

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner


class _SumOverLearners(torch.autograd.Function):
    """Value: the sum over all learners. Gradient: to the own part only, since gradients are summed afterwards."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, total: Tensor) -> Tensor:
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def means_over_learners(reducer: Reducer, values: Sequence[Tensor], mask: Tensor | None, counts: bool) -> list[Tensor]:
    """0-d each: the means of `values` [N, ...] where `mask` is set, over all learners; the same bits for each.

    Their gradients reach the learner's own rows only, with the weight they have in the global mean. `counts=False`:
    the own rows stand in for none (they keep the learner in step) and weigh nothing.
    """
    if not counts and reducer.world_size > 1:
        values, mask = [each[:0] for each in values], None if mask is None else mask[:0]
    own = torch.stack([each.sum() if mask is None else torch.where(mask, each, 0.0).sum() for each in values])
    if mask is None:  # (above: NaN in padding stays there)
        sizes = own.new_tensor([float(each.numel()) for each in values])
    else:
        sizes = mask.sum().to(own.dtype).expand(len(values))
    if reducer.world_size > 1:
        totals = reducer.sum_(torch.cat([own.detach(), sizes]))
        sums: Tensor = _SumOverLearners.apply(own, totals[: len(values)])
        own, sizes = sums, totals[len(values) :]
    return list((own / sizes.clamp(min=1.0)).unbind())


def once_over_learners(reducer: Reducer, term: Tensor) -> Tensor:
    """`term` with 1/n of its gradient, for a term that all n learners compute alike."""
    fixed = term.detach()
    return fixed + (term - fixed) / reducer.world_size


def any_learner(reducer: Reducer, flag: bool) -> bool:
    """Is `flag` set on any learner? The same answer for all."""
    if reducer.world_size == 1:
        return flag
    return bool(reducer.sum_(torch.tensor([float(flag)]))[0] > 0)


def counts_over_learners(reducer: Reducer, own: dict[str, int]) -> dict[str, int]:
    """Whole numbers by name, summed over all learners, which have the same names."""
    if reducer.world_size == 1:
        return own
    return dict(zip(own, reducer.sum_(torch.tensor(list(own.values()), dtype=torch.int64)).tolist()))


def moments_over_learners(reducer: Reducer, own: RunningMoments) -> RunningMoments:
    """The moments of what all learners have seen, joined by rank; exact up to rounding."""
    joined = RunningMoments(own.shape, own.dtype)
    for state in reducer.gather(own.get_state()):
        part = RunningMoments(own.shape, own.dtype)
        part.set_state(state)
        joined.merge(part)
    return joined


def statistics_join(learner: Learner) -> Callable[[RunningMoments], RunningMoments] | None:
    """What makes moments of one learner's rows those of all; None for one learner."""
    if learner.reducer.world_size == 1:
        return None

    def join(seen: RunningMoments) -> RunningMoments:
        return moments_over_learners(learner.reducer, seen if learner.rows_in_step else RunningMoments(seen.shape))

    return join


def explained_variance_over_learners(
    reducer: Reducer, pred: np.ndarray, target: np.ndarray, counts: bool = True
) -> float:
    """The share of the targets' variance that the predictions explain, over the rows `[N]` of all learners."""
    if reducer.world_size == 1:
        return float(explained_variance(pred, target))
    pred, target = (np.asarray(values, np.float64)[: None if counts else 0] for values in (pred, target))
    moments = RunningMoments((2,))
    moments.update(np.stack([target, target - pred], axis=-1))
    ends = [float(target.min()), float(target.max())] if len(target) else [np.inf, -np.inf]
    parts = reducer.gather({"moments": moments.get_state(), "ends": ends})
    joined = RunningMoments((2,))
    for part in parts:
        own = RunningMoments((2,))
        own.set_state(part["moments"])
        joined.merge(own)
    if not max(part["ends"][1] for part in parts) > min(part["ends"][0] for part in parts):
        return float("nan")
    variance, residual = joined.var
    return float(1.0 - residual / variance)
