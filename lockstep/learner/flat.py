"""Parameters and gradients of one optimizer as views into one flat tensor each (house, decision 3)."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

GRADIENT, LEARNS = operator.attrgetter("grad"), operator.attrgetter("requires_grad")


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
        self.parameter = nn.Parameter(self.data)
        """the flat tensor as one parameter, for an optimizer that steps on it at once"""
        self.parameter.grad = self.grad
        self._places = [view.data_ptr() for view in self.unflatten(self.data)]
        self.trainable = list(map(LEARNS, self.params))
        self.bind({})

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
        """All gradients to zero, in one operation; the views stay in place, or come back where somebody set `.grad` or
        `.grad.data` (`module.double()` does so).
        """
        self.grad.zero_()
        try:
            if list(map(Tensor.data_ptr, map(GRADIENT, self._learning))) == self._grad_places:
                return
        except TypeError:  # None
            pass
        self._put_gradients()

    # -- what others have replaced ---

    def is_bound(self) -> bool:
        """Do all parameters still lie in the flat tensor?"""
        return list(map(Tensor.data_ptr, self.params)) == self._places

    def bind(self, names: Mapping[int, str]) -> None:
        """Makes views of the parameters again that were given other memory (`p.data = ...`); their values are kept.

        `names`: by `id(parameter)`, for messages. Raises `ValueError` naming one that has another shape, dtype or
        device now; nothing is changed then.
        """
        for param in self.params:
            self.check_fits(param, param, names)
        views = self.unflatten(self.data)
        # all values first: what was swapped lies in the places of others
        moved = [pair for pair in zip(self.params, views) if not self._lies_at(*pair)]
        for (param, view), value in zip(moved, [param.detach().clone() for param, _ in moved]):
            view.copy_(value)
            param.data = view
        self._put_gradients()

    def check_fits(self, param: nn.Parameter, place: nn.Parameter, names: Mapping[int, str]) -> None:
        """Raises `ValueError` naming `param` unless it can lie in the place of `place`, one of its parameters."""
        shape = next(shape for p, shape in zip(self.params, self.shapes) if p is place)
        if param.shape != shape or param.dtype != self.data.dtype or param.device != self.data.device:
            was = f"{tuple(shape)} {self.data.dtype} on {self.data.device}"
            raise ValueError(
                f"{names.get(id(param), 'a parameter')} was {was} when its optimizer was made, and is "
                f"{tuple(param.shape)} {param.dtype} on {param.device}: the optimizer cannot go on with it. Give it "
                "back its shape, dtype and device, or build the learner anew (framework(dtype=) sets the dtype)"
            )

    def replace(self, param: nn.Parameter, by: nn.Parameter) -> None:
        """Goes on with another object in the place of `param`; to be bound after it."""
        self.params = [by if p is param else p for p in self.params]

    def follow_trainable(self) -> bool:
        """Takes over which parameters are frozen (`requires_grad_(False)`); True where that has changed."""
        trainable = list(map(LEARNS, self.params))
        if trainable == self.trainable:
            return False
        self.trainable = trainable
        self._put_gradients()
        return True

    def frozen(self) -> Tensor | None:
        """`[n]` bool: the elements of frozen parameters; None where all learn."""
        if all(self.trainable):
            return None
        parts = [torch.full((size,), not trains) for size, trains in zip(self.sizes, self.trainable)]
        return torch.cat(parts).to(self.data.device)

    def _lies_at(self, param: nn.Parameter, view: Tensor) -> bool:
        return param.data_ptr() == view.data_ptr() and param.is_contiguous()

    def _put_gradients(self) -> None:
        """The gradients of those that learn are views on the flat gradient. A frozen one has none, so that optimizers
        of single parameters pass it over.
        """
        self.grad_views = self.unflatten(self.grad)
        self.grad_by_param = dict(zip(self.params, self.grad_views))
        self._learning = [param for param, learns in zip(self.params, self.trainable) if learns]
        for param in self.params:
            param.grad = None
        for param in self._learning:
            param.grad = self.grad_by_param[param]
        self._grad_places = [self.grad_by_param[param].data_ptr() for param in self._learning]
        self.parameter.grad = self.grad
