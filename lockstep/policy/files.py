"""What a policy's files hold: read, described, compared in words, and as torch has it, tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.spaces import describe_space, space_from

SHAPING = ("normalize_observations", "normalize_rewards", "frame_stack")
"""options of the environment section that decide which connectors there are"""


def differences(options: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """Say which options of networks and connectors differ, and what to do."""
    pairs = [("environment", options["environment"], saved["environment"], SHAPING)]
    models = [each["rl_module"]["model_config"] for each in (options, saved)]
    if all(isinstance(model, Mapping) for model in models):
        pairs.append(("rl_module.model_config", models[0], models[1], tuple(models[0])))
    found = [
        f"{prefix}.{name}={there[name]!r} there, {here[name]!r} here"
        for prefix, here, there, names in pairs
        for name in names
        if name in there and there[name] != here[name]
    ]
    return f"{'; '.join(found)}. Set them as there. " if found else ""


@contextmanager
def same_threads() -> Iterator[None]:
    """Leave torch's threads as they are: a policy that is loaded acts in somebody else's process."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def policy_in(folders: Mapping[str, Any], where: object) -> Any:
    """Return the state of the policy in a checkpoint; `ValueError` says what it holds instead."""
    if "policy" in folders:
        return folders["policy"]["state"]
    found = f"the folders {sorted(folders)}"
    if {"weights", "spec"} <= set(folders.get("", {})):
        found = "an RLModule (RLModule.from_checkpoint reads it)"
    elif "learner" in folders:
        found = "a learner (Learner.from_checkpoint reads it)"
    raise ValueError(f"{where} holds no policy, but {found}; give what Policy.save_to_path wrote")


def described(space: Any) -> Any:
    """A space, or a dict of them by module id, as plain data."""
    if type(space) is dict:
        return {"modules": {module_id: describe_space(each) for module_id, each in space.items()}}
    return describe_space(space)


def space_of(described: Any) -> Any:
    """The space, or the spaces by module id, that a checkpoint describes."""
    if isinstance(described, Mapping) and "modules" in described:
        return {module_id: space_from(each) for module_id, each in described["modules"].items()}
    return space_from(described)


# -- tensors by name ---


def tensors_in(path: str, tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the numbers of a tree as tensors, with their names. `TypeError` for what is no number."""
    if isinstance(tree, Mapping | list | tuple):
        for key, part in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from tensors_in(f"{path}.{key}", part)
    elif isinstance(tree, bool | int | float | np.ndarray | np.generic | Tensor):
        yield path, torch.tensor(tree) if not isinstance(tree, Tensor) else tree.detach().cpu().clone()
    elif tree is not None:
        raise TypeError(f"{path} is a {type(tree).__name__}, which no state_dict holds; use save_to_path")


def rebuilt(new: Mapping[str, Tensor], path: str, tree: Any) -> Any:
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
