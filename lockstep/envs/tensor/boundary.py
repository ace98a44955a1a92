"""Boundary over tensor environments, for collectors and evaluation on the host, and single tensor environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from lockstep.data.trees import Tree, map_pair, map_tree, rows_of
from lockstep.data.values import as_rewards
from lockstep.envs.boundary import RowInfos, StepResult, VectorBoundary
from lockstep.envs.errors import step_error
from lockstep.envs.tensor.base import TensorVecEnv


class TensorBoundary(VectorBoundary):
    """Boundary over a `TensorVecEnv`. Each step copies the actions to its device, and the results back.

    A `TensorCollector` steps `tensors` itself, without the copies. `final_observations` says what replaces the last
    observation of an episode if the environments do not give it.

    Args:
        tensors: The environments.
    """

    backend = "tensor"
    autoreset_mode = "SAME_STEP"

    def __init__(self, tensors: TensorVecEnv) -> None:
        tensors.check_action_space()
        self.tensors = tensors
        self.num_envs = tensors.num_envs
        self._set_spaces(tensors.single_observation_space, tensors.single_action_space)
        self._result = StepResult(None, self.num_envs)
        self.infos = RowInfos(self.num_envs)  # always empty

    @property
    def max_episode_steps(self) -> int | None:
        """Maximum length of an episode; None if there is no limit."""
        return self.tensors.max_episode_length

    def _reset(self, seeds: list[int] | None) -> Tree:
        obs = self.tensors.reset(None if seeds is None else seeds[0])  # one generator for all rows
        self._result.obs = self._on_host(obs)
        return self._result.obs

    def _on_host(self, obs: Tree) -> Tree:
        """Return observations `[B, ...]` as arrays with the dtypes of the space."""
        return self._form.hold(map_tree(_as_array, obs), (self.num_envs,))

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        self._check_started()
        result = self._result
        result.clear_endings()
        # `torch.tensor` copies, on the CPU as well: the environments may store or change the actions.
        sent = torch.tensor(np.ascontiguousarray(actions), device=self.tensors.device)
        acted_on = self.tensors.observations_before_step()
        try:
            obs, rewards, dones, extras = self.tensors.step(sent)
        except SystemExit as error:  # see `RAISED`
            raise step_error(error, backend=self.backend, env_index=None, action=actions, during="step") from error

        self.tensors.check_final_observations(obs, dones, extras)
        result.obs = self._on_host(obs)
        result.rewards = as_rewards(rewards.cpu().numpy(), self.num_envs)
        done = dones.cpu().numpy()
        result.truncateds[:] = done & extras["time_outs"].cpu().numpy()
        result.terminateds[:] = done & ~result.truncateds
        if done.any():
            rows = np.flatnonzero(done)
            final = final_observations(acted_on, obs, dones, extras)
            result.final_obs = (rows, rows_of(self._on_host(final), rows))
            result.any_done = True
        if self._watch is not None:
            self._watch_step(result)
        return result

    def get_state(self) -> dict[str, Any] | None:
        state = self.tensors.get_state() if self._started else None
        return None if state is None else {"tensors": state}

    def set_state(self, state: dict[str, Any]) -> Tree:
        self.tensors.set_state(state["tensors"])
        self._started = True
        self._result.obs = self._on_host(self.tensors.get_observations())
        return self._result.obs

    @property
    def observation_groups(self) -> dict[str, list[str]]:
        """Entries of the observations by part of an algorithm, as the environments propose them."""
        groups: dict[str, list[str]] = getattr(self.tensors, "observation_groups", {})
        return groups

    def take_log(self) -> dict[str, tuple[float, int]]:
        return self.tensors.take_log()

    def keep_infos(self) -> None:
        """Do nothing: tensor environments have no infos."""

    def close(self) -> None:
        """Refuse further steps. The memory is freed with the object."""
        self._closed = True


class SingleTensorEnv(gym.Env[Any, Any]):
    """A single tensor environment as a `gymnasium.Env`, which `gymnasium.make("tensor/CartPole-v1")` returns."""

    def __init__(self, tensors: TensorVecEnv) -> None:
        tensors.check_action_space()
        self.tensors = tensors
        self.observation_space = tensors.single_observation_space
        self.action_space = tensors.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        return _first_row(self.tensors.reset(seed)), {}

    def step(self, action: Tree) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """Take a step. At the end of an episode, `tensors` have begun another one; `reset` begins one more."""
        sent = torch.as_tensor(np.asarray(action)[None], device=self.tensors.device)
        acted_on = self.tensors.observations_before_step()
        obs, rewards, dones, extras = self.tensors.step(sent)
        self.tensors.check_final_observations(obs, dones, extras)
        truncated = bool(extras["time_outs"][0])
        terminated = bool(dones[0]) and not truncated
        final = final_observations(acted_on, obs, dones, extras)
        return _first_row(final), float(rewards[0]), terminated, truncated, {}


def _as_array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _first_row(obs: Tree) -> Tree:
    """Return the observation of the first environment, as arrays."""
    return rows_of(map_tree(_as_array, obs), 0)


def final_observations(acted_on: Tree | None, obs: Tree, dones: Tensor, extras: Mapping[str, Tree]) -> Tree:
    """Return the observations `[B, ...]` that a step led to, before ended episodes were reset.

    If the environments do not give them, the last observation that was acted on replaces the final one of an ended
    episode. rsl_rl values truncated episodes in the same way.

    Args:
        acted_on: Observations `[B, ...]` before the step, which the step must not have changed; None if `extras` has
            the final ones.
        obs: Observations `[B, ...]` that the step returned.
        dones: Bool [B] that the step returned, True where an episode ended.
        extras: Dict that the step returned.
    """
    if "final_obs" in extras:
        return extras["final_obs"]
    assert acted_on is not None

    def before_reset(before: Tensor, after: Tensor) -> Tensor:
        return torch.where(dones.view(-1, *[1] * (after.ndim - 1)), before, after)

    return map_pair(before_reset, acted_on, obs)
