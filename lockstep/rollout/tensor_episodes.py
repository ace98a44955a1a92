"""`TensorEpisodes`: returns and lengths of the episodes of environments on a device."""

from __future__ import annotations

import torch
from torch import Tensor


class TensorEpisodes:
    """Returns and lengths of the running episodes on a device, and of the episodes that ended in the present collect.

    Unless stated otherwise, its methods do not wait for the device, and its tensors stay at their addresses, so that a
    CUDA graph can contain its operations.

    Args:
        num_steps: Number of vector steps of a collect, T.
        num_envs: Number of environments on this device, B.
        device: The device.
    """

    def __init__(self, num_steps: int, num_envs: int, device: torch.device) -> None:
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)
        """`[B]` return so far of the running episode in each environment."""
        self.lengths = torch.zeros(num_envs, dtype=torch.float64, device=device)
        """`[B]` length so far of the running episode. Floats, because lengths and returns are copied to the host at
        once."""
        self._ended = torch.zeros(2, num_steps, num_envs, dtype=torch.float64, device=device)
        """`[2, T, B]` return and length of the episode that ended in each step; the length is 0 where no episode
        ended."""

    def forget(self) -> None:
        """Set the returns and lengths of all running episodes to 0, as after a reset of all environments."""
        self.returns.zero_()
        self.lengths.zero_()

    def step(self, t: int, rewards: Tensor, dones: Tensor) -> None:
        """Add vector step `t` of a collect.

        Args:
            t: Index of the vector step in the collect.
            rewards: Rewards `[B]`.
            dones: Bool `[B]`, environments whose episode ended with the step.
        """
        self.returns.add_(rewards)
        self.lengths.add_(1)
        self._ended[0, t].copy_(self.returns)
        torch.mul(self.lengths, dones, out=self._ended[1, t])
        self.returns.masked_fill_(dones, 0.0)
        self.lengths.masked_fill_(dones, 0)

    def ended(self) -> tuple[Tensor, Tensor]:
        """Return the returns and lengths of the episodes that ended in this collect.

        Returns:
            Returns and lengths `[2, T * B]` in the first columns, by vector step and then by environment; the number of
            these columns (0-d).
        """
        return compact_columns(self._ended.flatten(1), self._ended[1].flatten() > 0)

    def ended_in(self) -> tuple[Tensor, Tensor]:
        """Return the vector step and the environment in which each episode ended, `[E]` each. Waits for the device."""
        steps, envs = self._ended[1].nonzero().T
        return steps, envs


def compact_columns(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return `values` `[K, N]` with the columns of a mask moved to the front, and the number of these columns.

    Unlike `values[:, mask]` this does not wait for the device: the shape of the result does not depend on the mask. The
    columns behind the moved ones are arbitrary.

    Args:
        values: Values `[K, N]`.
        mask: Bool `[N]`.
    """
    number = mask.cumsum(0)
    # All columns outside the mask are written into one additional column at the end.
    places = torch.where(mask, number - 1, mask.numel())
    compacted = values.new_zeros(len(values), mask.numel() + 1)
    return compacted.scatter_(1, places.expand_as(values), values), number[-1]
