"""Watch what an update relies on and others may change: parameters in their places, gradients that arrive."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.learner.optimizers import OptimizerSet, RegisteredOptimizer
from lockstep.learner.targets import TargetNetwork
from lockstep.modules import MultiRLModule

STEPS_BETWEEN_LOOKS = 500
"""gradient steps after which gradients are looked at once more (which takes about half a small gradient step)"""
STEPS_OF_A_LOOK = 8
"""gradient steps after which a look ends with the update, if it was not all in one"""


class ParameterWatch:
    """Notices before each update what ordinary torch code did to a learner's parameters since the last one.

    `p.data = ...`, `vector_to_parameters`, `load_state_dict(assign=True)`, `module.double().float()`, another layer in
    the place of one, `requires_grad_`: the flat views are bound to what is there now, and optimizers go on with it.
    """

    def __init__(self, module: nn.Module, optimizers: OptimizerSet, registered: Mapping[str, Any]) -> None:
        self._module, self._optimizers, self._registered = module, optimizers, registered
        self._remember()

    def look(self) -> bool:
        """Bind anew what was replaced; return whether compiled code has to be made anew.

        Raises `ValueError` naming a parameter that is gone, or has another shape, dtype or device.
        """
        replaced = {} if self._is_tree_as_it_was() else self._follow_replaced()
        changed = bool(replaced) or (
            bool(self._others) and list(map(Tensor.data_ptr, self._others)) != self._places_of_others
        )
        for entry in self._optimizers:
            changed |= entry.flat.follow_trainable()
            if not entry.flat.is_bound():
                entry.flat.bind(self._names)
        for target in self._registered.values():
            if isinstance(target, TargetNetwork) and (changed or not target.is_bound()):
                target.bind(replaced.get(target.source, target.source))
        if changed:
            self._remember()
        return changed

    def _is_tree_as_it_was(self) -> bool:
        """Return whether each module, parameter and buffer is the object that it was."""
        try:
            return all(map(operator.is_, map(operator.getitem, self._parts, self._keys), self._objects))
        except KeyError:
            return False

    def _remember(self) -> None:
        self._modules: dict[str, nn.Module] = dict(self._module.named_modules())
        parts: list[tuple[dict[str, Any], str, Any]] = []
        for module in self._modules.values():
            for part in (vars(module)[kind] for kind in ("_modules", "_parameters", "_buffers")):
                parts += [(part, name, value) for name, value in part.items() if _has_tensors(value)]
        self._parts, self._keys, self._objects = ([*each] for each in zip(*parts))
        self._params = dict(self._module.named_parameters(remove_duplicate=False))
        self._names = {id(value): name for name, value in self._registered.items()}
        self._names |= {id(param): name for name, param in self._params.items()}
        tensors: list[Any] = [*self._params.values(), *self._module.buffers()]
        self._others = [tensor for tensor in tensors if not self._optimizers.steps(tensor)]
        self._places_of_others = list(map(Tensor.data_ptr, self._others))

    def _follow_replaced(self) -> dict[nn.Module, nn.Module]:
        """Let optimizers go on with the parameters that stand under the names of theirs.

        Returns the modules that stand under the names of others.
        """
        now = dict(self._module.named_parameters(remove_duplicate=False))
        found: dict[nn.Parameter, nn.Parameter] = {}
        for name, param in self._params.items():
            if not self._optimizers.steps(param):
                continue
            if name not in now:
                raise ValueError(
                    f"the parameter {name} is no longer in its module, but an optimizer has it; put it back, or build "
                    "the learner anew with the module as it is"
                )
            if found.setdefault(param, now[name]) is not now[name]:
                raise ValueError(
                    f"the parameter {name} was shared with another layer and is one of its own now; tie them again, or "
                    "build the learner anew"
                )
        names = {id(param): name for name, param in now.items()}
        self._optimizers.replace({param: by for param, by in found.items() if by is not param}, names)
        before = self._modules
        self._remember()
        return {module: self._modules.get(name, module) for name, module in before.items()}


def _has_tensors(part: nn.Module | Tensor | None) -> bool:
    """Return whether it is a tensor, or a module that has one."""
    if isinstance(part, nn.Module):
        return any(True for _ in part.parameters()) or any(True for _ in part.buffers())
    return part is not None


WITHOUT_GRADIENT = (
    "had no gradient, or one of zeros only, in a whole update. Either units behind them are saturated (a tanh far from "
    "0, a relu below 0: lower training.lr, set environment.normalize_observations=True, begin with smaller weights), "
    "or the loss does not depend on them: freeze what is not to learn (requires_grad_(False))"
)
WITHOUT_OPTIMIZER = (
    "have no optimizer, and stay as they are: register_optimizer gives them one. Freeze what is not to learn "
    "(requires_grad_(False))"
)


class GradientWatch:
    """Finds trainable parameters that get no gradient in a whole update, or that no optimizer steps.

    It looks at the first gradient steps, and again after each `STEPS_BETWEEN_LOOKS`, until all parameters had one.
    """

    def __init__(self) -> None:
        self._named: set[str] = set()
        """parameters that were named already"""
        self._steps_to_go = 0
        self.missing: dict[nn.Parameter, RegisteredOptimizer] = {}
        """while it looks: those without a gradient so far"""
        self._names: dict[nn.Parameter, str] = {}
        self._unstepped: list[str] = []
        """those that no optimizer steps"""
        self._steps: Counter[str] = Counter()
        """gradient steps that it looked at, in all ("") and by optimizer"""
        self._largest: Tensor | None = None
        """the largest gradients of the parameters in `missing`, where they are not read yet"""

    def begin(
        self, module: MultiRLModule, registered: Mapping[str, Any], optimizers: OptimizerSet, module_ids: Iterable[str]
    ) -> None:
        """Begin an update of the modules `module_ids`."""
        if self._steps_to_go > 0:
            return
        self._steps_to_go = STEPS_BETWEEN_LOOKS
        self._steps.clear()
        self._names = {p: name for name, p in module.named_parameters()}
        self._names |= {value: name for name, value in registered.items() if isinstance(value, nn.Parameter)}
        learning = {p: entry for entry in optimizers for p in entry.flat.params if p.requires_grad}
        self.missing = {p: entry for p, entry in learning.items() if self._name(p) not in self._named}
        params = [p for module_id in module_ids for p in module[module_id].parameters() if p.requires_grad]
        self._unstepped = [self._names[p] for p in params if not optimizers.steps(p)]

    def forget(self) -> None:
        """Look anew, after parameters have come, gone or changed."""
        self.missing, self._steps_to_go, self._largest = {}, 0, None

    def see(self, entries: Iterable[RegisteredOptimizer]) -> None:
        """Look at the flat gradients after a backward pass. On a device what it sees is read when the update ends."""
        self._steps.update(["", *(entry.key for entry in entries if entry.has_loss)])
        gradients = [entry.flat.grad_by_param[p] for p, entry in self.missing.items()]
        largest = torch.stack([torch.linalg.vector_norm(gradient, math.inf) for gradient in gradients])
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)
        if all(entry.on_host for entry in self.missing.values()):
            self._read()

    def _read(self) -> None:
        """Take out of `missing` what had a gradient."""
        if self._largest is not None:
            largest, self._largest = self._largest.tolist(), None
            self.missing = {p: entry for (p, entry), size in zip(self.missing.items(), largest) if size == 0.0}

    def end(self, num_steps: int) -> tuple[int, list[str]]:
        """End an update of `num_steps` gradient steps.

        Returns how many parameters are named as without a gradient, and warnings about what was found now.
        """
        self._read()
        self._steps_to_go -= num_steps
        if not self.missing and not self._unstepped:  # most updates
            return 0, []
        # Of a network that begins with weights of 0, the layers before them have a gradient of 0 in the first step.
        without = [self._name(p) for p, entry in self.missing.items() if self._steps[entry.key] >= 2]
        goes_on = self._steps[""] < STEPS_OF_A_LOOK
        self.missing = {p: e for p, e in self.missing.items() if goes_on and self._name(p) not in without}
        warnings = [
            f"the trainable parameters {', '.join(new)} {problem}"
            for names, problem in (
                (without, WITHOUT_GRADIENT),
                (self._unstepped, WITHOUT_OPTIMIZER),
            )
            if (new := [name for name in names if name not in self._named])
        ]
        self._named.update(without, self._unstepped)
        return len(without), warnings

    def _name(self, param: nn.Parameter) -> str:
        return self._names.get(param, f"a parameter of shape {tuple(param.shape)}")


def first_bad_tensor(
    module: MultiRLModule, registered: Mapping[str, Any], optimizers: OptimizerSet
) -> tuple[RegisteredOptimizer, str]:
    """Return the name of the first tensor whose gradient was not finite, with the optimizer that steps it."""
    found = [(entry, entry.take_bad_parameter()) for entry in optimizers]
    entry, param = next((pair for pair in found if pair[1] is not None), (found[0][0], None))
    names = {id(p): name for name, p in module.named_parameters()}
    names |= {id(value): name for name, value in registered.items()}
    return entry, names.get(id(param), f"a parameter of optimizer {entry.key!r}")
