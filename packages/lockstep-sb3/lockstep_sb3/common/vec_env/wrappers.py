"""Wrappers of vector environments: `VecNormalize`, whose files are JSON, and `VecFrameStack`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.modules import is_image
from lockstep.ops import RunningMoments
from lockstep_sb3.common.files import naming_damage
from lockstep_sb3.common.torch_layers import channels_last
from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper

SAVED = ("training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon")


class VecFrameStack(VecEnvWrapper):
    """Stacks the last `n_stack` observations of a Box along its channels (vectors: end to end); zeros before them."""

    def __init__(self, venv: VecEnv, n_stack: int, channels_order: str | None = None) -> None:
        space: Any = venv.observation_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"VecFrameStack stacks a Box, not {space}")
        comes_first = is_image(space) and not channels_last(space.shape)
        self._axis = 1 if channels_order == "first" or (comes_first and not channels_order) else len(space.shape)
        low, high = (np.concatenate([bound] * n_stack, self._axis - 1) for bound in (space.low, space.high))
        super().__init__(venv, spaces.Box(low, high, dtype=space.dtype))
        self._frames = np.zeros((self.num_envs, *low.shape), space.dtype)

    def _pushed(self, frames: np.ndarray, newest: np.ndarray) -> np.ndarray:
        kept = np.split(frames, [newest.shape[self._axis]], self._axis)[1]
        return np.concatenate([kept, newest], self._axis)

    def reset(self) -> np.ndarray:
        self._frames = self._pushed(np.zeros_like(self._frames), self.venv.reset())
        return self._frames

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        for row in np.flatnonzero(dones):
            last = infos[row]["terminal_observation"]
            infos[row]["terminal_observation"] = self._pushed(self._frames[row : row + 1], last[None])[0]
        self._frames = self._pushed(self._frames * ~dones.reshape(-1, *[1] * (obs.ndim - 1)), obs)
        return self._frames, rewards, dones, infos


@dataclass(eq=False, repr=False)
class VecNormalize(VecEnvWrapper):
    """Shifts and scales observations, scales rewards by the deviation of discounted returns, and limits both.

    The statistics are of what was seen; those of Stable-Baselines3 begin with 0.0001 steps of mean 0 and variance 1.
    """

    venv: VecEnv
    training: bool = True
    norm_obs: bool = True
    norm_reward: bool = True
    clip_obs: float = 10.0
    clip_reward: float = 10.0
    gamma: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__init__(self.venv)
        space = self.observation_space
        if self.norm_obs and not isinstance(space, spaces.Box):
            raise ValueError(f"VecNormalize takes a Box, not {space}; use norm_obs=False")
        self.obs_rms, self.ret_rms = RunningMoments(space.shape or () if self.norm_obs else ()), RunningMoments()
        self.returns = np.zeros(self.num_envs)

    def reset(self) -> Any:
        self.returns[:] = 0.0
        return self._seen(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        if self.training:
            self.returns = self.returns * self.gamma + rewards
            self.ret_rms.update(self.returns)
        obs = self._seen(obs)
        for row in np.flatnonzero(dones):
            infos[row]["terminal_observation"] = self.normalize_obs(infos[row]["terminal_observation"])
        self.returns[dones] = 0.0
        return obs, self.normalize_reward(rewards), dones, infos

    def _seen(self, obs: Any) -> Any:
        if self.training and self.norm_obs:
            self.obs_rms.update(obs)
        return self.normalize_obs(obs)

    def normalize_obs(self, obs: Any) -> Any:
        """Return observations by the statistics, which it leaves alone."""
        if not self.norm_obs:
            return obs
        scaled = (obs - self.obs_rms.mean) / np.sqrt(self.obs_rms.var + self.epsilon)
        return np.clip(scaled, -self.clip_obs, self.clip_obs).astype(np.float32)

    def normalize_reward(self, reward: np.ndarray) -> np.ndarray:
        """Return rewards by the statistics, which it leaves alone."""
        if not self.norm_reward:
            return reward
        return np.clip(reward / np.sqrt(self.ret_rms.var + self.epsilon), -self.clip_reward, self.clip_reward)

    def save(self, save_path: str | Path) -> None:
        """Write options and statistics as JSON, whatever the name ends in."""
        state = {name: getattr(self, name) for name in SAVED}
        for name, moments in (("obs_rms", self.obs_rms), ("ret_rms", self.ret_rms)):
            state[name] = {key: np.asarray(value).tolist() for key, value in moments.get_state().items()}
        Path(save_path).write_text(json.dumps(state))

    @classmethod
    def load(cls, load_path: str | Path, venv: VecEnv) -> VecNormalize:
        """Return a wrapper around `venv` with the options and statistics of a file that `save` wrote.

        Raises:
            ValueError: the file is damaged, or another one (a pickle is never read); the error names it.
        """
        with naming_damage(Path(load_path), "file of VecNormalize.save (nothing is unpickled)"):
            state = json.loads(Path(load_path).read_bytes())
            made = cls(venv, **{name: state[name] for name in SAVED})
            made.obs_rms.set_state(state["obs_rms"])
            made.ret_rms.set_state(state["ret_rms"])
        return made


def normalize_of(venv: Any) -> VecNormalize | None:
    """Return the outermost `VecNormalize` around a vector, or None."""
    while isinstance(venv, VecEnvWrapper) and not isinstance(venv, VecNormalize):
        venv = venv.venv
    return venv if isinstance(venv, VecNormalize) else None


def sync_envs_normalization(env: VecEnv, eval_env: VecEnv) -> None:
    """Give the `VecNormalize` of `eval_env` the statistics of that of `env`."""
    source, target = normalize_of(env), normalize_of(eval_env)
    if (source is None) != (target is None):
        raise ValueError("one of training and evaluation environment has a VecNormalize, the other has none; wrap both")
    if source is not None and target is not None:
        target.obs_rms.set_state(source.obs_rms.get_state())
        target.ret_rms.set_state(source.ret_rms.get_state())
