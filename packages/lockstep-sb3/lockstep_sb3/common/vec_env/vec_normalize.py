"""`VecNormalize`: normalizes observations and rewards. Its files are JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.data import map_tree
from lockstep_sb3.common.files import naming_damage
from lockstep_sb3.common.running_mean_std import RunningMeanStd
from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper
from lockstep_sb3.common.vec_env.util import unwrap_vec_wrapper

SAVED_OPTIONS = (
    *("training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon", "norm_obs_keys"),
)
"""Options in a file of `VecNormalize`."""


class VecNormalize(VecEnvWrapper):
    """Wrapper that normalizes observations, and divides rewards by the deviation of discounted returns.

    Both are clipped. Statistics are exactly those of the data. Stable-Baselines3 starts from 0.0001 steps with mean 0
    and variance 1.

    Args:
        venv: Vector environment to wrap.
        training: Whether observations and rewards are added to the statistics.
        norm_obs: Whether to normalize observations.
        norm_reward: Whether to normalize rewards.
        clip_obs: Largest absolute value of a normalized observation.
        clip_reward: Largest absolute value of a normalized reward.
        gamma: Discount factor of the returns by whose deviation rewards are divided.
        epsilon: Small number that is added to variances.
        norm_obs_keys: Parts of a Dict that are normalized; None for all.
    """

    def __init__(
        self,
        venv: VecEnv,
        training: bool = True,
        norm_obs: bool = True,
        norm_reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
        norm_obs_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(venv)
        self.training = training
        self.norm_obs = norm_obs
        self.norm_reward = norm_reward
        self.clip_obs = clip_obs
        self.clip_reward = clip_reward
        self.gamma = gamma
        self.epsilon = epsilon
        self.norm_obs_keys = self._checked_keys(norm_obs_keys)
        self.obs_rms: Any = self._new_moments()
        """Statistics of observations: of each key for a Dict."""
        self.ret_rms = RunningMeanStd(0.0)
        """Statistics of discounted returns."""
        self.returns = np.zeros(self.num_envs)
        """Discounted return of each present episode so far."""
        self.old_obs: Any = None
        """Observations of the last step or reset, as the environments gave them."""
        self.old_reward = np.zeros(0)
        """Rewards of the last step, as the environments gave them."""

    def _checked_keys(self, keys: Sequence[str] | None) -> list[str] | None:
        """Return the keys of a Dict that are normalized; None for a Box. Raises `ValueError` for other spaces."""
        space = self.observation_space
        if not self.norm_obs:
            return None if keys is None else list(keys)
        if isinstance(space, spaces.Dict):
            chosen = list(space.spaces) if keys is None else list(keys)
            for key in chosen:
                if not isinstance(space.spaces.get(key), spaces.Box):
                    raise ValueError(
                        f"VecNormalize normalizes Box spaces, and {key!r} is {space.spaces.get(key)}; name the others "
                        "in norm_obs_keys="
                    )
            return chosen
        if not isinstance(space, spaces.Box):
            raise ValueError(f"VecNormalize takes a Box or a Dict of them, not {space}; use norm_obs=False")
        if keys is not None:
            raise ValueError(f"norm_obs_keys={keys!r} is for Dict spaces, not for {space}; leave it out")
        return None

    def _new_moments(self) -> Any:
        """Return empty statistics of observations."""
        space: Any = self.observation_space
        if not self.norm_obs:
            return RunningMeanStd(0.0)
        if self.norm_obs_keys is None:
            return RunningMeanStd(0.0, space.shape)
        return {key: RunningMeanStd(0.0, space[key].shape) for key in self.norm_obs_keys}

    def set_venv(self, venv: VecEnv) -> None:
        """Wrap another vector environment, with the same observation space."""
        if venv.observation_space != self.observation_space:
            raise ValueError(
                f"set_venv got the observation space {venv.observation_space}, this wrapper has "
                f"{self.observation_space}; they must be equal"
            )
        self.venv = venv
        self.num_envs = venv.num_envs
        self.returns = np.zeros(self.num_envs)

    def reset(self) -> Any:
        self.returns[:] = 0.0
        return self._observe(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        self.old_reward = rewards
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
        self.old_obs = obs
        if self.training and self.norm_obs:
            if isinstance(self.obs_rms, dict):
                for key, moments in self.obs_rms.items():
                    moments.update(obs[key])
            else:
                self.obs_rms.update(obs)
        return self.normalize_obs(obs)

    def _over_parts(self, function: Callable[[np.ndarray, RunningMeanStd], np.ndarray], obs: Any) -> Any:
        """Return observations with `function(part, statistics)` applied to the parts that are normalized."""
        if not self.norm_obs:
            return obs
        if not isinstance(self.obs_rms, dict):
            return function(obs, self.obs_rms)
        return {**obs, **{key: function(obs[key], moments) for key, moments in self.obs_rms.items()}}

    def normalize_obs(self, obs: Any) -> Any:
        """Return normalized observations. The statistics are not changed."""

        def normalized(part: np.ndarray, moments: RunningMeanStd) -> np.ndarray:
            scaled = (part - moments.mean) / np.sqrt(moments.var + self.epsilon)
            return np.clip(scaled, -self.clip_obs, self.clip_obs).astype(np.float32)

        return self._over_parts(normalized, obs)

    def unnormalize_obs(self, obs: Any) -> Any:
        """Return observations as the environments gave them, from normalized ones that were not clipped."""

        def unnormalized(part: np.ndarray, moments: RunningMeanStd) -> np.ndarray:
            return part * np.sqrt(moments.var + self.epsilon) + moments.mean

        return self._over_parts(unnormalized, obs)

    def normalize_reward(self, reward: np.ndarray) -> np.ndarray:
        """Return normalized rewards. The statistics are not changed."""
        if not self.norm_reward:
            return reward
        scaled = reward / np.sqrt(self.ret_rms.var + self.epsilon)
        return np.clip(scaled, -self.clip_reward, self.clip_reward)

    def unnormalize_reward(self, reward: np.ndarray) -> np.ndarray:
        """Return rewards as the environments gave them, from normalized ones that were not clipped."""
        return reward * np.sqrt(self.ret_rms.var + self.epsilon) if self.norm_reward else reward

    def get_original_obs(self) -> Any:
        """Return the observations of the last step or reset, as the environments gave them."""
        return map_tree(np.array, self.old_obs)

    def get_original_reward(self) -> np.ndarray:
        """Return the rewards of the last step, as the environments gave them."""
        return self.old_reward.copy()

    def save(self, save_path: str | Path) -> None:
        """Save options and statistics as JSON, whatever the suffix of the path is."""
        state: dict[str, Any] = {name: getattr(self, name) for name in SAVED_OPTIONS}
        state["obs_rms"] = _each(_plain_moments, self.obs_rms)
        state["ret_rms"] = _plain_moments(self.ret_rms)
        Path(save_path).write_text(json.dumps(state), encoding="utf-8")

    @classmethod
    def load(cls, load_path: str | Path, venv: VecEnv) -> VecNormalize:
        """Return a wrapper around `venv` with the options and statistics in a file of `save`.

        Raises:
            ValueError: the file is damaged, or of another kind (pickles are never read). The message names it.
        """
        with naming_damage(Path(load_path), "file of VecNormalize.save (nothing is unpickled)"):
            state = json.loads(Path(load_path).read_bytes())
            # Files of version 0.2 have no `norm_obs_keys`.
            wrapper = cls(venv, **{name: state[name] for name in SAVED_OPTIONS if name in state})
            if isinstance(wrapper.obs_rms, dict):
                for key, moments in wrapper.obs_rms.items():
                    moments.set_state(state["obs_rms"][key])
            else:
                wrapper.obs_rms.set_state(state["obs_rms"])
            wrapper.ret_rms.set_state(state["ret_rms"])
        return wrapper


def _each(function: Callable[[RunningMeanStd], Any], moments: Any) -> Any:
    """Return the result of `function` for statistics, or for those of each key."""
    if isinstance(moments, dict):
        return {key: function(each) for key, each in moments.items()}
    return function(moments)


def _plain_moments(moments: RunningMeanStd) -> dict[str, Any]:
    """Return statistics as plain data."""
    return {key: np.asarray(value).tolist() for key, value in moments.get_state().items()}


def unwrap_vec_normalize(env: Any) -> VecNormalize | None:
    """Return the outermost `VecNormalize` of a vector environment; None without one."""
    wrapper: VecNormalize | None = unwrap_vec_wrapper(env, VecNormalize)
    return wrapper


def sync_envs_normalization(env: VecEnv, eval_env: VecEnv) -> None:
    """Copy the statistics of the `VecNormalize` wrapper of `env` to the wrapper of `eval_env`."""
    source = unwrap_vec_normalize(env)
    target = unwrap_vec_normalize(eval_env)
    if (source is None) != (target is None):
        raise ValueError("one of training and evaluation environment has a VecNormalize, the other has none; wrap both")
    if source is not None and target is not None:
        target.obs_rms = deepcopy(source.obs_rms)
        target.ret_rms = deepcopy(source.ret_rms)
