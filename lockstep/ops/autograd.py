"""Type of the context that a `torch.autograd.Function` passes from its forward to its backward pass."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class GradientContext(Protocol):
    """Context of a `torch.autograd.Function`: the first argument of its forward and of its backward pass.

    torch declares no type for it. A function that stores more than tensors in its context declares a subclass with
    these attributes.
    """

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """Tensors that the forward pass saved with `save_for_backward`."""

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Whether each argument of the forward pass needs a gradient."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Save tensors for the backward pass."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare outputs of the forward pass that have no gradient."""
