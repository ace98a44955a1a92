"""`VecCheckNan`: reports numbers that are not finite."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lockstep_sb3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn, VecEnvWrapper


class VecCheckNan(VecEnvWrapper):
    """Wrapper that reports NaN and infinite values in actions, observations and rewards, and where they come from.

    Args:
        venv: Vector environment to wrap.
        raise_exception: Raise `ValueError` instead of warning.
        warn_once: Warn only once.
        check_inf: Report infinite values, too.
    """

    def __init__(
        self, venv: VecEnv, raise_exception: bool = False, warn_once: bool = True, check_inf: bool = True
    ) -> None:
        super().__init__(venv)
        self.raise_exception = raise_exception
        self.warn_once = warn_once
        self.check_inf = check_inf
        self._has_warned = False
        self._actions: Any = None
        self._observations: Any = None

    def step_async(self, actions: Any) -> None:
        self._check(f"the model, after the observations {self._observations}", actions=actions)
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        self._check(f"the environment, after the actions {self._actions}", observations=obs, rewards=rewards)
        self._observations = obs
        return obs, rewards, dones, infos

    def reset(self) -> Any:
        obs = self.venv.reset()
        self._check("the environment, at its reset", observations=obs)
        self._observations = obs
        return obs

    def check_array_value(self, name: str, value: np.ndarray) -> list[tuple[str, str]]:
        """Return what is not finite in an array, as pairs of its name and "nan" or "inf"."""
        found = []
        if self.check_inf and np.isinf(value).any():
            found.append((name, "inf"))
        if np.isnan(value).any():
            found.append((name, "nan"))
        return found

    def _check(self, origin: str, **values: Any) -> None:
        """Report values that are not finite. `origin` names who has made them."""
        if self.warn_once and self._has_warned and not self.raise_exception:
            return
        found = []
        for name, part in _parts(values):
            if np.issubdtype(part.dtype, np.inexact):
                found += self.check_array_value(name, part)
        if not found:
            return
        self._has_warned = True
        message = f"found {', '.join(f'{kind} in {name}' for name, kind in found)}. It comes from {origin}"
        if self.raise_exception:
            raise ValueError(message)
        warnings.warn(message, UserWarning, stacklevel=3)


def _parts(values: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Iterate over the arrays in nested values, with names such as "observations.position"."""
    if isinstance(values, tuple):
        values = dict(enumerate(values))
    if isinstance(values, Mapping):
        for key, part in values.items():
            yield from _parts(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, np.asarray(values)
