"""`TensorReplay`: the replay buffer of environments whose steps are tensors, on their device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.data.tensor_rollout import check_room, count_not_finite
from lockstep.data.training_buffer import TrainingBuffer
from lockstep.options.checks import check_whole
from lockstep.replay.priorities import TensorPriorities


class TensorReplay(TrainingBuffer):
    """Remembers the last vector steps, in a ring of columns `[T, B, ...]` on the device of the first observations.

    What changes from step to step, the place of the next one too, is in memory that stays where it is, so that CUDA
    graphs can write and draw. Rows are drawn with equal chances, or by priority.

    Args:
        capacity: transitions that are remembered, over all environments; whole vector steps of them are.
        first_obs: `[B, ...]`, whose shape and type all observations have.
        first_actions: `[B, ...]`, the same for actions as learned from.
        n_step, gamma: a row sums up so many rewards, discounted; fewer where the episode, or what was written, ends
            before. Its next observation is the one after them.
        priorities: `{"alpha": .., "beta": .., "epsilon": ..}` for prioritised drawing, see `Priorities`.
        share: which of the environments of several ranks these are; the ranks have one buffer together, of this
            capacity, each with the transitions of its own environments.

    Raises:
        ValueError: the capacity is below one vector step, or the device has less memory; says what would fit.

    Attributes:
        columns: by name, `[T, B, ...]`.
        written: int64 `[1]`, the vector steps written so far.
        size: the vector steps that are there, as the host knows it.
        row_bytes: what a transition takes.
        priorities: of the rows; None where all have equal chances.
    """

    is_sampled = True

    def __init__(
        self,
        capacity: int,
        first_obs: Tensor,
        first_actions: Tensor,
        n_step: int = 1,
        gamma: float = 0.99,
        priorities: Mapping[str, Any] | None = None,
        share: RowShare = ALL_ROWS,
    ) -> None:
        if share.number > 1 and priorities is not None:
            raise ValueError("transitions of several ranks have no priorities; leave priorities out")
        self.share = share
        self.n_step, self.gamma = n_step, gamma
        self.num_envs = len(first_obs)
        self.device: torch.device = first_obs.device
        num_rows = self.num_envs * share.number
        self.num_steps = check_whole("capacity", capacity, 1) // num_rows
        if self.num_steps == 0:
            raise ValueError(f"capacity={capacity} is below one step of each of the {num_rows} environments")
        number = torch.zeros(self.num_envs, device=self.device)
        first = {
            Columns.OBS: first_obs,
            Columns.ACTIONS: first_actions,
            Columns.REWARDS: number,
            Columns.TERMINATEDS: number.bool(),
            Columns.NEXT_OBS: first_obs,
        }
        if n_step > 1:
            first[Columns.TRUNCATEDS] = number.bool()
        self.row_bytes = sum(column[0].nbytes for column in first.values())
        self.row_bytes += 0 if priorities is None else TensorPriorities.row_bytes
        check_room(self.device, self.row_bytes, self.num_steps * self.num_envs, "transitions", "lower replay.capacity")
        self.columns = {name: column.new_zeros(self.num_steps, *column.shape) for name, column in first.items()}
        self.written = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._place = self.written
        self.priorities = None if priorities is None else TensorPriorities(self.maxsize, self.device, **priorities)
        self._envs = torch.arange(self.num_envs, device=self.device)
        self.size = 0
        self._written_before = torch.zeros_like(self.written)
        """int64 `[1]`, the vector steps that had been written when the present collect began"""
        self._num_counted = 0
        """Vector steps of the present collect that the host has counted."""
        self._is_in_step = False
        """Whether a vector step is written in part: over the observations of the oldest one, if the ring is full."""

    def __len__(self) -> int:
        """Return the number of transitions, over all ranks."""
        return self.size * self.num_envs * self.share.number

    @property
    def maxsize(self) -> int:
        """Transitions that there is room for."""
        return self.num_steps * self.num_envs * self.share.number

    def begin_collect(self, weights_seq_no: int) -> None:
        """Begin a collect, which `abandon_collect` can undo. Transitions of any weights are remembered."""
        self._written_before.copy_(self.written)
        self._num_counted = 0

    def begin_step(self, t: int, obs: Tensor) -> None:
        """Write what is acted on in a vector step, over the oldest one. `t`: its place in the collect, of no matter."""
        self._is_in_step = True
        self._place = self.written % self.num_steps
        self._write({Columns.OBS: obs})

    def end_step(self, t: int, actions: Tensor, rewards: Tensor, dones: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Write the rest of the vector step, as the environments give it."""
        row = {Columns.ACTIONS: actions, Columns.REWARDS: rewards, Columns.NEXT_OBS: extras["final_obs"]}
        row[Columns.TERMINATEDS] = dones > extras["time_outs"]
        if self.n_step > 1:
            row[Columns.TRUNCATEDS] = dones & extras["time_outs"]
        self._write(row)
        if self.priorities is not None:
            self.priorities.add(self._place * self.num_envs + self._envs)
        self.written.add_(1)
        self._is_in_step = False

    def _write(self, row: Mapping[str, Tensor]) -> None:
        for name, value in row.items():
            column = self.columns[name]
            column.index_copy_(0, self._place, value.to(column.dtype).unsqueeze(0))

    def end(self, num_steps: int) -> Tensor:
        """End a collect of so many vector steps; return how many numbers are not finite in them, 0-d."""
        places = (self.written - 1 - torch.arange(num_steps, device=self.device)) % self.num_steps
        names = Columns.REWARDS, Columns.OBS, Columns.NEXT_OBS
        return count_not_finite(*(self.columns[name].index_select(0, places) for name in names))

    def last_steps(self, num_steps: int) -> dict[str, Tensor]:
        """Return the columns of the newest vector steps in which `end` counts, `[T, B, ...]` each, in their order.

        T is `num_steps`, or the capacity where the ring has written over the first of them.
        """
        steps = torch.arange(-min(num_steps, self.num_steps), 0, device=self.device)
        places = (self.written + steps) % self.num_steps
        names = Columns.OBS, Columns.NEXT_OBS, Columns.REWARDS
        return {name: self.columns[name].index_select(0, places) for name in names}

    def sample(self, num_rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return columns `[num_rows, ...]` of rows drawn with the generator, which the host does not wait for.

        Where they have priorities there are `weights` and `batch_indexes`, too.
        """
        if self.priorities is None:
            return self.rows(self.draw_indices(num_rows, generator))
        filled = self.written.clamp(max=self.num_steps) * self.num_envs
        drawn = torch.rand(num_rows, dtype=torch.float64, device=self.device, generator=generator)
        index = torch.minimum(self.priorities.tree.draw(drawn), filled - 1)
        return {**self.rows(index), Columns.WEIGHTS: self.priorities.weights(index), Columns.BATCH_INDEXES: index}

    def draw_indices(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Return rows with equal chances, `t * B + b` over all ranks, int64 `[num_rows]`."""
        drawn = torch.rand(num_rows, dtype=torch.float64, device=self.device, generator=generator)
        return (drawn * (self.written.clamp(max=self.num_steps) * self.num_envs * self.share.number)).long()

    def rows(self, index: Tensor) -> dict[str, Tensor]:
        """Return columns of the rows `index`, int64 `[N]`: `t * B + b`. Of n steps they have `discounts`."""
        if self.n_step == 1:
            return {name: self._take(name, index) for name in self.columns}
        found = {name: self._take(name, index) for name in (Columns.OBS, Columns.ACTIONS)}
        place, env = index // self.num_envs, index % self.num_envs
        left = (self.written - 1 - place) % self.num_steps  # vector steps that were written after it
        rewards, last, number = torch.zeros(len(index), device=self.device), index, torch.zeros_like(index)
        goes_on = torch.ones_like(index, dtype=torch.bool)
        for step in range(self.n_step):
            goes_on = goes_on & (left >= step)
            row = torch.where(goes_on, (place + step) % self.num_steps * self.num_envs + env, last)
            rewards = rewards + goes_on * self.gamma**step * self._take(Columns.REWARDS, row)
            last, number = row, number + goes_on
            goes_on = goes_on & ~(self._take(Columns.TERMINATEDS, row) | self._take(Columns.TRUNCATEDS, row))
        found |= {name: self._take(name, last) for name in (Columns.NEXT_OBS, Columns.TERMINATEDS)}
        discounts = torch.pow(self.gamma, number.to(torch.float32))
        return {**found, Columns.REWARDS: rewards, Columns.DISCOUNTS: discounts}

    def _take(self, name: str, index: Tensor) -> Tensor:
        return self.columns[name].flatten(0, 1).index_select(0, index)

    def count(self, num_steps: int) -> None:
        """Have the host know that so many vector steps were written."""
        self.size = min(self.size + num_steps, self.num_steps)
        self._num_counted += num_steps
        if self.priorities is not None:
            self.priorities.count(num_steps * self.num_envs)

    def clear(self) -> None:
        """Empty it."""
        self.size = 0
        self.written.zero_()
        if self.priorities is not None:
            self.priorities.clear()

    def reset(self) -> None:
        """Forget all transitions, as a replay buffer on the host does."""
        self.clear()

    def cut(self) -> None:
        """Let no return of n steps go beyond the newest step: the environments begin new episodes."""
        if self.n_step == 1 or self.size == 0:
            return
        newest = (self.written - 1) % self.num_steps
        terminated = self.columns[Columns.TERMINATEDS].index_select(0, newest)
        self.columns[Columns.TRUNCATEDS].index_copy_(0, newest, ~terminated)

    def abandon_collect(self) -> None:
        """Forget all that was written since `begin_collect`, also a part of a vector step. Waits for the device.

        Steps that were written over are lost. Until the next steps are written there, their places hold copies of the
        last step that remains, and no return of n steps goes beyond a copy.
        """
        first, last = int(self._written_before), int(self.written)
        num_places = last - first + self._is_in_step
        self._is_in_step = False
        if num_places == 0:
            return
        if self.priorities is not None:
            self.priorities.count(-self._num_counted * self.num_envs)
        self._num_counted = 0
        if first == 0 or num_places >= self.num_steps:
            self.clear()
            return

        places = torch.arange(first, first + num_places, device=self.device) % self.num_steps
        columns = [*self.columns.values()]
        if self.priorities is not None:
            columns.append(self.priorities.tree.values.view(self.num_steps, self.num_envs))
        self.written.fill_(first)
        self.size = min(first, self.num_steps)
        self.cut()
        for column in columns:
            column[places] = column[(first - 1) % self.num_steps].clone()
        if self.priorities is not None:
            columns[-1][self.size :] = 0.0
            self.priorities.tree.recompute_sums()

    def section_options(self) -> dict[str, Any]:
        """Return what the buffer does, by the names that the section `replay` of a configuration has for it."""
        priorities = self.priorities
        return {
            "n_step": self.n_step,
            "prioritized": priorities is not None,
            "alpha": None if priorities is None else priorities.alpha,
            "beta": None if priorities is None else priorities.beta.specification,
            "her": False,
            "her_future_k": None,
            "her_strategy": None,
            "ignore_obs_next": False,
            "storage": "memory",
            "sequence_length": None,
            "burn_in": 0,
        }

    def drawing_options(self) -> dict[str, Any]:
        """Return the options of the priorities. A state fits a buffer of the same form only, so the rest is known."""
        return {} if self.priorities is None else self.priorities.options()

    # -- state ---

    def replays(self) -> dict[str, TensorReplay]:
        return {"": self}

    def get_state(self) -> dict[str, Any]:
        """Return what is remembered, as arrays on the host, and the place of the next step; of all ranks together."""
        columns = {name: column[: self.size].cpu().numpy().copy() for name, column in self.columns.items()}
        if self.share.number > 1:
            parts = self.share.gather(columns)
            columns = {name: np.concatenate([part[name] for part in parts], 1) for name in columns}
        state = {"written": int(self.written), "shape": self._form(), "columns": columns}
        return state if self.priorities is None else {**state, "priorities": self.priorities.get_state(len(self))}

    checkpoint_state = get_state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned; `ValueError` for a buffer of another form, which changes nothing."""
        columns = {name: torch.as_tensor(column) for name, column in state.get("columns", {}).items()}
        forms = [{name: (tuple(c.shape[2:]), c.dtype) for name, c in each.items()} for each in (columns, self.columns)]
        if state.get("shape") != self._form() or forms[0] != forms[1]:
            raise ValueError(
                f"the state is of another buffer than this TensorReplay of {self._form()} with {forms[1]}: it has "
                f"{state.get('shape')} with {forms[0]}; resume with the same environments, device and replay options"
            )
        written = int(state["written"])
        size = min(written, self.num_steps)
        lengths = {name: len(column) for name, column in columns.items()}
        if set(lengths.values()) != {size}:
            raise ValueError(
                f"the state of a TensorReplay is damaged: of {size} vector steps, its columns hold {lengths}; resume "
                "from an earlier checkpoint"
            )
        self.size = size
        for name, column in columns.items():
            own = self.share.of(column.transpose(0, 1)).transpose(0, 1)
            self.columns[name][: self.size].copy_(own)
        self.written.fill_(written)
        if self.priorities is not None:
            self.priorities.set_state(state["priorities"])

    def _form(self) -> dict[str, Any]:
        """Return what a state is to agree with."""
        form = {"num_steps": self.num_steps, "num_envs": self.num_envs * self.share.number}
        return form if self.priorities is None else {**form, "prioritized": True}
