"""Exploration on the device of tensor environments: state of correlated noise, and the policy that it acts with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.row_share import RowShare
from lockstep.data.trees import Tree, map_tree
from lockstep.modules import Exploration
from lockstep.ops.distributions import Distribution
from lockstep.rollout.tensor_memory import TensorMemory


class TensorExplorationState:
    """State of correlated exploration noise on a device, reset when an episode begins.

    `ExplorationState` is the same on the host. All tensors stay at their addresses, so that a CUDA graph can contain
    the operations on them.

    Args:
        state: State of all environments before the first step, `{name: [B, ...]}`.
        num_envs: Number of environments B on this device.
        device: The device.
    """

    def __init__(self, state: Mapping[str, np.ndarray], num_envs: int, device: torch.device) -> None:
        self.state = {name: torch.from_numpy(leaf).to(device) for name, leaf in state.items()}
        self._begins = torch.ones(num_envs, dtype=torch.bool, device=device)
        """`[B]` whether the next row of each environment begins an episode."""

    def forget(self) -> None:
        """Mark that the next row begins an episode in all environments."""
        self._begins.fill_(True)

    def advance(self, exploration: Exploration, numbers: Tensor) -> Tensor:
        """Return the noise `[B, ...]` of one step for the random numbers `[B, ...]` of the step."""
        noise = exploration.advance_on_device(numbers, self.state, self._begins)
        self._begins.fill_(False)
        return noise

    def after_step(self, dones: Tensor) -> None:
        """Note the environments whose episode ended with a step, bool `[B]`."""
        # `|=`, not `=`: random actions do not advance the noise, and a beginning must not be forgotten.
        self._begins.logical_or_(dones)

    def get_state(self, gather: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return the state of the noise and which environments are about to begin an episode, as arrays.

        `gather` returns the rows of all ranks for the rows of this one.
        """
        state = {name: gather(leaf).cpu().numpy().copy() for name, leaf in self.state.items()}
        return {"state": state, "begins": gather(self._begins).cpu().numpy().copy()}

    def set_state(self, state: Mapping[str, Any], share: RowShare) -> None:
        """Restore the rows of this rank from the state that `get_state` returned."""
        for name, leaf in self.state.items():
            leaf.copy_(share.of(torch.as_tensor(state["state"][name])))
        self._begins.copy_(share.of(torch.as_tensor(state["begins"])))


@dataclass(frozen=True)
class TensorPolicy:
    """Policy with the observations that it acts on, for `Exploration.act_on_device`."""

    part: Any
    """Acting part of the policy."""
    obs: Tree
    """Observations of the network, `[B, ...]`."""
    generator: torch.Generator
    """Random generator of actions."""
    share: RowShare
    """Share of the rows that this rank has."""
    memory: TensorMemory | None = None
    """States of the policy's memory; None for a policy without one."""

    def _inputs(self) -> Tensor:
        """Return the inputs `[B, D]` of the action distributions. The memory notes the state after them."""
        module = self.part.module
        inputs: Tensor
        if self.memory is None:
            inputs = module.forward_exploration({Columns.OBS: self.obs})[Columns.ACTION_DIST_INPUTS]
            return inputs
        obs = map_tree(lambda leaf: leaf.unsqueeze(1), self.obs)  # sequences of one step
        outputs = module.forward_exploration({Columns.OBS: obs, **self.memory.columns()})
        self.memory.note(outputs[Columns.STATE_OUT])
        inputs = outputs[Columns.ACTION_DIST_INPUTS]
        return inputs.squeeze(1)

    def distribution(self) -> Distribution:
        """Return the distributions of the actions."""
        distribution: Distribution = self.part.module.action_dist_cls.from_inputs(self._inputs())
        return distribution

    def sample(self) -> Tensor:
        """Return sampled actions `[B, ...]`.

        Numbers are drawn for the rows of all ranks, so that a row gets the same numbers with any number of ranks. The
        inputs of the other ranks' rows do not matter: this rank's are repeated.
        """
        inputs = self._inputs()
        number = self.share.number
        all_inputs = inputs if number == 1 else inputs.repeat(number, *[1] * (inputs.ndim - 1))
        return self.share.of(self.part.module.action_dist_cls.from_inputs(all_inputs).sample(self.generator))
