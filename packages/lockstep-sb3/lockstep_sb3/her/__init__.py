"""Hindsight experience replay."""

from lockstep_sb3.her.goal_selection_strategy import GoalSelectionStrategy
from lockstep_sb3.her.her_replay_buffer import HerReplayBuffer

__all__ = ["GoalSelectionStrategy", "HerReplayBuffer"]
