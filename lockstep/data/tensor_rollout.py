"""`TensorRollout`: on-policy buffer for environments whose steps are tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.data.training_buffer import TrainingBuffer
from lockstep.data.trees import Tree, copy_into, leaves, map_tree, named_leaves, num_items, rows_of


class TensorRollout(TrainingBuffer):
    """Columns `[T, B, ...]` of one rollout of T vector steps and B environments.

    All rollouts of a run use the same memory: CUDA graphs are recorded for fixed addresses.

    A learner reads it like a `RolloutStore`: `episodes()` is passed to `update_from_episodes`.

    Attributes:
        obs: Observations `[T, B, ...]` that were acted on: a tensor, or a tree of tensors for a Dict or Tuple space.
        next_obs: Observations `[T, B, ...]` that followed, before the reset of an episode that ended.
        actions: Actions `[T, B, ...]` in the form that the policy learns from.
        rewards: Rewards, float32 `[T, B]`.
        terminateds: Whether the step terminated its episode, bool `[T, B]`.
        cuts: Whether the step ended its episode, terminated or truncated, bool `[T, B]`.
        starts: Whether the policy's memory was reset before the step, bool `[T, B]`. False for a policy without memory.
        state_in: State of the policy's memory before the first step, `{name: [B, ...]}`. Empty without memory.
        share: The rows that this rank has of a rollout of several ranks.

    Args:
        num_steps: Number T of vector steps.
        first_obs: Observations `[B, ...]` with the shapes and dtypes to store.
        first_actions: Actions `[B, ...]`, as the policy learns from them.
        share: The rows of this rank.
        state: State of the policy's memory, `{name: [B, ...]}`. Defaults to a policy without memory.

    Raises:
        ValueError: the device has not enough free memory. The message says how many environments would fit.
    """

    is_on_device: ClassVar[Literal[True]] = True
    """Whether the columns are tensors on the networks' device; those of `Trajectories` are arrays."""

    def __init__(
        self,
        num_steps: int,
        first_obs: Tree,
        first_actions: Tensor,
        share: RowShare = ALL_ROWS,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.share = share
        self.num_steps = num_steps
        self.num_envs = num_items(first_obs)
        self.device: torch.device = first_actions.device

        flags_and_reward = 7  # one float32, three bools
        bytes_per_obs = sum(leaf[0].nbytes for leaf in leaves(first_obs))
        bytes_per_step = 2 * bytes_per_obs + first_actions[0].nbytes + flags_and_reward
        bytes_per_env = num_steps * bytes_per_step + sum(leaf[0].nbytes for leaf in (state or {}).values())
        advice = "take fewer, or shorter rollouts (env_runners(rollout_fragment_length=...))"
        check_room(self.device, bytes_per_env, self.num_envs, "environments", advice)

        self.obs = map_tree(self._column, first_obs)
        self.next_obs = map_tree(self._column, first_obs)
        self.actions = self._column(first_actions)
        self.rewards = torch.zeros(num_steps, self.num_envs, device=self.device)
        self.terminateds = torch.zeros(num_steps, self.num_envs, dtype=torch.bool, device=self.device)
        self.cuts = torch.zeros_like(self.terminateds)
        self.starts = torch.zeros_like(self.terminateds)
        self.state_in = {name: torch.zeros_like(leaf) for name, leaf in (state or {}).items()}

        self.size = 0
        """Number of vector steps to learn from: `num_steps` after a collect, else 0."""
        self.weights_seq_no = 0
        """Version of the weights that acted."""

    def _column(self, first: Tensor) -> Tensor:
        return first.new_zeros(self.num_steps, *first.shape)

    def __len__(self) -> int:
        """Return the number of transitions, over all ranks."""
        return self.size * self.num_envs * self.share.number

    @property
    def shape(self) -> tuple[int, int]:
        """`(T, B)`."""
        return self.num_steps, self.num_envs

    @property
    def num_bytes(self) -> int:
        flags = (self.terminateds, self.cuts, self.starts)
        columns = (self.obs, self.next_obs, self.actions, self.rewards, flags, self.state_in)
        return sum(leaf.nbytes for leaf in leaves(columns))

    def begin_collect(self, weights_seq_no: int) -> None:
        """Begin a collect. `weights_seq_no` is the version of the weights that act."""
        self.weights_seq_no = weights_seq_no

    def begin_step(self, t: int, obs: Tree) -> None:
        """Write the observations `[B, ...]` on which vector step `t` acts."""
        copy_into(rows_of(self.obs, t), obs)

    def write_memory(self, t: int, state: Mapping[str, Tensor], starts: Tensor) -> None:
        """Write the policy's memory before vector step `t`: which rows are reset `[B]`, and before step 0 the state.

        The state is the one before the resets.
        """
        if t == 0:
            copy_into(self.state_in, state)
        self.starts[t].copy_(starts)

    def end_step(self, t: int, actions: Tensor, rewards: Tensor, dones: Tensor, extras: Mapping[str, Tree]) -> None:
        """Write the results of vector step `t`: actions, and what the environments returned for them."""
        self.actions[t].copy_(actions)
        self.rewards[t].copy_(rewards)
        self.cuts[t].copy_(dones)
        # Of bools, `dones > time_outs` is "done and not timed out", in one kernel that writes in place.
        torch.gt(dones, extras["time_outs"], out=self.terminateds[t])
        copy_into(rows_of(self.next_obs, t), extras["final_obs"])

    def end(self, num_steps: int) -> Tensor:
        """End a collect of all vector steps, and return the number of values that are not finite (0-d tensor)."""
        return count_not_finite(self.rewards, *leaves(self.obs), *leaves(self.next_obs))

    def last_steps(self, num_steps: int) -> dict[str, Tensor]:
        """Return the columns `[T, B, ...]` in which `end` counts the values that are not finite.

        An entry of the observations has its path as its name, such as `"obs/camera"`.
        """
        columns = {Columns.OBS: self.obs, Columns.NEXT_OBS: self.next_obs, Columns.REWARDS: self.rewards}
        return leaves_by_path(columns)

    def count(self, num_steps: int) -> None:
        """Mark all vector steps as collected. `size` is a number of the host, which no graph can set."""
        self.size = self.num_steps

    def episodes(self) -> TensorRollout:
        """Return the argument of `update_from_episodes`: this rollout itself."""
        return self

    def columns(self) -> dict[str, Any]:
        """Return copies of the columns on the host."""
        names = ("obs", "next_obs", "actions", "rewards", "terminateds", "cuts")
        return {name: map_tree(lambda leaf: leaf.cpu().clone(), getattr(self, name)) for name in names}

    def rows(self) -> None:
        """Return None, which means that all rows are transitions."""
        return

    def clear(self) -> None:
        """Empty the rollout."""
        self.size = 0

    def cut(self) -> None:
        """Do nothing: episodes are cut after the last step of every rollout."""

    def abandon_collect(self) -> None:
        """Empty the rollout: a collect that failed has overwritten the rows of the one before."""
        self.clear()


def leaves_by_path(columns: Mapping[str, Tree]) -> dict[str, Tensor]:
    """Return the leaves of all columns by their paths, such as `"rewards"` and `"obs/camera"`."""
    found: dict[str, Tensor] = {}
    for name, column in columns.items():
        found.update(named_leaves(name, column))
    return found


def count_not_finite(*tensors: Tensor) -> Tensor:
    """Return the number of values that are not finite (0-d tensor). Integer tensors are skipped."""
    # x - x is 0 for a finite x, else NaN, which is nonzero. This takes fewer kernels than `isfinite`.
    differences = [tensor - tensor for tensor in tensors if tensor.is_floating_point()]
    return torch.stack([difference.count_nonzero() for difference in differences]).sum()


def check_room(device: torch.device, size: int, number: int, things: str, advice: str) -> None:
    """Raise `ValueError` if a GPU has no room for `number` things of `size` bytes each.

    The message says how many would fit. `things` is their plural noun; `advice` says what to do. Other devices than
    CUDA are not checked.
    """
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    if number * size > free:
        raise ValueError(
            f"{number:,} {things} need {number * size / 2**30:.1f} GiB on {device}, and {free / 2**30:.1f} of its "
            f"{total / 2**30:.1f} GiB are free: {free // size:,} {things} would fit, with nothing left for networks; "
            f"{advice}"
        )
