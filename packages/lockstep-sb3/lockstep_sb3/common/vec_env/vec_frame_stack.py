"""`VecFrameStack`: stacks the last observations of each environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper
from lockstep_sb3.common.vec_env.stacked_observations import StackedObservations


class VecFrameStack(VecEnvWrapper):
    """Wrapper that stacks the last `n_stack` observations: images along their channels, vectors end to end.

    Observations before the start of an episode are zeros. `channels_order` is "first" or "last"; None finds it out. For
    a Dict it may be a dict with one for each key.
    """

    def __init__(
        self, venv: VecEnv, n_stack: int, channels_order: str | Mapping[str, str | None] | None = None
    ) -> None:
        self.stacked_obs = StackedObservations(venv.num_envs, n_stack, venv.observation_space, channels_order)
        super().__init__(venv, self.stacked_obs.stacked_observation_space)

    def reset(self) -> Any:
        return self.stacked_obs.reset(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        stacked, infos = self.stacked_obs.update(obs, dones, infos)
        return stacked, rewards, dones, infos
