"""`TrainingBuffer`: what trainers, collectors and updates ask of every buffer, on the host and on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gymnasium import spaces

if TYPE_CHECKING:
    import torch


class TrainingBuffer:
    """A buffer that a collector fills or that holds recorded rows, and that an update learns from.

    What is declared here holds for a rollout of one agent. Other buffers say where they differ.
    """

    __slots__ = ()

    is_sampled: ClassVar[bool] = False
    """Whether gradient steps draw samples and leave the rows where they are. A rollout is learned from as a whole, and
    then emptied."""
    agents: Mapping[str, Sequence[Any]] | None = None
    """The agents whose transitions the replay buffer of each module keeps. None where there is one buffer for all."""

    device: torch.device | None = None
    """The device that holds the rows. None: they are arrays on the host."""

    @property
    def num_bytes(self) -> int | None:
        """Memory of all rows that there is room for. None where the room is not fixed, or not known yet."""
        return None

    def expected_bytes(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], state_bytes: int
    ) -> int | None:
        """Return the memory that the rows will take, also before the first one is there. None where it is not known.

        Args:
            observation_space: of the rows.
            action_space: of the environments.
            state_bytes: memory of a row's recurrent state, 0 for networks without memory.
        """
        return self.num_bytes

    def replays(self) -> Mapping[str, Any]:
        """Return the replay buffers by module, `{"": replay}` where there is one for all, and nothing for a rollout.

        A run saves and restores each of them.
        """
        return {}

    def seed_streams(self, seed: int) -> None:
        """Start all random numbers of the buffer again from the seed of a run. A rollout draws none."""
