"""`HerReplayBuffer`, a replay buffer whose samples have goals that were achieved later in their episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from lockstep.replay import Hindsight
from lockstep.replay import ReplayBuffer as LockstepBuffer
from lockstep_sb3.common.buffers import DictReplayBuffer
from lockstep_sb3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy


class HerReplayBuffer(DictReplayBuffer):
    """Replay buffer with hindsight (Andrychowicz et al. 2017), usually `SAC(..., replay_buffer_class=HerReplayBuffer)`.

    Args:
        buffer_size: Number of transitions.
        observation_space: Dict with `observation`, `achieved_goal` and `desired_goal`.
        action_space: Action space.
        env: Vector environment, whose first environment has a method `compute_reward(achieved_goal, desired_goal,
            infos)`. It gets empty infos.
        device: Device of the samples.
        n_envs: Number of environments.
        optimize_memory_usage: Store each observation once.
        handle_timeout_termination: True: truncated episodes are not terminated.
        n_sampled_goal: Number of transitions with an achieved goal for each one that keeps its goal.
        goal_selection_strategy: Step whose achieved goal is taken.
        copy_info_dict: False: infos are not stored.
        buffer: Buffer to use. None makes one.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        env: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        *,
        buffer: LockstepBuffer | None = None,
    ) -> None:
        if copy_info_dict:
            raise ValueError(
                "copy_info_dict=True is not allowed, because infos are not stored; compute_reward gets empty ones"
            )
        self.env = env
        self.n_sampled_goal = n_sampled_goal
        self.goal_selection_strategy = goal_strategy(goal_selection_strategy)
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            hindsight=Hindsight(
                self._compute_reward,
                future_k=n_sampled_goal,
                strategy=self.goal_selection_strategy.name.lower(),
            ),
            buffer=buffer,
        )

    def _compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Return the rewards `[N]` of achieved goals for desired goals, from the first environment."""
        infos: list[dict[str, Any]] = [{} for _ in achieved_goal]
        rewards = self.env.env_method("compute_reward", achieved_goal, desired_goal, infos, indices=[0])
        return np.asarray(rewards[0])

    def set_env(self, env: Any) -> None:
        """Compute rewards with another environment."""
        self.env = env


def goal_strategy(value: GoalSelectionStrategy | str) -> GoalSelectionStrategy:
    """Return a strategy from itself or its name. `ValueError` for an unknown name."""
    if isinstance(value, GoalSelectionStrategy):
        return value
    if str(value).lower() not in KEY_TO_GOAL_STRATEGY:
        raise ValueError(f"goal_selection_strategy={value!r} is not allowed; give {', '.join(KEY_TO_GOAL_STRATEGY)}")
    return KEY_TO_GOAL_STRATEGY[str(value).lower()]
