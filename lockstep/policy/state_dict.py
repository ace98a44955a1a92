"""`StateDict`: a policy's networks and connectors as torch has them, tensors by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.data.trees import Tree
from lockstep.learner.group import LearnerGroup

NETWORKS = ["learner/rl_module", "learner/connectors"]
"""The components of a learner group's state that a `state_dict` has."""
KINDS = {"rl_module": "module", "connectors": "connectors"}
"""Names of these components in the names of tensors."""


class IncompatibleKeys(NamedTuple):
    """Names that `load_state_dict` missed, and names that it did not know."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class StateDict:
    """The networks and connectors of all learners as tensors by name.

    Names begin with `module.` or `connectors.`. With `with_module_ids` the id of the module is in front:
    `<module id>.module.`. Modules are in the order of `module_ids`.
    """

    def __init__(self, learner_group: LearnerGroup, module_ids: Iterable[str], with_module_ids: bool) -> None:
        self._group = learner_group
        self._module_ids = list(module_ids)
        self._with_module_ids = with_module_ids

    def read(self) -> dict[str, Tensor]:
        """Return copies of all tensors, on the CPU. `TypeError` names a state that is not made of numbers."""
        return dict(self._tensors(self._state()))

    def load(self, tensors: Mapping[str, Any], *, strict: bool) -> IncompatibleKeys:
        """Set tensors on every learner, all or none; return the names that were missing or unknown.

        Raises:
            RuntimeError: a tensor of another shape, or with `strict` a missing or unknown name.
        """
        state = self._state()
        current = dict(self._tensors(state))
        new = {name: torch.as_tensor(tensors[name]).detach().cpu() for name in current if name in tensors}
        missing = sorted(current.keys() - tensors.keys())
        unexpected = sorted(tensors.keys() - current.keys())

        problems = []
        if strict and missing:
            problems.append(f"missing {missing}")
        if strict and unexpected:
            problems.append(f"unexpected {unexpected}")
        for name, tensor in new.items():
            # The statistics of connectors may have another number of rows.
            if tensor.shape != current[name].shape and ".connectors." not in f".{name}":
                expected = tuple(current[name].shape)
                problems.append(f"{name} has the shape {tuple(tensor.shape)}, expected {expected}")
        if problems:
            raise RuntimeError(f"the state_dict does not fit this policy, nothing was changed: {'; '.join(problems)}")

        rebuilt_state: dict[str, dict[str, Any]] = {}
        for kind, name in KINDS.items():
            rebuilt_state[kind] = {
                module_id: rebuilt(new, f"{self._prefix(module_id)}{name}", tree)
                for module_id, tree in state[kind].items()
            }
        self._group.set_state({"learner": rebuilt_state})
        return IncompatibleKeys(missing, unexpected)

    def _state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self._group.get_state(NETWORKS)["learner"]
        return state

    def _tensors(self, state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
        for module_id in self._module_ids:
            for kind, name in KINDS.items():
                yield from tensors_in(f"{self._prefix(module_id)}{name}", state[kind][module_id])

    def _prefix(self, module_id: str) -> str:
        return f"{module_id}." if self._with_module_ids else ""


def tensors_in(path: str, tree: object) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the numbers of a tree as tensors, with their names. `TypeError` for what is no number."""
    if isinstance(tree, Mapping | list | tuple):
        for key, part in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from tensors_in(f"{path}.{key}", part)
    elif isinstance(tree, bool | int | float | np.ndarray | np.generic | Tensor):
        yield path, torch.tensor(tree) if not isinstance(tree, Tensor) else tree.detach().cpu().clone()
    elif tree is not None:
        raise TypeError(f"{path} is a {type(tree).__name__}, which no state_dict holds; use save_to_path")


def rebuilt(new: Mapping[str, Tensor], path: str, tree: Tree) -> Any:
    """Return `tree` with the tensors of `new` in place of its leaves, each of the kind that the leaf has."""
    if isinstance(tree, Mapping):
        return {key: rebuilt(new, f"{path}.{key}", part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(rebuilt(new, f"{path}.{i}", part) for i, part in enumerate(tree))
    if path not in new:
        return tree
    value = new[path]
    if isinstance(tree, np.ndarray):
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy().astype(tree.dtype)
    return value if isinstance(tree, Tensor) else type(tree)(value.item())
