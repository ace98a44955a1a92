"""`MultiRLModule`, several networks by their ids, and the spec that builds one."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from torch import Tensor, nn

from lockstep.modules.rl_module import ModuleState, RLModule, RLModuleSpec, copy_values, warn_of_connectors
from lockstep.state.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from lockstep.state.sizes import claims_of
from lockstep.state.trust import FileNames

DEFAULT_MODULE_ID = "default_policy"
"""Id of the module in runs with one module."""
ALL_MODULES = "__all_modules__"
"""Key of results that belong to all modules. Not allowed as a module id."""
T = TypeVar("T")
_can_learn = operator.attrgetter("requires_grad")


def check_module_id(module_id: object) -> str:
    """Return `module_id` if it can name a module, its folder and its parameters; else raise `ValueError`."""
    if not isinstance(module_id, str) or not module_id or module_id == ALL_MODULES:
        raise ValueError(f"module id {module_id!r} must be a non-empty text other than {ALL_MODULES!r}")
    if any(mark in module_id for mark in './\\:*?"<>|') or not module_id.isprintable() or module_id.endswith(" "):
        raise ValueError(
            f'module id {module_id!r} must be printable text without . / \\ : * ? " < > | (it names a folder and '
            "parameters)"
        )
    if hasattr(nn.ModuleDict, module_id) or module_id == "training":
        raise ValueError(f"module id {module_id!r} is a name that torch's modules use themselves; take another")
    return module_id


@dataclass(frozen=True)
class ModuleChange:
    """Addition or removal of one module."""

    module_id: str
    is_added: bool
    """True for an addition."""


def module_changes(present: Sequence[str], wanted: Sequence[str]) -> Iterator[ModuleChange]:
    """Yield the changes that turn the modules `present` into the modules `wanted`, in the order of `wanted`.

    The modules with which both sequences begin stay as they are. A module in another place is removed and added again.
    At every moment there is at least one module, because a learner needs one.
    """
    num_equal = 0
    for ours, theirs in zip(present, wanted):
        if ours != theirs:
            break
        num_equal += 1

    num_kept = max(1, num_equal)
    for module_id in present[num_kept:]:
        yield ModuleChange(module_id, is_added=False)

    last_to_leave = present[:1] if num_equal == 0 else ()
    for module_id in wanted[num_equal:]:
        if module_id in last_to_leave:  # its new place is not the first, so another module is there now
            yield ModuleChange(module_id, is_added=False)
            last_to_leave = ()
        yield ModuleChange(module_id, is_added=True)
    for module_id in last_to_leave:
        yield ModuleChange(module_id, is_added=False)


class MultiRLModule(nn.Module):
    """Mapping from module ids to `RLModule`s.

    Batches and outputs are dicts by module id. A module without a batch does not run.
    """

    is_built: ClassVar[Literal[True]] = True
    """Whether these are networks, and not specs of networks."""
    has_module_ids: ClassVar[Literal[True]] = True
    """Whether this holds several modules by id."""

    def __init__(self, modules: Mapping[str, RLModule] | None = None) -> None:
        super().__init__()
        self.rl_modules = nn.ModuleDict()
        self._by_id: dict[str, RLModule] = {}
        """The same modules in a plain dict. Every gradient step looks them up, and `nn.Module.__getattr__` is slow."""
        self._parameters_of: dict[str, tuple[list[nn.Parameter], list[int]]] = {}
        """Parameters of each module and their sizes, kept after the first look-up."""
        for module_id, module in (modules or {}).items():
            self.add_module(module_id, module)

    # -- mapping ---

    def __getitem__(self, module_id: str) -> RLModule:
        module = self._by_id.get(module_id)
        if module is None:
            raise KeyError(f"no module {module_id!r}; there are {', '.join(map(repr, self)) or 'none'}")
        return module

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, module_id: object) -> bool:
        return module_id in self._by_id

    def keys(self) -> list[str]:
        """Return the ids, in the order of adding."""
        return list(self._by_id)

    def values(self) -> list[RLModule]:
        """Return the modules, in the order of adding."""
        return list(self._by_id.values())

    def items(self) -> list[tuple[str, RLModule]]:
        """Return pairs of id and module, in the order of adding."""
        return list(self._by_id.items())

    def add_module(self, name: str, module: nn.Module | None, *, override: bool = False) -> None:
        """Add a module under an id.

        Raises:
            ValueError: The id exists already (unless `override`), or is not allowed.
            TypeError: `module` is not an `RLModule`.
        """
        if not isinstance(module, RLModule):
            raise TypeError(f"module {name!r} must be an RLModule, got {type(module).__name__}; see wrap_module()")
        check_module_id(name)
        if name in self.rl_modules and not override:
            raise ValueError(f"there is a module {name!r} already; remove it first, or pass override=True")
        self.rl_modules[name] = module
        self._by_id[name] = module
        self._parameters_of.pop(name, None)

    def remove_module(self, module_id: str) -> RLModule:
        """Remove a module and return it. `KeyError` for an unknown id, which names the existing ones."""
        module = self[module_id]
        del self.rl_modules[module_id]
        del self._by_id[module_id]
        self._parameters_of.pop(module_id, None)
        return module

    def num_trainable_parameters(self, module_id: str) -> int:
        """Return the number of values in a module's parameters that require a gradient.

        Which parameters do may change at any time, so only the list of parameters is kept.
        """
        if module_id not in self._parameters_of:
            params = list(self[module_id].parameters())
            self._parameters_of[module_id] = params, [p.numel() for p in params]
        params, sizes = self._parameters_of[module_id]
        return sum(itertools.compress(sizes, map(_can_learn, params)))

    def foreach_module(self, func: Callable[[str, RLModule], T]) -> dict[str, T]:
        """Return `{module_id: func(module_id, module)}`."""
        return {module_id: func(module_id, module) for module_id, module in self.items()}

    def specs_by_id(self) -> dict[str, RLModuleSpec | RLModule]:
        """Return the modules by id, in the order of adding. The counterpart of `MultiRLModuleSpec.specs_by_id`."""
        return dict(self.items())

    # -- forward ---

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
        """Return the outputs `{module_id: outputs}` for batches `{module_id: batch}`."""
        return {module_id: self[module_id].forward_inference(part) for module_id, part in batch.items()}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
        """Return the outputs `{module_id: outputs}` for batches `{module_id: batch}`."""
        return {module_id: self[module_id].forward_exploration(part) for module_id, part in batch.items()}

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
        """Return the outputs `{module_id: outputs}` for batches `{module_id: batch}`."""
        return {module_id: self[module_id].forward_train(part) for module_id, part in batch.items()}

    def forward(self, batch: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
        """Return the outputs of `forward_train`. torch's own tools call this method."""
        return self.forward_train(batch)

    # -- state and checkpoints ---

    def get_state(self, *, inference_only: bool = False) -> dict[str, ModuleState]:
        """Return copies of the modules' states, `{module_id: {name: array}}`."""
        return {module_id: module.get_state(inference_only=inference_only) for module_id, module in self.items()}

    def set_state(self, state: Mapping[str, Mapping[str, np.ndarray | Tensor]]) -> None:
        """Set the states of the modules named in `state`, either all or none of them. Other modules are unchanged.

        Raises:
            KeyError: A module id does not exist.
            ValueError: A state does not fit its module.
        """
        # All states are matched before the first value is copied, so that a wrong state changes nothing.
        matched = [self[module_id].matched_state(part) for module_id, part in state.items()]
        copy_values(chain.from_iterable(matched))

    def spec(self) -> MultiRLModuleSpec:
        """Return the spec that builds equal modules, without their weights."""
        return MultiRLModuleSpec({module_id: module.spec() for module_id, module in self.items()})

    def save_to_path(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write a checkpoint with one folder per module, and return its absolute path.

        Each folder is a checkpoint of its module that can be used alone.

        `path`: folder of the checkpoint. Defaults to a new temporary folder.
        """
        folders = {module_id: module.state_tree() for module_id, module in self.items()}
        return str(write_checkpoint(path, {"": {}, **folders}))

    def restore_from_path(self, path: str | os.PathLike[str]) -> None:
        """Copy the weights of a checkpoint into these modules, whose ids must exist. Warnings as for one module."""
        trees = _module_trees(path)
        self.set_state({module_id: tree["weights"] for module_id, tree in trees.items()})
        for module_id, tree in trees.items():
            warn_of_connectors(tree, self[module_id].acting_connectors)

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], *, trust: bool = False) -> Self:
        """Build all modules of a checkpoint. For `trust` and warnings see `RLModule.from_checkpoint`."""
        trees = _module_trees(path)
        built = {}
        for module_id, tree in trees.items():
            names = FileNames(Path(path) / module_id, tree["spec"], trust)
            with claims_of(path):
                built[module_id] = RLModule.from_state_tree(tree, names=names)
        for tree in trees.values():
            warn_of_connectors(tree)
        return cls(built)


@dataclass(frozen=True)
class MultiRLModuleSpec:
    """Spec that builds a `MultiRLModule`: a spec for each module id."""

    rl_module_specs: Mapping[str, RLModuleSpec] = field(default_factory=dict)

    is_built: ClassVar[Literal[False]] = False
    """Whether these are networks, and not specs of networks."""
    has_module_ids: ClassVar[Literal[True]] = True
    """Whether this holds the specs of several modules by id."""

    def __post_init__(self) -> None:
        for module_id, spec in self.rl_module_specs.items():
            check_module_id(module_id)
            if not isinstance(spec, RLModuleSpec):
                raise TypeError(f"the spec of module {module_id!r} must be an RLModuleSpec, got {type(spec).__name__}")

    def specs_by_id(self) -> dict[str, RLModuleSpec | RLModule]:
        """Return the specs by module id."""
        return dict(self.rl_module_specs)

    def build(self, *, seeds: Mapping[str, int] | None = None) -> MultiRLModule:
        """Build all modules. `seeds`: seed of each module by id; see `RLModuleSpec.build`."""
        seeds = seeds or {}
        built = {module_id: spec.build(seed=seeds.get(module_id)) for module_id, spec in self.rl_module_specs.items()}
        return MultiRLModule(built)


def _module_trees(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Return the content of each module's folder in a checkpoint, by module id."""
    folders = read_checkpoint(path)
    trees = {name: dict(tree) for name, tree in folders.items() if name}
    if folders.get("") or not all({"weights", "spec"} <= tree.keys() for tree in trees.values()):
        raise CheckpointError(f"{path} is a checkpoint, but not of a MultiRLModule")
    return trees
