"""What a `Learner` offers around its optimizers. `Learner` takes these functions as its methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lockstep.learner.optimizers import ALL_MODULES, DEFAULT_OPTIMIZER, check_optimizer
from lockstep.state.schedules import ScheduleLike

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner


def register_optimizer(
    self: Learner,
    *,
    module_id: str = ALL_MODULES,
    optimizer_name: str = DEFAULT_OPTIMIZER,
    optimizer: torch.optim.Optimizer,
    params: Sequence[nn.Parameter],
    lr_or_lr_schedule: ScheduleLike | None = None,
) -> None:
    """Adds an optimizer of your own over `params`, under a module's id or, for several modules, under `ALL_MODULES`.

    `lr_or_lr_schedule=None` keeps the optimizer's own learning rate. Raises `ValueError` when the name or a parameter
    is already taken, or the optimizer holds other parameters, `KeyError` for an unknown module.
    """
    if module_id != ALL_MODULES and module_id not in self.module:
        raise KeyError(f"no module {module_id!r} for optimizer {optimizer_name!r}; there are {sorted(self.module)}")
    self._check_registered_optimizer(optimizer, params)
    self.optimizers.register(module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)


def get_optimizer(
    self: Learner, module_id: str = ALL_MODULES, optimizer_name: str = DEFAULT_OPTIMIZER
) -> torch.optim.Optimizer:
    """The optimizer of that name; `KeyError` with those that exist."""
    return self.optimizers.get(module_id, optimizer_name).optimizer


def get_optimizers_for_module(self: Learner, module_id: str = ALL_MODULES) -> list[tuple[str, torch.optim.Optimizer]]:
    """`[(name, optimizer)]` registered under `module_id`; `KeyError` for an unknown module."""
    if module_id != ALL_MODULES and module_id not in self.module:
        raise KeyError(f"no module {module_id!r}; there are {sorted(self.module)}, and {ALL_MODULES!r}")
    return [(entry.name, entry.optimizer) for entry in self.optimizers.of_module(module_id)]


def get_parameters(self: Learner, module: nn.Module) -> list[nn.Parameter]:
    """The module's parameters, in order."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    return list(module.parameters())


def get_param_ref(self: Learner, param: nn.Parameter) -> nn.Parameter:
    """What a parameter is called in a dict of gradients: itself."""
    if not isinstance(param, Tensor):
        raise ValueError(f"param must be a parameter of a module, not {type(param).__name__}")
    return param


def filter_param_dict_for_optimizer(
    self: Learner, param_dict: Mapping[nn.Parameter, Any], optimizer: torch.optim.Optimizer
) -> dict[nn.Parameter, Any]:
    """The part of `param_dict` (by parameter reference, e.g. gradients) that `optimizer` steps."""
    params = self.optimizers.entry_of(optimizer).flat.params
    return {param: param_dict[param] for param in params if param in param_dict}


def check_registered_optimizer(self: Learner, optimizer: torch.optim.Optimizer, params: Sequence[nn.Parameter]) -> None:
    """`ValueError` unless `optimizer` is one of torch's and holds just `params`."""
    check_optimizer(optimizer, params)


def set_optimizer_lr(self: Learner, optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of a registered optimizer (until a schedule sets the next)."""
    self.optimizers.entry_of(optimizer).set_lr(lr)


def get_optimizer_lr(self: Learner, optimizer: torch.optim.Optimizer) -> float:
    """The learning rate at which a registered optimizer steps."""
    return float(self.optimizers.entry_of(optimizer).optimizer.param_groups[0]["lr"])


def get_optimizer_state(self: Learner) -> dict[str, Any]:
    """The state of each optimizer by `module_id.name`; tensors are copies."""
    return self.optimizers.get_state()


def set_optimizer_state(self: Learner, state: Mapping[str, Any]) -> None:
    """Restores all optimizers, or none: what does not fit raises `ValueError` with the list."""
    self.optimizers.set_state(state)
