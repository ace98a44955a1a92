"""Initialisation of lazy layers (`nn.LazyLinear`), before a learner or a checkpoint reads their parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lockstep.data.columns import Columns
from lockstep.data.trees import map_tree

LazyNetwork = Any
"""An `RLModule`. Its file imports this one, so the name cannot be used here."""


def initialise_lazy(module: LazyNetwork) -> None:
    """Give lazy layers their sizes by a forward pass on observations that are drawn from the space.

    Each of the module's forward methods is tried until all layers have a size, as none must reach them all.

    Raises:
        ValueError: Parameters have no size after all passes. Names them.
    """
    if not _lazy_names(module):
        return
    failures: list[str] = []
    for method in (module.forward_train, module.forward_inference, module.compute_values):
        if not _lazy_names(module):
            return
        try:
            with torch.no_grad():
                method(_sample_batch(module))
        except Exception as error:  # a user's network may need more than observations
            failures.append(f"{method.__name__} raised {type(error).__name__}: {error}")
    names = _lazy_names(module)
    if names:
        reasons = f" ({'; '.join(failures)})" if failures else ""
        raise ValueError(
            f"{type(module).__name__} has parameters without a size, {', '.join(names)}: no forward pass on "
            f"observations of {module.observation_space} reached them{reasons}. Give their layers the number of "
            "inputs, nn.Linear(inputs, outputs) in place of nn.LazyLinear(outputs)"
        )


def _lazy_names(module: nn.Module) -> list[str]:
    """Return the names of the parameters and buffers without a size."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [name for name, tensor in named if is_lazy(tensor)]


def _sample_batch(module: LazyNetwork) -> dict[str, Any]:
    """Return a batch of two observations from the space; for a module with memory, two sequences of one step."""
    space = batch_space(module.observation_space, 2)
    space.seed(0)
    state = module.get_initial_state()

    def tensor(leaf: np.ndarray) -> Tensor:
        values = torch.from_numpy(np.array(leaf))
        if values.is_floating_point():
            values = values.to(torch.get_default_dtype())
        return values.unsqueeze(1) if state else values

    obs = map_tree(tensor, space.sample())
    if getattr(module, "action_mirror", None) is not None:
        obs = (obs, obs)  # a symmetric network takes pairs
    batch: dict[str, Any] = {Columns.OBS: obs}
    if state:
        batch[Columns.STATE_IN] = {name: torch.stack([leaf, leaf]) for name, leaf in state.items()}
    return batch
