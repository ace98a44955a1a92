"""Environments that count their own steps, so that every correct transition is known in advance.

The observation is `[step of the episode, number of the episode]`, and the reward is `10 * step + action` with the step
after the action. The length of each episode and the way it ends are arguments. A test then sees at once if a stored
transition crosses the end of an episode, a final observation is lost, or a reset row is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lockstep.envs.toys.probes import Action

NUM_ACTIONS = 4
ENDINGS = ("terminate", "truncate", "both")
Ending = tuple[int, str]
Obs = Any


class CountingEnv(gym.Env[Any, Any]):
    """Environment that counts its steps. Episode `k` ends as `episodes[(offset + k) % len(episodes)]` specifies.

    A reset with a seed begins again with episode 0; a reset without one begins the next episode.

    Args:
        episodes: Pairs of (length in steps, "terminate", "truncate" or "both").
        offset: Index in `episodes` at which this environment begins, so that the rows of a vector differ.
        nested: Give the observation as a dict with a tuple in it instead of one array.

    Attributes:
        observation_space: Box (2,) float32, or the nested form of the same two numbers.
        action_space: Discrete(4).
    """

    metadata = {"render_modes": []}
    state_attributes = ("step_number", "episode_number", "running")

    def __init__(
        self, episodes: Sequence[Ending] = ((5, "terminate"),), *, offset: int = 0, nested: bool = False
    ) -> None:
        self.episodes = _checked_episodes(episodes)
        self.offset = offset
        self.nested = nested
        self.action_space = spaces.Discrete(NUM_ACTIONS)
        self.observation_space = _observation_space(nested)
        self.step_number = 0
        self.episode_number = -1
        self.running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode, or episode 0 if there is a seed."""
        super().reset(seed=seed)
        self.episode_number = 0 if seed is not None else self.episode_number + 1
        self.step_number = 0
        self.running = True
        return self._observation(), {}

    def step(self, action: Action) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Count one more step. A step after the end of an episode raises `RuntimeError`."""
        if not self.running:
            raise RuntimeError("the counting environment was stepped after its end, or before a reset")
        self.step_number += 1
        length, ending = self.episodes[(self.offset + self.episode_number) % len(self.episodes)]
        done = self.step_number >= length
        self.running = not done
        terminated = done and ending != "truncate"
        truncated = done and ending != "terminate"
        info = {"length": self.step_number} if done else {}
        return self._observation(), 10.0 * self.step_number + int(action), terminated, truncated, info

    def _observation(self) -> Obs:
        step, episode = self.step_number, self.episode_number
        if not self.nested:
            return np.array([step, episode], dtype=np.float32)
        parities = np.array([step % 2, episode % 2], dtype=np.int8)
        return {"step": np.array([step], dtype=np.float32), "rest": (np.int64(episode), parities)}


class CountingVectorEnv(VectorEnv):
    """Native vector environment that counts like `num_envs` `CountingEnv`s, with offset `b` in row `b`.

    Args:
        num_envs: Number of rows.
        episodes: Length and ending of each episode; see `CountingEnv`.
        autoreset_mode: How finished rows are reset.
        plain_final_obs: In SAME_STEP mode, give `infos["final_obs"]` as one plain array (like `AtariVectorEnv`) instead
            of an array of objects.
    """

    state_attributes = ("_steps", "_episodes", "_ended")

    def __init__(
        self,
        num_envs: int = 1,
        episodes: Sequence[Ending] = ((5, "terminate"),),
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        *,
        plain_final_obs: bool = False,
    ) -> None:
        self.num_envs = num_envs
        self.episodes = _checked_episodes(episodes)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.plain_final_obs = plain_final_obs
        self.single_action_space = spaces.Discrete(NUM_ACTIONS)
        self.single_observation_space = _observation_space(nested=False)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._episodes = np.full(num_envs, -1, dtype=np.int64)
        self._ended = np.ones(num_envs, dtype=np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode in all rows, or in those of `options["reset_mask"]`."""
        super().reset(seed=seed)
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if options is not None and "reset_mask" in options:
            mask = options["reset_mask"]
        if seed is not None:
            self._episodes[mask] = -1
        self._begin(mask)
        return self._observations(), {}

    def _begin(self, mask: npt.NDArray[np.bool_]) -> None:
        """Begin the next episode in the rows of the mask."""
        self._episodes[mask] += 1
        self._steps[mask] = 0
        self._ended[mask] = False

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Count one more step in every row. In NEXT_STEP mode, rows that have ended are reset instead."""
        reset_rows = self._ended.copy()
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._begin(reset_rows)
        elif reset_rows.any():
            raise RuntimeError(f"rows {np.flatnonzero(reset_rows).tolist()} were stepped after their end")
        stepped_rows = ~reset_rows
        self._steps[stepped_rows] += 1

        index = (np.arange(self.num_envs) + self._episodes) % len(self.episodes)
        lengths = np.array([length for length, _ in self.episodes])[index]
        endings = np.array([ending for _, ending in self.episodes])[index]
        done = stepped_rows & (self._steps >= lengths)
        terminated = done & (endings != "truncate")
        truncated = done & (endings != "terminate")
        rewards = np.where(stepped_rows, 10.0 * self._steps + np.asarray(actions), 0.0)

        infos = self._infos(done)
        self._ended = done.copy()
        if self.autoreset_mode is AutoresetMode.SAME_STEP and done.any():
            self._begin(done)
        return self._observations(), rewards, terminated, truncated, infos

    def _infos(self, done: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """Return the infos of a step in gymnasium's form. Called before ended rows are reset."""
        if not done.any():
            return {}
        info = {"length": self._steps.copy(), "_length": done.copy()}
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return info
        final: Obs = self._observations()
        if not self.plain_final_obs:
            objects = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(done):
                objects[row] = final[row]
            final = objects
        return {"final_obs": final, "_final_obs": done.copy(), "final_info": info, "_final_info": done.copy()}

    def _observations(self) -> npt.NDArray[np.float32]:
        return np.stack([self._steps, self._episodes], axis=1).astype(np.float32)


def _observation_space(nested: bool) -> spaces.Space:
    """Return the space of `[step, episode]`, or in nested form `{"step": [step], "rest": (episode, parities)}`."""
    if not nested:
        return spaces.Box(0.0, 1e6, (2,), dtype=np.float32)
    step = spaces.Box(0.0, 1e6, (1,), dtype=np.float32)
    return spaces.Dict({"step": step, "rest": spaces.Tuple((spaces.Discrete(10**6), spaces.MultiBinary(2)))})


def _checked_episodes(episodes: Sequence[Ending]) -> tuple[Ending, ...]:
    """Return the episodes as a tuple. `ValueError` for no episode, a length below 1 or an unknown ending."""
    if not episodes or any(length < 1 or ending not in ENDINGS for length, ending in episodes):
        raise ValueError(f"episodes={episodes!r}: give pairs of a length of at least 1 and an ending of {ENDINGS}.")
    return tuple((int(length), str(ending)) for length, ending in episodes)
