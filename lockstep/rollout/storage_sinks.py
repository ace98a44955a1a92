"""Sinks that write fragments of env runners into a buffer: `StepStorageSink` for one agent, `EpisodeStorageSink` for
several."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.rollout import RolloutStore
from lockstep.replay import ReplayBuffer
from lockstep.rollout.base_collector import check_no_data
from lockstep.rollout.fragment_sinks import CollectResult, FragmentSink, Sample, checked_agents_of_modules
from lockstep.rollout.fragments import AgentFragment, Fragment, StoredFragment, append_fragments
from lockstep.rollout.protocols import LearningPolicy, sole_part
from lockstep.rollout.replay_writer import (
    AgentBuffer,
    Buffer,
    PieceWriter,
    store_for,
)
from lockstep.rollout.schedules import SampleSchedule
from lockstep.state.optional import optional_state


class StorageSink(FragmentSink):
    """Base class of sinks for training: writes fragments into a buffer, the runners' environments side by side.

    Without a buffer only returns and lengths of the episodes are kept.
    """

    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> CollectResult:
        """Write the fragments of one collect into the buffer, and return its episodes and steps.

        If sampling fails, nothing is written.
        """
        fragments = sample(n_step, n_episode)
        self.write(fragments, version)
        parts = [fragment.stats for fragment in fragments]
        episodes: list[tuple[float, int]] = []
        agent_returns: list[tuple[float, ...]] = []
        agent_modules: list[tuple[str, ...]] = []
        for part in parts:
            episodes += zip(part.returns, part.lens)
            agent_returns += part.agent_returns
            agent_modules += part.agent_modules

        # Sort the episodes by the step in which they ended, as one collector of all environments returns them. A
        # fragment of whole episodes also has ends of episodes that do not count (its `ended_in_step` is then longer
        # than its `returns`). These cannot be matched, and the episodes stay in the order of the runners.
        if all(len(fragment.ended_in_step) == len(fragment.stats.returns) for fragment in fragments):
            order = np.argsort(np.concatenate([fragment.ended_in_step for fragment in fragments]), kind="stable")
            episodes = [episodes[i] for i in order]
            if agent_returns:
                agent_returns = [agent_returns[i] for i in order]
                agent_modules = [agent_modules[i] for i in order]
        num_steps = sum(part.n_collected_steps for part in parts)
        return CollectResult(
            num_parallel=len(parts),
            num_steps=num_steps,
            parts=parts,
            episodes=episodes,
            agent_returns=agent_returns,
            agent_modules=agent_modules,
        )

    @abstractmethod
    def write(self, fragments: Sequence[Any], version: int) -> None:
        """Write fragments into the buffer. `version`: version of the policy's present weights."""

    def renew(self) -> None:
        """Begin new episodes in all environments with the next collect; running episodes are cut."""
        self.group.renew()


class StepStorageSink(StorageSink):
    """Sink that writes fragments of one agent into a `RolloutStore` or a `ReplayBuffer`.

    If the schedule is `by_runner`, each fragment is written to the environments of its runner. Otherwise fragments are
    written side by side in the order in which the schedule returns them.
    """

    def __init__(self, policy: LearningPolicy, schedule: SampleSchedule) -> None:
        super().__init__(schedule, {})
        self._part = sole_part(policy)
        self._by_runner = schedule.by_runner
        self._store: RolloutStore | None = None
        """Store that steps are written into: the buffer itself, or a `ReplayWriter` in front of a `ReplayBuffer`."""
        self._ended = np.ones(self.num_envs, bool)
        """`[B]` whether the next row of each environment begins an episode."""

    def write(self, fragments: Sequence[Fragment], version: int) -> None:
        """Write the fragments side by side behind the rows in the buffer."""
        if self._store is not None:
            append_fragments(fragments, self._store, by_runner=self._by_runner)
            _drop_present_logp(version, self._store)
        # Otherwise a column has fragments of changing runners, and each rollout is independent of the one before.
        if self._by_runner:
            for fragment in fragments:
                first = fragment.runner * fragment.num_envs
                self._ended[first : first + fragment.num_envs] = fragment.ended

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Buffer that steps are stored in; a `ReplayBuffer` has one sub-buffer for each environment."""
        buffer: RolloutStore | ReplayBuffer | None = None if self._store is None else self._store.buffer
        return buffer

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store later steps in `buffer`. Raises `ValueError` for a buffer that does not fit."""
        is_other = buffer is not self.buffer
        self._store = store_for(
            self._part,
            buffer,
            self.num_envs,
            self.group.envs.stored_observation_space,
            self.group.envs.action_space,
            num_steps=1,
            raise_on_nan=False,  # the runners have checked the values already
        )
        if is_other and self._store is not None:
            self._store.begin_in_mid_episode(self._ended)

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""
        if self._store is not None:
            self._store.reset_buffer(~self._ended, keep_statistics)

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Do nothing: with one agent, the one module keeps its replay buffer."""

    def restore_fragments(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return fragments from their states, as `get_state` of their class returned them."""
        return [Fragment.from_state(saved) for saved in fragments]

    def get_state(self) -> Mapping[str, Any] | None:
        """Return the state of the buffer's writer. Raises `ValueError` if the buffer has data not learned from yet."""
        check_no_data(self.buffer)
        return optional_state(self._store)

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state that `get_state` returned.

        The state of another number of environments is ignored: new episodes begin then.
        """
        # It is not saved whether the next row of an environment begins an episode. False is the safe assumption. If it
        # is wrong, the first stacks of frames of an episode are not drawn. If True is wrong, stacks are filled up as at
        # the beginning of an episode, and their frames are wrong.
        self._ended[:] = False
        if self._store is None or state is None:
            return
        num_envs = len(state.get("episode_ids", self._ended))
        if num_envs == self.num_envs:
            self._store.set_state(state)


class EpisodeStorageSink(StorageSink):
    """Sink that writes fragments of several agents into an `EpisodeStore` or a `MultiAgentReplayBuffer`."""

    def __init__(
        self, policy: LearningPolicy, schedule: SampleSchedule, agents_of_modules: Mapping[str, list[Any]]
    ) -> None:
        super().__init__(schedule, agents_of_modules)
        envs = self.group.envs
        spaces = envs.observation_space, envs.action_space
        self._writer = PieceWriter(policy.acting, self.agents_of_modules, spaces, self.group.num_envs)

    def write(self, fragments: Sequence[AgentFragment], version: int) -> None:
        """Write the fragments into the buffer. `version` is not used: the steps carry the version that acted."""
        self._writer.begin()
        pieces: list[tuple[MultiAgentEpisode, int]] = []
        for fragment in fragments:
            pieces += fragment.pieces
        self._writer.add(pieces)

    @property
    def buffer(self) -> AgentBuffer | None:
        """Buffer that episodes and pieces of episodes are stored in; None if they are not stored."""
        return self._writer.buffer

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store later pieces of episodes in `buffer`. Raises `ValueError` for a buffer that does not fit."""
        self._writer.set_buffer(buffer)

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""
        if self.buffer is not None:
            self.buffer.reset()

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Give each learning module a replay buffer for its agents; see `CollectorLike.fit_replay`."""
        self._writer.fit_replay(agents)

    def restore_fragments(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return fragments from their states, as `get_state` of their class returned them."""
        return [AgentFragment.from_state(saved) for saved in fragments]

    def get_state(self) -> None:
        """Return None: each piece of an episode says where it belongs, so the writer needs no state.

        Raises `ValueError` if the buffer has data not learned from yet.
        """
        check_no_data(self.buffer)

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Let the next pieces continue the episodes in the buffer."""
        self._writer.continue_episodes(range(self.group.num_envs))


def storage_sink(policy: LearningPolicy, schedule: SampleSchedule) -> StorageSink:
    """Return the sink that stores the fragments of a schedule, for one agent or for several.

    Raises `ValueError` if the policy was made for environments with other spaces than the runners'.
    """
    agents_of_modules = checked_agents_of_modules(policy, schedule)
    if agents_of_modules:
        return EpisodeStorageSink(policy, schedule, agents_of_modules)
    return StepStorageSink(policy, schedule)


def _drop_present_logp(version: int, store: RolloutStore) -> None:
    """Remove the log-probabilities of steps that were acted by the present weights, of version `version`.

    They become NaN, or the whole column becomes None if all steps were. The learner then computes them itself, with the
    bits of a synchronous run: the importance ratio of such a step is exactly 1.
    """
    if store.action_logp is None:
        return
    versions = np.array(store.weights_seq_no) if store.versions is None else store.versions
    is_present = versions == version
    if is_present.all():
        store.action_logp = None
    else:
        store.action_logp = np.where(is_present, np.float32("nan"), store.action_logp)
