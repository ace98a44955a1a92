"""`BoundaryVecEnv`: `VecEnv` over a vector environment of Lockstep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics

from lockstep.data import map_tree
from lockstep.envs import StepResult, VectorBoundary
from lockstep_sb3.common.monitor import Monitor
from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn


class BoundaryVecEnv(VecEnv):
    """`VecEnv` over a vector environment of Lockstep, its `boundary`.

    It counts returns and lengths of episodes, so `infos[i]["episode"]` exists without a `Monitor`. If the environments
    have a `Monitor`, that one counts: it knows of endings that are no end of an episode, such as a lost life.
    """

    def __init__(self, boundary: VectorBoundary) -> None:
        self.boundary = boundary
        super().__init__(boundary.num_envs, boundary.observation_space, boundary.action_space)
        self.began = time.time()
        self.is_monitored = any(self.env_is_wrapped(Monitor) + self.env_is_wrapped(RecordEpisodeStatistics))
        """Whether a wrapper of the environments counts episodes."""
        self.seeds: list[int] | None = None
        """Seeds of the next reset; None to continue with the environments' own random numbers."""
        self.returns = np.zeros(self.num_envs)
        """Return of each present episode so far."""
        self.lengths = np.zeros(self.num_envs, int)
        """Length of each present episode so far."""

    def reset(self) -> Any:
        self.boundary.keep_infos()
        obs = self.boundary.reset(self.seeds)
        self.seeds = None
        self.returns[:] = 0.0
        self.lengths[:] = 0
        if self.boundary.infos is not None:
            self.reset_infos = self.boundary.infos.reset_infos
        return map_tree(np.array, obs)  # a copy: the boundary writes the next step to the same arrays

    def step_async(self, actions: Any) -> None:
        self._actions = actions if isinstance(actions, tuple | dict) else np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        result = self.boundary.step(self._actions)
        infos = infos_of(result, self.boundary)
        dones = result.terminateds | result.truncateds
        self.returns += result.rewards
        self.lengths += 1
        for row in np.flatnonzero(dones):
            counted = {"r": float(self.returns[row]), "l": int(self.lengths[row]), "t": time.time() - self.began}
            if not self.is_monitored:
                infos[row].setdefault("episode", counted)
            self.returns[row] = 0.0
            self.lengths[row] = 0
        return map_tree(np.array, result.obs), result.rewards.astype(np.float32), dones, infos

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        seeds = super().seed(seed)
        self.seeds = [each for each in seeds if each is not None]
        return seeds

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        if options:
            raise ValueError(
                f"set_options({options!r}) is not allowed here: vector environments reset without options; "
                "call a method of the environments with env_method instead (docs/sb3.md)"
            )

    def close(self) -> None:
        """Close the environments."""
        self.boundary.close()


def infos_of(result: StepResult, boundary: VectorBoundary) -> list[dict[str, Any]]:
    """Return the infos of a step in the form of Stable-Baselines3. The boundary must keep infos (`keep_infos`)."""
    infos = [dict(info) for info in boundary.infos.step_infos] if boundary.infos else []
    for info, terminated, truncated in zip(infos, result.terminateds, result.truncateds):
        info["TimeLimit.truncated"] = bool(truncated and not terminated)
    if result.final_obs is not None:
        rows, last_obs = result.final_obs
        for i, row in enumerate(rows):
            infos[row]["terminal_observation"] = map_tree(itemgetter(i), last_obs)
    return infos
