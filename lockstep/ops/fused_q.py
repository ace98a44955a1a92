"""DQN's loss with its derivatives, in one compiled pass over the rows.

For small networks on the CPU the loss is thirty operations on a hundred numbers, forward and backward, and calling them
costs more than the networks do. Here one numba kernel takes each row once. The numbers are those that `algorithms.dqn`
writes out (the tests compare them), summed in float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

_NONE = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.float32, torch.float64)}
_NO_VALUES = {dtype: torch.empty(0, 0, dtype=dtype) for dtype in _NONE}
_WHOLE = (torch.int64, torch.int32)


@cache
def _kernels() -> Any:
    from lockstep.ops import _fused_q_kernels  # when first needed: numba takes its time to load

    return _fused_q_kernels


def can_fuse(values: Tensor, actions: Tensor, *columns: Tensor) -> bool:
    """Does `q_loss` take these tensors here and now (CPU, no trace, no functorch)?

    `columns`: the others of the batch, one number for each row. Where a gradient is to flow into one of them, or the
    kinds of numbers differ, the plain loss has to be written out.
    """
    return (
        type(values) is Tensor
        and values.device.type == "cpu"
        and values.dim() == 2
        and values.dtype in _NONE
        and actions.dim() == 1
        and actions.dtype in _WHOLE
        and not any(c.dtype is not values.dtype or c.dim() != 1 or c.requires_grad for c in columns)
        and not is_in_torch_dispatch_mode()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def q_loss(
    values: Tensor,
    rows: tuple[Tensor, Tensor, Tensor],
    target_values: Tensor,
    picking: Tensor | None = None,
    *,
    discounts: Tensor | float,
    weights: Tensor | None = None,
    huber_delta: float | None = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`(loss, terms, errors)`: the mean Huber loss of `Q(s, a)` against `r + discount * Q_target(s', best)`.

    Args:
        values: `[N, A]` at the observations. rows: actions int, rewards and terminated flags, `[N]` each.
        target_values: `[N, A]`, of the target network at the next observations.
        picking: `[N, A]`, what picks the best next action (double Q-learning); None: the target network's values.
        discounts: `[N]`, or one number. weights: `[N]`, of the rows in the loss.
        huber_delta: errors beyond it count linearly; None: all by their square.

    Returns:
        The 0-d loss, which can be differentiated once; `[3]` without gradient: loss, mean of the values taken and of
        the sizes of the errors; the errors `[N]`.
    """
    none, no_values, gamma = _NONE[values.dtype], _NO_VALUES[values.dtype], 0.0
    if not isinstance(discounts, Tensor):
        gamma, discounts = float(discounts), none
    columns = (*rows, target_values, no_values if picking is None else picking, discounts)
    result: tuple[Tensor, Tensor, Tensor] = _QLoss.apply(
        values, (*columns, none if weights is None else weights), gamma, huber_delta or 0.0
    )
    return result


def load_kernel(num_actions: int, dtype: torch.dtype) -> None:
    """Compiles the kernel, or loads it from the disk, before an update needs it."""
    row, table = torch.zeros(1, dtype=dtype), torch.zeros(1, num_actions, dtype=dtype)
    rows = torch.zeros(1, dtype=torch.int64), row, torch.zeros(1, dtype=torch.bool)
    q_loss(table, rows, table, discounts=0.0)


class _QLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, columns: tuple[Tensor, ...], gamma: float, delta: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        kernels = _kernels()
        # Views of one head, expanded numbers: a kernel is compiled for rows that lie one after another.
        values, columns = values.contiguous(), tuple(column.contiguous() for column in columns)
        of_values, errors, terms = torch.empty_like(values), values.new_empty(len(values)), values.new_empty(3)
        kernels.q_loss(*[tensor.numpy() for tensor in (values, *columns, of_values, errors, terms)], gamma, delta)
        ctx.save_for_backward(of_values)
        ctx.mark_non_differentiable(terms, errors)
        return terms[0].clone(), terms, errors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Any, ...]:
        (of_values,) = ctx.saved_tensors
        return of_values * gradient, None, None, None
