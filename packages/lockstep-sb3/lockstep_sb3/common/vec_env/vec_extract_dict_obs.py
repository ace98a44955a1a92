"""`VecExtractDictObs`: takes one part of observations that are dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper


class VecExtractDictObs(VecEnvWrapper):
    """Wrapper whose observations are the part `key` of the observations of `venv`."""

    def __init__(self, venv: VecEnv, key: str) -> None:
        space = venv.observation_space
        if not isinstance(space, spaces.Dict) or key not in space.spaces:
            raise ValueError(f"VecExtractDictObs takes a Dict with the key {key!r}, not {space}")
        self.key = key
        super().__init__(venv, space.spaces[key])

    def reset(self) -> Any:
        return self.venv.reset()[self.key]

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        for row in np.flatnonzero(dones):
            infos[row]["terminal_observation"] = infos[row]["terminal_observation"][self.key]
        return obs[self.key], rewards, dones, infos
