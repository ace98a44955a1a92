"""Replay buffers with the interface of Stable-Baselines3, over those of Lockstep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data import Columns, map_tree
from lockstep.replay import Hindsight
from lockstep.replay import ReplayBuffer as LockstepBuffer
from lockstep_sb3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
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


class DictReplayBuffer(ReplayBuffer):
    """Replay buffer for observations that are dicts."""

    samples_class = DictReplayBufferSamples


class NStepReplayBuffer(ReplayBuffer):
    """Replay buffer whose rewards are sums of up to `n_steps` discounted rewards."""

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any) -> None:
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **kwargs)
