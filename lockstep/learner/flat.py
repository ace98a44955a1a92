"""Parameters and gradients of one optimizer as views into one flat tensor each (house, decision 3)."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn


class FlatParameters:
    """Moves `params` into one contiguous tensor; each parameter becomes a view on it, its gradient a view on `grad`.

    Clipping, the optimizer's step, the all-reduce and the publishing of weights are then one operation each.
    Raises `ValueError` for an empty list, a repeated parameter, or mixed dtypes or devices.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = list(params)
        if not self.params:
            raise ValueError("an optimizer needs at least one parameter; give those that learn, or register none")
        if len({id(p) for p in self.params}) != len(self.params):
            raise ValueError("a parameter is given twice to one optimizer; give each once")
        kinds = {(p.dtype, p.device) for p in self.params}
        if len(kinds) != 1:
            raise ValueError(f"parameters of one optimizer must share dtype and device, not {sorted(map(str, kinds))}")
        dtype, device = kinds.pop()
        self.sizes = [p.numel() for p in self.params]
        self.shapes = [p.shape for p in self.params]
        self.data = torch.empty(sum(self.sizes), dtype=dtype, device=device)
        self.grad = torch.zeros_like(self.data)
        self.grad_views = self.unflatten(self.grad)
        self.grad_by_param = dict(zip(self.params, self.grad_views))
        for param, view, grad in zip(self.params, self.unflatten(self.data), self.grad_views):
            view.copy_(param.data)
            param.data = view
            param.grad = grad
        self.parameter = nn.Parameter(self.data)
        """the flat tensor as one parameter, for an optimizer that steps on it at once"""
        self.parameter.grad = self.grad

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Views of `flat` in the parameters' shapes."""
        return [part.view(shape) for part, shape in zip(flat.split(self.sizes), self.shapes)]

    def are_views(self, gradients: Collection[Tensor]) -> bool:
        """Are `gradients`, one for each parameter, the views on `grad` themselves?"""
        return len(gradients) == len(self.params) and all(map(operator.is_, gradients, self.grad_views))

    def take(self, gradients: Mapping[nn.Parameter, Tensor]) -> Sequence[Tensor]:
        """The gradients of its parameters, in order. A dict of just the views is not searched by parameter."""
        return self.grad_views if self.are_views(gradients.values()) else [gradients[param] for param in self.params]

    def zero_grad(self) -> None:
        """All gradients to zero, in one operation; the views stay in place."""
        self.grad.zero_()
        if self.params[0].grad is not self.grad_views[0]:
            self.rebind()

    def rebind(self) -> None:
        """Puts the views back after somebody set `.grad` to `None` or to another tensor."""
        for param, view in zip(self.params, self.grad_views):
            param.grad = view
        self.parameter.grad = self.grad
