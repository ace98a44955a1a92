"""Our own vectoriser: environments stepped one after the other, with as little around them as can be.

It takes shorter ways through gymnasium's wrappers where the answer is provably the same. `TimeLimit` adds one to a
counter and compares; `OrderEnforcing` looks whether `reset` came first. The vectoriser does both itself, so it calls
the environment below them. `Discrete.contains` (which classic control asserts on every step) spends most of its time on
questions of type; a set of the allowed integers answers the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from lockstep.data.trees import Tree, allocate, concat_trees, copy_arrays, write_rows
from lockstep.data.values import ARRAY_SPACES, NOT_A_ROW, as_reward, row_views
from lockstep.envs.boundary import RowInfos, StepResult, VectorBoundary, space_of
from lockstep.envs.env_state import elapsed_steps, env_state, set_elapsed_steps, set_env_state
from lockstep.envs.errors import RAISED, step_error

NO_LIMIT = sys.maxsize
_LARGEST_SET = 4096


class LightSyncVectorEnv(VectorBoundary):
    """Steps `B` environments in a loop and resets a finished one at once (SAME_STEP).

    Observations go straight into one preallocated buffer. Seeds are used at an explicit `reset` only; the reset after
    an episode goes on with the environment's own generator, as gymnasium advises.

    Args:
        env_fns: one function for each row that makes its environment.
        owns_envs: the environments are ours alone, so that their action space may take its quicker form.

    Raises:
        ValueError: one environment twice, unequal spaces, or a space without an array of fixed size.
    """

    backend = "light_sync"
    autoreset_mode = "SAME_STEP"

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], *, owns_envs: bool = True) -> None:
        self.envs: list[gym.Env] = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self._set_spaces(space_of(first, "observation_space"), space_of(first, "action_space"))
        self.single_env_spec = first.spec
        self._check_equal_spaces()
        if owns_envs:
            for env in self.envs:
                quicken_action_space(env)
        self._steps, self._time_limits = zip(*map(peel, self.envs), strict=True)
        self._limits = list(map(_shortest, self._time_limits))
        self._resets = [env.reset for env in self.envs]
        self._batched_actions = batch_space(self.action_space, self.num_envs)
        self._rows_of_actions = isinstance(self.action_space, ARRAY_SPACES)
        self._gives_arrays = not self._rows_of_actions or bool(self.action_space.shape)
        self._obs = allocate(self.observation_space, self.num_envs)
        self._result = StepResult(self._obs, self.num_envs)
        self._take_views()
        self._clock = 0
        self._deadlines: list[int] = []
        """the clock at which the episode of each row is truncated"""
        self._unchecked = True

    def _take_views(self) -> None:
        """Look at observations and rewards in the form that checks what is written."""
        self._row_views = row_views(self._obs)
        rewards: Any = self._result.rewards
        self._reward_view: Any = memoryview(rewards)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_row_views", "_reward_view")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._take_views()

    def _check_equal_spaces(self) -> None:
        rows: dict[int, int] = {}
        for index, env in enumerate(self.envs):
            first = rows.setdefault(id(env.unwrapped), index)
            if first != index:
                raise ValueError(
                    f"environments {first} and {index} are the same {env.unwrapped!r}, which both rows would step; the "
                    "function that makes environments must make a new one at each call."
                )
            for name in ("observation_space", "action_space"):
                if space_of(env, name) != getattr(self, name):
                    raise ValueError(
                        f"environment {index} has {name} {getattr(env, name)}, environment 0 has "
                        f"{getattr(self, name)}: all environments of one vector must have equal spaces."
                    )

    def _reset(self, seeds: list[int] | None) -> Tree:
        for row, reset in enumerate(self._resets):
            try:
                obs, _ = reset() if seeds is None else reset(seed=seeds[row])
                self._form.write(self._obs, row, obs)
            except RAISED as error:
                raise step_error(error, backend=self.backend, env_index=row, during="reset") from error
        self._begin(list(self._limits))
        return self._obs

    def _begin(self, deadlines: list[int]) -> None:
        self._clock, self._deadlines = 0, deadlines
        self._started = self._unchecked = True
        self._clear()

    def _clear(self) -> None:
        self._result.terminateds[:] = self._result.truncateds[:] = False
        self._result.clear_endings()

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        result = self._result
        if result.any_done:
            self._clear()
        if self._unchecked:
            self._check_started()
            if self._rows_of_actions:
                self._check_number("step", "actions", actions, self.num_envs)
            self._unchecked = False
        if self._gives_arrays:  # an environment may write into what it gets
            actions = copy_arrays(actions)
        if not self._rows_of_actions:
            actions = tuple(iterate(self._batched_actions, actions))
        obs, rewards, deadlines = self._obs, self._reward_view, self._deadlines
        write, views = self._form.write, self._row_views
        clock = self._clock = self._clock + 1
        row = 0
        ended: list[tuple[int, Tree, dict[str, Any]]] | None = None
        try:
            for step, action in zip(self._steps, actions):
                row_obs, reward, terminated, truncated, info = step(action)
                try:
                    rewards[row] = reward
                except TypeError:
                    rewards[row] = as_reward(reward)
                if terminated or truncated or clock >= deadlines[row]:
                    if ended is None:
                        ended = []
                    ended.append((row, self._form.rows([row_obs]), copy_arrays(info)))
                    row_obs = self._begin_episode(row, terminated, truncated)
                if views is None:
                    write(obs, row, row_obs)
                else:
                    try:
                        views[row][:] = row_obs
                    except NOT_A_ROW:
                        write(obs, row, row_obs)
                row += 1
        except RAISED as error:
            self._fail(error, row, actions)
        if ended is not None:
            rows = np.array([row for row, _, _ in ended], np.int64)
            result.final_obs = (rows, concat_trees([last for _, last, _ in ended], "observation"))
            result.infos = {row: info for row, _, info in ended if info} or None
            result.any_done = True
        if self._watch is not None:
            self._watch_step(result)
        return result

    def _begin_episode(self, row: int, terminated: bool, truncated: bool) -> Tree:
        """Note how an episode ended, begin the next one, and return its first observation."""
        self._result.terminateds[row] = terminated
        self._result.truncateds[row] = truncated or self._clock >= self._deadlines[row]
        limit = self._limits[row]
        self._deadlines[row] = NO_LIMIT if limit == NO_LIMIT else self._clock + limit
        return self._resets[row]()[0]

    def _fail(self, error: BaseException, row: int, actions: Tree) -> NoReturn:
        action = actions[row] if row < len(actions) else None
        raise step_error(error, backend=self.backend, env_index=row, action=action, during="step") from error

    def _env_states(self) -> list[Any]:
        for limits, deadline, limit in zip(self._time_limits, self._deadlines, self._limits, strict=True):
            for time_limit in limits:
                set_elapsed_steps(time_limit, self._clock - deadline + limit)
        return [env_state(env) for env in self.envs]

    def set_state(self, state: dict[str, Any]) -> Tree:
        """Continue from what `get_state` gave; return the current observations."""
        self.check_open()
        self._check_number("set_state", "states", state["envs"], self.num_envs)
        for env, env_part in zip(self.envs, state["envs"], strict=True):
            set_env_state(env, env_part)
        deadlines = [
            limit - elapsed_steps(limits[0]) if limits else NO_LIMIT
            for limit, limits in zip(self._limits, self._time_limits, strict=True)
        ]
        self._begin(deadlines)
        write_rows(self._obs, ..., state["obs"])
        return self._obs

    def keep_infos(self) -> None:
        """Keep the infos of all rows from now on."""
        if self.infos is None:
            infos = self.infos = RowInfos(self.num_envs)
            self._steps = tuple(infos.wrap_step(row, step) for row, step in enumerate(self._steps))
            self._resets = [infos.wrap_reset(row, reset) for row, reset in enumerate(self._resets)]

    def render(self, row: int = 0) -> Any:
        """Return the frame of one row."""
        return self.envs[row].render()

    def close(self) -> None:
        """Close every environment; a second call does nothing."""
        if not self._closed:
            self._closed = self._unchecked = True
            for env in self.envs:
                env.close()


class QuickDiscrete(Discrete):
    """A `Discrete` whose `contains` answers plain and 64-bit integers from a set, all else as `Discrete` does."""

    allowed: frozenset[int]

    def contains(self, x: object) -> bool:
        """Return whether `x` is a member: the same answer as `Discrete.contains`, sooner."""
        kind = type(x)
        if kind is int or kind is np.int64:
            return x in self.allowed
        return super().contains(x)


def quicken_action_space(env: gym.Env) -> None:
    """Give an environment that we made ourselves the quick form of its 64-bit `Discrete` action space.

    The space object stays the same one (identity, generator, equality); only its `contains` becomes quicker.
    """
    space = vars(env.unwrapped).get("action_space")
    if type(space) is Discrete and space.dtype == np.int64 and int(space.n) <= _LARGEST_SET:
        space.__class__ = QuickDiscrete
        first = int(space.start)
        space.allowed = frozenset(range(first, first + int(space.n)))  # type: ignore[attr-defined]


def peel(env: gym.Env) -> tuple[Callable[[Any], Any], list[TimeLimit]]:
    """Return the innermost `step` that needs no `TimeLimit` or `OrderEnforcing` around it, and the limits passed.

    Only these exact classes are passed (a subclass may do more), only from the outside inwards. The counters of the
    limits are then the caller's to keep.
    """
    passed: list[TimeLimit] = []
    while type(env) in (TimeLimit, OrderEnforcing):
        if type(env) is TimeLimit:
            passed.append(env)
        env = env.env  # type: ignore[attr-defined]
    return env.step, passed


def _shortest(limits: list[TimeLimit]) -> int:
    """Return the number of steps after which an episode is truncated, or `NO_LIMIT`."""
    return min((limit._max_episode_steps for limit in limits), default=NO_LIMIT)
