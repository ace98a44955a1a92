"""`FragmentSink`: what a collector over env runners makes of their fragments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.rollout.agent_stepper import agents_of_modules
from lockstep.rollout.fragments import StoredFragment, UnstoredFragment
from lockstep.rollout.protocols import LearningPolicy, sole_part
from lockstep.rollout.replay_writer import Buffer
from lockstep.rollout.schedules import SampleSchedule
from lockstep.tracking.statistics import CollectStats

Sample = Callable[[int | None, int | None], Sequence[Any]]
"""`sample(n_step, n_episode)`: the next fragments of the schedule"""


@dataclass
class CollectResult:
    """The episodes and steps of one collect."""

    episodes: list[tuple[float, int]]
    """Return and length of each episode that ended and counts."""
    num_steps: int
    parts: list[CollectStats]
    """Statistics of each fragment."""
    at_once: int
    """Number of `parts` that were sampled at the same time."""
    agent_returns: list[tuple[float, ...]]
    """Returns of the single agents in each episode; empty for one agent"""
    agent_modules: list[tuple[str, ...]]
    """Module that acted for each agent in each episode; empty for one agent"""

    def count(self, fragment: UnstoredFragment, i: int) -> None:
        """Add the `i`-th episode of a fragment to those that count."""
        stats = fragment.stats
        self.episodes.append((float(stats.returns[i]), int(stats.lens[i])))
        if stats.agent_returns:
            self.agent_returns.append(stats.agent_returns[i])
            self.agent_modules.append(stats.agent_modules[i])


def checked_agents_of_modules(policy: LearningPolicy, schedule: SampleSchedule) -> Mapping[str, list[Any]]:
    """Return the agents that each module acts for with the runners, by module id; empty for one agent.

    Raises `ValueError` where the policy was made for other environments.
    """
    envs = schedule.group.envs
    if policy.is_multi_agent:
        return agents_of_modules(policy, envs.observation_space, envs.action_space)
    sole_part(policy).check_spaces(envs.observation_space, envs.action_space)
    return {}


class FragmentSink(ABC):
    """What a collector over env runners makes of fragments.

    Args:
        schedule: decides which fragments make a collect.
        agents_of_modules: as `checked_agents_of_modules` returns them.
    """

    def __init__(self, schedule: SampleSchedule, agents_of_modules: Mapping[str, list[Any]]) -> None:
        self.group = schedule.group
        self.num_envs = schedule.num_envs
        self.agents_of_modules = agents_of_modules

    @abstractmethod
    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> CollectResult:
        """Return what a collect of `n_step` steps or `n_episode` episodes has brought.

        `version` is the version of the policy's present weights. Raises as `sample`.
        """

    @abstractmethod
    def renew(self) -> None:
        """Begin new episodes everywhere."""

    # -- the buffer ---

    @property
    @abstractmethod
    def buffer(self) -> Buffer | None:
        """Where steps are stored; None: nowhere."""

    @abstractmethod
    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store steps in `buffer` from now on. `ValueError` for a buffer that does not fit."""

    @abstractmethod
    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""

    @abstractmethod
    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Give each module that learns a replay buffer for these agents. None: for the agents with its spaces."""

    @abstractmethod
    def restored(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return the fragments whose states these are."""

    @abstractmethod
    def get_state(self) -> Mapping[str, Any] | None:
        """Return the state of the buffer's writer. The buffer saves its own."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `get_state`."""
