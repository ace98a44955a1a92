"""`GoalSelectionStrategy`, the steps whose achieved goals replace desired ones."""

from enum import Enum


class GoalSelectionStrategy(Enum):
    """Step whose achieved goal becomes the desired one."""

    FUTURE = 0
    """A step from the transition on to the end of the episode."""
    FINAL = 1
    """The last step of the episode."""
    EPISODE = 2
    """Any step of the episode."""


KEY_TO_GOAL_STRATEGY = {each.name.lower(): each for each in GoalSelectionStrategy}
"""Strategies by the names that `goal_selection_strategy` takes."""
