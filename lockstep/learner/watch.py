"""Checks before and during updates: whether parameters were replaced, and whether all of them get gradients."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.learner.optimizers import OptimizerSet, RegisteredOptimizer
from lockstep.learner.targets import target_networks
from lockstep.modules import MultiRLModule

STEPS_BETWEEN_LOOKS = 500
"""Number of gradient steps after which gradients are checked once more. One check takes about half as long as a small
gradient step."""
STEPS_PER_LOOK = 8
"""Smallest number of gradient steps in a check. A check that has fewer when its update ends continues in the next."""


class ParameterWatch:
    """Detector of changes that ordinary torch code made to a learner's parameters since the last update.

    Such code is `p.data = ...`, `vector_to_parameters`, `load_state_dict(assign=True)`, `module.double().float()`,
    `requires_grad_`, or a layer that replaces another one. Each of them leaves parameters that are no longer views of
    the flat tensor, so optimizers would train tensors that no module uses. The watch binds the flat tensors to the
    present parameters, and hands the optimizers' state over to them.
    """

    def __init__(self, module: nn.Module, optimizers: OptimizerSet, registered: Mapping[str, Any]) -> None:
        self._module = module
        self._optimizers = optimizers
        self._registered = registered
        self._remember()

    def bind_replaced(self) -> bool:
        """Bind flat tensors and targets to parameters that were replaced; return whether compiled code is out of date.

        Raises `ValueError` naming a parameter that was removed, or has another shape, dtype or device now.
        """
        replaced = {} if self._is_tree_unchanged() else self._adopt_replacements()
        changed = bool(replaced)
        if self._unstepped:
            changed |= list(map(Tensor.data_ptr, self._unstepped)) != self._unstepped_places
        for entry in self._optimizers:
            changed |= entry.flat.update_frozen()
            if not entry.flat.is_bound():
                entry.flat.bind(self._names)
        for target in target_networks(self._registered).values():
            if changed or not target.is_bound():
                target.bind(replaced.get(target.source, target.source))
        if changed:
            self._remember()
        return changed

    def _is_tree_unchanged(self) -> bool:
        """Return whether each submodule, parameter and buffer is still the same object.

        This runs before every update, so it compares lists that `_remember` has made and does not walk the tree.
        """
        try:
            present = map(operator.getitem, self._parts, self._keys)
            return all(map(operator.is_, present, self._objects))
        except KeyError:
            return False

    def _remember(self) -> None:
        """Record the present modules, parameters and buffers, with which later ones are compared."""
        self._modules: dict[str, nn.Module] = dict(self._module.named_modules())
        parts: list[tuple[dict[str, Any], str, Any]] = []  # dict of a module, key, and the object under this key
        for module in self._modules.values():
            for kind in ("_modules", "_parameters", "_buffers"):
                part = vars(module)[kind]
                parts += [(part, name, value) for name, value in part.items() if _has_tensors(value)]
        self._parts, self._keys, self._objects = ([*each] for each in zip(*parts))

        self._params = dict(self._module.named_parameters(remove_duplicate=False))
        self._names = {id(value): name for name, value in self._registered.items()}
        self._names |= {id(param): name for name, param in self._params.items()}

        # Tensors that no optimizer steps are in no flat tensor: only their addresses can tell that they were moved.
        tensors: list[Any] = [*self._params.values(), *self._module.buffers()]
        self._unstepped = [tensor for tensor in tensors if not self._optimizers.steps(tensor)]
        self._unstepped_places = list(map(Tensor.data_ptr, self._unstepped))

    def _adopt_replacements(self) -> dict[nn.Module, nn.Module]:
        """Let optimizers step the new parameters in place of those that were replaced.

        A new parameter is recognized by its name: it has the name of the old one in the module tree.

        Returns:
            For each module of the tree before, the module that has its name now.
        """
        now = dict(self._module.named_parameters(remove_duplicate=False))
        successors: dict[nn.Parameter, nn.Parameter] = {}
        for name, param in self._params.items():
            if not self._optimizers.steps(param):
                continue
            if name not in now:
                raise ValueError(
                    f"the parameter {name} is no longer in its module, but an optimizer has it; put it back, or build "
                    "the learner again with the module as it is"
                )
            # A shared parameter has several names, under which there must be one parameter now as well.
            if successors.setdefault(param, now[name]) is not now[name]:
                raise ValueError(
                    f"the parameter {name} was shared with another layer and is one of its own now; tie them again, or "
                    "build the learner again"
                )
        names = {id(param): name for name, param in now.items()}
        changes = {param: successor for param, successor in successors.items() if successor is not param}
        self._optimizers.replace(changes, names)
        before = self._modules
        self._remember()
        return {module: self._modules.get(name, module) for name, module in before.items()}


def _has_tensors(part: nn.Module | Tensor | None) -> bool:
    """Return whether `part` is a tensor, or a module with parameters or buffers."""
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
    """Detector of trainable parameters that get no gradient in a whole update, or that no optimizer steps.

    A check covers the first gradient steps of an update, until each parameter had a gradient. There is one check at the
    start, and one after each `STEPS_BETWEEN_LOOKS` gradient steps.
    """

    def __init__(self) -> None:
        self._reported: set[str] = set()
        """Names of the parameters that a warning has named. No parameter is named twice."""
        self._steps_to_go = 0
        """Gradient steps until the next check."""
        self.missing: dict[nn.Parameter, RegisteredOptimizer] = {}
        """Parameters without a gradient so far, with their optimizers. Empty when no check is in progress."""
        self._names: dict[nn.Parameter, str] = {}
        self._without_optimizer: list[str] = []
        """Names of the trainable parameters that no optimizer steps."""
        self._steps: Counter[str] = Counter()
        """Number of gradient steps in the check, by the key of the optimizer; the number of all steps is under ""."""
        self._largest: Tensor | None = None
        """Largest absolute gradient of each parameter in `missing` since `_read`; None if no step was taken since."""

    def begin(
        self, module: MultiRLModule, registered: Mapping[str, Any], optimizers: OptimizerSet, module_ids: Iterable[str]
    ) -> None:
        """Begin an update of the modules `module_ids`, and a check if one is due."""
        if self._steps_to_go > 0:
            return
        self._steps_to_go = STEPS_BETWEEN_LOOKS
        self._steps.clear()
        self._names = {p: name for name, p in module.named_parameters()}
        self._names |= {value: name for name, value in registered.items() if isinstance(value, nn.Parameter)}

        self.missing = {}
        for entry in optimizers:
            for p in entry.flat.params:
                if p.requires_grad and self._name(p) not in self._reported:
                    self.missing[p] = entry

        self._without_optimizer = []
        for module_id in module_ids:
            trainable = [p for p in module[module_id].parameters() if p.requires_grad]
            self._without_optimizer += [self._names[p] for p in trainable if not optimizers.steps(p)]

    def forget(self) -> None:
        """Check from the beginning, after parameters have been added, removed or replaced."""
        self.missing = {}
        self._steps_to_go = 0
        self._largest = None

    def observe(self, entries: Iterable[RegisteredOptimizer]) -> None:
        """Read the flat gradients after a backward pass. On a device the host reads the result when the update ends."""
        self._steps.update(["", *(entry.key for entry in entries if entry.has_loss)])
        gradients = [entry.flat.grad_by_param[p] for p, entry in self.missing.items()]
        largest = torch.stack([torch.linalg.vector_norm(gradient, math.inf) for gradient in gradients])
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)
        if all(entry.on_host for entry in self.missing.values()):
            self._read()

    def _read(self) -> None:
        """Remove the parameters that had a gradient from `missing`. NaN counts as one; `nan_policy` handles it."""
        if self._largest is None:
            return
        largest = self._largest.tolist()
        self._largest = None
        self.missing = {p: entry for (p, entry), size in zip(self.missing.items(), largest) if size == 0.0}

    def end(self, num_steps: int) -> tuple[int, list[str]]:
        """End an update of `num_steps` gradient steps.

        Returns the number of parameters without a gradient, and warnings about the parameters not yet reported.
        """
        self._read()
        self._steps_to_go -= num_steps
        if not self.missing and not self._without_optimizer:  # most updates
            return 0, []

        # If the last layer begins with weights of 0, the layers before it have a gradient of 0 in the first step. So a
        # parameter is reported only after two steps of its optimizer.
        without_gradient = [self._name(p) for p, entry in self.missing.items() if self._steps[entry.key] >= 2]
        # A short check continues in the next update, with the parameters that have not been reported.
        continues = self._steps[""] < STEPS_PER_LOOK
        self.missing = {p: e for p, e in self.missing.items() if continues and self._name(p) not in without_gradient}

        warnings: list[str] = []
        for names, problem in (
            (without_gradient, WITHOUT_GRADIENT),
            (self._without_optimizer, WITHOUT_OPTIMIZER),
        ):
            new = [name for name in names if name not in self._reported]
            if new:
                warnings.append(f"the trainable parameters {', '.join(new)} {problem}")
        self._reported.update(without_gradient, self._without_optimizer)
        return len(without_gradient), warnings

    def _name(self, param: nn.Parameter) -> str:
        return self._names.get(param, f"a parameter of shape {tuple(param.shape)}")


def first_bad_tensor(
    module: MultiRLModule, registered: Mapping[str, Any], optimizers: OptimizerSet
) -> tuple[RegisteredOptimizer, str]:
    """Return the optimizer and the name of the first tensor whose gradient was not finite."""
    # Each optimizer is asked, even after the first bad parameter: the call also clears the bad gradient that it keeps.
    bad_parameters = [(entry, entry.pop_bad_parameter()) for entry in optimizers]
    first_entry = bad_parameters[0][0]
    # The sum of a gradient can overflow although all its elements are finite. Then the first optimizer is named.
    entry, param = next((pair for pair in bad_parameters if pair[1] is not None), (first_entry, None))
    names = {id(p): name for name, p in module.named_parameters()}
    names |= {id(value): name for name, value in registered.items()}
    return entry, names.get(id(param), f"a parameter of optimizer {entry.key!r}")
