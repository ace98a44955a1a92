"""A policy's networks and connectors' statistics as one flat dict of tensors, as torch has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.learner.group import LearnerGroup

COMPONENTS = ["learner/rl_module", "learner/connectors"]


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` did not find, and what it did not know."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def state_dict_of(group: LearnerGroup, prefixes: Mapping[str, str]) -> dict[str, Tensor]:
    """Return copies on the CPU: `module.<name>` and `connectors.<path>`, after the prefix of each module id.

    Raises `TypeError` for a connector whose state is not made of numbers.
    """
    state = group.get_state(COMPONENTS)["learner"]
    return dict(_tensors(state, prefixes))


def load_state_dict_of(
    group: LearnerGroup, prefixes: Mapping[str, str], given: Mapping[str, Any], strict: bool
) -> IncompatibleKeys:
    """Set what `state_dict_of` returned, on every learner, all or nothing.

    Raises `RuntimeError`, as torch does, for tensors of other shapes and, with `strict`, for missing or unknown names.
    """
    state = group.get_state(COMPONENTS)["learner"]
    current = dict(_tensors(state, prefixes))
    missing, unexpected = sorted(current.keys() - given.keys()), sorted(given.keys() - current.keys())
    problems = [f"missing {missing}"] * bool(missing and strict) + [f"unexpected {unexpected}"] * bool(
        unexpected and strict
    )
    new = {name: torch.as_tensor(given[name]).detach().cpu() for name in current if name in given}
    problems += [
        f"{name} has the shape {tuple(tensor.shape)}, expected {tuple(current[name].shape)}"
        for name, tensor in new.items()
        if tensor.shape != current[name].shape and ".connectors." not in f".{name}"
    ]
    if problems:
        raise RuntimeError(f"the state_dict does not fit this policy, nothing was changed: {'; '.join(problems)}")
    named = {
        kind: {module_id: _rebuilt(new, f"{prefixes[module_id]}{part}", own) for module_id, own in state[kind].items()}
        for kind, part in (("rl_module", "module"), ("connectors", "connectors"))
    }
    group.set_state({"learner": named})
    return IncompatibleKeys(missing, unexpected)


def _tensors(state: Mapping[str, Any], prefixes: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    for module_id, prefix in prefixes.items():
        yield from _leaves(f"{prefix}module", state["rl_module"][module_id])
        yield from _leaves(f"{prefix}connectors", state["connectors"][module_id])


def _leaves(path: str, tree: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Mapping | list | tuple):
        for key, part in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _leaves(f"{path}.{key}", part)
    elif isinstance(tree, bool | int | float | np.ndarray | np.generic | Tensor):
        yield path, torch.tensor(tree) if not isinstance(tree, Tensor) else tree.detach().cpu().clone()
    elif tree is not None:
        raise TypeError(f"{path} is a {type(tree).__name__}, which no state_dict holds; use save_to_path")


def _rebuilt(new: Mapping[str, Tensor], path: str, tree: Any) -> Any:
    """`tree` with the tensors of `new` in place of its leaves, each of the kind that the leaf has."""
    if isinstance(tree, Mapping):
        return {key: _rebuilt(new, f"{path}.{key}", part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_rebuilt(new, f"{path}.{i}", part) for i, part in enumerate(tree))
    if path not in new:
        return tree
    value = new[path]
    if isinstance(tree, np.ndarray):
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy().astype(tree.dtype)
    return value if isinstance(tree, Tensor) else type(tree)(value.item())
