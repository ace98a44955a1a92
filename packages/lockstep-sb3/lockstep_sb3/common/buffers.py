"""Replay buffers with the interface of Stable-Baselines3, over those of Lockstep, and rollout buffers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data import Columns, map_tree
from lockstep.replay import Hindsight
from lockstep.replay import ReplayBuffer as LockstepBuffer
from lockstep_sb3.common.type_aliases import (
    DictReplayBufferSamples,
    DictRolloutBufferSamples,
    ReplayBufferSamples,
    RolloutBufferSamples,
)
from lockstep_sb3.common.utils import get_device


class BaseBuffer(ABC):
    """Base class of buffers.

    Args:
        buffer_size: Number of transitions that each environment may store.
        observation_space: Observation space.
        action_space: Action space.
        device: Device of the samples.
        n_envs: Number of environments.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        device: torch.device | str = "auto",
        n_envs: int = 1,
    ) -> None:
        self.buffer_size = buffer_size
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = get_device(device)
        self.n_envs = n_envs

    @abstractmethod
    def size(self) -> int:
        """Return the number of steps that are stored for each environment."""

    @abstractmethod
    def reset(self) -> None:
        """Empty the buffer."""

    def to_torch(self, array: np.ndarray, copy: bool = True) -> Tensor:
        """Return an array as a tensor on the device of the buffer."""
        return torch.tensor(array, device=self.device) if copy else torch.as_tensor(array, device=self.device)


class ReplayBuffer(BaseBuffer):
    """Ring of transitions. `lockstep` is the buffer of Lockstep that stores them.

    Args:
        buffer_size: Number of transitions of all environments together.
        observation_space: Observation space.
        action_space: Action space.
        device: Device of the samples.
        n_envs: Number of environments.
        optimize_memory_usage: Store each observation once.
        handle_timeout_termination: Read from the infos whether an episode was truncated, and so is not terminated.
            False takes every end of an episode for a termination.
        n_steps: Number of rewards that are summed.
        gamma: Discount of these sums.
        hindsight: Relabelling of goals; see `HerReplayBuffer`.
        buffer: Buffer to use. None makes one, whose random numbers are seeded by NumPy's global ones.
    """

    samples_class: ClassVar[type] = ReplayBufferSamples

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        hindsight: Hindsight | None = None,
        buffer: LockstepBuffer | None = None,
    ) -> None:
        super().__init__(max(buffer_size // n_envs, 1), observation_space, action_space, device, n_envs)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        if buffer is None:
            buffer = LockstepBuffer(
                max(buffer_size, n_envs),
                buffer_num=n_envs,
                ignore_obs_next=optimize_memory_usage,
                n_step=n_steps,
                gamma=gamma,
                seed=int(np.random.randint(2**31)),  # noqa: NPY002
            )
        buffer.hindsight = hindsight
        self.lockstep = buffer

    @property
    def pos(self) -> int:
        """Position of the next step, from 0 to `buffer_size`."""
        _, written = self.lockstep.rows_since(None)
        return int(written[0]) % self.buffer_size

    @property
    def full(self) -> bool:
        """Whether the next step overwrites the oldest one."""
        return self.size() >= self.buffer_size

    def size(self) -> int:
        return len(self.lockstep) // self.n_envs

    def reset(self) -> None:
        self.lockstep.reset()

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Sequence[Mapping[str, Any]],
    ) -> None:
        """Add a step of all environments.

        Args:
            obs: Observations `[n_envs, ...]`.
            next_obs: Next observations, of episodes that ended the last ones.
            action: Actions as they are learned from: for SAC, TD3 and the like between -1 and 1.
            reward: Rewards `[n_envs]`.
            done: Whether the episodes ended, `[n_envs]`.
            infos: Info of each environment. With `"TimeLimit.truncated"` the episode was truncated.
        """
        is_over = np.asarray(done, np.bool_).reshape(self.n_envs)
        is_truncated = np.zeros(self.n_envs, np.bool_)
        if self.handle_timeout_termination:
            is_truncated[:] = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        is_discrete = isinstance(self.action_space, spaces.Discrete)
        actions = np.asarray(action).reshape((self.n_envs,) if is_discrete else (self.n_envs, -1))
        self.lockstep.add(
            {
                Columns.OBS: self._rows(self.observation_space, obs),
                Columns.NEXT_OBS: self._rows(self.observation_space, next_obs),
                Columns.ACTIONS: actions.astype(np.int64 if is_discrete else self.action_space.dtype),
                Columns.REWARDS: np.asarray(reward, np.float32).reshape(self.n_envs),
                Columns.TERMINATEDS: is_over & ~is_truncated,
                Columns.TRUNCATEDS: is_over & is_truncated,
            }
        )

    def extend(self, *columns: Any) -> None:
        """Add several steps: the arguments of `add`, with a first dimension for the steps."""
        for step in zip(*columns, strict=True):
            self.add(*step)

    def _rows(self, space: Any, obs: Any) -> Any:
        """Return observations as arrays with the shapes and dtypes of a space."""
        if isinstance(space, spaces.Dict):
            return {key: self._rows(part, obs[key]) for key, part in space.spaces.items()}
        return np.asarray(obs, space.dtype).reshape(self.n_envs, *space.shape)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Return random transitions as `ReplayBufferSamples`.

        Args:
            batch_size: Number of transitions.
            env: `VecNormalize` that normalizes them, if they were stored as they are.
        """
        batch = self.lockstep.sample(batch_size)
        obs = batch[Columns.OBS]
        next_obs = batch[Columns.NEXT_OBS]
        rewards = batch[Columns.REWARDS]
        if env is not None:
            obs = env.normalize_obs(obs)
            next_obs = env.normalize_obs(next_obs)
            rewards = env.normalize_reward(rewards).astype(np.float32)
        actions = batch[Columns.ACTIONS]
        discounts = batch.get(Columns.DISCOUNTS)
        return self.samples_class(
            observations=map_tree(self.to_torch, obs),
            actions=self.to_torch(actions.reshape(batch_size, -1)),
            next_observations=map_tree(self.to_torch, next_obs),
            dones=self.to_torch(batch[Columns.TERMINATEDS].astype(np.float32)[:, None]),
            rewards=self.to_torch(rewards[:, None]),
            discounts=None if discounts is None else self.to_torch(discounts.astype(np.float32)[:, None]),
        )


class RolloutBuffer(BaseBuffer):
    """Steps of one rollout, with the advantages of GAE (Schulman et al. 2016). Arrays are `[steps, environments, ...]`.

    Args:
        buffer_size: Number of steps of each environment.
        observation_space: Observation space.
        action_space: Action space.
        device: Device of the samples.
        gae_lambda: Lambda of GAE.
        gamma: Discount.
        n_envs: Number of environments.
    """

    samples_class: ClassVar[type] = RolloutBufferSamples

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        device: torch.device | str = "auto",
        gae_lambda: float = 1.0,
        gamma: float = 0.99,
        n_envs: int = 1,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        self.gae_lambda = gae_lambda
        self.gamma = gamma
        self.reset()

    def reset(self) -> None:
        shape = (self.buffer_size, self.n_envs)
        self.observations: Any = zeros_of(self.observation_space, shape)
        self.actions = np.zeros((*shape, action_size(self.action_space)), self.action_space.dtype)
        self.rewards = np.zeros(shape, np.float32)
        self.episode_starts = np.zeros(shape, np.float32)
        self.values = np.zeros(shape, np.float32)
        self.log_probs = np.zeros(shape, np.float32)
        self.advantages = np.zeros(shape, np.float32)
        self.returns = np.zeros(shape, np.float32)
        self.pos = 0
        self.full = False

    def size(self) -> int:
        return self.buffer_size if self.full else self.pos

    def add(
        self,
        obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        episode_start: np.ndarray,
        value: Tensor,
        log_prob: Tensor,
    ) -> None:
        """Add a step of all environments.

        Args:
            obs: Observations `[n_envs, ...]`.
            action: Actions `[n_envs, ...]`.
            reward: Rewards `[n_envs]`.
            episode_start: Whether the observations are the first of their episodes, `[n_envs]`.
            value: Values of the observations, `[n_envs]` or `[n_envs, 1]`.
            log_prob: Log-probabilities of the actions, `[n_envs]`.

        Raises:
            ValueError: the buffer is full.
        """
        if self.full:
            raise ValueError(f"the rollout has its {self.buffer_size} steps; call reset() before the next one")
        parts = self.observations if isinstance(self.observations, dict) else {"": self.observations}
        for name, column in parts.items():
            column[self.pos] = np.reshape(obs[name] if name else obs, column.shape[1:])
        self.actions[self.pos] = np.reshape(action, self.actions.shape[1:])
        self.rewards[self.pos] = reward
        self.episode_starts[self.pos] = episode_start
        self.values[self.pos] = value.detach().cpu().numpy().reshape(self.n_envs)
        self.log_probs[self.pos] = log_prob.detach().cpu().numpy().reshape(self.n_envs)
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def compute_returns_and_advantage(self, last_values: Tensor, dones: np.ndarray) -> None:
        """Compute `advantages`, and `returns`, which are the values plus the advantages.

        Args:
            last_values: Values of the observations after the last step, `[n_envs]`.
            dones: Whether the last step ended the episodes, `[n_envs]`.
        """
        next_values = last_values.detach().cpu().numpy().reshape(self.n_envs)
        continues = 1.0 - np.asarray(dones, np.float32)
        advantage = np.zeros(self.n_envs, np.float32)
        for step in reversed(range(self.buffer_size)):
            errors = self.rewards[step] + self.gamma * continues * next_values - self.values[step]
            advantage = errors + self.gamma * self.gae_lambda * continues * advantage
            self.advantages[step] = advantage
            next_values = self.values[step]
            continues = 1.0 - self.episode_starts[step]
        self.returns = self.advantages + self.values

    def get(self, batch_size: int | None = None) -> Iterator[Any]:
        """Yield all rows once, in random order, in minibatches of `batch_size` rows.

        Raises `ValueError` if the rollout is not complete.
        """
        if not self.full:
            raise ValueError(f"the rollout has {self.pos} of its {self.buffer_size} steps; add the others first")
        number = self.buffer_size * self.n_envs
        order = np.random.permutation(number)  # noqa: NPY002
        columns = {
            "observations": self.observations,
            "actions": self.actions,
            "old_values": self.values,
            "old_log_prob": self.log_probs,
            "advantages": self.advantages,
            "returns": self.returns,
        }
        size = batch_size or number
        for start in range(0, number, size):
            yield self.samples_class(**self._rows_of(columns, order[start : start + size]))

    def _rows_of(self, columns: Mapping[str, Any], rows: np.ndarray) -> dict[str, Any]:
        """Return rows of columns `[steps, environments, ...]`, counted step by step, as tensors `[N, ...]`."""
        taken: dict[str, Any] = map_tree(
            lambda column: self.to_torch(column.reshape(-1, *column.shape[2:])[rows]), dict(columns)
        )
        return taken


class DictRolloutBuffer(RolloutBuffer):
    """Rollout with observations that are dicts."""

    samples_class = DictRolloutBufferSamples


def zeros_of(space: Any, leading_shape: tuple[int, ...]) -> Any:
    """Return zeros for observations of a space, `[*leading_shape, ...]`; a dict of arrays for a Dict."""
    if isinstance(space, spaces.Dict):
        return {name: zeros_of(part, leading_shape) for name, part in space.spaces.items()}
    return np.zeros((*leading_shape, *(space.shape or (1,))), space.dtype)


def action_size(space: Any) -> int:
    """Return the number of numbers in an action: 1 for a Discrete space."""
    return 1 if isinstance(space, spaces.Discrete) else math.prod(space.shape)


class DictReplayBuffer(ReplayBuffer):
    """Replay buffer for observations that are dicts."""

    samples_class = DictReplayBufferSamples


class NStepReplayBuffer(ReplayBuffer):
    """Replay buffer whose rewards are sums of up to `n_steps` discounted rewards."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)
