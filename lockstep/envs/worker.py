"""What runs in the process of one environment: it answers one command after another over a pipe."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lockstep.data.trees import map_tree
from lockstep.envs import trees
from lockstep.envs.env_state import env_state, set_env_state

ORPHAN_SECONDS = 2.0
"""how long a worker whose parent was killed lives on at most"""


def shared_tree(space: spaces.Space[Any], num_envs: int, make: Callable[[int], Any]) -> Any:
    """A tree of arrays `[num_envs, ...]` on memory that `make(bytes)` gives leaf by leaf."""

    def on_shared(leaf: np.ndarray) -> np.ndarray:
        return np.frombuffer(make(max(1, leaf.nbytes)), leaf.dtype, leaf.size).reshape(leaf.shape)

    return map_tree(on_shared, trees.allocate(space, num_envs))


def work(make_env: Any, row: int, num_envs: int, pipe: Connection, memory: list[Any], parent: int) -> None:
    """Answers `("ok", result, dropped)` or `("error", summary, traceback)` until the pipe closes or the parent is gone.

    `dropped`: keys of an info that cannot be pickled, each with the reason.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which ends the run in order
    try:
        served = _Served(make_env(), row, num_envs, memory)
        commands: dict[str, Callable[[Any], Any]] = {
            "reset": served.reset,
            "step": served.step,
            "get_state": served.get_state,
            "set_state": served.set_state,
            "render": served.render,
        }
        while True:
            while not pipe.poll(ORPHAN_SECONDS):
                if os.getppid() != parent:
                    return
            name, argument = pipe.recv()
            if name == "close":
                served.env.close()
                return
            try:
                answer = _pickled(name, commands[name](argument))
            except Exception as error:
                answer = ForkingPickler.dumps(("error", _summary(error), traceback.format_exc()))
            pipe.send_bytes(answer)
    except (EOFError, OSError):
        return


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _pickled(name: str, result: Any) -> Any:
    """The answer as bytes; keys of an info that cannot be pickled are left out, and named with the reason."""
    try:
        return ForkingPickler.dumps(("ok", result, {}))
    except Exception as error:
        if name != "step" or not isinstance(result[-1], dict):
            raise TypeError(f"what {name} gave cannot be pickled ({_summary(error)})") from error
    kept, dropped = {}, {}
    for key, value in result[-1].items():
        try:
            ForkingPickler.dumps((key, value))
            kept[key] = value
        except Exception as error:
            dropped[str(key)] = _summary(error)
    return ForkingPickler.dumps(("ok", (*result[:-1], kept), dropped))


class _Served:
    """One environment; its observations go into its row of the shared memory."""

    def __init__(self, env: gym.Env, row: int, num_envs: int, memory: list[Any]) -> None:
        self.env, self.row = env, row
        parts = iter(memory)
        self.obs = shared_tree(env.observation_space, num_envs, lambda size: next(parts))

    def reset(self, seed: int | None) -> None:
        obs, _ = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self._write(obs)

    def step(self, action: Any) -> tuple[float, bool, bool, Any, Any]:
        """Reward, terminated, truncated; where the episode ended also its last observation and info."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        final = None
        if terminated or truncated:
            trees.check_shape(self.obs, obs)
            final = trees.allocate(self.env.observation_space, 1)
            trees.write_row(final, 0, obs)
            obs, _ = self.env.reset()
        self._write(obs)
        return float(reward), bool(terminated), bool(truncated), final, info if final is not None and info else None

    def _write(self, obs: Any) -> None:
        trees.check_shape(self.obs, obs)
        trees.write_row(self.obs, self.row, obs)

    def get_state(self, _: None) -> Any:
        return env_state(self.env)

    def set_state(self, state: Any) -> None:
        set_env_state(self.env, state)

    def render(self, _: None) -> Any:
        return self.env.render()
