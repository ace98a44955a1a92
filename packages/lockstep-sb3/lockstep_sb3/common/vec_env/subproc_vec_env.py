"""`SubprocVecEnv`: steps each environment in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv

from lockstep.envs import MadeInWorker, make_vector
from lockstep_sb3.common.vec_env.base_vec_env import VecEnvIndices
from lockstep_sb3.common.vec_env.boundary_vec_env import BoundaryVecEnv
from lockstep_sb3.common.vec_env.patch_gym import _patch_env
from lockstep_sb3.common.vec_env.util import is_wrapped


class RowEnv(gym.Wrapper):
    """Wrapper that knows the row of its environment, so that a call to all processes can be meant for some rows."""

    def __init__(self, env: gym.Env, row: int) -> None:
        super().__init__(env)
        self.row = row

    def call_in_rows(self, rows: Sequence[int], method_name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method of the environment if its row is in `rows`.

        Returns the result and None, or None and an `AttributeError`: raised here, it would end the process.
        """
        if self.row not in rows:
            return None, None
        try:
            return self.env.get_wrapper_attr(method_name)(*args, **kwargs), None
        except AttributeError as error:
            return None, error

    def is_wrapped_by(self, wrapper_class: type[gym.Wrapper]) -> bool:
        """Return whether the environment has a wrapper of this class."""
        return is_wrapped(self.env, wrapper_class)


class RowMaker:
    """Function that makes the environment of a row. It is an object, so that it can be sent to a process."""

    def __init__(self, make: Callable[[], gym.Env], row: int) -> None:
        self.make = make
        self.row = row

    def __call__(self) -> gym.Env:
        return RowEnv(_patch_env(self.make()), self.row)


class SubprocVecEnv(BoundaryVecEnv):
    """Vector environment with a process for each environment.

    Args:
        env_fns: One function for each environment that makes it.
        start_method: "fork", "forkserver" or "spawn"; None takes Python's own choice.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], start_method: str | None = None) -> None:
        makers = [MadeInWorker(RowMaker(make, row)) for row, make in enumerate(env_fns)]
        self.vector = AsyncVectorEnv(makers, context=start_method)
        super().__init__(make_vector(self.vector))

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        rows = list(self._get_indices(indices))
        answers = self.vector.call("call_in_rows", rows, method_name, args, kwargs)
        results = []
        for row in rows:
            result, error = answers[row]
            if error is not None:
                raise error
            results.append(result)
        return results

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        answers = self.vector.call("is_wrapped_by", wrapper_class)
        return [bool(answers[row]) for row in self._get_indices(indices)]
