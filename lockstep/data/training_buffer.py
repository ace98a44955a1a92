"""`TrainingBuffer`: interface of all buffers, on the host and on a device, for trainers, collectors and updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium import spaces

if TYPE_CHECKING:
    import torch


class TrainingBuffer:
    """Buffer that an update learns from; a collector fills it, or it holds recorded rows.

    The defaults are those of an on-policy rollout of one agent. Other buffers override them.
    """

    __slots__ = ()

    is_sampled: ClassVar[bool] = False
    """Whether gradient steps draw samples and leave the rows in the buffer. False for a rollout: the update learns from
    all of it, and then empties it."""

    is_by_module: ClassVar[bool] = False
    """Whether the buffer consists of one replay buffer for each module, as for several agents."""

    agents: Mapping[str, Sequence[Any]] | None = None
    """Agents whose transitions the replay buffer of each module stores. None if one buffer stores all agents."""

    device: torch.device | None = None
    """Device of the rows. None if they are arrays on the host."""

    @property
    def num_bytes(self) -> int | None:
        """Memory of the buffer at its full size. None if the size is not fixed, or not known yet."""
        return None

    def expected_bytes(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], state_bytes: int
    ) -> int | None:
        """Return the memory of the full buffer, also before the first row arrives; None if it is not known.

        Args:
            observation_space: Space of the stored observations.
            action_space: Action space of the environments.
            state_bytes: Memory of one row's recurrent state; 0 for networks without memory.
        """
        return self.num_bytes

    def replays(self) -> Mapping[str, Any]:
        """Return the replay buffers that a run saves and restores, by module.

        A buffer for all modules is `{"": replay}`. A rollout returns an empty dict: it is empty between updates.
        """
        return {}

    def seed_streams(self, seed: int) -> None:
        """Restart all random streams of the buffer from the seed of a run. A rollout has none."""
