"""`FragmentSink`: the part of a collector over env runners that stores or counts their fragments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.rollout.agent_stepper import agents_of_modules
from lockstep.rollout.fragments import StoredFragment, UnstoredFragment
from lockstep.rollout.protocols import LearningPolicy, sole_part
from lockstep.rollout.replay_writer import Buffer
from lockstep.rollout.schedules import SampleSchedule
from lockstep.tracking.statistics import CollectStats

Sample = Callable[[int | None, int | None], Sequence[Any]]
"""Function `sample(n_step, n_episode)` that returns the next fragments of the schedule."""


@dataclass
class CollectResult:
    """Episodes and number of steps of one collect."""

    num_parallel: int
    """Number of runners that sampled at the same time."""
    num_steps: int = 0
    """Number of steps that count."""
    parts: list[CollectStats] = field(default_factory=list)
    """Statistics of each fragment of the collect."""
    episodes: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of each episode that ended and counts."""
    agent_returns: list[tuple[float, ...]] = field(default_factory=list)
    """Returns of the single agents in each episode; empty for one agent."""
    agent_modules: list[tuple[str, ...]] = field(default_factory=list)
    """Module that acted for each agent in each episode; empty for one agent."""

    def add_episode(self, fragment: UnstoredFragment, i: int) -> None:
        """Add the `i`-th episode of a fragment."""
        stats = fragment.stats
        self.episodes.append((float(stats.returns[i]), int(stats.lens[i])))
        if stats.agent_returns:
            self.agent_returns.append(stats.agent_returns[i])
            self.agent_modules.append(stats.agent_modules[i])


def checked_agents_of_modules(policy: LearningPolicy, schedule: SampleSchedule) -> Mapping[str, list[Any]]:
    """Return the agents of each module in the runners' environments, by module id; empty for one agent.

    Raises:
        ValueError: The policy was made for environments with other spaces.
    """
    envs = schedule.group.envs
    if policy.is_multi_agent:
        return agents_of_modules(policy, envs.observation_space, envs.action_space)
    sole_part(policy).check_spaces(envs.observation_space, envs.action_space)
    return {}


class FragmentSink(ABC):
    """Base class of the sinks, each of which samples the fragments of a collect, and stores or counts them.

    Args:
        schedule: Schedule that decides which fragments make a collect.
        agents_of_modules: Agents of each module, as `checked_agents_of_modules` returns them.
    """

    def __init__(self, schedule: SampleSchedule, agents_of_modules: Mapping[str, list[Any]]) -> None:
        self.group = schedule.group
        self.num_envs = schedule.num_envs
        self.agents_of_modules = agents_of_modules

    @abstractmethod
    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> CollectResult:
        """Sample and take in the fragments of one collect, and return its episodes and steps.

        Args:
            sample: Function that returns the next fragments. Its exceptions are passed on.
            n_step: Number of steps; None to collect episodes.
            n_episode: Number of episodes; None to collect steps.
            version: Version of the policy's present weights.
        """

    @abstractmethod
    def renew(self) -> None:
        """Begin new episodes in all environments."""

    # -- the buffer ---

    @property
    @abstractmethod
    def buffer(self) -> Buffer | None:
        """Buffer that steps are stored in; None if they are not stored."""

    @abstractmethod
    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store later steps in `buffer`. Raises `ValueError` for a buffer that does not fit."""

    @abstractmethod
    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""

    @abstractmethod
    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Give each learning module a replay buffer for its agents; see `CollectorLike.fit_replay`."""

    @abstractmethod
    def restore_fragments(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return fragments from their states, as `get_state` of their class returned them."""

    @abstractmethod
    def get_state(self) -> Mapping[str, Any] | None:
        """Return the state of the buffer's writer. The buffer saves its own."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state that `get_state` returned."""
