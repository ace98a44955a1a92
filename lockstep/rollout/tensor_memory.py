"""`TensorMemory`: states of a policy's memory on the device of tensor environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lockstep.data.columns import BEGINS, Columns
from lockstep.data.row_share import RowShare
from lockstep.data.trees import copy_into
from lockstep.modules import RLModule


class TensorMemory:
    """States of a policy's memory on a device, one row for each environment. A row is reset when an episode begins.

    `RecurrentStates` is the same on the host. All tensors stay at their addresses, so that a CUDA graph can contain the
    operations on them.

    Args:
        module: Network of the policy, which resets its state where the column `begins` is set.
        num_envs: Number of environments B on this device.
    """

    def __init__(self, module: RLModule, num_envs: int) -> None:
        initial = module.get_initial_state()
        self.state = {name: leaf.detach().expand(num_envs, *leaf.shape).clone() for name, leaf in initial.items()}
        """`{name: [B, ...]}`, the state before the next step, before resets."""
        device = next(iter(self.state.values())).device
        self.begins = torch.ones(num_envs, dtype=torch.bool, device=device)
        """`[B]` whether the next row of each environment begins an episode, so that its state is reset."""
        self._next_state: Mapping[str, Tensor] = self.state
        """State after the last actions. It replaces `state` when the environments have taken them."""

    def forget(self) -> None:
        """Mark that the next row begins an episode in all environments."""
        self.begins.fill_(True)

    def columns(self) -> dict[str, Any]:
        """Return the columns of a batch of sequences of one row that have the states, for `RLModule.forward_...`."""
        return {Columns.STATE_IN: self.state, BEGINS: self.begins.unsqueeze(1)}

    def note(self, next_state: Mapping[str, Tensor]) -> None:
        """Note the state after the actions that were computed from `columns`, for `after_step`."""
        self._next_state = next_state

    def after_step(self, dones: Tensor) -> None:
        """Advance the states by one step, and note the environments whose episode ended with it, bool `[B]`."""
        copy_into(self.state, self._next_state)
        self.begins.copy_(dones)

    def get_state(self, gather: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return the states and which environments are about to begin an episode, as arrays.

        `gather` returns the rows of all ranks for the rows of this one.
        """
        state = {name: gather(leaf).cpu().numpy().copy() for name, leaf in self.state.items()}
        return {"state": state, "begins": gather(self.begins).cpu().numpy().copy()}

    def set_state(self, state: Mapping[str, Any], share: RowShare) -> None:
        """Restore the rows of this rank from the state that `get_state` returned."""
        for name, leaf in self.state.items():
            leaf.copy_(share.of(torch.as_tensor(state["state"][name])))
        self.begins.copy_(share.of(torch.as_tensor(state["begins"])))
