"""`VecEnv` and `VecEnvWrapper`, the interface of Stable-Baselines3's vector environments."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper as CloudpickleWrapper

from lockstep_sb3.common.moved import moved_name

VecEnvIndices = int | Iterable[int] | None
"""Rows of some environments; None for all of them."""
VecEnvObs = Any
"""Observations `[n_envs, ...]`: an array, or a dict or tuple of arrays."""
VecEnvStepReturn = tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]
"""Observations, rewards, dones and infos of a step."""


def tile_images(images_nhwc: Sequence[np.ndarray]) -> np.ndarray:
    """Return one image made of N images `[H, W, C]`, in about as many rows as columns. Missing places are black."""
    images = np.asarray(images_nhwc)
    num_images, height, width, channels = images.shape
    num_rows = math.ceil(math.sqrt(num_images))
    num_columns = math.ceil(num_images / num_rows)
    tiles = np.zeros((num_rows * num_columns, height, width, channels), images.dtype)
    tiles[:num_images] = images
    grid = tiles.reshape(num_rows, num_columns, height, width, channels)
    return grid.transpose(0, 2, 1, 3, 4).reshape(num_rows * height, num_columns * width, channels)


class VecEnv(ABC):
    """Environments that are stepped together. If an episode ends, the same step resets its environment.

    Attributes:
        num_envs: Number of environments.
        observation_space: Space of a single environment.
        action_space: Space of a single environment.
        reset_infos: Info of each environment's last reset.
        render_mode: Render mode of all environments; None if they do not render.
    """

    def __init__(self, num_envs: int, observation_space: gym.Space, action_space: gym.Space) -> None:
        self.num_envs = num_envs
        self.observation_space = observation_space
        self.action_space = action_space
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._seeds: list[int | None] = [None] * num_envs
        self._options: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self.render_mode: str | None = self._shared_render_mode()
        # Images that the environments return can be shown in a window, too.
        modes = ["human", "rgb_array"] if self.render_mode == "rgb_array" else [self.render_mode]
        self.metadata: dict[str, Any] = {"render_modes": [] if self.render_mode is None else modes}

    def _shared_render_mode(self) -> str | None:
        """Return the render mode that all environments have."""
        try:
            modes = self.get_attr("render_mode")
        except (AttributeError, RuntimeError):
            return None
        if any(mode != modes[0] for mode in modes):
            raise ValueError(f"the environments have different render modes, {modes}; make all of them with the same")
        mode: str | None = modes[0]
        return mode

    def _reset_seeds(self) -> None:
        """Forget the seeds, which the last reset has used."""
        self._seeds = [None] * self.num_envs

    def _reset_options(self) -> None:
        """Forget the options, which the last reset has used."""
        self._options = [{} for _ in range(self.num_envs)]

    @abstractmethod
    def reset(self) -> VecEnvObs:
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

    def close(self) -> None:  # noqa: B027 (a vector environment may have nothing to close)
        """Close the environments. Here it does nothing."""

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Call a method of each environment, and return the results."""
        raise AttributeError(f"{type(self).__name__} has no env_method, which would call {method_name!r}")

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of each environment."""
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of each environment."""
        self.env_method("set_wrapper_attr", attr_name, value, indices=indices)

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all environments have an attribute."""
        try:
            self.get_attr(attr_name)
        except AttributeError:
            return False
        return True

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Return for each environment whether it has a wrapper of this class."""
        raise AttributeError(f"{type(self).__name__} has no env_is_wrapped")

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed environment i with `seed + i` at the next reset, and return these seeds. None draws a random seed."""
        first = int(np.random.default_rng().integers(2**31)) if seed is None else int(seed)
        self._seeds = [first + row for row in range(self.num_envs)]
        return self._seeds

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Set the options of the next reset: one dict for all environments, or a list with a dict for each."""
        self._options = (
            [{**(options or {})} for _ in range(self.num_envs)] if not isinstance(options, list) else options
        )

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return the image of each environment."""
        return self.env_method("render")

    def render(self, mode: str | None = None) -> np.ndarray | None:
        """Return the images of all environments as one image, if their render mode is "rgb_array".

        `mode="human"` shows it in a window instead, with OpenCV. With other render modes the environments show
        themselves, and nothing is returned.
        """
        if mode not in (None, self.render_mode) and (mode, self.render_mode) != ("human", "rgb_array"):
            warnings.warn(
                f"render(mode={mode!r}), but the environments were made with render_mode={self.render_mode!r}; nothing "
                "is shown. Make them with that render mode.",
                stacklevel=2,
            )
            return None
        if self.render_mode is None:
            warnings.warn("render() shows nothing, because the environments have no render_mode", stacklevel=2)
            return None
        if self.render_mode != "rgb_array":
            self.env_method("render")
            return None
        image = tile_images([each for each in self.get_images() if each is not None])
        if mode != "human":
            return image
        try:
            import cv2
        except ImportError as error:
            # The extra "atari" has the OpenCV without windows.
            raise ImportError(f"render(mode='human') needs OpenCV: pip install opencv-python ({error})") from error

        cv2.imshow("environments", image[:, :, ::-1])  # OpenCV wants blue first
        cv2.waitKey(1)
        return None

    @property
    def unwrapped(self) -> VecEnv:
        """This vector environment without wrappers."""
        return self

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """Return the class that has an attribute hidden by a wrapper; None if it is not hidden.

        Args:
            name: Name of the attribute.
            already_found: Whether a wrapper around this object has the attribute.
        """
        return _full_name(self) if already_found and hasattr(self, name) else None

    def _get_indices(self, indices: VecEnvIndices) -> Iterable[int]:
        """Return the rows that `indices` means."""
        if indices is None:
            return range(self.num_envs)
        return [int(row) for row in np.atleast_1d(np.asarray(indices))]


def _full_name(value: object) -> str:
    """Return the name of an object's class with its module."""
    return f"{type(value).__module__}.{type(value).__name__}"


class VecEnvWrapper(VecEnv):
    """Base class of wrappers, which override `reset` and `step_wait`.

    Attributes that a wrapper does not have are those of the wrapped `venv`.
    """

    def __init__(self, venv: VecEnv, observation_space: Any = None, action_space: Any = None) -> None:
        self.venv = venv
        super().__init__(venv.num_envs, observation_space or venv.observation_space, action_space or venv.action_space)

    def _shared_render_mode(self) -> str | None:
        mode: str | None = getattr(self.venv, "render_mode", None)
        return mode

    def _layers(self) -> Iterator[Any]:
        """Iterate over this wrapper and everything that it wraps, from the outside."""
        layer: Any = self
        while layer is not None:
            yield layer
            layer = vars(layer).get("venv")

    def __getattr__(self, name: str) -> Any:
        if name == "venv":  # not set yet: looking it up below would not end
            raise AttributeError(name)
        hidden = self.getattr_depth_check(name, already_found=False)
        if hidden is not None:
            raise AttributeError(f"{name!r} of {_full_name(self)} is ambiguous: {hidden} has it, too; ask that one")
        return getattr(self.venv, name)

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        layers = list(self._layers())
        owners = [each for each in layers[:-1] if name in vars(each) or hasattr(type(each), name)]
        owners += [each for each in layers[-1:] if hasattr(each, name)]
        hidden = owners if already_found else owners[1:]
        return _full_name(hidden[0]) if hidden else None

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: Any) -> None:
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        return self.venv.step_wait()

    def close(self) -> None:
        self.venv.close()

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        return self.venv.env_method(method_name, *args, indices=indices, **kwargs)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return self.venv.get_attr(attr_name, indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        self.venv.set_attr(attr_name, value, indices)

    def has_attr(self, attr_name: str) -> bool:
        return self.venv.has_attr(attr_name)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return self.venv.env_is_wrapped(wrapper_class, indices=indices)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        return self.venv.seed(seed)

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        self.venv.set_options(options)

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.venv.get_images()

    def render(self, mode: str | None = None) -> np.ndarray | None:
        return self.venv.render(mode)

    @property
    def unwrapped(self) -> VecEnv:
        return self.venv.unwrapped


_MOVED = {
    "BoundaryVecEnv": "lockstep_sb3.common.vec_env.boundary_vec_env:BoundaryVecEnv",
    "DummyVecEnv": "lockstep_sb3.common.vec_env.dummy_vec_env:DummyVecEnv",
    "SubprocVecEnv": "lockstep_sb3.common.vec_env.subproc_vec_env:SubprocVecEnv",
    "infos_of": "lockstep_sb3.common.vec_env.boundary_vec_env:infos_of",
}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
