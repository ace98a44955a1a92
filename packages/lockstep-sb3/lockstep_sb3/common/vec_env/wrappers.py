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
from lockstep_sb3.common.moved import moved_name
from lockstep_sb3.common.torch_layers import channels_last
from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper

SAVED_OPTIONS = ("training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon")
"""Options in a file of `VecNormalize`."""


class VecFrameStack(VecEnvWrapper):
    """Wrapper that stacks the last `n_stack` observations of a `Box`: images along their channels, vectors end to end.

    Observations before the start of an episode are zeros. `channels_order` is "first" or "last"; None finds it out.
    """

    def __init__(self, venv: VecEnv, n_stack: int, channels_order: str | None = None) -> None:
        space: Any = venv.observation_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"VecFrameStack stacks a Box, not {space}")
        is_first = channels_order == "first"
        if not channels_order:
            is_first = is_image(space) and not channels_last(space.shape)
        self._axis = 1 if is_first else len(space.shape)
        """Dimension of the batch along which observations are stacked."""
        low, high = (np.concatenate([bound] * n_stack, self._axis - 1) for bound in (space.low, space.high))
        super().__init__(venv, spaces.Box(low, high, dtype=space.dtype))
        self._frames = np.zeros((self.num_envs, *low.shape), space.dtype)

    def _append(self, frames: np.ndarray, newest: np.ndarray) -> np.ndarray:
        """Return the stack without its oldest observation, and with a new one."""
        _, newer_frames = np.split(frames, [newest.shape[self._axis]], self._axis)
        return np.concatenate([newer_frames, newest], self._axis)

    def reset(self) -> np.ndarray:
        self._frames = self._append(np.zeros_like(self._frames), self.venv.reset())
        return self._frames

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        for row in np.flatnonzero(dones):
            last_obs = infos[row]["terminal_observation"]
            infos[row]["terminal_observation"] = self._append(self._frames[row : row + 1], last_obs[None])[0]
        continues = ~dones.reshape(-1, *[1] * (obs.ndim - 1))
        self._frames = self._append(self._frames * continues, obs)
        return self._frames, rewards, dones, infos


@dataclass(eq=False, repr=False)
class VecNormalize(VecEnvWrapper):
    """Wrapper that normalizes observations, and divides rewards by the deviation of discounted returns.

    Both are clipped. Statistics are exactly those of the data. Stable-Baselines3 starts from 0.0001 steps with mean 0
    and variance 1.
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
        self.obs_rms = RunningMoments(space.shape or () if self.norm_obs else ())
        """Statistics of observations."""
        self.ret_rms = RunningMoments()
        """Statistics of discounted returns."""
        self.returns = np.zeros(self.num_envs)
        """Discounted return of each present episode so far."""

    def reset(self) -> Any:
        self.returns[:] = 0.0
        return self._observe(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        if self.training:
            self.returns = self.returns * self.gamma + rewards
            self.ret_rms.update(self.returns)
        obs = self._observe(obs)
        for row in np.flatnonzero(dones):
            infos[row]["terminal_observation"] = self.normalize_obs(infos[row]["terminal_observation"])
        self.returns[dones] = 0.0
        return obs, self.normalize_reward(rewards), dones, infos

    def _observe(self, obs: Any) -> Any:
        """Add observations to the statistics, and return them normalized."""
        if self.training and self.norm_obs:
            self.obs_rms.update(obs)
        return self.normalize_obs(obs)

    def normalize_obs(self, obs: Any) -> Any:
        """Return normalized observations. The statistics are not changed."""
        if not self.norm_obs:
            return obs
        scaled = (obs - self.obs_rms.mean) / np.sqrt(self.obs_rms.var + self.epsilon)
        return np.clip(scaled, -self.clip_obs, self.clip_obs).astype(np.float32)

    def normalize_reward(self, reward: np.ndarray) -> np.ndarray:
        """Return normalized rewards. The statistics are not changed."""
        if not self.norm_reward:
            return reward
        scaled = reward / np.sqrt(self.ret_rms.var + self.epsilon)
        return np.clip(scaled, -self.clip_reward, self.clip_reward)

    def save(self, save_path: str | Path) -> None:
        """Save options and statistics as JSON, whatever the suffix of the path is."""
        state = {name: getattr(self, name) for name in SAVED_OPTIONS}
        for name, moments in (("obs_rms", self.obs_rms), ("ret_rms", self.ret_rms)):
            state[name] = {key: np.asarray(value).tolist() for key, value in moments.get_state().items()}
        Path(save_path).write_text(json.dumps(state))

    @classmethod
    def load(cls, load_path: str | Path, venv: VecEnv) -> VecNormalize:
        """Return a wrapper around `venv` with the options and statistics in a file of `save`.

        Raises:
            ValueError: the file is damaged, or of another kind (pickles are never read). The message names it.
        """
        with naming_damage(Path(load_path), "file of VecNormalize.save (nothing is unpickled)"):
            state = json.loads(Path(load_path).read_bytes())
            wrapper = cls(venv, **{name: state[name] for name in SAVED_OPTIONS})
            wrapper.obs_rms.set_state(state["obs_rms"])
            wrapper.ret_rms.set_state(state["ret_rms"])
        return wrapper


def find_vec_normalize(venv: Any) -> VecNormalize | None:
    """Return the outermost `VecNormalize` wrapper of a vector environment; None without one."""
    while isinstance(venv, VecEnvWrapper) and not isinstance(venv, VecNormalize):
        venv = venv.venv
    return venv if isinstance(venv, VecNormalize) else None


def sync_envs_normalization(env: VecEnv, eval_env: VecEnv) -> None:
    """Copy the statistics of the `VecNormalize` wrapper of `env` to the wrapper of `eval_env`."""
    source = find_vec_normalize(env)
    target = find_vec_normalize(eval_env)
    if (source is None) != (target is None):
        raise ValueError("one of training and evaluation environment has a VecNormalize, the other has none; wrap both")
    if source is not None and target is not None:
        target.obs_rms.set_state(source.obs_rms.get_state())
        target.ret_rms.set_state(source.ret_rms.get_state())


_MOVED = {
    "normalize_of": "lockstep_sb3.common.vec_env.wrappers:find_vec_normalize",
}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
