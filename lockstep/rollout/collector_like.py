"""What a trainer needs of a collector, wherever its environments are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from lockstep.tracking.statistics import CollectStats


@runtime_checkable
class CollectorLike(Protocol):
    """`Collector`, `GroupCollector` and `MultiAgentCollector` are such; see there for what the methods do."""

    @property
    def policy(self) -> Any:
        """Who acts."""
        ...

    @property
    def env(self) -> Any:
        """The environments: `num_envs`, `backend`, `autoreset_mode`, `observation_space`, `action_space`."""
        ...

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        ...

    @property
    def observation_space(self) -> Any:
        """Of the observations stored, frames stacked."""
        ...

    @property
    def episodes_cut(self) -> int:
        """Running episodes that the last `set_state` could not continue."""
        ...

    @property
    def buffer(self) -> Any:
        """Where steps are stored: a `RolloutStore`, a `ReplayBuffer`, of several agents an `EpisodeStore`, or None."""
        ...

    @buffer.setter
    def buffer(self, buffer: Any) -> None: ...

    def collect(self, n_step: int | None = None, n_episode: int | None = None, *, random: bool = False) -> CollectStats:
        """Collects `n_step` steps or `n_episode` whole episodes."""
        ...

    def reset(self, reset_buffer: bool = True, reset_stats: bool = True) -> None:
        """New episodes everywhere."""
        ...

    def get_state(self) -> dict[str, Any]:
        """All that the next collect depends on."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`."""
        ...

    def close(self) -> None:
        """Closes the environments."""
        ...
