"""`StorageSink`: writes the fragments of env runners into a buffer, of one agent (`StepStorageSink`) or several
(`EpisodeStorageSink`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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


class StorageSink(FragmentSink):
    """Writes fragments into a buffer, the environments of the runners side by side, for training.

    Without a buffer only returns and lengths are kept. Subclasses write the fragments of one agent, or of several.
    """

    def collect(self, sample: Sample, n_step: int | None, n_episode: int | None, version: int) -> CollectResult:
        """Write the next fragments into the buffer; no row is left behind where that fails."""
        fragments = sample(n_step, n_episode)
        self.write(fragments, version)
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
        return CollectResult(episodes, num_steps, parts, len(parts), agent_returns, agent_modules)

    @abstractmethod
    def write(self, fragments: Sequence[Any], version: int) -> None:
        """Write fragments of this purpose's kind into the buffer. `version`: of the policy's present weights."""

    def renew(self) -> None:
        """Begin new episodes everywhere with the next collect; nothing is estimated across this boundary."""
        self.group.renew()


class StepStorageSink(StorageSink):
    """Writes fragments of one agent into a `RolloutStore` or a `ReplayBuffer`.

    Where the schedule is `by_runner`, each fragment is written where its runner has its environments; otherwise in the
    order in which they come.
    """

    def __init__(self, policy: LearningPolicy, schedule: SampleSchedule) -> None:
        super().__init__(schedule, {})
        self._part = sole_part(policy)
        self._by_runner = schedule.by_runner
        self._store: RolloutStore | None = None
        """What steps are written into: the buffer itself, or a `ReplayWriter` in front of a `ReplayBuffer`."""
        self._ended = np.ones(self.num_envs, bool)
        """[B] whether the next row of an environment begins an episode"""

    def write(self, fragments: Sequence[Fragment], version: int) -> None:
        """Write the fragments side by side behind the rows in the buffer."""
        if self._store is not None:
            append_fragments(fragments, self._store, by_runner=self._by_runner)
            _drop_logp_of(version, self._store)
        if self._by_runner:
            for fragment in fragments:
                first = fragment.runner * fragment.num_envs
                self._ended[first : first + fragment.num_envs] = fragment.ended

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Where steps are stored, a `ReplayBuffer` with one for each environment; None: nowhere."""
        buffer: RolloutStore | ReplayBuffer | None = None if self._store is None else self._store.buffer
        return buffer

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store steps in `buffer` from now on. `ValueError` for a buffer that does not fit."""
        is_other = buffer is not self.buffer
        self._store = store_for(
            self._part,
            buffer,
            self.num_envs,
            self.group.envs.stacked_observation_space,
            self.group.envs.action_space,
            num_steps=1,
            raise_on_nan=False,  # the runners have looked for NaN
        )
        if is_other and self._store is not None:
            self._store.begin_in_mid_episode(self._ended)

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""
        if self._store is not None:
            self._store.reset_buffer(~self._ended, keep_statistics)

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Do nothing: the one module of a policy of one agent keeps its replay buffer."""

    def restored(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return the fragments whose states these are."""
        return [Fragment.from_state(saved) for saved in fragments]

    def get_state(self) -> Mapping[str, Any] | None:
        """Return the state of the buffer's writer. `ValueError` while there is data to be learned from."""
        check_no_data(self.buffer)
        return None if self._store is None else self._store.get_state()

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `get_state` of as many environments; with others, without what is in the buffer."""
        self._ended[:] = False  # some may have: a few more stacks of frames than need be are not drawn then
        if self._store is not None and state is not None:
            if len(state.get("episode_ids", self._ended)) == self.num_envs:
                self._store.set_state(state)


class EpisodeStorageSink(StorageSink):
    """Writes fragments of several agents into an `EpisodeStore` or a `MultiAgentReplayBuffer`."""

    def __init__(
        self, policy: LearningPolicy, schedule: SampleSchedule, agents_of_modules: Mapping[str, list[Any]]
    ) -> None:
        super().__init__(schedule, agents_of_modules)
        envs = self.group.envs
        spaces = envs.observation_space, envs.action_space
        self._writer = PieceWriter(policy.acting, self.agents_of_modules, spaces, self.group.num_envs)

    def write(self, fragments: Sequence[AgentFragment], version: int) -> None:
        """Write the fragments into the buffer. Each step has the version of the weights that acted itself."""
        self._writer.begin()
        self._writer.add([piece for fragment in fragments for piece in fragment.pieces])

    @property
    def buffer(self) -> AgentBuffer | None:
        """Where pieces of episodes are stored; None: nowhere."""
        return self._writer.buffer

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store pieces of episodes in `buffer` from now on. `ValueError` for a buffer that does not fit."""
        self._writer.set_buffer(buffer)

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""
        if self.buffer is not None:
            self.buffer.reset()

    def fit_replay(self, agents: Mapping[str, Sequence[Any]] | None) -> None:
        """Give each module that learns a replay buffer for these agents. None: for the agents with its spaces."""
        self._writer.fit_replay(agents)

    def restored(self, fragments: Sequence[Mapping[str, Any]]) -> list[StoredFragment]:
        """Return the fragments whose states these are."""
        return [AgentFragment.from_state(saved) for saved in fragments]

    def get_state(self) -> None:
        """Return None: pieces of episodes tell where they belong. `ValueError` while there is data to be learned
        from."""
        check_no_data(self.buffer)

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continue the episodes under way in what the buffer has of them."""
        self._writer.go_on(range(self.group.num_envs))


def storage_sink(policy: LearningPolicy, schedule: SampleSchedule) -> StorageSink:
    """Return the purpose that stores the steps of a policy's agent, or agents.

    Raises `ValueError` where the policy was made for other environments than those of the schedule's runners.
    """
    agents_of_modules = checked_agents_of_modules(policy, schedule)
    if agents_of_modules:
        return EpisodeStorageSink(policy, schedule, agents_of_modules)
    return StepStorageSink(policy, schedule)


def _drop_logp_of(version: int, store: RolloutStore) -> None:
    """Remove the log-probabilities of steps that the present weights acted.

    They become NaN, or the whole column becomes None if all steps are of the present weights.
    """
    if store.action_logp is not None:
        versions = np.array(store.weights_seq_no) if store.versions is None else store.versions
        is_present = versions == version
        store.action_logp = None if is_present.all() else np.where(is_present, np.float32("nan"), store.action_logp)
