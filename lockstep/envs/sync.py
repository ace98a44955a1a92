"""Vector that steps its environments one after the other in this process, with little overhead.

It bypasses code of gymnasium where the result is provably the same:

- `TimeLimit` counts steps and compares; `OrderEnforcing` checks that `reset` came first. This vector does both itself,
  so it calls the `step` below these wrappers.
- `Discrete.contains`, which classic control asserts in every step, spends most of its time on type checks. A set of the
  allowed integers gives the same answer.
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
"""Deadline of an episode without a time limit: a clock value that is never reached."""
_LARGEST_SET = 4096
"""Number of actions up to which a `Discrete` space gets a set of its members."""


class LightSyncVectorEnv(VectorBoundary):
    """Vector that steps `B` environments in a loop and resets a finished one at once (SAME_STEP).

    Observations are written into one preallocated buffer. Seeds are used by an explicit `reset` only; the reset after
    an episode continues with the environment's generator, as gymnasium recommends.

    Args:
        env_fns: One function for each row that makes its environment.
        owns_envs: True if nobody else uses the environments, so that their action spaces may be made faster.

    Raises:
        ValueError: The same environment was made twice, the spaces differ, or a space is not stored in fixed-size
            arrays.
    """

    backend = "light_sync"
    autoreset_mode = "SAME_STEP"

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]], *, owns_envs: bool = True) -> None:
        self.envs: list[gym.Env] = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        if owns_envs:
            for env in self.envs:
                quicken_action_space(env)

        first = self.envs[0]
        self._set_spaces(space_of(first, "observation_space"), space_of(first, "action_space"))
        self.single_env_spec = first.spec
        self._check_equal_spaces()
        self._steps, self._time_limits = zip(*map(unwrap_step, self.envs), strict=True)
        self._limits = [_shortest_limit(limits) for limits in self._time_limits]
        self._resets = [env.reset for env in self.envs]

        self._batched_actions = batch_space(self.action_space, self.num_envs)
        self._rows_of_actions = isinstance(self.action_space, ARRAY_SPACES)
        """True if the actions of a step are one array [B, ...], so that `actions[row]` is the action of a row."""
        self._gives_arrays = not self._rows_of_actions or bool(self.action_space.shape)
        """True if environments get arrays as actions, which they could write into. Numbers cannot be changed."""

        self._obs = allocate(self.observation_space, self.num_envs)
        self._result = StepResult(self._obs, self.num_envs)
        self._make_views()

        # One clock for all rows: comparing it with a row's deadline replaces B counters.
        self._clock = 0
        """Number of vector steps since the last explicit reset."""
        self._deadlines: list[int] = []
        """Clock at which the episode of each row is truncated."""
        self._unchecked = True
        """True until the first step after a reset has checked its call; the later steps skip these checks."""

    def _make_views(self) -> None:
        """Make the memory views of observations and rewards. Writing into them is fast and checks shape and dtype."""
        self._row_views = row_views(self._obs)
        rewards: Any = self._result.rewards
        self._reward_view: Any = memoryview(rewards)

    def __getstate__(self) -> dict[str, Any]:
        # Memory views can be neither pickled nor copied.
        return {key: value for key, value in vars(self).items() if key not in ("_row_views", "_reward_view")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_views()

    def _check_equal_spaces(self) -> None:
        """Check that the environments are different objects with equal spaces."""
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
        self._restart_clock(list(self._limits))
        return self._obs

    def _restart_clock(self, deadlines: list[int]) -> None:
        """Begin all episodes at clock 0, with the clock at which each is truncated."""
        self._clock = 0
        self._deadlines = deadlines
        self._started = True
        self._unchecked = True
        self._clear_result()

    def _clear_result(self) -> None:
        """Clear what the last step reported about ended episodes."""
        self._result.terminateds[:] = False
        self._result.truncateds[:] = False
        self._result.clear_endings()

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        result = self._result
        if result.any_done:
            self._clear_result()
        if self._unchecked:
            self._check_started()
            if self._rows_of_actions:
                self._check_number("step", "actions", actions, self.num_envs)
            self._unchecked = False
        if self._gives_arrays:  # an environment may write into its action
            actions = copy_arrays(actions)
        if not self._rows_of_actions:
            actions = tuple(iterate(self._batched_actions, actions))

        # This loop is the hot path of collecting on the host. So attributes are read once before it, rewards and
        # observations go through memory views, and everything rare is in functions outside.
        obs = self._obs
        rewards = self._reward_view
        deadlines = self._deadlines
        write = self._form.write
        views = self._row_views
        self._clock += 1
        clock = self._clock
        row = 0
        endings: list[tuple[int, Tree, dict[str, Any]]] | None = None
        try:
            for step, action in zip(self._steps, actions):
                row_obs, reward, terminated, truncated, info = step(action)
                try:
                    rewards[row] = reward
                except TypeError:  # not a plain number, such as an array of one number
                    rewards[row] = as_reward(reward)
                if terminated or truncated or clock >= deadlines[row]:
                    # Copied before the reset, which may write into the same arrays.
                    if endings is None:
                        endings = []
                    endings.append((row, self._form.rows([row_obs]), copy_arrays(info)))
                    row_obs = self._begin_episode(row, terminated, truncated)
                if views is None:
                    write(obs, row, row_obs)
                else:
                    try:
                        views[row][:] = row_obs
                    except NOT_A_ROW:  # needs a cast, or is wrong: `write` does the one and reports the other
                        write(obs, row, row_obs)
                row += 1
        except RAISED as error:
            self._fail(error, row, actions)

        if endings is not None:
            rows = np.array([row for row, _, _ in endings], np.int64)
            result.final_obs = (rows, concat_trees([final for _, final, _ in endings], "observation"))
            result.infos = {row: info for row, _, info in endings if info} or None
            result.any_done = True
        if self._watch is not None:
            self._watch_step(result)
        return result

    def _begin_episode(self, row: int, terminated: bool, truncated: bool) -> Tree:
        """Set the flags of an ended episode, begin the next one, and return its first observation."""
        self._result.terminateds[row] = terminated
        self._result.truncateds[row] = truncated or self._clock >= self._deadlines[row]
        limit = self._limits[row]
        self._deadlines[row] = NO_LIMIT if limit == NO_LIMIT else self._clock + limit
        return self._resets[row]()[0]

    def _fail(self, error: BaseException, row: int, actions: Tree) -> NoReturn:
        """Raise the error of a row with its action."""
        action = actions[row] if row < len(actions) else None
        raise step_error(error, backend=self.backend, env_index=row, action=action, during="step") from error

    def _env_states(self) -> list[Any]:
        # The bypassed `TimeLimit` wrappers get their counters, so that a state is the same in every back end.
        for time_limits, deadline, limit in zip(self._time_limits, self._deadlines, self._limits, strict=True):
            elapsed = self._clock - deadline + limit
            for time_limit in time_limits:
                set_elapsed_steps(time_limit, elapsed)
        return [env_state(env) for env in self.envs]

    def set_state(self, state: dict[str, Any]) -> Tree:
        """Restore a state that `get_state` returned, and return the current observations."""
        self.check_open()
        self._check_number("set_state", "states", state["envs"], self.num_envs)
        for env, state_of_env in zip(self.envs, state["envs"], strict=True):
            set_env_state(env, state_of_env)

        deadlines = [
            limit - elapsed_steps(time_limits[0]) if time_limits else NO_LIMIT
            for limit, time_limits in zip(self._limits, self._time_limits, strict=True)
        ]
        self._restart_clock(deadlines)
        write_rows(self._obs, ..., state["obs"])
        return self._obs

    def single_envs(self) -> list[Any]:
        """Return the environment of each row."""
        return list(self.envs)

    def keep_infos(self) -> None:
        """Record the infos of all rows from now on."""
        if self.infos is None:
            infos = self.infos = RowInfos(self.num_envs)
            self._steps = tuple(infos.wrap_step(row, step) for row, step in enumerate(self._steps))
            self._resets = [infos.wrap_reset(row, reset) for row, reset in enumerate(self._resets)]

    def render(self, row: int = 0) -> Any:
        """Return the frame of one row."""
        return self.envs[row].render()

    def close(self) -> None:
        """Close every environment. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._unchecked = True
            for env in self.envs:
                env.close()


class QuickDiscrete(Discrete):
    """64-bit `Discrete` space whose `contains` looks up plain and 64-bit integers in a set."""

    def __init__(self, n: int, seed: np.random.Generator | None = None, start: int = 0) -> None:
        super().__init__(n, seed=seed, start=start)
        self.allowed = frozenset(range(start, start + n))
        """All members of the space."""

    def contains(self, x: object) -> bool:
        """Return whether `x` is a member: the same answer as `Discrete.contains`, in less time."""
        kind = type(x)
        if kind is int or kind is np.int64:
            return x in self.allowed
        return super().contains(x)


def quicken_action_space(env: gym.Env) -> None:
    """Replace the 64-bit `Discrete` action space of an environment that we made by an equal `QuickDiscrete`.

    Other action spaces stay as they are.
    """
    space = vars(env.unwrapped).get("action_space")
    if type(space) is Discrete and space.dtype == np.int64 and int(space.n) <= _LARGEST_SET:
        # The random generator is handed on, so that samples of the new space continue those of the old one.
        env.unwrapped.action_space = QuickDiscrete(int(space.n), seed=space.np_random, start=int(space.start))


def unwrap_step(env: gym.Env) -> tuple[Callable[[Any], Any], list[TimeLimit]]:
    """Return the `step` below the outer `TimeLimit` and `OrderEnforcing` wrappers, and the time limits bypassed.

    The caller must count the steps for the limits. Only these exact classes are bypassed, since a subclass may do more,
    and only up to the first other wrapper, which may depend on the wrappers below it.
    """
    time_limits: list[TimeLimit] = []
    while type(env) in (TimeLimit, OrderEnforcing):
        if type(env) is TimeLimit:
            time_limits.append(env)
        env = env.env  # type: ignore[attr-defined]
    return env.step, time_limits


def _shortest_limit(time_limits: list[TimeLimit]) -> int:
    """Return the number of steps after which an episode is truncated, or `NO_LIMIT`."""
    return min((limit._max_episode_steps for limit in time_limits), default=NO_LIMIT)
