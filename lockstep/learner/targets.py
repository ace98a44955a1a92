"""`TargetNetwork`: a copy of a module that follows it, for targets that stand still meanwhile."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.learner.optimizers import OptimizerSet


class TargetNetwork:
    """A copy of `module` whose parameters lie in one flat tensor, so that following is one operation.

    To be registered as state of the learner (`register_state`), so that checkpoints hold it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = copy.deepcopy(module).requires_grad_(False)
        self._names = [name for name, p in module.named_parameters() if p.requires_grad]
        own = dict(self.module.named_parameters())
        self.followed = [p for p in module.parameters() if p.requires_grad]
        """the parameters that it goes after"""
        self._shapes = [own[name].shape for name in self._names]
        self.flat = torch.cat([own[name].detach().reshape(-1) for name in self._names])
        for name, view in self.views().items():
            own[name].data = view
        self.num_steps = 0
        """gradient steps that it was told of"""

    def views(self) -> dict[str, Tensor]:
        """The parameters by name, as views of `flat` made now."""
        parts = self.flat.split([shape.numel() for shape in self._shapes])
        return {name: part.view(shape) for name, shape, part in zip(self._names, self._shapes, parts)}

    def after_gradient_step(self, optimizers: OptimizerSet, module_id: str, interval: int, tau: float) -> None:
        """Each `interval`-th call: `tau` of the way to the parameters that learn, those of module `module_id`."""
        self.num_steps += 1
        if self.num_steps % interval == 0:
            source = _flat(optimizers, module_id, self.followed)
            if tau == 1.0:
                self.flat.copy_(source)
            else:
                self.flat.lerp_(source, tau)

    def get_state(self) -> dict[str, Any]:
        """Parameters (a copy) and the count."""
        return {"flat": self.flat.cpu().numpy().copy(), "num_steps": self.num_steps}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to what `get_state` gave; `ValueError` for another number of parameters."""
        given = torch.as_tensor(state["flat"])
        if given.shape != self.flat.shape:
            raise ValueError(f"the target network has {self.flat.numel()} parameters, the state {given.numel()}")
        self.flat.copy_(given)
        self.num_steps = int(state["num_steps"])


def _flat(optimizers: OptimizerSet, module_id: str, params: Sequence[nn.Parameter]) -> Tensor:
    """Parameters of a module as one flat tensor: the optimizer's own where it has just these."""
    for entry in optimizers.of_module(module_id):
        if len(entry.flat.params) == len(params) and all(map(operator.is_, entry.flat.params, params)):
            return entry.flat.data
    return torch.cat([p.detach().reshape(-1) for p in params])
