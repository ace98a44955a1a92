"""Lazy layers (`nn.LazyLinear`) of a network: they get their sizes before anything reads its parameters."""

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
"""An `RLModule`, whose file imports this one."""


def initialise_lazy(module: LazyNetwork) -> None:
    """Give lazy layers (`nn.LazyLinear`) their sizes by one forward pass on an observation drawn from the space.

    Raises:
        ValueError: names the parameters that the pass leaves without a size.
    """
    if not _lazy_names(module):
        return
    failures: list[str] = []
    for method in (module.forward_train, module.forward_inference, module.compute_values):
        if not _lazy_names(module):
            return
        try:
            with torch.no_grad():
                method(_drawn_batch(module))
        except Exception as error:  # a network of the user's own may need more than observations
            failures.append(f"{method.__name__} raised {type(error).__name__}: {error}")
    names = _lazy_names(module)
    if names:
        because = f" ({'; '.join(failures)})" if failures else ""
        raise ValueError(
            f"{type(module).__name__} has parameters without a size, {', '.join(names)}: no forward pass on "
            f"observations of {module.observation_space} reached them{because}. Give their layers the number of "
            "inputs, nn.Linear(inputs, outputs) in place of nn.LazyLinear(outputs)"
        )


def _lazy_names(module: nn.Module) -> list[str]:
    """Return the names of parameters and buffers that have no size yet."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [name for name, tensor in named if is_lazy(tensor)]


def _drawn_batch(module: LazyNetwork) -> dict[str, Any]:
    """Return a batch of two observations from the space, for a module with memory of two sequences of one step."""
    space = batch_space(module.observation_space, 2)
    space.seed(0)
    state = module.get_initial_state()

    def tensor(leaf: np.ndarray) -> Tensor:
        found = torch.from_numpy(np.array(leaf))
        found = found.to(torch.get_default_dtype()) if found.is_floating_point() else found
        return found.unsqueeze(1) if state else found

    batch: dict[str, Any] = {Columns.OBS: map_tree(tensor, space.sample())}
    if state:
        batch[Columns.STATE_IN] = {name: torch.stack([leaf, leaf]) for name, leaf in state.items()}
    return batch
