"""What a `torch.autograd.Function` takes from its forward to its backward pass."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class GradientContext(Protocol):
    """Context of a `torch.autograd.Function`, the first argument of its two passes.

    A function that hands on more than tensors has a subclass with these attributes. (torch declares no type for it.)
    """

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """Tensors that `save_for_backward` was given."""

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Whether each argument of the forward pass needs a gradient."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for the backward pass."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declare outputs of the forward pass that have no gradient."""
