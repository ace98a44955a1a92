"""The learner's optimizer as torch's optimizer over a policy's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class LiveOptimizer(torch.optim.Optimizer):
    """Optimizer that steps single parameters with the learner's optimizer over its flat tensor, and with its state.

    The gradients of `loss.backward()` and any learning rate in `param_groups` are used. A parameter without a gradient
    (None) keeps its value and its moments, as in torch. `learn` sets its own learning rate in each update.

    Args:
        entry: The learner's optimizer, with its flat parameters.
    """

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self._learner_rate = self._rate_of_learner()
        super().__init__(entry.flat.params, {**entry.optimizer.defaults, "lr": self._learner_rate})

    def _rate_of_learner(self) -> float:
        return float(self.entry.optimizer.param_groups[0]["lr"])

    def follow_learner(self) -> LiveOptimizer:
        """Take over the learning rate if the learner has changed it, and return this optimizer."""
        rate = self._rate_of_learner()
        if rate != self._learner_rate:
            self._learner_rate = rate
            for group in self.param_groups:
                group["lr"] = rate
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove all gradients."""
        self.entry.flat.zero_grad()
        if set_to_none:
            for parameter in self.entry.flat.params:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step, and return the result of `closure`, which computes the loss once more."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        flat = self.entry.flat
        gradients = [parameter.grad for parameter in flat.params]
        views = flat.unflatten(flat.grad)
        flat.parameter.grad = flat.grad
        kept: list[tuple[Tensor, Tensor]] = []
        for index, (view, gradient) in enumerate(zip(views, gradients)):
            if gradient is None:
                view.zero_()
                kept += self._parts_of(index)
            elif gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)

        group = self.entry.optimizer.param_groups[0]
        options = {name: value for name, value in self.param_groups[0].items() if name != "params"}
        before = {name: group[name] for name in options}
        group.update(options)
        try:
            self.entry.optimizer.step()
        finally:
            group.update(before)
        for part, value in kept:
            part.copy_(value)
        return loss

    def _parts_of(self, index: int) -> list[tuple[Tensor, Tensor]]:
        """Return the values and moments of a parameter, each with a copy."""
        flat = self.entry.flat
        state = self.entry.optimizer.state.get(flat.parameter, {}).values()
        moments = [value for value in state if torch.is_tensor(value) and value.shape == flat.data.shape]
        parts = [flat.unflatten(tensor)[index] for tensor in (flat.data, *moments)]
        return [(part, part.clone()) for part in parts]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the learner's optimizer."""
        state: dict[str, Any] = self.entry.optimizer.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        self.entry.optimizer.load_state_dict(state_dict)


def optimizer_of(entry: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer over single parameters of a learner's optimizer."""
    if not entry.steps_flat:
        optimizer: torch.optim.Optimizer = entry.optimizer
        return optimizer
    return LiveOptimizer(entry)
