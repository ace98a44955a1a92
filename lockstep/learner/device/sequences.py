"""Sequences of a rollout on a device, for modules with memory.

A CUDA graph needs shapes that do not depend on values. So a rollout of T steps and B environments is cut at the same
steps in all environments, into C parts of at most `max_seq_len` steps: C * B sequences. Episodes may begin within a
sequence. The memory is reset there, which also stops the gradient. `lockstep.learner.sequences` is the same for arrays,
where each episode begins a sequence of its own. Both compute the same gradient if no part of an episode is longer than
a sequence, and all sequences are in one minibatch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.data.columns import BEGINS, Columns
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trees import Tree, map_tree, rows_of
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.sequences import State, max_seq_len_of
from lockstep.modules import RLModule


@dataclass(frozen=True)
class SequenceGrid:
    """Division of a rollout of `num_steps` steps and `num_envs` environments into sequences of equal length.

    Sequence `c * num_envs + b` has the steps from `c * length` on of environment `b`. The last sequences are shorter if
    the steps cannot be divided equally. They are padded.
    """

    num_steps: int
    num_envs: int
    num_parts: int
    """Number C of sequences of each environment."""

    @classmethod
    def of(cls, module: RLModule, rollout: TensorRollout) -> SequenceGrid:
        """Return the division into as few sequences as the module's `max_seq_len` allows."""
        num_steps, num_envs = rollout.shape
        return cls(num_steps, num_envs, math.ceil(num_steps / max_seq_len_of(module.model_config)))

    @property
    def length(self) -> int:
        """Number of rows of a sequence, with padding."""
        return math.ceil(self.num_steps / self.num_parts)

    @property
    def num_sequences(self) -> int:
        """Number of sequences of all environments."""
        return self.num_parts * self.num_envs

    def cut(self, column: Tensor) -> Tensor:
        """Return a column `[T * B, ...]` as sequences `[C * B, L, ...]`, padded with zeros."""
        grid = column.unflatten(0, (self.num_steps, self.num_envs))
        num_missing = self.num_parts * self.length - self.num_steps
        if num_missing:
            grid = torch.cat([grid, grid.new_zeros(num_missing, *grid.shape[1:])])
        return grid.unflatten(0, (self.num_parts, self.length)).transpose(1, 2).flatten(0, 1)

    def lengths(self, device: torch.device) -> Tensor:
        """Return the number of rows of each sequence without padding, int64 `[C * B]`."""
        first_steps = torch.arange(self.num_parts, device=device) * self.length
        lengths = (self.num_steps - first_steps).clamp(max=self.length)
        return lengths.repeat_interleave(self.num_envs, output_size=self.num_sequences)


@dataclass(frozen=True)
class DeviceSequences:
    """Sequences of a rollout on a device, and the states before them."""

    grid: SequenceGrid
    begins: Tensor
    """Whether the memory is reset before a row, bool `[T * B]`."""
    state_in: State
    """State before the first row of each sequence, `{name: [C * B, ...]}`."""

    def train_columns(self, columns: TensorColumns) -> TensorColumns:
        """Return columns `[T * B, ...]` as sequences `[C * B, L, ...]` with states, resets, lengths and loss mask."""
        is_row = torch.ones_like(self.begins)
        return {
            **{name: map_tree(self.grid.cut, column) for name, column in columns.items()},
            Columns.STATE_IN: self.state_in,
            BEGINS: self.grid.cut(self.begins),
            Columns.SEQ_LENS: self.grid.lengths(self.begins.device),
            Columns.LOSS_MASK: self.grid.cut(is_row),
        }


@dataclass(frozen=True)
class MemoryOutputs:
    """Outputs of a module with memory for all rows of a rollout on a device."""

    action_dist_inputs: Tensor
    """Inputs `[T * B, D]` of the action distributions."""
    values: Tensor
    """Values `[T * B]` of the observations."""
    next_values: Tensor
    """Values `[T * B]` of the observations that followed, before the reset of an episode that ended."""
    sequences: DeviceSequences
    """Sequences to train on."""


@torch.no_grad()
def evaluate_memory(obs: Tree, next_obs: Tree, module: RLModule, rollout: TensorRollout) -> MemoryOutputs:
    """Evaluate a module with memory on all rows of a rollout, step by step.

    The states before the later sequences are computed here, as on the host.

    Args:
        obs: Observations `[T * B, ...]` after the observation connectors.
        next_obs: Observations that followed, of the same shapes.
        module: Module that `reads_begins`.
        rollout: The rollout.
    """
    grid = SequenceGrid.of(module, rollout)
    num_steps, num_envs = rollout.shape
    no_reset = torch.zeros(num_envs, 1, dtype=torch.bool, device=rollout.device)
    state: State = rollout.state_in
    states: list[State] = []
    dist_inputs: list[Tensor] = []
    values: list[Tensor] = []
    next_values: list[Tensor] = []
    for t in range(num_steps):
        if t % grid.length == 0:
            states.append(state)
        rows = slice(t * num_envs, (t + 1) * num_envs)
        # Batches of sequences of one row. The value of the next observation uses the state before a reset.
        batch = {
            Columns.OBS: _one_step(obs, rows),
            Columns.STATE_IN: state,
            BEGINS: rollout.starts[t].unsqueeze(1),
        }
        outputs = module.forward_train(batch)
        state = outputs[Columns.STATE_OUT]  # type: ignore[assignment]
        next_batch = {Columns.OBS: _one_step(next_obs, rows), Columns.STATE_IN: state, BEGINS: no_reset}
        dist_inputs.append(outputs[Columns.ACTION_DIST_INPUTS].squeeze(1))
        values.append(outputs[Columns.VF_PREDS].squeeze(1))
        next_values.append(module.compute_values(next_batch).squeeze(1))

    state_in = {name: torch.cat([each[name] for each in states]) for name in state}
    return MemoryOutputs(
        torch.cat(dist_inputs),
        torch.cat(values),
        torch.cat(next_values),
        DeviceSequences(grid, rollout.starts.flatten(), state_in),
    )


def _one_step(obs: Tree, rows: slice) -> Tree:
    """Return rows of observations `[N, ...]` as sequences of one step, `[B, 1, ...]`."""
    return map_tree(lambda leaf: leaf.unsqueeze(1), rows_of(obs, rows))
