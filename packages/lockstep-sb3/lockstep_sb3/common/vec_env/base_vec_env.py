"""`VecEnv`, the interface of Stable-Baselines3's vector environments, on our vectors."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv

from lockstep.data import map_tree
from lockstep.envs import LightSyncVectorEnv, MadeInWorker, StepResult, VectorBoundary, make_vector

VecEnvStepReturn = tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]


class VecEnv(ABC):
    """Environments that are stepped together; an episode that ends begins anew within the same step."""

    def __init__(self, num_envs: int, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.num_envs, self.observation_space, self.action_space = num_envs, observation_space, action_space

    @abstractmethod
    def reset(self) -> Any:
        """Begin new episodes everywhere and return their first observations."""

    @abstractmethod
    def step_async(self, actions: Any) -> None:
        """Take the actions of the next step."""

    @abstractmethod
    def step_wait(self) -> VecEnvStepReturn:
        """Step; return observations, rewards, dones and infos (`"terminal_observation"` where an episode ended)."""

    def step(self, actions: Any) -> VecEnvStepReturn:
        """Step all environments; see `step_wait`."""
        self.step_async(actions)
        return self.step_wait()


class VecEnvWrapper(VecEnv):
    """Base of wrappers: override `reset` and `step_wait`. What it does not have it asks of the vector inside."""

    def __init__(self, venv: VecEnv, observation_space: Any = None, action_space: Any = None) -> None:
        self.venv = venv
        super().__init__(venv.num_envs, observation_space or venv.observation_space, action_space or venv.action_space)

    def __getattr__(self, name: str) -> Any:
        if name == "venv":
            raise AttributeError(name)
        return getattr(self.venv, name)

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: Any) -> None:
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        return self.venv.step_wait()


class BoundaryVecEnv(VecEnv):
    """A `VecEnv` on one of our vectors. It counts episodes: `infos[i]["episode"]` is there without a `Monitor`."""

    def __init__(self, boundary: VectorBoundary, render_mode: str | None) -> None:
        super().__init__(boundary.num_envs, boundary.observation_space, boundary.action_space)
        self.boundary, self.render_mode, self.began = boundary, render_mode, time.time()
        self.seeds: list[int] | None = None
        self.returns, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, int)

    def reset(self) -> Any:
        self.boundary.keep_infos()
        obs, self.seeds = self.boundary.reset(self.seeds), None
        self.returns[:], self.lengths[:] = 0.0, 0
        return map_tree(np.array, obs)

    def step_async(self, actions: Any) -> None:
        self._actions = actions if isinstance(actions, tuple | dict) else np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        result = self.boundary.step(self._actions)
        infos, dones = infos_of(result, self.boundary), result.terminateds | result.truncateds
        self.returns += result.rewards
        self.lengths += 1
        for row in np.flatnonzero(dones):
            counted = {"r": float(self.returns[row]), "l": int(self.lengths[row]), "t": time.time() - self.began}
            infos[row].setdefault("episode", counted)
            self.returns[row], self.lengths[row] = 0.0, 0
        return map_tree(np.array, result.obs), result.rewards.astype(np.float32), dones, infos

    def seed(self, seed: int | None = None) -> list[int]:
        """Use `seed + i` for environment i at the next reset; return these seeds."""
        first = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        self.seeds = [first + row for row in range(self.num_envs)]
        return self.seeds

    @abstractmethod
    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of each environment."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of each environment."""
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of each environment."""
        self.env_method("set_wrapper_attr", attr_name, value, indices=indices)

    def render(self, mode: str | None = None) -> Any:
        """Return the pictures of all environments side by side; `mode="human"` shows them in a window, by OpenCV."""
        images = self.env_method("render")
        if self.render_mode != "rgb_array":
            return None  # they have shown themselves
        picture = np.concatenate(images, axis=1)
        if mode == "human":
            import cv2

            cv2.imshow("environments", picture[:, :, ::-1])
            cv2.waitKey(1)
        return picture

    def close(self) -> None:
        """Close the environments."""
        self.boundary.close()


class DummyVecEnv(BoundaryVecEnv):
    """Environments that are stepped one after the other in this process."""

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]]) -> None:
        boundary = LightSyncVectorEnv(env_fns, owns_envs=False)
        super().__init__(boundary, boundary.envs[0].render_mode)
        self.envs = boundary.envs

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        rows = np.arange(self.num_envs)[slice(None) if indices is None else indices]
        return [self.envs[row].get_wrapper_attr(method_name)(*args, **kwargs) for row in np.atleast_1d(rows)]


class SubprocVecEnv(BoundaryVecEnv):
    """Environments in processes of their own; `env_method` and its kin reach all of them at once."""

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], start_method: str | None = None) -> None:
        self.vector = AsyncVectorEnv([MadeInWorker(make) for make in env_fns], context=start_method)
        super().__init__(make_vector(self.vector), self.vector.render_mode)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        if indices is not None:
            raise ValueError(f"indices={indices!r}: SubprocVecEnv calls a method of all environments; use DummyVecEnv")
        return list(self.vector.call(method_name, *args, **kwargs))


def infos_of(result: StepResult, boundary: VectorBoundary) -> list[dict[str, Any]]:
    """Return the infos of a step as Stable-Baselines3 has them, of a boundary that keeps them."""
    infos = [dict(info) for info in boundary.infos.step_infos] if boundary.infos else []
    for info, terminated, truncated in zip(infos, result.terminateds, result.truncateds):
        info["TimeLimit.truncated"] = bool(truncated and not terminated)
    rows, last = ((), None) if result.final_obs is None else result.final_obs
    for i, row in enumerate(rows):
        infos[row]["terminal_observation"] = map_tree(itemgetter(i), last)
    return infos
