"""Write what env runners collected into a collector's buffer: `FragmentWriter` of one agent, `AgentFragmentWriter`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.data.rollout import RolloutStore
from lockstep.replay import ReplayBuffer
from lockstep.rollout.fragments import AgentFragment, Fragment, append_fragments
from lockstep.rollout.replay_writer import PieceWriter, ReplayWriter, begin_in_mid_episode, empty, store_for


class FragmentWriter:
    """Writes fragments of one agent into a `RolloutStore` or a `ReplayBuffer`, environments side by side.

    `by_runner`: each fragment where its runner has its environments; otherwise in the order in which they are given.
    """

    fragment_class = Fragment

    def __init__(
        self,
        part: Any,
        num_envs: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        by_runner: bool,
    ) -> None:
        self._part, self._num_envs, self._by_runner = part, num_envs, by_runner
        self._spaces = observation_space, action_space
        self._store: RolloutStore | None = None
        self._ended = np.ones(num_envs, bool)
        """where the next row begins an episode"""

    @property
    def buffer(self) -> RolloutStore | ReplayBuffer | None:
        """Where steps are stored; one for each environment in a `ReplayBuffer`."""
        return self._store.buffer if isinstance(self._store, ReplayWriter) else self._store

    @buffer.setter
    def buffer(self, buffer: RolloutStore | ReplayBuffer | None) -> None:
        is_other = buffer is not self.buffer
        self._store = store_for(
            self._part, buffer, self._num_envs, *self._spaces, num_steps=1, raise_on_nan=False
        )  # runners have looked for NaN
        if is_other:
            begin_in_mid_episode(self._ended, self._store)

    def write(self, fragments: Sequence[Fragment], weights_seq_no: int) -> None:
        """Write the fragments into the buffer; `weights_seq_no`: the version of the policy's weights now."""
        if self._store is not None:
            append_fragments(fragments, self._store, by_runner=self._by_runner)
            _drop_logp_of(weights_seq_no, self._store)
        if self._by_runner:
            for fragment in fragments:
                first = fragment.runner * fragment.num_envs
                self._ended[first : first + fragment.num_envs] = fragment.ended

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""
        empty(self._store, ~self._ended, keep_statistics)

    def get_state(self) -> dict[str, Any] | None:
        """Return what is to be known of the buffer beside what is in it."""
        return None if self._store is None else self._store.get_state()

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `get_state`, of as many environments; those of others go on without what came before."""
        self._ended[:] = False  # some may have: a few more stacks of frames than need be are not drawn then
        if self._store is not None and state is not None:
            if len(state.get("episode_ids", self._ended)) == self._num_envs:
                self._store.set_state(state)


class AgentFragmentWriter(PieceWriter):
    """Writes fragments of several agents into an `EpisodeStore` or a `MultiAgentReplayBuffer`."""

    fragment_class = AgentFragment

    def write(self, fragments: Sequence[AgentFragment], weights_seq_no: int) -> None:
        """Write the fragments into the buffer. Each step tells the version of the weights that acted itself."""
        self.begin()
        self.add([piece for fragment in fragments for piece in fragment.pieces])

    def reset_buffer(self, keep_statistics: bool) -> None:
        """Empty the buffer."""
        if self.buffer is not None:
            self.buffer.reset()

    def get_state(self) -> None:
        """Return None: pieces of episodes tell where they belong."""

    def set_state(self, state: None) -> None:
        """Go on with the episodes under way; those that begin anew leave what is in the buffer."""
        self.go_on(range(self._num_envs))


def _drop_logp_of(version: int, store: RolloutStore) -> None:
    """Leave steps of the present weights without a log-probability: NaN beside others, None where all are."""
    if store.action_logp is not None:
        versions = np.array(store.weights_seq_no) if store.versions is None else store.versions
        is_present = versions == version
        store.action_logp = None if is_present.all() else np.where(is_present, np.float32("nan"), store.action_logp)
