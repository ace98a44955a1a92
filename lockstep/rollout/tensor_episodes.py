"""`TensorEpisodes`: returns and lengths of the episodes under way in environments on a device."""

from __future__ import annotations

import torch
from torch import Tensor


class TensorEpisodes:
    """Returns and lengths of the episodes under way in environments on a device, and of those that end in a collect.

    It never waits for the device, and its memory stays where it is, so that a CUDA graph can hold its operations.

    Args:
        num_steps: vector steps of a collect.
        num_envs: environments on this device.
        device: the device.
    """

    def __init__(self, num_steps: int, num_envs: int, device: torch.device) -> None:
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)
        """`[B]` return of the episode under way in each environment."""
        self.lengths = torch.zeros(num_envs, dtype=torch.float64, device=device)
        """`[B]` its number of steps; floats, as they go to the host together with the returns."""
        self._ended = torch.zeros(2, num_steps, num_envs, dtype=torch.float64, device=device)
        """`[2, T, B]` return and length of the episode that ended in a step; a length of 0: no episode ended"""

    def forget(self) -> None:
        """Begin new episodes everywhere."""
        self.returns.zero_()
        self.lengths.zero_()

    def step(self, t: int, rewards: Tensor, dones: Tensor) -> None:
        """Add vector step `t` of a collect: its rewards `[B]`, and where an episode ended with it, bool `[B]`."""
        self.returns.add_(rewards)
        self.lengths.add_(1)
        self._ended[0, t].copy_(self.returns)
        torch.mul(self.lengths, dones, out=self._ended[1, t])
        self.returns.masked_fill_(dones, 0.0)
        self.lengths.masked_fill_(dones, 0)

    def ended(self) -> tuple[Tensor, Tensor]:
        """Return returns and lengths of the episodes that ended in this collect, `[2, T * B]`, by vector step and then
        by environment, and how many of these columns count (0-d)."""
        return front_of(self._ended.flatten(1), self._ended[1].flatten() > 0)

    def ended_in(self) -> tuple[Tensor, Tensor]:
        """Return the vector step and the environment in which each episode ended, `[E]` each. Waits for the device."""
        steps, envs = self._ended[1].nonzero().T
        return steps, envs


def front_of(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return `values` `[K, N]` with the chosen columns first, in their order, and how many these are (0-d int64).

    Without a wait for the device, which `values[:, chosen]` needs to know its shape. The other columns are arbitrary.
    """
    number = chosen.cumsum(0)
    places = torch.where(chosen, number - 1, chosen.numel())  # all others share one place behind the last
    front = values.new_zeros(len(values), chosen.numel() + 1)
    return front.scatter_(1, places.expand_as(values), values), number[-1]
