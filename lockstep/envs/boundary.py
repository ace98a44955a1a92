"""One transition model over every vector back end and every autoreset mode.

gymnasium knows three ways to end an episode in a vector (NEXT_STEP, SAME_STEP, DISABLED), and each tells the last
observation in another place. Behind this boundary there is one: for each row a real
`(obs, action, reward, next_obs, terminated, truncated)`, with

    next_obs[b] = final_obs[b] where the episode of row b ended in this step, else obs[b].
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
    """Return the space that an environment has under this name; `ValueError` where it has none."""
    space = getattr(env, name, None)
    if isinstance(space, spaces.Space):
        return space
    example = "Discrete(2)" if "action" in name else "Box(-1.0, 1.0, (4,))"
    raise ValueError(
        f"{name} of {env!r} is {space!r}; it must be a gymnasium space. Set it in the environment's __init__, e.g. "
        f"self.{name} = gymnasium.spaces.{example}."
    )


class StepResult:
    """The outcome of one vector step. Each boundary reuses one object: copy what must outlive the next step.

    Attributes:
        obs: tree of arrays [B, ...], the observation to act on next (the first of the new episode where one ended, or
            still the last of the old one where the reset comes as an invalid row in the next step).
        rewards: float [B].
        terminateds: bool [B], the task ended: nothing follows, bootstrap with 0.
        truncateds: bool [B], the episode was cut: bootstrap with the value of the final observation.
        valid: None (every row is a transition), or bool [B]: False marks a row that only reset its environment; its
            action was ignored and it must not be stored.
        final_obs: None, or `(rows int64 [k], tree [k, ...])`: the true last observations of the episodes that ended in
            this step, in ascending order of rows.
        lost: None, or int64 [k]: rows whose environment was started again in this step. The episode under way ended
            without a last observation, the row is not valid, and `obs` has the first observation of a new one.
        infos: None, or `{row: info}` with the non-empty infos of the last step of episodes that ended.
        any_done: True where at least one episode ended (or was lost).
    """

    __slots__ = ("any_done", "final_obs", "infos", "lost", "obs", "rewards", "terminateds", "truncateds", "valid")

    def __init__(self, obs: Tree, num_envs: int) -> None:
        self.obs = obs
        self.rewards: npt.NDArray[Any] = np.zeros(num_envs)
        self.terminateds: Flags = np.zeros(num_envs, np.bool_)
        self.truncateds: Flags = np.zeros(num_envs, np.bool_)
        self.forget_endings()

    def forget_endings(self) -> None:
        """No episode ended, and every row is a transition."""
        self.valid: Flags | None = None
        self.final_obs: tuple[npt.NDArray[np.int64], Tree] | None = None
        self.lost: npt.NDArray[np.int64] | None = None
        self.infos: Mapping[int, dict[str, Any]] | None = None
        self.any_done = False

    def copy(self) -> StepResult:
        """Return one with arrays of its own, which later steps leave alone."""
        twin = StepResult(copy_arrays(self.obs), 0)
        twin.rewards, twin.terminateds = self.rewards.copy(), self.terminateds.copy()
        twin.truncateds, twin.valid = self.truncateds.copy(), copy_arrays(self.valid)
        twin.final_obs, twin.lost = copy_arrays(self.final_obs), copy_arrays(self.lost)
        twin.infos, twin.any_done = copy_arrays(self.infos), self.any_done
        return twin


class EnvObject(Protocol):
    """Environment, or vector of environments, in any of the forms that `make_vector` takes."""

    @property
    def reset(self) -> Callable[..., Any]:
        """Begin episodes."""

    @property
    def step(self) -> Callable[..., Any]:
        """Take an action."""


EnvLike = str | EnvSpec | Callable[..., Any] | EnvObject
"""An id, a spec, a function or class that makes one environment, an environment, or a vector of them."""


class RowInfos:
    """The newest infos of each row, of environments that were asked to keep them."""

    def __init__(self, num_envs: int) -> None:
        self.of_step: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        """of the last step; where an episode ended, that of its last one"""
        self.of_reset: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        """of the last reset"""

    def watched_step(self, row: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the `step` of one environment, whose infos are kept."""

        def kept(action: object) -> Any:
            outcome = step(action)
            self.of_step[row] = copy_arrays(dict(outcome[4]))  # the environment may write into its arrays again
            return outcome

        return kept

    def watched_reset(self, row: int, reset: Callable[..., Any]) -> Callable[..., Any]:
        """Return the `reset` of one environment, whose infos are kept."""

        def kept(**options: object) -> Any:
            outcome = reset(**options)
            self.of_reset[row] = copy_arrays(dict(outcome[1]))
            return outcome

        return kept


class VectorBoundary(ABC):
    """A vector of `num_envs` environments behind the one transition model.

    Attributes:
        num_envs: number of rows B.
        observation_space, action_space: the spaces of a single environment.
        backend: what runs the environments: "light_sync", "workers", "gymnasium_sync", "gymnasium_async", "native" or
            "envpool".
        autoreset_mode: how the back end resets: "SAME_STEP", "NEXT_STEP" or "DISABLED".
        infos: the newest infos of all rows, after `keep_infos`; None before.
        has_invalid_rows: True where `StepResult.valid` may be something other than None.
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
    """compares observations with their bounds, until the first episodes are over"""
    _failure = ""
    """what made the workers end, where the back end has any"""

    @property
    def num_restarts(self) -> int:
        """Environments that were started again, where the back end does so."""
        return 0

    @property
    def max_episode_steps(self) -> int | None:
        """The limit of an episode's length that the environment is registered with; None where it has none."""
        return None if self.single_env_spec is None else self.single_env_spec.max_episode_steps

    def reset(self, seeds: list[int] | None = None) -> Tree:
        """Begin a new episode in every row. `RuntimeError` once closed.

        Args:
            seeds: one seed for each row; None goes on with the random generators as they are. A native vector
                environment has one generator: it takes the first seed.

        Returns:
            tree of arrays [B, ...], the first observations. Reused by later steps.
        """
        self.check_open()
        self._check_number("reset", "seeds", seeds, self.num_envs)
        obs = self._reset(None if seeds is None else [int(seed) for seed in seeds])
        self._started = True
        if self._watch is not None:
            self._compare_bounds(obs, during="reset")
        return obs

    @abstractmethod
    def _reset(self, seeds: list[int] | None) -> Tree:
        """Reset every row; return the first observations."""

    @abstractmethod
    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row and begin a new episode where one ended.

        Args:
            actions: tree of arrays [B, ...] for the single action space.

        Raises:
            EnvironmentStepError: an environment raised; names its row and last action, chains the original.
            RuntimeError: the boundary is closed.
        """

    def get_state(self) -> dict[str, Any] | None:
        """Return everything needed to continue bit for bit, or None where the environments cannot tell it."""
        states = self._env_states() if self._started else []
        if not states or not all(isinstance(state, dict) for state in states):
            return None
        return {"envs": states, "obs": map_tree(np.array, self._result.obs)}

    def _env_states(self) -> list[Any]:
        """Return the state of every environment (see `lockstep.envs.env_state`), or none."""
        return []

    def set_state(self, state: dict[str, Any]) -> Tree:
        """Continue from what `get_state` gave; return the current observations, a tree [B, ...].

        Raises:
            ValueError: the environments cannot be put into a state, or it is of other environments.
        """
        raise ValueError(
            f"the {self.backend!r} environments cannot be put into a stored state (get_state gives None for them): "
            "reset them; the episode that was running ends at the checkpoint."
        )

    def single_envs(self) -> list[Any]:
        """Return the environment of each row, where it is in this process, else the vector for each of them."""
        return list(getattr(self, "envs", None) or [self] * self.num_envs)

    @abstractmethod
    def keep_infos(self) -> None:
        """Keep the infos of all rows in `infos` from the next reset or step on."""

    def render(self, row: int = 0) -> Any:
        """Return the frame of one row, as its `render_mode` says; None where the back end renders nothing."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release processes, windows and memory; a second call does nothing."""

    def check_open(self) -> None:
        """Raise `RuntimeError` after `close`, `EnvironmentStepError` after a failure that ended the workers."""
        if self._failure:
            raise EnvironmentStepError(f"the workers were ended ({self._failure}); build the vector again.")
        if self._closed:
            raise RuntimeError(f"{self!r} is closed; make a new one, and a new collector with it")

    def __enter__(self) -> VectorBoundary:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take_spaces(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """Take the spaces of a single environment; `ValueError` for one that has no array of fixed size."""
        check_supported(observation_space, "the observation space")
        check_supported(action_space, "the action space")
        self.observation_space, self.action_space = observation_space, action_space
        self._form = ObservationForm.of(observation_space)
        watch = BoundsWatch(observation_space, self.num_envs)
        self._watch = None if watch.is_over else watch

    def _watch_step(self, result: StepResult) -> None:
        """Compare the observations of a step with their bounds; called while there is a `_watch`."""
        if result.final_obs is not None:
            rows, final = result.final_obs
            self._compare_bounds(final, rows, len(rows))
        self._compare_bounds(result.obs)

    def _compare_bounds(self, obs: Tree, rows: Tree = None, num_ended: int = 0, during: str = "step") -> None:
        """Compare observations `[k, ...]` of these rows with their bounds, and end the watch when it is over."""
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
        self.check_open()
        if not self._started:
            raise ValueError("step was called before reset: call reset(seeds) once, then step.")

    def _check_number(self, method: str, name: str, values: Sized | None, number: int) -> None:
        if values is not None and len(values) != number:
            raise ValueError(f"{method} got {len(values)} {name} for {number} environments; give one for each row.")

    def __repr__(self) -> str:
        name = "" if self.single_env_spec is None else f"{self.single_env_spec.id}, "
        return f"{type(self).__name__}({name}num_envs={self.num_envs}, {self.backend}, {self.autoreset_mode})"
