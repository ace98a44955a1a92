"""Purposes: what a collector over env runners makes of their fragments (`Storing`, `Evaluating`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.rollout.agent_stepper import agents_of_modules
from lockstep.rollout.base_collector import (
    LIMIT_THEM,
    MAY_NEVER_END,
    NEVER_ENDS,
    check_no_data,
    exactly_one,
    warn_of_long_episode,
)
from lockstep.rollout.env_runner import MultiAgentEnvRunner
from lockstep.rollout.fragment_writers import AgentFragmentWriter, FragmentWriter
from lockstep.rollout.fragments import StoredFragment, UnstoredFragment
from lockstep.rollout.protocols import LearningPolicy, sole_part
from lockstep.rollout.replay_writer import Buffer
from lockstep.rollout.schedules import SampleSchedule
from lockstep.rollout.stepper import CHUNK
from lockstep.tracking.statistics import CollectStats

Sample = Callable[[int | None, int | None], Sequence[Any]]
"""`sample(n_step, n_episode)`: the next fragments of the schedule"""


@dataclass
class Collected:
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


class Purpose(ABC):
    """What a collector over env runners makes of fragments.

    Raises `ValueError` where the policy was made for other environments than those of the schedule's runners.
    """

    def __init__(self, policy: LearningPolicy, schedule: SampleSchedule) -> None:
        self.group = schedule.group
        self.num_envs = schedule.num_envs
        self.agents_of_modules: Mapping[str, list[Any]] = {}
        """Agents that each module acts for, by module id; empty for one agent"""
        envs = self.group.envs
        if policy.is_multi_agent:
            self.agents_of_modules = agents_of_modules(policy, envs.observation_space, envs.action_space)
        else:
            sole_part(policy).check_spaces(envs.observation_space, envs.action_space)

    @abstractmethod
    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> Collected:
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


class Storing(Purpose):
    """Writes fragments into a buffer, the environments of the runners side by side, for training.

    Without a buffer only returns and lengths are kept.
    """

    def __init__(self, policy: LearningPolicy, schedule: SampleSchedule) -> None:
        super().__init__(policy, schedule)
        envs = self.group.envs
        self._writer: Any
        if self.agents_of_modules:
            spaces = envs.observation_space, envs.action_space
            self._writer = AgentFragmentWriter(policy.acting, self.agents_of_modules, spaces, self.group.num_envs)
        else:
            self._writer = FragmentWriter(
                sole_part(policy),
                self.num_envs,
                envs.stacked_observation_space,
                envs.action_space,
                by_runner=schedule.by_runner,
            )

    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> Collected:
        """Write the next fragments into the buffer; no row is left behind where that fails."""
        fragments = sample(n_step, n_episode)
        self._writer.write(fragments, version)
        parts = [fragment.stats for fragment in fragments]
        episodes = [episode for part in parts for episode in zip(part.returns, part.lens)]
        agent_returns = [returns for part in parts for returns in part.agent_returns]
        agent_modules = [names for part in parts for names in part.agent_modules]

        # In the order in which they ended. Of whole episodes others ended too, which do not count.
        if all(len(fragment.ended_in_step) == len(fragment.stats.returns) for fragment in fragments):
            order = np.argsort(np.concatenate([fragment.ended_in_step for fragment in fragments]), kind="stable")
            episodes = [episodes[i] for i in order]
            agent_returns = [agent_returns[i] for i in order if agent_returns]
            agent_modules = [agent_modules[i] for i in order if agent_modules]
        num_steps = sum(part.n_collected_steps for part in parts)
        return Collected(episodes, num_steps, parts, len(parts), agent_returns, agent_modules)

    def renew(self) -> None:
        """Begin new episodes everywhere with the next collect; nothing is estimated across this boundary."""
        self.group.renew()

    @property
    def buffer(self) -> Buffer | None:
        """Where steps are stored; None: nowhere."""
        return self._writer.buffer

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store steps in `buffer` from now on. `ValueError` for a buffer that does not fit."""
        self._writer.buffer = buffer

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""
        self._writer.reset_buffer(keep_statistics)

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Give each module that learns a replay buffer for these agents. None: for the agents with its spaces."""
        self._writer.fit_replay(agents)

    def restored(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return the fragments whose states these are."""
        return [self._writer.fragment_class.from_state(saved) for saved in fragments]

    def get_state(self) -> Mapping[str, Any] | None:
        """Return the state of the buffer's writer. `ValueError` while there is data to be learned from."""
        check_no_data(self.buffer)
        return self._writer.get_state()

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `get_state`."""
        self._writer.set_state(state)


class Evaluating(Purpose):
    """Decides which episodes count, over the environments of all runners, and stores nothing.

    The first episodes that start count, however long they last: returns and lengths are those of one `Collector` of all
    environments, to the last bit. Runners take up to 128 vector steps at a time, so that an evaluation may continue for
    up to 127 vector steps after its end.
    """

    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> Collected:
        """Sample until there are `n_step` steps, or `n_episode` episodes, with which new ones begin."""
        amount = exactly_one(n_step=n_step, n_episode=n_episode)
        if n_episode is None:
            return self._collect_steps(sample, amount)
        return self._collect_episodes(sample, amount)

    def _collect_steps(self, sample: Sample, n_step: int) -> Collected:
        collected = Collected([], 0, [], len(self.group), [], [])
        while collected.num_steps < n_step:
            left = n_step - collected.num_steps
            fragments = sample(min(CHUNK * self.num_envs, left), None)
            for fragment, i in in_order_of_ends(fragments):
                collected.count(fragment, i)
            collected.parts += [fragment.stats for fragment in fragments]
            collected.num_steps += sum(map(len, fragments))
        return collected

    def _collect_episodes(self, sample: Sample, n_episode: int) -> Collected:
        collected = Collected([], 0, [], len(self.group), [], [])
        self.group.renew()
        counting = np.arange(self.num_envs) < n_episode
        to_start = n_episode - self.num_envs
        counted = np.zeros(self.num_envs, np.int64)
        steps_without_end = 0
        has_warned = False
        while counting.any():
            fragments = sample(CHUNK * self.num_envs, None)
            collected.parts += [fragment.stats for fragment in fragments]
            steps_without_end += CHUNK
            for fragment, i in in_order_of_ends(fragments):
                b = int(fragment.ended_in_env[i])
                if not counting[b]:
                    continue
                collected.count(fragment, i)
                counted[b] += 1
                steps_without_end = 0
                if to_start <= 0:
                    counting[b] = False
                to_start -= 1
            if steps_without_end > NEVER_ENDS:
                raise RuntimeError(
                    f"no episode has ended in {steps_without_end} steps of {self.num_envs} environments; {LIMIT_THEM}"
                )
            if steps_without_end > MAY_NEVER_END and not has_warned:
                has_warned = True
                warn_of_long_episode(steps_without_end)

        self.group.renew()
        collected.num_steps = sum(length for _, length in collected.episodes)
        if self.agents_of_modules:
            # Only the episodes that count have a seed: the next collect begins with the episodes that come then.
            self.group.foreach_env_runner(MultiAgentEnvRunner.go_on_from, counted)
        return collected

    def renew(self) -> None:
        """Begin new episodes everywhere now, as a `Collector` does: the next ones have other seeds."""
        self.group.reset()

    @property
    def buffer(self) -> None:
        """None: nothing is stored."""

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Raise `ValueError` for a buffer."""
        if buffer is not None:
            raise ValueError(f"buffer={buffer!r} is not allowed; env runners of evaluation store nothing")

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Do nothing: there is no buffer."""

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Do nothing: there is no buffer."""

    def restored(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return an empty list: an evaluation leaves no fragment behind."""
        return []

    def get_state(self) -> None:
        """Return None: there is no buffer, and an evaluation is complete after its collect."""

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Do nothing: the runners have the whole state."""


def in_order_of_ends(fragments: Sequence[UnstoredFragment]) -> list[tuple[UnstoredFragment, int]]:
    """Return the fragment of each ended episode and its index there, by vector step and then by environment."""
    ended = []
    for fragment in fragments:
        for i, (step, env) in enumerate(zip(fragment.ended_in_step.tolist(), fragment.ended_in_env.tolist())):
            ended.append((step, env, fragment, i))
    return [(fragment, i) for _, _, fragment, i in sorted(ended, key=lambda each: each[:2])]
