"""State that acting carries from step to step: `RecurrentStates`, and `ExplorationState` of correlated noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import Tree
from lockstep.envs import StepResult
from lockstep.modules import Exploration
from lockstep.rollout.protocols import ActingPart


class RecurrentStates:
    """Recurrent states of `num_envs` environments. The state of an environment is reset when an episode begins.

    `act` replaces the policy's `act`, and `wrap_step` wraps the environments' `step`. The rollout store records
    at which rows a state was reset, so that the learner resets the states at exactly the same rows.

    Args:
        part: The policy's acting part.
        num_envs: Number of environments.
    """

    def __init__(self, part: ActingPart, num_envs: int) -> None:
        self.part = part
        self.num_envs = num_envs
        self.state = part.get_initial_state(num_envs)
        """`{name: [B, ...]}`, the recurrent state before the next step."""
        self._store: RolloutStore | None = None
        """Store that gets the state before each row; None if no store asks for it."""
        self._begins = np.ones(num_envs, bool)
        """`[B]` whether the next row of each environment begins an episode."""
        self._starts: list[np.ndarray] = []
        """`_begins` at each vector step of the present collect."""

    def forget(self) -> None:
        """Mark that the next row begins an episode in all environments."""
        self._begins[:] = True

    def begin_collect(self, store: RolloutStore | None) -> None:
        """Begin a collect, and write the state before its first row into an empty store."""
        self._starts = []
        self._store = None
        if store is not None and store.keeps_states:
            self._store = store
        if store is not None and store.size == 0:
            self._reset_begun_rows()
            store.state_in = {name: leaf.copy() for name, leaf in self.state.items()}

    def end_collect(self, store: RolloutStore | None) -> None:
        """Write into the store which rows began an episode. A collect that failed is not written."""
        if store is not None and self._starts:
            store.starts.append(np.stack(self._starts))
        self._starts = []

    def act(self, obs: Tree, noise: np.ndarray | None) -> np.ndarray:
        """Return the policy's actions, and update the recurrent states."""
        self._reset_begun_rows()
        self._starts.append(self._begins.copy())
        if self._store is not None:
            # Without a copy: `act_with_state` returns new arrays each time.
            self._store.states.append(dict(self.state))
        actions, self.state = self.part.act_with_state(obs, noise, self.state)
        return actions

    def wrap_step(self, step_env: Callable[[Any], StepResult]) -> Callable[[Any], StepResult]:
        """Return a function that calls `step_env` and notes which environments begin an episode with the next row."""

        def step(actions: Tree) -> StepResult:
            result = step_env(actions)
            np.logical_or(result.terminateds, result.truncateds, out=self._begins)
            if result.valid is not None:
                # A row that only reset its environment is followed by the first row of the episode. The policy has
                # "acted" in it, on the last observation of the old episode, so the state must be reset once more.
                self._begins |= ~result.valid
            return result

        return step

    def _reset_begun_rows(self) -> None:
        """Reset the states of the environments whose next row begins an episode."""
        rows = self._begins
        if rows.any():
            for name, initial in self.part.get_initial_state(self.num_envs).items():
                self.state[name][rows] = initial[rows]

    def get_state(self) -> dict[str, Any]:
        """Return the recurrent states, and which environments are about to begin an episode."""
        return {"state": {name: leaf.copy() for name, leaf in self.state.items()}, "begins": self._begins.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        self.state = {name: np.array(leaf) for name, leaf in state["state"].items()}
        self._begins[:] = state["begins"]


class ExplorationState:
    """State of correlated exploration noise in `num_envs` environments, reset when an episode begins.

    `wrap_act` wraps a policy's `act`, and `wrap_step` the environments' `step`.

    Args:
        exploration: Exploration whose noise depends on earlier steps (Ornstein-Uhlenbeck noise, gSDE).
        num_envs: Number of environments.
        generators: Function that returns the random generator of an environment, by its index.
    """

    def __init__(
        self, exploration: Exploration, num_envs: int, generators: Callable[[int], np.random.Generator]
    ) -> None:
        self.exploration = exploration
        self.generators = generators
        self.state = exploration.initial_state(num_envs)
        self._begins = np.ones(num_envs, bool)
        """`[B]` whether the next row of each environment begins an episode."""

    def forget(self) -> None:
        """Mark that the next row begins an episode in all environments."""
        self._begins[:] = True

    def wrap_act(self, act: Callable[[Any, Any], np.ndarray]) -> Callable[[Any, Any], np.ndarray]:
        """Return a function that turns independent random numbers into correlated noise, and calls `act` with it."""

        def explore(obs: Tree, noise: np.ndarray | None) -> np.ndarray:
            if noise is None:
                return act(obs, None)
            noise = self.exploration.advance(noise, self.state, self._begins, self.generators)
            self._begins[:] = False
            return act(obs, noise)

        return explore

    def wrap_step(self, step_env: Callable[[Any], StepResult]) -> Callable[[Any], StepResult]:
        """Return a function that calls `step_env` and notes which environments begin an episode with the next row."""

        def step(actions: Tree) -> StepResult:
            result = step_env(actions)
            # `|=`, not `=`: without noise `explore` does not reset the flags, and a beginning must not be forgotten.
            self._begins |= result.terminateds | result.truncateds
            if result.valid is not None:
                self._begins |= ~result.valid
            return result

        return step

    def get_state(self) -> dict[str, Any]:
        """Return the state of the noise, and which environments are about to begin an episode."""
        return {"state": {name: leaf.copy() for name, leaf in self.state.items()}, "begins": self._begins.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned."""
        self.state = {name: np.array(leaf) for name, leaf in state["state"].items()}
        self._begins[:] = state["begins"]
