"""`RunningEpisodes`: the episodes under way in each environment, and which of them count in a collect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class EndedEpisode(NamedTuple):
    """An episode that ended and counts."""

    episode_return: float
    length: int
    vector_step: int
    """Vector step of the collect in which it ended."""
    env: int
    """Index of its environment among those of the stepper."""


class RunningEpisodes:
    """Returns and lengths of the episodes under way in `num_envs` environments.

    A stepper adds to `returns` and `lengths` and calls `end`. A collector says which episodes count and reads `ended`.
    """

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, np.float64)
        """[B] return of the episode under way in each environment"""
        self.lengths = np.zeros(num_envs, np.int64)
        """[B] its number of steps"""
        self.is_begun = False
        """Whether the next collect can continue the episodes under way."""
        self.left_open = False
        """Whether a collect by episodes left others unfinished, whose beginnings are not stored."""
        self.ended: list[EndedEpisode] = []
        """Episodes that ended in this collect and count."""
        self.vector_steps = 0
        """Vector steps of this collect that are finished. A stepper adds those of each run at its end."""
        self.num_steps = 0
        """Steps of this collect that count. A collector adds those of each run when it has returned."""
        self.counting: np.ndarray | None = None
        """[B] whether the episode under way counts, in a collect by episodes; None: all episodes count"""
        self.to_start = 0
        """Episodes that count and have not begun, in a collect by episodes."""
        self.share = 0
        """Steps that each environment takes in whole episodes; 0: the number of episodes decides which of them count"""
        self.taken = np.zeros(num_envs, np.int64)
        """[B] steps of each environment since its share was set"""
        self.on_done: Callable[[int, float, int], None] | None = None
        """`on_done(environment, episode_return, length)`, called for each episode that ended and counts"""

    def begin_collect(self, on_done: Callable[[int, float, int], None] | None) -> None:
        """Begin a collect in which all episodes count until `counting` is set."""
        self.ended.clear()
        self.vector_steps = 0
        self.num_steps = 0
        self.counting = None
        self.share = 0
        self.on_done = on_done

    def forget(self) -> None:
        """Begin new episodes everywhere."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def get_state(self) -> dict[str, Any]:
        """Return the episodes under way, and whether the last collect left others unfinished."""
        return {"returns": self.returns.copy(), "lengths": self.lengths.copy(), "left_open": self.left_open}

    def end(self, b: int, step: int) -> None:
        """Record the episode that ended in environment `b`, if it counts, and call the hook.

        Args:
            b: the environment.
            step: the vector step in which it ended, counted from `vector_steps` on.
        """
        episode = EndedEpisode(float(self.returns[b]), int(self.lengths[b]), self.vector_steps + step, b)
        self.returns[b] = 0.0
        self.lengths[b] = 0
        if self.counting is not None:
            if not self.counting[b]:
                return
            self.counting[b] = self._begins_another(b)
        self.ended.append(episode)
        if self.on_done is not None:
            self.on_done(b, episode.episode_return, episode.length)

    def _begins_another(self, b: int) -> bool:
        """Return whether the next episode in environment `b` counts too, in a collect by episodes."""
        if self.share:
            return bool(self.taken[b] < self.share)
        self.to_start -= 1
        return self.to_start >= 0
