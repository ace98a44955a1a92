"""`TensorReplay`: replay buffer on the device of environments whose steps are tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.new_rows import NewRows
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.data.tensor_rollout import check_room, count_not_finite, leaves_by_path
from lockstep.data.training_buffer import TrainingBuffer
from lockstep.data.trees import Tree, copy_into, leaves, map_pair, map_tree, num_items, rows_of, zip_trees
from lockstep.options.checks import check_whole
from lockstep.replay.hindsight import KEYS, Hindsight
from lockstep.replay.priorities import TensorPriorities


class TensorReplay(TrainingBuffer):
    """Ring of the last vector steps, in columns `[T, B, ...]` on the device of the observations.

    Whatever changes from step to step, the position of the next step included, is in tensors that keep their addresses,
    so that CUDA graphs can write and draw. Drawing needs no number on the host.

    Rows are drawn uniformly or by priority. Row `t * B + b` is the transition of environment `b` at position `t`.

    Args:
        capacity: number of transitions that the buffer holds, over all environments; rounded down to whole vector
            steps.
        first_obs: observations `[B, ...]`, of the shape and dtype that all will have: a tensor, or a tree of tensors.
        first_actions: actions `[B, ...]` in the form that is learned from, likewise.
        n_step: number of rewards that are summed for a drawn row. The sum is shorter where the episode ends, and at the
            newest step. The next observation is the one after the last summed reward.
        gamma: discount of a step.
        priorities: options `{"alpha": .., "beta": .., "epsilon": ..}` of prioritised drawing, see `Priorities`. None:
            rows are drawn uniformly.
        share: the share of the environments that this rank has. The ranks have one buffer of this capacity together,
            and each stores the transitions of its environments.
        new_rows: moments of the rows that are stored between two updates, if observations or rewards are normalised.
            The buffer adds its rows to them.
        hindsight: goals are relabelled when rows are drawn, see `Hindsight`. Its functions take and return tensors.

    Raises:
        ValueError: the capacity is below one vector step, or does not fit into the device's memory; the message has the
            largest possible capacity. Or there is hindsight, and observations have no goals.

    Attributes:
        columns: tensors `[T, B, ...]` by name; columns of observations may be trees of tensors.
        written: number of vector steps written so far, int64 `[1]` on the device.
        size: number of vector steps stored, as the host knows it.
        row_bytes: memory of a transition, in bytes.
        priorities: priorities of the rows, None if rows are drawn uniformly.
    """

    is_sampled = True
    is_by_module: ClassVar[Literal[False]] = False

    def __init__(
        self,
        capacity: int,
        first_obs: Tree,
        first_actions: Tensor,
        n_step: int = 1,
        gamma: float = 0.99,
        priorities: Mapping[str, Any] | None = None,
        share: RowShare = ALL_ROWS,
        new_rows: NewRows | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        if share.number > 1 and priorities is not None:
            raise ValueError("transitions of several ranks have no priorities; leave priorities out")
        self.share = share
        self.new_rows = new_rows
        self.hindsight = hindsight
        self.n_step = n_step
        self.gamma = gamma
        self.num_envs = num_items(first_obs)
        self.device: torch.device = first_actions.device
        num_rows = self.num_envs * share.number
        self.num_steps = check_whole("capacity", capacity, 1) // num_rows
        if self.num_steps == 0:
            raise ValueError(f"capacity={capacity} is below one step of each of the {num_rows} environments")

        if hindsight is not None and not (isinstance(first_obs, dict) and set(KEYS[1:]) <= set(first_obs)):
            raise ValueError(f"hindsight needs observations that are dicts with {KEYS}")
        number = torch.zeros(self.num_envs, device=self.device)
        first: dict[str, Tree] = {
            Columns.OBS: first_obs,
            Columns.ACTIONS: first_actions,
            Columns.REWARDS: number,
            Columns.TERMINATEDS: number.bool(),
            Columns.NEXT_OBS: first_obs,
        }
        self._stores_truncateds = n_step > 1 or hindsight is not None
        """Whether ends by truncation are stored. A single step with its own goal does not need them, since it
        bootstraps from its own next observation."""
        if self._stores_truncateds:
            first[Columns.TRUNCATEDS] = number.bool()
        self.row_bytes = sum(leaf[0].nbytes for leaf in leaves(first))
        self.row_bytes += 0 if priorities is None else TensorPriorities.row_bytes
        self.row_bytes += 0 if hindsight is None else 8
        check_room(self.device, self.row_bytes, self.num_steps * self.num_envs, "transitions", "lower replay.capacity")
        self.columns: dict[str, Tree] = map_tree(lambda leaf: leaf.new_zeros(self.num_steps, *leaf.shape), first)
        self.written = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._position = self.written  # until the first step sets it
        """Position of the vector step that is being written, int64 `[1]`."""
        self.priorities = None if priorities is None else TensorPriorities(self.maxsize, self.device, **priorities)
        self._envs = torch.arange(self.num_envs, device=self.device)
        self._steps_around = torch.zeros(2, 0, dtype=torch.int32, device=self.device)
        """Number of stored steps of its episode before and after each row, int32 `[2, T * B]`. Without hindsight it is
        empty. It is valid between two collects."""
        if hindsight is not None:
            self._steps_around = self._steps_around.new_zeros(2, self.num_steps * self.num_envs)
        self.size = 0
        self._written_before = torch.zeros_like(self.written)
        """Number of vector steps that had been written when the present collect began, int64 `[1]`."""
        self._num_counted = 0
        """Number of vector steps of the present collect that the host has counted."""
        self._is_in_step = False
        """Whether a vector step is written in part. If the ring is full, the oldest step has lost its observations."""

    def __len__(self) -> int:
        """Return the number of transitions, over all ranks."""
        return self.size * self.num_envs * self.share.number

    @property
    def maxsize(self) -> int:
        """Number of transitions that fit, over all ranks."""
        return self.num_steps * self.num_envs * self.share.number

    def begin_collect(self, weights_seq_no: int) -> None:
        """Begin a collect, which `abandon_collect` can undo. Transitions of any weights may be stored."""
        self._written_before.copy_(self.written)
        self._num_counted = 0
        if self.new_rows is not None:
            self.new_rows.begin_collect()

    def begin_step(self, t: int, obs: Tree) -> None:
        """Write the observations of a vector step over the oldest one. `t` is its number in the collect."""
        self._is_in_step = True
        self._position = self.written % self.num_steps
        self._write({Columns.OBS: obs})

    def end_step(self, t: int, actions: Tensor, rewards: Tensor, dones: Tensor, extras: Mapping[str, Tree]) -> None:
        """Write actions and results of the vector step that `begin_step` has begun."""
        # The environments may have reset themselves: only `final_obs` is the observation that the action led to.
        row = {Columns.ACTIONS: actions, Columns.REWARDS: rewards, Columns.NEXT_OBS: extras["final_obs"]}
        row[Columns.TERMINATEDS] = dones > extras["time_outs"]
        if self._stores_truncateds:
            row[Columns.TRUNCATEDS] = dones & extras["time_outs"]
        self._write(row)
        if self.priorities is not None:
            self.priorities.add(self._position * self.num_envs + self._envs)
        if self.new_rows is not None:
            self.new_rows.add_step(t, rewards, dones)
        self.written.add_(1)
        self._is_in_step = False

    def _write(self, row: Mapping[str, Tree]) -> None:
        """Write columns of the present vector step, each `[B, ...]`."""

        def write(column: Tensor, value: Tensor) -> None:
            column.index_copy_(0, self._position, value.to(column.dtype).unsqueeze(0))

        for name, value in row.items():
            map_pair(write, self.columns[name], value)

    def end(self, num_steps: int) -> Tensor:
        """End a collect of `num_steps` vector steps, and return how many of its values are not finite, 0-d."""
        if self.new_rows is not None:
            stored = min(num_steps, self.num_steps)
            newest = (self.written - 1 - torch.arange(stored, device=self.device)) % self.num_steps
            self.new_rows.end_collect(map_tree(lambda leaf: leaf.index_select(0, newest), self.columns[Columns.OBS]))
        positions = (self.written - 1 - torch.arange(num_steps, device=self.device)) % self.num_steps
        self._find_episodes()
        names = Columns.REWARDS, Columns.OBS, Columns.NEXT_OBS
        checked = {name: self.columns[name] for name in names}
        return count_not_finite(*(leaf.index_select(0, positions) for leaf in leaves(checked)))

    def last_steps(self, num_steps: int) -> dict[str, Tensor]:
        """Return the columns that `end` checks of the newest vector steps, `[T, B, ...]` each, oldest first.

        T is `num_steps`, or the capacity if the ring has overwritten the first of them. An entry of the observations
        has its path as its name, such as `"obs/camera"`.
        """
        steps = torch.arange(-min(num_steps, self.num_steps), 0, device=self.device)
        positions = (self.written + steps) % self.num_steps
        names = Columns.OBS, Columns.NEXT_OBS, Columns.REWARDS
        columns = leaves_by_path({name: self.columns[name] for name in names})
        return {name: column.index_select(0, positions) for name, column in columns.items()}

    def sample(self, num_rows: int, generator: torch.Generator) -> dict[str, Any]:
        """Return columns `[num_rows, ...]` of random rows. The host does not wait for them.

        With priorities there are also `weights` and `batch_indexes`. With hindsight a share of the rows has new goals.
        """
        if self.priorities is None:
            index = self.draw_indices(num_rows, generator)
            return self.rows(index, self.draw_chances(num_rows, generator))
        num_stored = self.written.clamp(max=self.num_steps) * self.num_envs
        uniforms = torch.rand(num_rows, dtype=torch.float64, device=self.device, generator=generator)
        # Rounding in the sums of the tree may lead one past the last row that has a priority.
        index = torch.minimum(self.priorities.tree.draw(uniforms), num_stored - 1)
        rows = self.rows(index, self.draw_chances(num_rows, generator))
        return {**rows, Columns.WEIGHTS: self.priorities.weights(index), Columns.BATCH_INDEXES: index}

    def draw_indices(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Return uniformly drawn rows over the environments of all ranks, `t * (B * ranks) + b`; int64 `[num_rows]`."""
        uniforms = torch.rand(num_rows, dtype=torch.float64, device=self.device, generator=generator)
        return (uniforms * (self.written.clamp(max=self.num_steps) * self.num_envs * self.share.number)).long()

    def draw_chances(self, num_rows: int, generator: torch.Generator) -> Tensor | None:
        """Return the random numbers that decide about the goals of drawn rows, float64 `[2, num_rows]`.

        None without hindsight.
        """
        if self.hindsight is None:
            return None
        return torch.rand(2, num_rows, dtype=torch.float64, device=self.device, generator=generator)

    def rows(self, index: Tensor, chances: Tensor | None = None) -> dict[str, Any]:
        """Return the columns of the rows `index`, int64 `[N]`. With n-step sums there is also `discounts`.

        For a row of step t, `rewards` is `sum_{i < m} gamma^i r_{t+i}` over m <= n steps, and `discounts` is `gamma^m`.

        Args:
            index: Numbers of the rows.
            chances: Random numbers `[2, N]` of `draw_chances`. With them a share of the rows gets goals that were
                achieved in their episodes. None: all rows keep their goals.
        """
        columns = self._stored_rows(index)
        if chances is None:
            return columns
        return self._with_new_goals(columns, index, chances)

    def _with_new_goals(self, columns: dict[str, Any], index: Tensor, chances: Tensor) -> dict[str, Any]:
        """Return the columns of the rows `index` in which a share of the rows has goals that were achieved later.

        All rows are relabelled, so that shapes do not depend on data, and only the chosen ones are used.
        """
        assert self.hindsight is not None
        position = index // self.num_envs
        env = index % self.num_envs
        before, after = self._steps_around.index_select(1, index)
        is_new, steps_to_goal = self.hindsight.choose_on_device(chances, before, after)
        goal_row = (position + steps_to_goal) % self.num_steps * self.num_envs + env
        achieved_goals = self.columns[Columns.NEXT_OBS]["achieved_goal"].flatten(0, 1)
        goals = achieved_goals.index_select(0, goal_row)

        # Each of the n rewards depends on the goal. The sum ends with the stored episode, or where the goal is reached.
        rewards = torch.zeros(len(index), device=self.device)
        terminateds = torch.zeros(len(index), dtype=torch.bool, device=self.device)
        last = index
        number = torch.zeros_like(index)
        continues = torch.ones_like(terminateds)
        for step in range(self.n_step):
            continues = continues & (after >= step)
            row = torch.where(continues, (position + step) % self.num_steps * self.num_envs + env, last)
            step_rewards, ends = self.hindsight.judge_on_device(
                achieved_goals.index_select(0, row), goals, self._take(Columns.TERMINATEDS, row)
            )
            rewards = rewards + torch.where(continues, self.gamma**step * step_rewards, 0.0)
            terminateds = torch.where(continues, ends, terminateds)
            last = row
            number = number + continues
            continues = continues & ~ends

        def chosen(new: Tensor, stored: Tensor) -> Tensor:
            return torch.where(is_new.view(-1, *[1] * (stored.ndim - 1)), new.to(stored.dtype), stored)

        columns = dict(columns)
        columns[Columns.NEXT_OBS] = map_pair(chosen, self._take(Columns.NEXT_OBS, last), columns[Columns.NEXT_OBS])
        for name in (Columns.OBS, Columns.NEXT_OBS):
            columns[name] = {**columns[name], "desired_goal": chosen(goals, columns[name]["desired_goal"])}
        columns[Columns.REWARDS] = chosen(rewards, columns[Columns.REWARDS])
        columns[Columns.TERMINATEDS] = chosen(terminateds, columns[Columns.TERMINATEDS])
        if Columns.DISCOUNTS in columns:
            discounts = torch.pow(self.gamma, number.to(torch.float32))
            columns[Columns.DISCOUNTS] = chosen(discounts, columns[Columns.DISCOUNTS])
        return columns

    def _find_episodes(self) -> None:
        """Count the stored steps of its episode before and after each row, for hindsight."""
        if self.hindsight is None:
            return
        steps = torch.arange(self.num_steps, dtype=torch.int32, device=self.device)
        order = (self.written + steps) % self.num_steps  # positions from the oldest to the newest
        terminated, truncated = (self.columns[name] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS))
        ends = (terminated | truncated).index_select(0, order)
        ends[-1] = True  # the newest step is the last one that is stored of its episode
        follows_end = ends.roll(1, 0)

        step = steps.unsqueeze(1)
        last = torch.where(ends, step, self.num_steps).flip(0).cummin(0).values.flip(0)
        first = torch.where(follows_end, step, 0).cummax(0).values
        # Positions that were never written come before the first step.
        first = first.clamp(min=self.num_steps - self.written.clamp(max=self.num_steps))
        around = self._steps_around.view(2, self.num_steps, self.num_envs)
        around.index_copy_(1, order, torch.stack([step - first, last - step]).to(torch.int32))

    def _stored_rows(self, index: Tensor) -> dict[str, Any]:
        """Return the columns of the rows `index`, with their own goals; see `rows`."""
        if self.n_step == 1:
            return {name: self._take(name, index) for name in self.columns if name != Columns.TRUNCATEDS}

        columns = {name: self._take(name, index) for name in (Columns.OBS, Columns.ACTIONS)}
        position = index // self.num_envs
        env = index % self.num_envs
        # The newest step is the edge of the ring: the position after it holds the oldest one, of another time.
        num_newer = (self.written - 1 - position) % self.num_steps  # vector steps written after the row's

        # All rows walk n steps, so that shapes do not depend on data; a row whose walk has ended stays where it is.
        rewards = torch.zeros(len(index), device=self.device)
        last = index
        number = torch.zeros_like(index)
        continues = torch.ones_like(index, dtype=torch.bool)
        for step in range(self.n_step):
            continues = continues & (num_newer >= step)
            row = torch.where(continues, (position + step) % self.num_steps * self.num_envs + env, last)
            rewards = rewards + continues * self.gamma**step * self._take(Columns.REWARDS, row)
            last = row
            number = number + continues
            continues = continues & ~(self._take(Columns.TERMINATEDS, row) | self._take(Columns.TRUNCATEDS, row))

        columns |= {name: self._take(name, last) for name in (Columns.NEXT_OBS, Columns.TERMINATEDS)}
        discounts = torch.pow(self.gamma, number.to(torch.float32))
        return {**columns, Columns.REWARDS: rewards, Columns.DISCOUNTS: discounts}

    def _take(self, name: str, index: Tensor) -> Any:
        """Return the rows `index` of a column, `[N, ...]`."""
        return map_tree(lambda leaf: leaf.flatten(0, 1).index_select(0, index), self.columns[name])

    def count(self, num_steps: int) -> None:
        """Add vector steps to the numbers that the host keeps. A replayed graph writes steps without the host."""
        self.size = min(self.size + num_steps, self.num_steps)
        self._num_counted += num_steps
        if self.priorities is not None:
            self.priorities.count(num_steps * self.num_envs)

    def clear(self) -> None:
        """Drop all transitions."""
        self.size = 0
        self.written.zero_()
        if self.priorities is not None:
            self.priorities.clear()
        if self.new_rows is not None:
            self.new_rows.clear()

    def reset(self) -> None:
        """Drop all transitions, under the name that replay buffers on the host have for it."""
        self.clear()

    def cut(self) -> None:
        """Mark the newest step as the end of its episodes, because the environments begin new ones.

        Sums of n rewards end there. Rows that are terminated stay so, and all others become truncated.
        """
        if self.new_rows is not None:
            self.new_rows.end_episodes()
        if not self._stores_truncateds or self.size == 0:
            return
        newest = (self.written - 1) % self.num_steps
        terminated = self.columns[Columns.TERMINATEDS].index_select(0, newest)
        self.columns[Columns.TRUNCATEDS].index_copy_(0, newest, ~terminated)
        self._find_episodes()

    def abandon_collect(self) -> None:
        """Drop all steps written since `begin_collect`, a step written in part included. Waits for the device.

        Steps that these had overwritten are lost. Until new steps are written, their positions hold copies of the last
        step that remains, and no sum of n rewards reaches into a copy.
        """
        first = int(self._written_before)
        last = int(self.written)
        num_positions = last - first + self._is_in_step
        self._is_in_step = False
        self._drop_positions(first, num_positions)
        if self.new_rows is not None:
            self.new_rows.abandon_collect()

    def _drop_positions(self, first: int, num_positions: int) -> None:
        """Drop the vector steps from number `first` on, which have `num_positions` positions."""
        if num_positions == 0:
            return
        if self.priorities is not None:
            self.priorities.count(-self._num_counted * self.num_envs)
        self._num_counted = 0
        if first == 0 or num_positions >= self.num_steps:  # nothing remains
            self.clear()
            return

        # Rows of a full ring can all be drawn, so that the positions of dropped steps need some content. Copies of a
        # step that is stored anyway only make that step more likely for a while.
        positions = torch.arange(first, first + num_positions, device=self.device) % self.num_steps
        columns = [*leaves(self.columns)]
        if self.priorities is not None:
            columns.append(self.priorities.tree.values.view(self.num_steps, self.num_envs))
        self.written.fill_(first)
        self.size = min(first, self.num_steps)
        self.cut()  # before the copies are made, so that each of them ends its episode
        for column in columns:
            column[positions] = column[(first - 1) % self.num_steps].clone()
        if self.priorities is not None:
            columns[-1][self.size :] = 0.0  # rows that were never written have no priority
            self.priorities.tree.recompute_sums()
        self._find_episodes()

    def section_options(self) -> dict[str, Any]:
        """Return the buffer's options by their names in the section `replay` of a configuration."""
        alpha = beta = None
        if self.priorities is not None:
            alpha = self.priorities.alpha
            beta = self.priorities.beta.specification
        return {
            "n_step": self.n_step,
            "prioritized": self.priorities is not None,
            "alpha": alpha,
            "beta": beta,
            "her": self.hindsight is not None,
            "her_future_k": None if self.hindsight is None else self.hindsight.future_k,
            "her_strategy": None if self.hindsight is None else self.hindsight.strategy,
            "ignore_obs_next": False,
            "storage": "memory",
            "sequence_length": None,
            "burn_in": 0,
        }

    def drawing_options(self) -> dict[str, Any]:
        """Return the options of the priorities. All others are checked by `set_state`."""
        return {} if self.priorities is None else self.priorities.options()

    # -- state ---

    def replays(self) -> dict[str, TensorReplay]:
        return {"": self}

    def get_state(self) -> dict[str, Any]:
        """Return the transitions of all ranks as arrays on the host, the number of steps, and the priorities."""
        columns = map_tree(lambda leaf: leaf[: self.size].cpu().numpy().copy(), self.columns)
        if self.share.number > 1:
            parts = self.share.gather(columns)
            columns = zip_trees(lambda leaves_of_ranks: np.concatenate(leaves_of_ranks, 1), parts, "columns")
        state = {"written": int(self.written), "shape": self._form(), "columns": columns}
        if self.new_rows is not None:
            state["new_rows"] = self.new_rows.get_state(self.share)
        return state if self.priorities is None else {**state, "priorities": self.priorities.get_state(len(self))}

    checkpoint_state = get_state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`.

        Raises:
            ValueError: the state belongs to another buffer, or is damaged. Nothing changes in that case.
        """
        columns = map_tree(torch.as_tensor, state.get("columns", {}))
        saved_form = _form_of_rows(columns)
        form = _form_of_rows(self.columns)
        if state.get("shape") != self._form() or saved_form != form:
            raise ValueError(
                f"the state is of another buffer than this TensorReplay of {self._form()} with {form}: it has "
                f"{state.get('shape')} with {saved_form}; resume with the same environments, device and replay options"
            )
        written = int(state["written"])
        size = min(written, self.num_steps)
        lengths = {name: len(column) for name, column in leaves_by_path(columns).items()}
        if set(lengths.values()) != {size}:
            raise ValueError(
                f"the state of a TensorReplay is damaged: of {size} vector steps, its columns hold {lengths}; resume "
                "from an earlier checkpoint"
            )

        self.size = size
        own_columns = map_tree(lambda leaf: self.share.of(leaf.transpose(0, 1)).transpose(0, 1), columns)
        copy_into(rows_of(self.columns, slice(self.size)), own_columns)
        self.written.fill_(written)
        if self.priorities is not None:
            self.priorities.set_state(state["priorities"])
        if self.new_rows is not None and "new_rows" in state:
            self.new_rows.set_state(state["new_rows"], self.share)
        self._find_episodes()

    def _form(self) -> dict[str, Any]:
        """Return the properties of this buffer that a state must agree with."""
        form = {"num_steps": self.num_steps, "num_envs": self.num_envs * self.share.number}
        return form if self.priorities is None else {**form, "prioritized": True}


def _form_of_rows(columns: Mapping[str, Tree]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of a row of each column `[T, B, ...]`, by the paths of `named_leaves`."""
    return {name: (tuple(column.shape[2:]), column.dtype) for name, column in leaves_by_path(columns).items()}
