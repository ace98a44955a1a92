"""The loss of PPO with its derivatives, computed in one compiled pass over the rows.

For small networks on the CPU the written-out loss is dozens of operations on a few hundred numbers, and calling these
costs as much as the networks do. Here a numba kernel reads each row once and writes the loss and its derivatives. The
numbers equal those that `algorithms.ppo` writes out (the tests compare them), summed in float64.

The learners of the on-policy family ask `can_fuse_ppo` before each loss. `framework(fused_losses=False)` switches the
kernels off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lockstep.ops.autograd import GradientContext
from lockstep.ops.distributions import Categorical, DiagGaussian, Distribution
from lockstep.ops.torch_modes import are_functorch_transforms_active, is_in_torch_dispatch_mode

Rows = tuple[Tensor, Tensor, Tensor, Tensor]
"""Actions `[N]` or `[N, A]`, old log-probabilities `[N]`, advantages `[N]` and value targets `[N]`."""

PpoSettings = tuple[np.ndarray, float, np.ndarray, float, float, bool]
"""Scalar arguments of a kernel: the clip parameter (0-d), the coefficients of the value loss and of the entropy (0-d),
the dual clip and the clip of values (0: no clip), and whether advantages are normalised."""

# Arguments of a kernel that stand for "none": numba compiles a kernel for one type of each argument.
_NO_VALUES = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.float32, torch.float64)}
_NO_MOMENTS = torch.empty(0, 3, dtype=torch.float64)


class GlobalReduction(NamedTuple):
    """Link to the other learners that share a batch, for means over the rows of all learners."""

    moments: Tensor
    """`[K, 3]` float64, the `moments` of the advantages of each of K learners."""
    sum_: Callable[[Tensor], Any]
    """Function that replaces a tensor by its sum over all learners, in place."""


@cache
def _kernels() -> Any:
    """Return the module of the kernels. Its import is deferred, because numba takes long to load."""
    from lockstep.ops import _fused_kernels

    return _fused_kernels


def _kernels_accept(outputs: Tensor, columns: tuple[Tensor, ...]) -> bool:
    """Return whether a kernel can read a network's outputs `[N, D]` and columns `[N]` of a batch.

    If a column needs a gradient or dtypes differ, the loss has to be written out. The same holds on another device, in
    a trace and within `torch.func`, where there is no memory to read.
    """
    dtype = outputs.dtype
    return (
        type(outputs) is Tensor
        and outputs.device.type == "cpu"
        and outputs.dim() == 2
        and dtype in _NO_VALUES
        and all([c.dtype is dtype and c.ndim == 1 and not c.requires_grad for c in columns])  # noqa: C419 (faster)
        and not is_in_torch_dispatch_mode()
        and not torch.compiler.is_compiling()
        and not are_functorch_transforms_active()
    )


def moments(values: Tensor) -> Tensor:
    """Return the number of `values` `[N]`, their mean, and the sum of squared distances from it, as `[3]` float64."""
    kernels = _kernels()
    result = torch.empty(3, dtype=torch.float64)
    kernels.moments(values.detach().contiguous().numpy(), result.numpy())
    return result


def can_fuse_ppo(
    distribution: type[Distribution], inputs: Tensor, values: Tensor, actions: Tensor, *columns: Tensor
) -> bool:
    """Return whether `ppo_loss` accepts this distribution and these tensors.

    Args:
        distribution: Class of the action distribution.
        inputs: Inputs of the distribution.
        values: Predicted values.
        actions: Actions of the batch.
        columns: The batch's other columns of one number for each row.
    """
    if distribution is Categorical:
        fits = actions.dtype is torch.int64 and actions.dim() == 1
    else:
        fits = distribution is DiagGaussian and actions.dtype is inputs.dtype and actions.dim() == 2
    return fits and values.dtype is inputs.dtype and values.dim() == 1 and _kernels_accept(inputs, columns)


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
    """Return PPO's loss with its gradient, and the terms that it consists of (Schulman et al. 2017, equation 9).

    Args:
        distribution: `Categorical` or `DiagGaussian`.
        inputs: `[N, D]`, inputs of the distribution.
        values: `[N]`, predicted values.
        batch: Actions `[N]` or `[N, A]`, old log-probabilities, advantages and value targets `[N]`.
        coefficients: Clip parameter (0-d), coefficient of the value loss, coefficient of the entropy (0-d).
        dual_clip: As in `ops.losses.clipped_surrogate_loss`. None switches it off.
        old_values: `[N]`, as in `ops.losses.clipped_value_loss`.
        vf_clip_param: As `clip_param` of `ops.losses.clipped_value_loss`. None switches it off.
        normalize: Whether the advantages are first shifted and scaled to mean 0 and deviation 1.
        reduction: Moments and sum of all learners, if others have rows of the same batch. None if these are all rows.

    Returns:
        `(loss, terms)`. The 0-d loss can be differentiated once (a second time raises `RuntimeError`). `terms` `[5]`
        has no gradient: the means over the rows of the clipped surrogate loss, the value loss, the entropy and the KL
        estimate k3, and the share of the rows whose ratio is clipped. With `reduction` both are those of the rows of
        all learners, and the gradient is these rows' part of the whole one.
    """
    if vf_clip_param is None or old_values is None:
        old_values = _NO_VALUES[values.dtype]
        vf_clip_param = 0.0
    clip_param, vf_loss_coeff, entropy_coeff = coefficients
    settings = (clip_param.numpy(), vf_loss_coeff, entropy_coeff.numpy(), dual_clip or 0.0, vf_clip_param, normalize)
    rows = (*batch, old_values)
    result: tuple[Tensor, Tensor] = _PpoLoss.apply(inputs, values, distribution, rows, settings, reduction)
    return result


def load_ppo_kernel(distribution: type[Distribution], size: int, dtype: torch.dtype) -> None:
    """Compile the kernel for a distribution, or load it from the disk, so that no update waits for it.

    Args:
        distribution: Class of the action distribution. For one without a kernel nothing happens.
        size: Number of inputs of the distribution, D.
        dtype: Dtype of the network.
    """
    # One row of zeros is enough: numba compiles for types, not for shapes.
    inputs = torch.zeros(1, size, dtype=dtype)
    row = torch.zeros(1, dtype=dtype)
    if distribution is Categorical:
        actions = torch.zeros(1, dtype=torch.int64)
    else:
        actions = inputs[:, size // 2 :].contiguous()
    if can_fuse_ppo(distribution, inputs, row, actions):
        zero = torch.zeros((), dtype=dtype)
        ppo_loss(distribution, inputs, row, (actions, row, row, row), coefficients=(zero, 0.5, zero))


class _PpoLoss(torch.autograd.Function):
    """PPO's loss whose forward pass computes the gradient as well; the backward pass only scales it."""

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
        # Views of one head and expanded numbers are not contiguous, and kernels are compiled for contiguous rows.
        if not all(map(Tensor.is_contiguous, (inputs, values, *rows))):
            inputs, values, *rows = (tensor.contiguous() for tensor in (inputs, values, *rows))
        input_gradients = torch.empty_like(inputs)
        value_gradients = torch.empty_like(values)
        loss = inputs.new_empty(())
        terms = inputs.new_empty(5)
        learner_moments = _NO_MOMENTS if reduction is None else reduction.moments

        tensors = (inputs, values, *rows, input_gradients, value_gradients, loss, terms)
        arrays = [tensor.numpy() for tensor in tensors]
        kernel(*arrays, *settings, learner_moments.numpy())

        if reduction is not None:
            # The kernel divides by the rows of all learners, so the terms add up to the means over all rows.
            reduction.sum_(terms)
            loss.copy_(terms[0] + settings[1] * terms[1] - float(settings[2]) * terms[2])
        ctx.save_for_backward(input_gradients, value_gradients)
        ctx.mark_non_differentiable(terms)
        return loss, terms

    @staticmethod
    @once_differentiable
    def backward(ctx: GradientContext, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
        input_gradients, value_gradients = ctx.saved_tensors
        return input_gradients * gradient, value_gradients * gradient, None, None, None, None
