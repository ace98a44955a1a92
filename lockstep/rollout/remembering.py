"""`Memory` and `Exploring`: state that acting carries from step to step, recurrent states and correlated noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.envs import StepResult
from lockstep.modules import Exploration
from lockstep.rollout.protocols import ActingPart


class Memory:
    """The recurrent states of `num_envs` environments. The state of an environment is reset when an episode begins.

    It replaces the policy's `act` and wraps the environments' `step`. It notes for the rollout store which rows began
    an episode, so that the learner resets the states at exactly the same rows.
    """

    def __init__(self, part: ActingPart, num_envs: int) -> None:
        self.part, self.num_envs = part, num_envs
        self.state = part.get_initial_state(num_envs)
        self._store: RolloutStore | None = None
        """store that gets the state before each row; None: no store needs it"""
        self._begins = np.ones(num_envs, bool)
        self._starts: list[np.ndarray] = []

    def forget(self) -> None:
        """Begin new episodes in all environments."""
        self._begins[:] = True

    def begin_collect(self, store: RolloutStore | None) -> None:
        """Prepare a collect: write the state before the first row into an empty store."""
        self._starts = []
        self._store = store if store is not None and store.keeps_states else None
        if store is not None and store.size == 0:
            self._forget_where_episodes_begin()
            store.state_in = {name: leaf.copy() for name, leaf in self.state.items()}

    def end_collect(self, store: RolloutStore | None) -> None:
        """Write into the store where episodes began. Called after a collect that succeeded."""
        if store is not None and self._starts:
            store.starts.append(np.stack(self._starts))
        self._starts = []

    def act(self, obs: Any, noise: np.ndarray | None) -> np.ndarray:
        """Return the policy's actions, and update the state of each environment."""
        self._forget_where_episodes_begin()
        self._starts.append(self._begins.copy())
        if self._store is not None:  # what acts gives new arrays each time
            self._store.states.append(dict(self.state))
        actions, self.state = self.part.act_with_state(obs, noise, self.state)
        return actions

    def watched(self, step_env: Callable[[Any], StepResult]) -> Callable[[Any], StepResult]:
        """Return `step_env`, watched for the ends of episodes."""

        def step(actions: Any) -> StepResult:
            result = step_env(actions)
            np.logical_or(result.terminateds, result.truncateds, out=self._begins)
            if result.valid is not None:  # a row that only reset its environment: the episode begins after it
                self._begins |= ~result.valid
            return result

        return step

    def _forget_where_episodes_begin(self) -> None:
        rows = self._begins
        if rows.any():
            for name, initial in self.part.get_initial_state(self.num_envs).items():
                self.state[name][rows] = initial[rows]

    def get_state(self) -> dict[str, Any]:
        """Return the recurrent state, and which environments are about to forget it."""
        return {"state": {name: leaf.copy() for name, leaf in self.state.items()}, "begins": self._begins.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self.state = {name: np.array(leaf) for name, leaf in state["state"].items()}
        self._begins[:] = state["begins"]


class Exploring:
    """The state of an exploration in `num_envs` environments, which is reset when an episode begins.

    It wraps a policy's `act` and the environments' `step`.
    """

    def __init__(
        self, exploration: Exploration, num_envs: int, generators: Callable[[int], np.random.Generator]
    ) -> None:
        self.exploration, self.generators = exploration, generators
        self.state = exploration.initial_state(num_envs)
        self._begins = np.ones(num_envs, bool)

    def forget(self) -> None:
        """Begin new episodes in all environments."""
        self._begins[:] = True

    def around(self, act: Callable[[Any, Any], np.ndarray]) -> Callable[[Any, Any], np.ndarray]:
        """Return a function that calls `act` with the noise that the exploration computes from random numbers."""

        def explore(obs: Any, noise: np.ndarray | None) -> np.ndarray:
            if noise is None:
                return act(obs, None)
            noise = self.exploration.advance(noise, self.state, self._begins, self.generators)
            self._begins[:] = False
            return act(obs, noise)

        return explore

    def watched(self, step_env: Callable[[Any], StepResult]) -> Callable[[Any], StepResult]:
        """Return `step_env`, watched for the ends of episodes."""

        def step(actions: Any) -> StepResult:
            result = step_env(actions)
            self._begins |= result.terminateds | result.truncateds
            if result.valid is not None:
                self._begins |= ~result.valid
            return result

        return step

    def get_state(self) -> dict[str, Any]:
        """Return what is remembered, and which environments are about to begin an episode."""
        return {"state": {name: leaf.copy() for name, leaf in self.state.items()}, "begins": self._begins.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self.state = {name: np.array(leaf) for name, leaf in state["state"].items()}
        self._begins[:] = state["begins"]
