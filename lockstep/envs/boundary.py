"""The transition model that every vector back end is translated to, whatever its autoreset mode.

A vector environment cannot wait for one row whose episode has ended while the other rows continue, so gymnasium has
three modes of resetting that row. They differ in where the last observation of the old episode is found, and in whether
the step after the ending is a transition:

| mode | `obs` of the step that ended the episode | last observation | next step of that row |
|---|---|---|---|
| NEXT_STEP | last of the old episode | `obs` itself | only resets: its action is ignored, its reward is 0 |
| SAME_STEP | first of the new episode | `infos["final_obs"]` | an ordinary transition |
| DISABLED | last of the old episode | `obs` itself | not allowed before the row is reset with `reset_mask` |

A collector that mixes them up stores transitions that never happened: the action of a reset row, or a `next_obs` that
belongs to another episode. The value of a truncated episode would then be bootstrapped from the start of the next one.
Nothing fails; the agent only learns worse. So the modes are distinguished here, once, and all other code gets for each
row `(obs, action, reward, next_obs, terminated, truncated)` with

    next_obs[b] = final_obs[b] where the episode of row b ended in this step, else obs[b]

and skips rows that are not `valid`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sized
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from lockstep.data.trees import Tree, copy_arrays, map_tree
from lockstep.data.values import BoundsWatch, ObservationForm, OutsideError, check_supported
from lockstep.envs.errors import EnvironmentStepError, step_error

Flags = npt.NDArray[np.bool_]


def space_of(env: Any, name: str) -> spaces.Space:
    """Return the attribute `name` of an environment, which must be a gymnasium space; else raise `ValueError`."""
    space = getattr(env, name, None)
    if isinstance(space, spaces.Space):
        return space
    example = "Discrete(2)" if "action" in name else "Box(-1.0, 1.0, (4,))"
    raise ValueError(
        f"{name} of {env!r} is {space!r}; it must be a gymnasium space. Set it in the environment's __init__, e.g. "
        f"self.{name} = gymnasium.spaces.{example}."
    )


class StepResult:
    """Result of one vector step. A boundary reuses one object for all steps: copy what must outlive the next step.

    Attributes:
        obs: Tree of arrays [B, ...], the observations to act on next. Where an episode ended, this is the first
            observation of the new episode; in a back end with reset rows it is still the last one of the old episode.
        rewards: Float [B], the rewards of this step.
        terminateds: Bool [B], True where the task ended: nothing follows, so bootstrap with 0.
        truncateds: Bool [B], True where the episode was cut off: bootstrap with the value of the final observation.
        valid: None if every row is a transition. Otherwise bool [B]: False marks a reset row, which ignored its action
            and must not be stored.
        final_obs: None, or `(rows int64 [k], tree [k, ...])`: the last observations of the episodes that ended in this
            step, in ascending order of rows.
        lost: None, or int64 [k]: rows whose environment was restarted in this step. The episode under way ended
            without a last observation, the row is not valid, and `obs` has the first observation of a new episode.
        infos: None, or `{row: info}` with the non-empty infos of the last step of episodes that ended.
        any_done: True if at least one episode ended or was lost.
        acted_on: In the copy that a collector's `on_step_hook` gets: tree of arrays [B, ...], the observations that
            the policy acted on in this step, after recording connectors. Otherwise None.
        actions: In the same copy: tree of arrays [B, ...], the policy's actions as learned from, before they were
            rescaled or clipped for the environments. Otherwise None.
    """

    __slots__ = (
        *("acted_on", "actions", "any_done", "final_obs", "infos", "lost", "obs", "rewards", "terminateds"),
        *("truncateds", "valid"),
    )

    def __init__(self, obs: Tree, num_envs: int) -> None:
        self.obs = obs
        self.rewards: npt.NDArray[Any] = np.zeros(num_envs)
        self.terminateds: Flags = np.zeros(num_envs, np.bool_)
        self.truncateds: Flags = np.zeros(num_envs, np.bool_)
        self.acted_on: Tree = None
        self.actions: Tree = None
        self.clear_endings()

    def clear_endings(self) -> None:
        """Set all fields about ended episodes to "no episode ended, and every row is a transition"."""
        self.valid: Flags | None = None
        self.final_obs: tuple[npt.NDArray[np.int64], Tree] | None = None
        self.lost: npt.NDArray[np.int64] | None = None
        self.infos: Mapping[int, dict[str, Any]] | None = None
        self.any_done = False

    def copy(self) -> StepResult:
        """Return a copy whose arrays later steps leave unchanged."""
        duplicate = StepResult(copy_arrays(self.obs), 0)
        duplicate.rewards = self.rewards.copy()
        duplicate.terminateds = self.terminateds.copy()
        duplicate.truncateds = self.truncateds.copy()
        duplicate.valid = copy_arrays(self.valid)
        duplicate.final_obs = copy_arrays(self.final_obs)
        duplicate.lost = copy_arrays(self.lost)
        duplicate.infos = copy_arrays(self.infos)
        duplicate.any_done = self.any_done
        return duplicate


class EnvObject(Protocol):
    """Interface of an environment or a vector of environments, in any of the forms that `make_vector` accepts."""

    @property
    def reset(self) -> Callable[..., Any]:
        """Method that begins episodes."""

    @property
    def step(self) -> Callable[..., Any]:
        """Method that takes an action."""


EnvLike = str | EnvSpec | Callable[..., Any] | EnvObject
"""An id, a spec, a function or class that makes one environment, an environment, or a vector of environments."""


class RowInfos:
    """The newest infos of each row. A boundary records them only after `keep_infos`, since copying them costs time."""

    def __init__(self, num_envs: int) -> None:
        self.step_infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        """Info of each row's last step. If the step ended an episode, it is the info of that ended episode."""
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        """Info of each row's last reset."""

    def wrap_step(self, row: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that calls the `step` of one environment and records its info."""

        def recording_step(action: object) -> Any:
            answer = step(action)
            self.step_infos[row] = copy_arrays(dict(answer[4]))  # the environment may write into its arrays again
            return answer

        return recording_step

    def wrap_reset(self, row: int, reset: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls the `reset` of one environment and records its info."""

        def recording_reset(**options: object) -> Any:
            answer = reset(**options)
            self.reset_infos[row] = copy_arrays(dict(answer[1]))
            return answer

        return recording_reset


class VectorBoundary(ABC):
    """Base class of the vectors of `num_envs` environments that step by the one transition model.

    Attributes:
        num_envs: Number of rows B.
        observation_space, action_space: Spaces of a single environment.
        backend: Name of the library or code that runs the environments: "light_sync", "workers", "gymnasium_sync",
            "gymnasium_async", "native", "envpool", "vec_env" or "tensor".
        autoreset_mode: How the back end resets finished rows: "SAME_STEP", "NEXT_STEP" or "DISABLED".
        infos: The newest infos of all rows, after `keep_infos`; None before.
        has_invalid_rows: True if `StepResult.valid` may be something other than None. Collectors of a back end without
            invalid rows skip the masking.
        single_env_spec: gymnasium's `EnvSpec` of a single environment, or None.
    """

    num_envs: int
    observation_space: spaces.Space
    action_space: spaces.Space
    backend: str
    autoreset_mode: str
    has_invalid_rows: bool = False
    single_env_spec: EnvSpec | None = None
    infos: RowInfos | None = None
    _closed = False
    _started = False
    _result: StepResult
    _form: ObservationForm
    _watch: BoundsWatch | None = None
    """Compares observations with the bounds of their space until the first episodes are over; None afterwards.
    Comparing in every step would cost time, and an environment that breaks its bounds nearly always does so early."""
    _failure = ""
    """Reason why the worker processes were ended, for the error of the next call. Empty: there was no failure."""

    @property
    def ended_infos(self) -> Mapping[int, dict[str, Any]]:
        """Non-empty infos of the last step of the episodes that ended in the newest step, by row."""
        return self._result.infos or {}

    @property
    def num_restarts(self) -> int:
        """Number of environments that were restarted. 0 for back ends that never restart one."""
        return 0

    @property
    def max_episode_steps(self) -> int | None:
        """Maximum length of an episode as registered with gymnasium; None if there is no limit."""
        if self.single_env_spec is None:
            return None
        return self.single_env_spec.max_episode_steps

    def reset(self, seeds: list[int] | None = None) -> Tree:
        """Begin a new episode in every row.

        Args:
            seeds: One seed for each row; None continues with the random generators as they are. A native vector
                environment has one generator, which takes the first seed.

        Returns:
            Tree of arrays [B, ...], the first observations. Later steps write into the same arrays.

        Raises:
            EnvironmentStepError: An environment raised.
            RuntimeError: The boundary is closed.
        """
        self.check_open()
        self._check_number("reset", "seeds", seeds, self.num_envs)
        if seeds is not None:
            seeds = [int(seed) for seed in seeds]  # gymnasium refuses numpy's integers

        obs = self._reset(seeds)
        self._started = True
        if self._watch is not None:
            self._compare_bounds(obs, during="reset")
        return obs

    @abstractmethod
    def _reset(self, seeds: list[int] | None) -> Tree:
        """Reset every row and return the first observations."""

    @abstractmethod
    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row and begin a new episode where one ended.

        Args:
            actions: Tree of arrays [B, ...], with one action of `action_space` in each row.

        Raises:
            EnvironmentStepError: An environment raised. The error names its row and last action, and chains the
                original exception.
            RuntimeError: The boundary is closed.
        """

    def get_state(self) -> dict[str, Any] | None:
        """Return the state that continues bit for bit, or None if an environment cannot give its state."""
        states = self._env_states() if self._started else []
        if not states or not all(isinstance(state, dict) for state in states):
            return None
        return {"envs": states, "obs": map_tree(np.array, self._result.obs)}

    def _env_states(self) -> list[Any]:
        """Return the state of each environment (see `lockstep.envs.env_state`); empty if they have none to give."""
        return []

    def set_state(self, state: dict[str, Any]) -> Tree:
        """Restore a state that `get_state` returned, and return the current observations, a tree [B, ...].

        Raises:
            ValueError: The environments cannot be put into a state, or the state is from other environments.
        """
        raise ValueError(
            f"the {self.backend!r} environments cannot be put into a stored state (get_state gives None for them): "
            "reset them; the episode that was running ends at the checkpoint."
        )

    def single_envs(self) -> list[Any]:
        """Return the environment of each row, or this vector B times if they are not in this process one by one."""
        return [self] * self.num_envs

    def take_log(self) -> dict[str, tuple[float, int]]:
        """Return the values that the environments logged in steps since the last call, by name: their mean and their
        number."""
        return {}

    @abstractmethod
    def keep_infos(self) -> None:
        """Record the infos of all rows in `infos` from the next reset or step on."""

    def render(self, row: int = 0) -> Any:
        """Return a frame of one row in its `render_mode`; None if the back end cannot render."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release processes, windows and memory. A second call does nothing."""

    def check_open(self) -> None:
        """Raise `RuntimeError` after `close`, and `EnvironmentStepError` after a failure that ended the workers."""
        if self._failure:
            raise EnvironmentStepError(f"the workers were ended ({self._failure}); build the vector again.")
        if self._closed:
            raise RuntimeError(f"{self!r} is closed; make a new one, and a new collector with it")

    def __enter__(self) -> VectorBoundary:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _set_spaces(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Set the spaces of a single environment. `ValueError` for a space that is not stored in fixed-size arrays."""
        check_supported(observation_space, "the observation space")
        check_supported(action_space, "the action space")
        self.observation_space = observation_space
        self.action_space = action_space
        self._form = ObservationForm.of(observation_space)
        watch = BoundsWatch(observation_space, self.num_envs)
        self._watch = None if watch.is_over else watch

    def _watch_step(self, result: StepResult) -> None:
        """Compare the observations of a step with their bounds. Called only while `_watch` is not None."""
        if result.final_obs is not None:
            rows, final = result.final_obs
            self._compare_bounds(final, rows, len(rows))
        self._compare_bounds(result.obs)

    def _compare_bounds(self, obs: Tree, rows: Tree = None, num_ended: int = 0, during: str = "step") -> None:
        """Compare the observations `[k, ...]` of these rows with their bounds, and end the watch when it is over."""
        watch = self._watch
        if watch is None:
            return
        try:
            watch.look(obs, num_ended, rows)
        except OutsideError as error:
            raise step_error(error, backend=self.backend, env_index=error.row, during=during) from error
        if watch.is_over:
            self._watch = None

    def _check_started(self) -> None:
        """Raise an error if the boundary is closed or has not been reset."""
        self.check_open()
        if not self._started:
            raise ValueError("step was called before reset: call reset(seeds) once, then step.")

    def _check_number(self, method: str, name: str, values: Sized | None, number: int) -> None:
        """Check that the argument `name` of a method has `number` values, or is None."""
        if values is not None and len(values) != number:
            raise ValueError(f"{method} got {len(values)} {name} for {number} environments; give one for each row.")

    def __repr__(self) -> str:
        name = "" if self.single_env_spec is None else f"{self.single_env_spec.id}, "
        return f"{type(self).__name__}({name}num_envs={self.num_envs}, {self.backend}, {self.autoreset_mode})"
