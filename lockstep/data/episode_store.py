"""`EpisodeStore`: what several agents have just done, until it is learned from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.trees import zip_trees


class EpisodeStore:
    """(Pieces of) episodes of several agents in the order in which they came: what `RolloutStore` is for one agent."""

    def __init__(self) -> None:
        self._episodes: list[MultiAgentEpisode] = []

    def __len__(self) -> int:
        """Number of episodes or pieces."""
        return len(self._episodes)

    @property
    def size(self) -> int:
        """Environment steps in it."""
        return sum(len(episode) for episode in self._episodes)

    def add(self, pieces: Sequence[tuple[MultiAgentEpisode, int]]) -> None:
        """Keeps pieces, of whichever environments."""
        self._episodes += [piece for piece, _ in pieces]

    def cut(self, env_index: int) -> None:
        """The episode under way in this environment is left: nothing to do, pieces know where they end."""

    def episodes(self) -> list[MultiAgentEpisode]:
        """What `update_from_episodes` takes."""
        return list(self._episodes)

    def reset(self) -> None:
        """Empties it."""
        self._episodes.clear()

    clear = reset

    def columns(self) -> dict[str, Any]:
        """`{module_id: {column: [N, ...]}}` of all that is in it, numbers only."""
        rows: dict[str, dict[str, list[Any]]] = {}
        for episode in self._episodes:
            for module_id, batch in episode.get_sample_batch().policy_batches.items():
                for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS):
                    rows.setdefault(module_id, {}).setdefault(name, []).append(batch[name])
        return {
            module_id: {name: zip_trees(np.concatenate, parts, name) for name, parts in columns.items()}
            for module_id, columns in rows.items()
        }
