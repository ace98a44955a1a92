"""`NewRows`: moments of the rows of a replay buffer on a device that running statistics do not have yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.row_share import RowShare
from lockstep.data.trees import Tree, num_items
from lockstep.ops import RunningMoments, TensorMoments


class NewRows:
    """Moments of the rows that were stored in a `TensorReplay` since its last update, for running statistics.

    Collects add rows, and an update takes them over (`ModuleConnectors.add_new_rows`). All tensors keep their
    addresses, so that CUDA graphs can hold both. The statistics are not changed by a collect, since a policy acts with
    the same ones until it is updated.

    Args:
        normalized: Function that returns the leaves of observations `[..., *shape]` that have statistics.
        shapes: Shape of a row of each of these leaves.
        gamma: Discount of the running returns; None if rewards have no statistics.
        num_steps: Number of vector steps of a collect.
        num_envs: Number of environments of this rank.
        device: The device of the rows.
    """

    def __init__(
        self,
        normalized: Callable[[Tree], Sequence[Tensor]],
        shapes: Sequence[tuple[int, ...]],
        gamma: float | None,
        num_steps: int,
        num_envs: int,
        device: torch.device,
    ) -> None:
        self._normalized = normalized
        self.obs = [TensorMoments(shape, device) for shape in shapes]
        """Moments of each leaf that has statistics."""
        self.gamma = gamma
        self.returns = TensorMoments((), device)
        """Moments of the running returns."""
        self.largest = torch.zeros((), dtype=torch.float64, device=device)
        """Largest absolute running return, 0-d."""
        self._running = torch.zeros(num_envs, dtype=torch.float64, device=device)
        """Running return of each environment `[B]`."""
        self._of_steps = torch.zeros(num_steps, num_envs, dtype=torch.float64, device=device)
        """Running returns of the steps of the present collect, `[T, B]`."""
        self._before: list[Tensor] = []
        """Values of `_tensors()` before the present collect."""

    def _tensors(self) -> list[Tensor]:
        """Return all tensors that a collect changes, and that the next one needs."""
        return [*(moments.numbers for moments in self.obs), self.returns.numbers, self.largest, self._running]

    def begin_collect(self) -> None:
        """Begin a collect, which `abandon_collect` can undo."""
        self._before = [tensor.clone() for tensor in self._tensors()]

    def abandon_collect(self) -> None:
        """Remove the rows of the present collect, also if an update has taken them over already."""
        for tensor, before in zip(self._tensors(), self._before):
            tensor.copy_(before)

    def add_step(self, t: int, rewards: Tensor, dones: Tensor) -> None:
        """Advance the running returns by vector step `t` of a collect.

        Args:
            t: Number of the step in the collect.
            rewards: `[B]`.
            dones: bool `[B]`, whether an episode ended with this step.
        """
        if self.gamma is not None:
            self._of_steps[t].copy_(self._running.mul_(self.gamma).add_(rewards))
            self._running.masked_fill_(dones, 0.0)

    def end_collect(self, obs: Tree) -> None:
        """Add the stored rows of the present collect: observations `[T, B, ...]`, and as many of the newest returns."""
        leaves_of_rows = self._normalized(obs)
        for moments, leaf in zip(self.obs, leaves_of_rows, strict=True):
            moments.update(leaf.flatten(0, 1))
        if self.gamma is not None:
            returns = self._of_steps[-num_items(obs) :].flatten()
            self.returns.update(returns)
            torch.maximum(self.largest, returns.abs().max(), out=self.largest)

    def end_episodes(self) -> None:
        """Let the next step of each environment begin an episode."""
        self._running.zero_()

    def clear(self) -> None:
        """Remove all rows. Episodes continue."""
        for moments in (*self.obs, self.returns):
            moments.clear()
        self.largest.zero_()

    def join(self, share: RowShare) -> None:
        """Replace the rows of this rank by the rows of all ranks. The host waits for the other ranks."""
        if share.number > 1:
            self._write(self._joined(share))

    def _joined(self, share: RowShare) -> dict[str, Any]:
        """Return the moments of the rows of all ranks, and the largest return."""
        own = {
            "obs": [moments.read().get_state() for moments in self.obs],
            "returns": self.returns.read().get_state(),
            "largest": float(self.largest),
        }
        parts = share.gather(own)
        obs = []
        for i, moments in enumerate(self.obs):
            obs.append(_merged([part["obs"][i] for part in parts], moments.shape).get_state())
        returns = _merged([part["returns"] for part in parts], ()).get_state()
        return {"obs": obs, "returns": returns, "largest": max(float(part["largest"]) for part in parts)}

    def _write(self, state: Mapping[str, Any]) -> None:
        """Replace the moments and the largest return by a result of `_joined`."""
        for moments, saved in zip(self.obs, state["obs"], strict=True):
            moments.write(_merged([saved], moments.shape))
        self.returns.write(_merged([state["returns"]], ()))
        self.largest.fill_(float(state["largest"]))

    def get_state(self, share: RowShare) -> dict[str, Any]:
        """Return the moments of the rows of all ranks, and the running return of each environment of all ranks."""
        running = np.concatenate(share.gather(self._running.cpu().numpy().copy()))
        return {**self._joined(share), "running": running}

    def set_state(self, state: Mapping[str, Any], share: RowShare) -> None:
        """Restore this rank's part of a state of `get_state`."""
        self._write(state)
        if share.rank > 0:
            self.clear()  # `join` adds up the ranks, so only the first one has the rows
        self._running.copy_(share.of(torch.from_numpy(np.array(state["running"], np.float64))))


def _merged(states: Sequence[Mapping[str, Any]], shape: tuple[int, ...]) -> RunningMoments:
    """Return the moments of the rows of several states of `RunningMoments`."""
    merged = RunningMoments(shape)
    for state in states:
        moments = RunningMoments(shape)
        moments.set_state(state)
        merged.merge(moments)
    return merged
