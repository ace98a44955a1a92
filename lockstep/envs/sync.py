"""Our own vectoriser: environments stepped one after the other, with as little around them as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from lockstep.envs import trees
from lockstep.envs.boundary import StepResult, VectorBoundary
from lockstep.envs.env_state import check_rows, env_state, set_env_state
from lockstep.envs.errors import step_error
from lockstep.envs.peel import NO_LIMIT, peel, quicken_action_space


class LightSyncVectorEnv(VectorBoundary):
    """Steps ``B`` environments in a loop and resets a finished one at once (SAME_STEP).

    Observations go straight into one preallocated buffer. Seeds are used at an explicit `reset` only; the
    reset after an episode goes on with the environment's own generator, as gymnasium advises.

    Args:
        env_fns: one function for each row that makes its environment.
        owns_envs: the environments are ours alone, so that their action space may take its quicker form.

    Raises:
        ValueError: no environment, one twice, unequal spaces, or a space without an array of fixed size.
    """

    backend = "light_sync"
    autoreset_mode = "SAME_STEP"

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], *, owns_envs: bool = True) -> None:
        if len(env_fns) == 0:
            raise ValueError("num_envs must be at least 1, got no environment.")
        self.envs: list[gym.Env] = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        self.observation_space = trees.space_of(self.envs[0], "observation_space")
        self.action_space = trees.space_of(self.envs[0], "action_space")
        self.single_env_spec = self.envs[0].spec
        self._check_spaces()
        if owns_envs:
            for env in self.envs:
                quicken_action_space(env)
        peeled = [peel(env) for env in self.envs]
        self._steps = [step for step, _, _ in peeled]
        self._limits = [limit for _, limit, _ in peeled]
        self._time_limits: list[list[Any]] = [passed for _, _, passed in peeled]
        self._resets = [env.reset for env in self.envs]
        self._batched_actions = batch_space(self.action_space, self.num_envs)
        self._rows_of_actions = isinstance(self.action_space, trees.ARRAY_SPACES)
        self._obs = trees.allocate(self.observation_space, self.num_envs)
        self._flat = isinstance(self._obs, np.ndarray)
        flags = np.zeros((2, self.num_envs), dtype=np.bool_)
        self._result = StepResult(self._obs, np.zeros(self.num_envs), flags[0], flags[1])
        self._flags = flags
        self._clock = 0
        self._deadlines: list[int] = []
        self._unchecked = True

    def _check_spaces(self) -> None:
        trees.check_supported(self.observation_space, "the observation space")
        trees.check_supported(self.action_space, "the action space")
        rows: dict[int, int] = {}
        for index, env in enumerate(self.envs):
            first = rows.setdefault(id(env.unwrapped), index)
            if first != index:
                raise ValueError(
                    f"environments {first} and {index} are the same {env.unwrapped!r}, which both rows would step; the "
                    "function that makes environments must make a new one at each call."
                )
            for name in ("observation_space", "action_space"):
                if trees.space_of(env, name) != getattr(self, name):
                    raise ValueError(
                        f"environment {index} has {name} {getattr(env, name)}, environment 0 has "
                        f"{getattr(self, name)}: all environments of one vector must have equal spaces."
                    )

    def reset(self, seeds: list[int] | None = None) -> Any:
        """Begin a new episode in every row; see `VectorBoundary.reset`."""
        self.check_open()
        self._check_seeds(seeds)
        for row, reset in enumerate(self._resets):
            try:
                obs, _ = reset() if seeds is None else reset(seed=int(seeds[row]))
                trees.check_shape(self._obs, obs)
                trees.write_row(self._obs, row, obs)
            except Exception as error:
                raise step_error(error, backend=self.backend, env_index=row, action=None, during="reset") from error
        self._clock = 0
        self._deadlines = list(self._limits)
        self._unchecked = True
        self._clear()
        return self._obs

    def _clear(self) -> None:
        result = self._result
        self._flags[:] = False
        result.any_done = False
        result.final_obs = None
        result.infos = None

    def step(self, actions: Any) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        result = self._result
        if result.any_done:
            self._clear()
        if self._unchecked:
            self._check_first_step(actions)
        if not self._rows_of_actions:
            actions = tuple(trees.split_actions(self._batched_actions, actions))
        obs, rewards, deadlines = self._obs, result.rewards, self._deadlines
        flat = self._flat
        clock = self._clock = self._clock + 1
        row, row_obs = 0, None
        final: list[tuple[int, Any, dict[str, Any]]] | None = None
        try:
            for step, action in zip(self._steps, actions):
                row_obs, rewards[row], terminated, truncated, info = step(action)
                if terminated or truncated or clock >= deadlines[row]:
                    if final is None:
                        final = []
                    row_obs = self._end_episode(row, row_obs, terminated, truncated, info, final)
                if flat:
                    obs[row] = row_obs
                else:
                    trees.write_row(obs, row, row_obs)
                row += 1
        except Exception as error:
            self._fail(error, row, actions, row_obs)
        if final is not None:
            self._report(final)
        return result

    def _end_episode(
        self, row: int, obs: Any, terminated: bool, truncated: bool, info: dict[str, Any], final: list[Any]
    ) -> Any:
        """Note flags and true last observation of a row, begin its next episode, return its first one."""
        trees.check_shape(self._obs, obs)
        last = trees.allocate(self.observation_space, 1)
        trees.write_row(last, 0, obs)  # before the reset: an environment may reuse its array
        final.append((row, last, info))
        result = self._result
        result.terminateds[row] = terminated
        result.truncateds[row] = truncated or self._clock >= self._deadlines[row]
        limit = self._limits[row]
        self._deadlines[row] = NO_LIMIT if limit == NO_LIMIT else self._clock + limit
        first, _ = self._resets[row]()
        return first

    def _report(self, final: list[tuple[int, Any, dict[str, Any]]]) -> None:
        result = self._result
        rows = np.array([row for row, _, _ in final], dtype=np.int64)
        stacked = final[0][1] if len(final) == 1 else trees.concatenate([last for _, last, _ in final])
        result.final_obs = (rows, stacked)
        result.infos = {row: info for row, _, info in final if info} or None
        result.any_done = True

    def _check_first_step(self, actions: Any) -> None:
        self.check_open()
        if not self._deadlines:
            raise ValueError("step was called before reset: call reset(seeds) once, then step.")
        if self._rows_of_actions and len(actions) != self.num_envs:
            raise ValueError(
                f"step got {len(actions)} actions for {self.num_envs} environments; give one for each row."
            )
        self._unchecked = False

    def _fail(self, error: Exception, row: int, actions: Any, row_obs: Any) -> NoReturn:
        action = actions[row] if row < len(actions) else None
        if row_obs is not None and isinstance(error, ValueError | KeyError):
            try:
                trees.check_shape(self._obs, row_obs)  # is it what could not be written?
            except ValueError as wrong:
                wrong.__cause__, error = error, wrong
        raise step_error(error, backend=self.backend, env_index=row, action=action, during="step") from error

    def get_state(self) -> dict[str, Any] | None:
        """The state of every environment, or None where one cannot tell it; see `lockstep.envs.env_state`."""
        if not self._deadlines:
            return None
        for row, passed in enumerate(self._time_limits):
            elapsed = self._clock - self._deadlines[row] + self._limits[row]
            for time_limit in passed:
                time_limit._elapsed_steps = elapsed
        states = [env_state(env) for env in self.envs]
        if any(state is None for state in states):
            return None
        return {"envs": states, "obs": trees.gather(self._obs, np.arange(self.num_envs))}

    def set_state(self, state: dict[str, Any]) -> Any:
        """Continue from what `get_state` gave; returns the current observations."""
        self.check_open()
        check_rows(state, self.num_envs)
        for row, (env, one) in enumerate(zip(self.envs, state["envs"], strict=True)):
            set_env_state(env, one)
            passed = self._time_limits[row]
            self._limits[row] = min([limit._max_episode_steps for limit in passed], default=NO_LIMIT)
        self._clock = 0
        self._deadlines = [
            limit if limit == NO_LIMIT else limit - passed[0]._elapsed_steps
            for limit, passed in zip(self._limits, self._time_limits, strict=True)
        ]
        trees.copy_into(self._obs, state["obs"])
        self._unchecked = True
        self._clear()
        return self._obs

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy: its flags, which are views on one array, would be arrays apart."""
        self.__dict__.update(state)
        self._result.terminateds, self._result.truncateds = self._flags

    def render(self, row: int = 0) -> Any:
        """The frame of one row."""
        return self.envs[row].render()

    def close(self) -> None:
        """Close every environment; a second call does nothing."""
        if not self._closed:
            self._closed = self._unchecked = True
            for env in self.envs:
                env.close()


def single(env: gym.Env) -> LightSyncVectorEnv:
    """A vector of one from an environment that the caller made and keeps owning the look of."""
    if not isinstance(env, gym.Env):
        raise TypeError(f"expected a gymnasium.Env, got {type(env).__name__}.")
    return LightSyncVectorEnv([lambda: env], owns_envs=False)
