"""`StateDict`: a policy's networks and connectors as tensors by name, like torch's `state_dict`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.data.trees import Tree
from lockstep.learner.group import LearnerGroup

NETWORKS = ["learner/rl_module", "learner/connectors"]
"""Components of a learner group's state that a `state_dict` contains."""
KINDS = {"rl_module": "module", "connectors": "connectors"}
"""Names of these components in the names of the tensors."""


class IncompatibleKeys(NamedTuple):
    """Names that were missing in `load_state_dict`, and unknown names."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class StateDict:
    """View of the networks and connectors of all learners as tensors by name.

    Args:
        learner_group: The learners.
        module_ids: Ids of the modules, in the order of the tensors.
        with_module_ids: Whether names begin with the id of the module (`<module id>.module.`), rather than with
            `module.` or `connectors.`.
    """

    def __init__(self, learner_group: LearnerGroup, module_ids: Iterable[str], with_module_ids: bool) -> None:
        self._group = learner_group
        self._module_ids = list(module_ids)
        self._with_module_ids = with_module_ids

    def read(self) -> dict[str, Tensor]:
        """Return copies of all tensors, on the CPU. Raises `TypeError` for a state that is not made of numbers."""
        return dict(self._tensors(self._state()))

    def load(self, tensors: Mapping[str, Any], *, strict: bool) -> IncompatibleKeys:
        """Set tensors on every learner; return the missing and the unknown names.

        Raises:
            RuntimeError: A tensor has another shape or, with `strict`, a name is missing or unknown. Nothing is changed
                then.
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
            # Statistics of running episodes have a row for each environment, whose number may differ. Names of
            # connectors begin with `connectors.` or `<module id>.connectors.`; the dot in front makes one test of the
            # two.
            if tensor.shape != current[name].shape and ".connectors." not in f".{name}":
                expected = tuple(current[name].shape)
                problems.append(f"{name} has the shape {tuple(tensor.shape)}, expected {expected}")
        if problems:
            raise RuntimeError(f"the state_dict does not fit this policy, nothing was changed: {'; '.join(problems)}")

        new_state: dict[str, dict[str, Any]] = {}
        for kind, name in KINDS.items():
            new_state[kind] = {
                module_id: replace_tensors(new, f"{self._prefix(module_id)}{name}", tree)
                for module_id, tree in state[kind].items()
            }
        self._group.set_state({"learner": new_state})
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
    """Yield the numbers of a tree as tensors, with their names. Raises `TypeError` for values that are not numbers."""
    if isinstance(tree, Mapping | list | tuple):
        parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        for key, part in parts:
            yield from tensors_in(f"{path}.{key}", part)
    elif isinstance(tree, bool | int | float | np.ndarray | np.generic | Tensor):
        yield path, torch.tensor(tree) if not isinstance(tree, Tensor) else tree.detach().cpu().clone()
    elif tree is not None:
        raise TypeError(f"{path} is a {type(tree).__name__}, which no state_dict holds; use save_to_path")


def replace_tensors(new: Mapping[str, Tensor], path: str, tree: Tree) -> Any:
    """Return a copy of a tree whose leaves are replaced by tensors.

    Each new leaf has the type of the old one: an array, a tensor or a Python number.

    Args:
        new: New tensors by name. Leaves without a new tensor are kept.
        path: Name of the tree.
        tree: The tree.
    """
    if isinstance(tree, Mapping):
        return {key: replace_tensors(new, f"{path}.{key}", part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(replace_tensors(new, f"{path}.{i}", part) for i, part in enumerate(tree))
    if path not in new:
        return tree
    value = new[path]
    if isinstance(tree, np.ndarray):
        # numpy has no bfloat16.
        if value.dtype == torch.bfloat16:
            value = value.float()
        return value.numpy().astype(tree.dtype)
    return value if isinstance(tree, Tensor) else type(tree)(value.item())
