"""`TensorRollout`: the on-policy buffer of environments whose steps are tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.data.training_buffer import TrainingBuffer


class TensorRollout(TrainingBuffer):
    """Columns `[T, B, ...]` of one rollout, in the same memory for each, so that CUDA graphs can write and read them.

    A learner reads it as it reads a `RolloutStore`: `episodes()` is handed to `update_from_episodes`.

    Attributes:
        obs: `[T, B, ...]`, acted on.
        next_obs: `[T, B, ...]`, what each step arrived at, before an ended episode was reset.
        actions: `[T, B, ...]`, as learned from.
        rewards: float32 `[T, B]`.
        terminateds: bool `[T, B]`, the task ended there.
        cuts: bool `[T, B]`, the episode ended there, for whatever reason.
        share: which rows these are, where several ranks have a rollout together.

    Raises:
        ValueError: the device has not enough free memory; says how many environments would fit.
    """

    def __init__(self, num_steps: int, first_obs: Tensor, first_actions: Tensor, share: RowShare = ALL_ROWS) -> None:
        self.share = share
        self.num_steps, self.num_envs = num_steps, len(first_obs)
        self.device: torch.device = first_obs.device
        row = 2 * first_obs[0].nbytes + first_actions[0].nbytes + 6
        advice = "take fewer, or shorter rollouts (env_runners(rollout_fragment_length=...))"
        check_room(self.device, num_steps * row, self.num_envs, "environments", advice)
        self.obs = self._column(first_obs)
        self.next_obs = self._column(first_obs)
        self.actions = self._column(first_actions)
        self.rewards = torch.zeros(num_steps, self.num_envs, device=self.device)
        self.terminateds = torch.zeros(num_steps, self.num_envs, dtype=torch.bool, device=self.device)
        self.cuts = torch.zeros_like(self.terminateds)
        self.size = 0
        """vector steps that are to be learned from: all or none"""
        self.weights_seq_no = 0
        """version of the weights that acted"""

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
        columns = (self.obs, self.next_obs, self.actions, self.rewards, self.terminateds, self.cuts)
        return sum(column.nbytes for column in columns)

    def begin_collect(self, weights_seq_no: int) -> None:
        """Begin a collect in which weights of this version act."""
        self.weights_seq_no = weights_seq_no

    def begin_step(self, t: int, obs: Tensor) -> None:
        """Write what is acted on in the vector step `t`."""
        self.obs[t].copy_(obs)

    def end_step(self, t: int, actions: Tensor, rewards: Tensor, dones: Tensor, extras: Mapping[str, Tensor]) -> None:
        """Write the rest of the vector step `t`, as the environments give it."""
        self.actions[t].copy_(actions)
        self.rewards[t].copy_(rewards)
        self.cuts[t].copy_(dones)
        torch.gt(dones, extras["time_outs"], out=self.terminateds[t])
        self.next_obs[t].copy_(extras["final_obs"])

    def end(self, num_steps: int) -> Tensor:
        """End a collect of all vector steps; return how many numbers are not finite, 0-d."""
        return count_not_finite(self.rewards, self.obs, self.next_obs)

    def last_steps(self, num_steps: int) -> dict[str, Tensor]:
        """Return the columns in which `end` counts, `[T, B, ...]` each."""
        return {Columns.OBS: self.obs, Columns.NEXT_OBS: self.next_obs, Columns.REWARDS: self.rewards}

    def count(self, num_steps: int) -> None:
        """Have the host know that all vector steps are there."""
        self.size = self.num_steps

    def episodes(self) -> TensorRollout:
        """Return what `update_from_episodes` takes: this very rollout."""
        return self

    def columns(self) -> dict[str, Tensor]:
        """Return copies of the columns on the host."""
        names = ("obs", "next_obs", "actions", "rewards", "terminateds", "cuts")
        return {name: getattr(self, name).cpu().clone() for name in names}

    def rows(self) -> None:
        """Return None: all rows are transitions."""
        return

    def clear(self) -> None:
        """Empty it."""
        self.size = 0

    def cut(self) -> None:
        """Do nothing: the last step of every rollout is a boundary."""

    def abandon_collect(self) -> None:
        """Empty it: a collect that failed has written over what was there."""
        self.clear()


def count_not_finite(*numbers: Tensor) -> Tensor:
    """Return how many numbers are not finite, 0-d."""
    differences = [each - each for each in numbers if each.is_floating_point()]  # not 0 where one is not finite
    return torch.stack([each.count_nonzero() for each in differences]).sum()


def check_room(device: torch.device, size: int, number: int, things: str, advice: str) -> None:
    """Raise `ValueError` where a GPU has no room for `number` things of `size` bytes each; says how many would fit."""
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    if number * size > free:
        raise ValueError(
            f"{number:,} {things} need {number * size / 2**30:.1f} GiB on {device}, and {free / 2**30:.1f} of its "
            f"{total / 2**30:.1f} GiB are free: {free // size:,} {things} would fit, with nothing left for networks; "
            f"{advice}"
        )
