"""Tensor environments as arrays, for whatever collects and evaluates on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from lockstep.data.trees import Tree
from lockstep.data.values import as_rewards
from lockstep.envs.boundary import RowInfos, StepResult, VectorBoundary
from lockstep.envs.errors import step_error
from lockstep.envs.tensor.base import TensorVecEnv


class TensorBoundary(VectorBoundary):
    """Puts a `TensorVecEnv` behind the boundary: each step copies actions to its device and the outcome back.

    A `TensorCollector` steps `tensors` itself, without the copies. Where environments do not tell the last observation
    of an episode see `arrived_at`.

    Args:
        tensors: the environments.
    """

    backend, autoreset_mode = "tensor", "SAME_STEP"

    def __init__(self, tensors: TensorVecEnv) -> None:
        self.tensors, self.num_envs = tensors, tensors.num_envs
        self._set_spaces(tensors.single_observation_space, tensors.single_action_space)
        self._result, self.infos = StepResult(None, self.num_envs), RowInfos(self.num_envs)

    @property
    def max_episode_steps(self) -> int | None:
        """The limit of an episode's length; None where there is none."""
        return self.tensors.max_episode_length

    def _reset(self, seeds: list[int] | None) -> np.ndarray:
        obs = self.tensors.reset(None if seeds is None else seeds[0])
        self._result.obs = self._on_host(obs)
        return self._result.obs

    def _on_host(self, obs: Tensor) -> np.ndarray:
        """Return observations `[B, ...]` as an array of the space's dtype."""
        held: np.ndarray = self._form.hold(obs.cpu().numpy(), (self.num_envs,))
        return held

    def step(self, actions: Tree) -> StepResult:
        """Take one action in every row; see `VectorBoundary.step`."""
        self._check_started()
        result = self._result
        result.clear_endings()
        sent = torch.tensor(np.ascontiguousarray(actions), device=self.tensors.device)  # a copy, on the CPU too
        acted_on = None if self.tensors.gives_final_obs else self.tensors.get_observations()
        try:
            obs, rewards, dones, extras = self.tensors.step(sent)
        except SystemExit as error:  # it would end a run as if all had gone well
            raise step_error(error, backend=self.backend, env_index=None, action=actions, during="step") from error
        result.obs, result.rewards = self._on_host(obs), as_rewards(rewards.cpu().numpy(), self.num_envs)
        ended = dones.cpu().numpy()
        result.truncateds[:] = ended & extras["time_outs"].cpu().numpy()
        result.terminateds[:] = ended & ~result.truncateds
        if ended.any():
            rows = np.flatnonzero(ended)
            final = arrived_at(acted_on, obs, dones, extras)
            result.final_obs, result.any_done = (rows, self._on_host(final)[rows]), True
        if self._watch is not None:
            self._watch_step(result)
        return result

    def get_state(self) -> dict[str, Any] | None:
        state = self.tensors.get_state() if self._started else None
        return None if state is None else {"tensors": state}

    def set_state(self, state: dict[str, Any]) -> np.ndarray:
        self.tensors.set_state(state["tensors"])
        self._started = True
        self._result.obs = self._on_host(self.tensors.get_observations())
        return self._result.obs

    def keep_infos(self) -> None:
        """Do nothing: there are none."""

    def close(self) -> None:
        """Step no more; the memory goes with the object."""
        self._closed = True


class SingleTensorEnv(gym.Env[Any, Any]):
    """One tensor environment as gymnasium's `Env`: what an id such as `tensor/CartPole-v1` makes alone."""

    def __init__(self, tensors: TensorVecEnv) -> None:
        self.tensors = tensors
        self.observation_space, self.action_space = tensors.single_observation_space, tensors.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        return self.tensors.reset(seed).cpu().numpy()[0], {}

    def step(self, action: Tree) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step. After the end of an episode another one has begun already, whatever `reset` is called for."""
        sent = torch.as_tensor(np.asarray(action)[None], device=self.tensors.device)
        acted_on = None if self.tensors.gives_final_obs else self.tensors.get_observations()
        obs, rewards, dones, extras = self.tensors.step(sent)
        truncated = bool(extras["time_outs"][0])
        final = arrived_at(acted_on, obs, dones, extras)
        return final.cpu().numpy()[0], float(rewards[0]), bool(dones[0]) and not truncated, truncated, {}


def arrived_at(acted_on: Tensor | None, obs: Tensor, dones: Tensor, extras: Mapping[str, Any]) -> Tensor:
    """Return the observations `[B, ...]` at which a step arrived, before ended episodes were reset.

    Where the environments do not tell them, an episode ends where it was acted on last (so does rsl_rl value it).

    Args:
        acted_on, obs: `[B, ...]`, before the step (None where `extras` tell enough) and as it returned them.
        dones, extras: as it returned them.
    """
    if "final_obs" in extras:
        final: Tensor = extras["final_obs"]
        return final
    assert acted_on is not None
    return torch.where(dones.view(-1, *[1] * (obs.ndim - 1)), acted_on, obs)
