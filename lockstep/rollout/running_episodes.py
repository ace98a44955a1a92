"""`RunningEpisodes`: returns and lengths of the running episodes, and which of them count in a collect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class EndedEpisode(NamedTuple):
    """An episode that has ended and counts."""

    episode_return: float
    length: int
    vector_step: int
    """Vector step of the collect in which the episode ended."""
    env: int
    """Index of the environment in the stepper."""


class RunningEpisodes:
    """Returns and lengths of the running episodes of `num_envs` environments.

    A stepper adds to `returns` and `lengths` and calls `end`. A collector sets which episodes count and reads `ended`.

    In a collect of whole episodes an environment *counts* (`counting`) while its running episode is part of the
    collect. There are two rules for its next episode:

    - collect by episodes: the first N episodes that *start* count. The next episode counts if `num_to_start` is
      above 0. Counting the first N that *end* instead would favour short episodes and bias the mean return;
    - collect by steps: the next episode counts while the environment has taken less than `min_steps` steps.
    """

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, np.float64)
        """`[B]` return so far of the running episode in each environment."""
        self.lengths = np.zeros(num_envs, np.int64)
        """`[B]` number of steps so far of the running episode in each environment."""
        self.is_begun = False
        """Whether there are running episodes that the next collect can continue."""
        self.left_open = False
        """Whether the last collect was one by episodes. Environments that did not count any more are then in the middle
        of episodes whose first steps are not stored, so that the next collect has to begin new ones."""
        self.ended: list[EndedEpisode] = []
        """Episodes that have ended in this collect and count."""
        self.vector_steps = 0
        """Number of finished vector steps of this collect. A stepper adds the vector steps of a run at the end of it.
        """
        self.num_steps = 0
        """Number of steps of this collect that count. A collector adds the steps of each run."""
        self.counting: np.ndarray | None = None
        """`[B]` bool, whether the running episode of each environment counts; None if all episodes count."""
        self.num_to_start = 0
        """Number of episodes that count and have not begun, in a collect by episodes."""
        self.min_steps = 0
        """Smallest number of steps of each environment, in a collect of whole episodes by steps; otherwise 0."""
        self.steps_taken = np.zeros(num_envs, np.int64)
        """`[B]` number of steps of each environment since `min_steps` was set. Only a stepper whose environments can
        wait for each other counts them (`Stepper.steps_counting_envs_only`)."""
        self.on_done: Callable[[int, float, int], None] | None = None
        """Hook `on_done(env_index, episode_return, length)`, called for each episode that ends and counts."""

    def begin_collect(self, on_done: Callable[[int, float, int], None] | None) -> None:
        """Begin a collect in which all episodes count, until `counting` is set."""
        self.ended.clear()
        self.vector_steps = 0
        self.num_steps = 0
        self.counting = None
        self.min_steps = 0
        self.on_done = on_done

    def forget(self) -> None:
        """Set the returns and lengths of all running episodes to 0, as after a reset of all environments."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def get_state(self) -> dict[str, Any]:
        """Return the returns and lengths of the running episodes, and `left_open`."""
        return {"returns": self.returns.copy(), "lengths": self.lengths.copy(), "left_open": self.left_open}

    def end(self, b: int, step: int) -> None:
        """Record the end of the running episode of environment `b` and, if it counts, call the hook.

        Args:
            b: Index of the environment.
            step: Vector step in which the episode ended, counted from the beginning of the present run.
        """
        episode = EndedEpisode(float(self.returns[b]), int(self.lengths[b]), self.vector_steps + step, b)
        self.returns[b] = 0.0
        self.lengths[b] = 0
        if self.counting is not None:
            if not self.counting[b]:
                return
            self.counting[b] = self._admit_next_episode(b)
        self.ended.append(episode)
        if self.on_done is not None:
            self.on_done(b, episode.episode_return, episode.length)

    def _admit_next_episode(self, b: int) -> bool:
        """Return whether the next episode of environment `b` counts, and subtract it from `num_to_start`."""
        if self.min_steps:
            return bool(self.steps_taken[b] < self.min_steps)
        self.num_to_start -= 1
        return self.num_to_start >= 0
