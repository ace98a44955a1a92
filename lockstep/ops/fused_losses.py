"""The loss of PPO with its derivatives, in one compiled pass over the rows.

For small networks on the CPU such a loss is dozens of operations on a few hundred numbers, and calling them costs as
much as the networks do. Here a numba kernel takes each row once and writes the loss and its derivatives. The numbers
are those that `algorithms.ppo` writes out (the tests compare them), summed in float64.

The family asks `can_fuse_ppo`; `framework(fused_losses=False)` switches the kernels off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from lockstep.ops.autograd import GradientContext
from lockstep.ops.distributions import Categorical, DiagGaussian, Distribution

Rows = tuple[Tensor, Tensor, Tensor, Tensor]
_NONE = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.float32, torch.float64)}
_NO_PARTS = torch.empty(0, 3, dtype=torch.float64)


class GlobalReduction(NamedTuple):
    """The moments of all learners and their sum, for means over the rows of every learner."""

    moments: Tensor
    """`[K, 3]` float64: `moments` of each learner's advantages, the own ones among them"""
    sum_: Callable[[Tensor], Any]
    """the sum over all learners, in place"""


@cache
def _kernels() -> Any:
    from lockstep.ops import _fused_kernels  # when first needed: numba takes its time to load

    return _fused_kernels


def _is_plain(outputs: Tensor, columns: tuple[Tensor, ...]) -> bool:
    """Return whether kernels take a network's outputs `[N, D]` and columns `[N]` of a batch here and now.

    Where a gradient is to flow into a column, or the kinds of numbers differ, the plain loss has to be written out; so
    it has on another device, in a trace and within functorch.
    """
    dtype = outputs.dtype
    return (
        type(outputs) is Tensor
        and outputs.device.type == "cpu"
        and outputs.dim() == 2
        and dtype in _NONE
        and all([c.dtype is dtype and c.ndim == 1 and not c.requires_grad for c in columns])  # noqa: C419 (faster)
        and not is_in_torch_dispatch_mode()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def moments(values: Tensor) -> Tensor:
    """Return `[3]` float64: the number of `values` `[N]`, their mean, and the sum of squared distances from it."""
    kernels = _kernels()
    found = torch.empty(3, dtype=torch.float64)
    kernels.moments(values.detach().contiguous().numpy(), found.numpy())
    return found


def can_fuse_ppo(
    distribution: type[Distribution], inputs: Tensor, values: Tensor, actions: Tensor, *columns: Tensor
) -> bool:
    """Return whether `ppo_loss` takes this distribution and these tensors; `columns`: further columns of the batch."""
    if distribution is Categorical:
        fits = actions.dtype is torch.int64 and actions.dim() == 1
    else:
        fits = distribution is DiagGaussian and actions.dtype is inputs.dtype and actions.dim() == 2
    return fits and values.dtype is inputs.dtype and values.dim() == 1 and _is_plain(inputs, columns)


def ppo_loss(
    distribution: type[Distribution],
    inputs: Tensor,
    values: Tensor,
    batch: Rows,
    *,
    coefficients: tuple[Tensor, float, Tensor],
    dual_clip: float | None = None,
    old_values: Tensor | None = None,
    vf_clip_param: float | None = None,
    normalize: bool = False,
    reduction: GlobalReduction | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `(loss, terms)`: the loss of equation 9 in Schulman et al. 2017 with its gradient, and its parts.

    Args:
        distribution: `Categorical` or `DiagGaussian`. inputs: `[N, D]`, its inputs. values: `[N]`.
        batch: actions `[N]` or `[N, A]`, old log-probabilities, advantages and value targets `[N]`.
        coefficients: clip parameter (0-d), of the value loss, of the entropy (0-d).
        dual_clip, old_values, vf_clip_param: as in `ops.losses`; None switches them off.
        normalize: shift and scale the advantages to mean 0 and deviation 1 first.
        reduction: Link to the learners that have the other rows. None if this learner has all rows.

    Returns:
        The 0-d loss, and `[5]` without gradient: the means over the rows of the clipped surrogate loss, the value
        loss, the entropy and the KL estimate k3, and the share of the rows whose ratio is clipped. The loss can be
        differentiated once (`RuntimeError` on a second time). With `reduction` both are those of all rows, and the
        gradient is these rows' part of it.
    """
    if vf_clip_param is None or old_values is None:
        old_values, vf_clip_param = _NONE[values.dtype], 0.0
    clip_param, vf_loss_coeff, entropy_coeff = coefficients
    settings = (clip_param.numpy(), vf_loss_coeff, entropy_coeff.numpy(), dual_clip or 0.0, vf_clip_param, normalize)
    rows = (*batch, old_values)
    result: tuple[Tensor, Tensor] = _PpoLoss.apply(inputs, values, distribution, rows, settings, reduction)
    return result


def load_ppo_kernel(distribution: type[Distribution], size: int, dtype: torch.dtype) -> None:
    """Compile the kernel, or load it from the disk, before an update needs it; inputs are `[N, size]`."""
    inputs, row = torch.zeros(1, size, dtype=dtype), torch.zeros(1, dtype=dtype)
    actions = torch.zeros(1, dtype=torch.int64) if distribution is Categorical else inputs[:, size // 2 :].contiguous()
    if can_fuse_ppo(distribution, inputs, row, actions):
        zero = torch.zeros((), dtype=dtype)
        ppo_loss(distribution, inputs, row, (actions, row, row, row), coefficients=(zero, 0.5, zero))


PpoSettings = tuple[np.ndarray, float, np.ndarray, float, float, bool]
"""Clip parameter (0-d), coefficients of the value loss and of the entropy (0-d), dual clip and clip of values (0: no
clip), whether advantages are normalised."""


class _PpoLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: GradientContext,
        inputs: Tensor,
        values: Tensor,
        distribution: type[Distribution],
        rows: Sequence[Tensor],
        settings: PpoSettings,
        reduction: GlobalReduction | None,
    ) -> tuple[Tensor, Tensor]:
        kernels = _kernels()
        kernel = kernels.categorical if distribution is Categorical else kernels.diag_gaussian
        # Views of one head, expanded numbers: a kernel is compiled for rows that lie one after another.
        if not all(map(Tensor.is_contiguous, (inputs, values, *rows))):
            inputs, values, *rows = (tensor.contiguous() for tensor in (inputs, values, *rows))
        of_inputs, of_values = torch.empty_like(inputs), torch.empty_like(values)
        loss, terms = inputs.new_empty(()), inputs.new_empty(5)
        parts = _NO_PARTS if reduction is None else reduction.moments
        arrays = [tensor.numpy() for tensor in (inputs, values, *rows, of_inputs, of_values, loss, terms)]
        kernel(*arrays, *settings, parts.numpy())
        if reduction is not None:
            reduction.sum_(terms)
            loss.copy_(terms[0] + settings[1] * terms[1] - float(settings[2]) * terms[2])
        ctx.save_for_backward(of_inputs, of_values)
        ctx.mark_non_differentiable(terms)
        return loss, terms

    @staticmethod
    @once_differentiable
    def backward(ctx: GradientContext, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
        of_inputs, of_values = ctx.saved_tensors
        return of_inputs * gradient, of_values * gradient, None, None, None, None
