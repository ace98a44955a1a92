"""`VecEnv`, the interface of Stable-Baselines3's vector environments, and its implementations by Lockstep's."""

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
"""Observations, rewards, dones and infos of a step."""


class VecEnv(ABC):
    """Environments that are stepped together. If an episode ends, the same step resets its environment."""

    def __init__(self, num_envs: int, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def reset(self) -> Any:
        """Reset all environments, and return their first observations."""

    @abstractmethod
    def step_async(self, actions: Any) -> None:
        """Set the actions of the next step."""

    @abstractmethod
    def step_wait(self) -> VecEnvStepReturn:
        """Take the step, and return observations, rewards, dones and infos.

        The info of an episode that ended has its last observation, `"terminal_observation"`.
        """

    def step(self, actions: Any) -> VecEnvStepReturn:
        """Take a step with these actions, and return the results of `step_wait`."""
        self.step_async(actions)
        return self.step_wait()


class VecEnvWrapper(VecEnv):
    """Base class of wrappers, which override `reset` and `step_wait`.

    Attributes that a wrapper does not have are those of the wrapped `venv`.
    """

    def __init__(self, venv: VecEnv, observation_space: Any = None, action_space: Any = None) -> None:
        self.venv = venv
        super().__init__(venv.num_envs, observation_space or venv.observation_space, action_space or venv.action_space)

    def __getattr__(self, name: str) -> Any:
        if name == "venv":  # not set yet: looking it up below would not end
            raise AttributeError(name)
        return getattr(self.venv, name)

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: Any) -> None:
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        return self.venv.step_wait()


class BoundaryVecEnv(VecEnv):
    """`VecEnv` over a vector environment of Lockstep, its `boundary`.

    It counts returns and lengths of episodes, so `infos[i]["episode"]` exists without a `Monitor`.
    """

    def __init__(self, boundary: VectorBoundary, render_mode: str | None) -> None:
        super().__init__(boundary.num_envs, boundary.observation_space, boundary.action_space)
        self.boundary = boundary
        self.render_mode = render_mode
        self.began = time.time()
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
            infos[row].setdefault("episode", counted)
            self.returns[row] = 0.0
            self.lengths[row] = 0
        return map_tree(np.array, result.obs), result.rewards.astype(np.float32), dones, infos

    def seed(self, seed: int | None = None) -> list[int]:
        """Seed environment i with `seed + i` at the next reset, and return these seeds. None draws a random seed."""
        first = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        self.seeds = [first + row for row in range(self.num_envs)]
        return self.seeds

    @abstractmethod
    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of each environment, and return the results."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of each environment."""
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of each environment."""
        self.env_method("set_wrapper_attr", attr_name, value, indices=indices)

    def render(self, mode: str | None = None) -> Any:
        """Return the images of all environments side by side.

        `mode="human"` also shows them in a window, with OpenCV.
        """
        images = self.env_method("render")
        if self.render_mode != "rgb_array":
            return None  # the environments have shown themselves
        image = np.concatenate(images, axis=1)
        if mode == "human":
            import cv2

            cv2.imshow("environments", image[:, :, ::-1])  # OpenCV wants blue first
            cv2.waitKey(1)
        return image

    def close(self) -> None:
        """Close the environments."""
        self.boundary.close()


class DummyVecEnv(BoundaryVecEnv):
    """Vector environment that steps its environments one after the other in this process."""

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]]) -> None:
        boundary = LightSyncVectorEnv(env_fns, owns_envs=False)
        super().__init__(boundary, boundary.envs[0].render_mode)
        self.envs = boundary.envs

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        rows = np.arange(self.num_envs)[slice(None) if indices is None else indices]
        return [self.envs[row].get_wrapper_attr(method_name)(*args, **kwargs) for row in np.atleast_1d(rows)]


class SubprocVecEnv(BoundaryVecEnv):
    """Vector environment with a process for each environment. `env_method` and the like call all of them."""

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], start_method: str | None = None) -> None:
        self.vector = AsyncVectorEnv([MadeInWorker(make) for make in env_fns], context=start_method)
        super().__init__(make_vector(self.vector), self.vector.render_mode)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        if indices is not None:
            raise ValueError(f"indices={indices!r}: SubprocVecEnv calls a method of all environments; use DummyVecEnv")
        return list(self.vector.call(method_name, *args, **kwargs))


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
