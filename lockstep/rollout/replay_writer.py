"""Writers between collectors and buffers: `ReplayWriter` for one agent, `PieceWriter` for several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.data.actions import ActionForm, describe_actions
from lockstep.data.agent_steps import AgentID
from lockstep.data.columns import Columns
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.data.trees import Tree, leaves, map_tree, rows_of
from lockstep.replay import MultiAgentReplayBuffer, ReplayBuffer
from lockstep.rollout.errors import check_finite


class ReplayWriter(RolloutStore):
    """The rollout store of a collector whose buffer is a `ReplayBuffer`.

    It holds the vector steps of one piece of a collect (at most `num_steps`). When the observation after the last of
    them is known, `end` adds them to the buffer: with the true final observations, without the rows that only reset an
    environment or do not count. Then it is empty again. With `raise_on_nan` the piece is looked at before, and a piece
    with a value that is not finite is not stored at all.
    """

    takes_logp = False

    def __init__(
        self,
        buffer: ReplayBuffer,
        num_steps: int,
        num_envs: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        raise_on_nan: bool = True,
        keeps_states: bool = False,
    ) -> None:
        if buffer.buffer_num != num_envs:
            raise ValueError(
                f"the buffer has {buffer.buffer_num} sub-buffers, and there are {num_envs} environments; "
                f"use VectorReplayBuffer(total_size, buffer_num={num_envs})"
            )
        self.lost: dict[int, np.ndarray] = {}
        """row -> environments that were started again there"""
        self.passed: dict[int, np.ndarray] = {}
        """row -> environments with a transition there that does not count"""
        super().__init__(num_steps, num_envs, observation_space, action_space)
        self.keeps_states = keeps_states
        self._replay = buffer
        self.raise_on_nan = raise_on_nan
        self.steps_before = 0
        """vector steps of the present collect that were handed on already"""
        self.added = buffer.num_added
        """rows added to the buffer when this last wrote to it"""

    @property
    def buffer(self) -> ReplayBuffer:
        """The replay buffer that steps are handed on to."""
        return self._replay

    def begin_collect(self, lengths: np.ndarray) -> None:
        """Begin as `RolloutStore` does; where others wrote to the buffer since, new rows do not follow those in it."""
        super().begin_collect(lengths)
        self.steps_before = 0
        if self.added != self._replay.num_added:
            self.begin_in_mid_episode(lengths == 0)

    def begin_in_mid_episode(self, ended: np.ndarray) -> None:
        """Leave the episodes in the buffer; `ended` [B]: the next row begins an episode."""
        self.leave_out(np.arange(self.num_envs), ended)

    def reset_buffer(self, running: np.ndarray, keep_statistics: bool) -> None:
        """Empty this store and the replay buffer; see `RolloutStore.reset_buffer`."""
        self.clear()
        self._replay.reset(keep_statistics)
        if not keep_statistics:
            self._replay.cut(np.flatnonzero(running), goes_on=True)

    def leave_out(self, envs: np.ndarray, ended: np.ndarray) -> None:
        """Leave transitions of these environments out; `ended` [n]: with them their episodes ended.

        What is stored next does not follow what is stored, and lacks its earlier frames where the episode goes on.
        """
        self._replay.cut(envs[ended])
        self._replay.cut(envs[~ended], goes_on=True)

    def add(self, batch: dict[str, Any], envs: np.ndarray) -> None:
        """Add one transition of each of these environments at once."""
        self._replay.add(batch, envs)
        self.added = self._replay.num_added

    def end(self, size: int, obs: Tree) -> Tree:
        """Hand the `size` vector steps on, of which `obs` follows the last. Raises `MalformedBufferError`."""
        following = super().end(size, obs)
        if self.raise_on_nan:
            check_finite(self, 0, self.steps_before)
        if size > 1 and self.all_valid and not self.lost and type(self.obs) is np.ndarray:
            self._hand_on_whole(self.obs)
        else:
            self._hand_on()
        self.steps_before += size
        self.added = self._replay.num_added
        self._empty()
        return following

    def _hand_on(self) -> None:
        finals = {int(index[0]) // self.num_envs: (index, obs) for index, obs in zip(self.final_index, self.final_obs)}
        for t in range(self.size):
            if t in self.lost:
                self._replay.cut(self.lost[t])
            following = rows_of(self.obs, t + 1)
            if t in finals:
                index, final_obs = finals[t]
                following = map_tree(np.copy, following)
                for leaf, final in zip(leaves(following), leaves(final_obs)):
                    leaf[index - t * self.num_envs] = final
            batch = self._batch(t, following)
            if t in self.passed:
                envs = self.passed[t]
                self.leave_out(envs, self.terminateds[t, envs] | self.truncateds[t, envs])
            rows = None if self.all_valid else np.flatnonzero(self.valid[t])
            if rows is None or len(rows) == self.num_envs:
                self._replay.add(batch)
            elif len(rows):
                self._replay.add(rows_of(batch, rows), rows)

    def _hand_on_whole(self, obs: np.ndarray) -> None:
        """Hand all rows on at once, where each is a transition."""
        following = obs[1 : self.size + 1]
        if self.final_index:
            following = following.copy()
            rows = following.reshape(-1, *following.shape[2:])
            for index, final_obs in zip(self.final_index, self.final_obs):
                rows[index] = final_obs
        self._replay.add_steps(self._batch(slice(self.size), following))

    def _batch(self, t: int | slice, following: Tree) -> dict[str, Any]:
        """Return the transitions of one or several vector steps."""
        batch = {
            Columns.OBS: rows_of(self.obs, t),
            Columns.ACTIONS: self.actions[t],
            Columns.REWARDS: self.rewards[t],
            Columns.TERMINATEDS: self.terminateds[t],
            Columns.TRUNCATEDS: self.truncateds[t],
            Columns.NEXT_OBS: following,
        }
        if self.keeps_states:
            batch[Columns.STATE_IN] = self.states[t] if isinstance(t, int) else self.states_of(t)
        return batch

    def mark_valid(self, t: int, valid: np.ndarray | None, counting: np.ndarray | None) -> None:
        """Mark the rows of vector step `t` that count. The other rows are not stored; their episodes continue."""
        super().mark_valid(t, valid, counting)
        if counting is not None and not counting.all():
            self.passed[t] = np.flatnonzero(~counting if valid is None else valid & ~counting)

    def abandon_episodes(self, t: int, envs: np.ndarray) -> None:
        """Leave the episodes under way in these environments before row `t`."""
        self.lost[t] = envs

    def _empty(self) -> None:
        super()._empty()
        self.lost, self.passed = {}, {}

    def renew_episodes(self, envs: np.ndarray) -> None:
        """Begin new episodes in these environments: nothing in the buffer reaches across."""
        super().renew_episodes(envs)
        self._replay.cut(envs)

    def get_state(self) -> dict[str, Any]:
        """Return how many rows were added to the buffer, which is saved beside the collector."""
        return {"added": self.added}

    def set_state(self, state: Any) -> None:
        """Continue from `get_state`, empty as between any two collects; new rows follow those of that buffer only."""
        self.added = int(state["added"])
        self._empty()


AgentBuffer = EpisodeStore | MultiAgentReplayBuffer
"""Where the steps of several agents are stored."""
Buffer = RolloutStore | ReplayBuffer | AgentBuffer
"""Where steps are stored that a collector takes on the host."""


class PieceWriter:
    """Writes (pieces of) episodes of several agents into a buffer, in which nothing follows what it does not belong to.

    Args:
        parts: the acting part of each module, by module id.
        agents: module id -> the agents that it acts for.
        spaces: observation and action spaces of the environments, each by agent.
        num_envs: number of environments that the pieces come from.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        agents: Mapping[str, Sequence[AgentID]],
        spaces: tuple[Mapping[AgentID, Any], Mapping[AgentID, Any]],
        num_envs: int,
    ) -> None:
        self._parts, self._agents, self._spaces, self._num_envs = parts, agents, spaces, num_envs
        self._buffer: AgentBuffer | None = None
        self._open: set[int] = set()
        """environments whose last piece in the buffer has not ended"""
        self._added = 0

    @property
    def buffer(self) -> AgentBuffer | None:
        """Where pieces are stored; None: nowhere."""
        return self._buffer

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store pieces in `buffer` from now on. `ValueError` for a buffer that does not fit."""
        if buffer is not None and not isinstance(buffer, AgentBuffer):
            raise ValueError(
                f"buffer={buffer!r} is not allowed; it must be an EpisodeStore or a MultiAgentReplayBuffer, or None"
            )
        if buffer is not None:
            buffer.check_agents(self._agents, self._parts, self._num_envs)
            self._note_actions(buffer)
        if buffer is not self._buffer:
            self._buffer = buffer
            self.cut()

    def begin(self) -> None:
        """Leave the episodes in a buffer that others wrote to."""
        if self._num_added() != self._added:
            self.cut()

    def cut(self, envs: Iterable[int] | None = None) -> None:
        """Leave the episodes of these environments (None: all) in the buffer: what comes next does not follow them."""
        for b in range(self._num_envs) if envs is None else envs:
            self._open.discard(b)
            if self._buffer is not None:
                self._buffer.cut(b)
        self._added = self._num_added()

    def go_on(self, envs: Iterable[int]) -> None:
        """Go on with the episodes of these environments where the buffer has what came before."""
        self._open = set(envs)
        self._added = self._num_added()

    def fit_replay(self, agents: Mapping[str, Sequence[AgentID]] | None = None) -> None:
        """Give each module that learns a replay buffer for these agents; None: for those whose spaces are its own.

        See `MultiAgentReplayBuffer.fit`. An `EpisodeStore` stays as it is.
        """
        if self._buffer is None:
            return
        frozen = [mid for mid, part in self._parts.items() if part.module.inference_only]
        if agents is None:
            pairs = {agent: (space, self._spaces[1][agent]) for agent, space in self._spaces[0].items()}
            agents = {
                mid: [a for a, pair in pairs.items() if pair == (part.observation_space, part.action_space)]
                for mid, part in self._parts.items()
                if mid not in frozen
            }
        self._buffer.fit({mid: names for mid, names in agents.items() if names}, frozen)
        self._note_actions(self._buffer)
        self._added = self._num_added()

    def add(self, pieces: Sequence[tuple[MultiAgentEpisode, int]]) -> None:
        """Store pieces, those of one environment in their order; where an episode begins the one before it is left."""
        if self._buffer is None:
            return
        first = {b: piece for piece, b in reversed(pieces)}
        for b in sorted(first.keys() & self._open):
            if first[b].env_t_started == 0:
                self._buffer.cut(b)
        self._buffer.add(pieces)
        for piece, b in pieces:
            (self._open.discard if piece.is_done else self._open.add)(b)
        self._added = self._num_added()

    def _note_actions(self, buffer: AgentBuffer) -> None:
        """Note in the replay buffer of each module which actions it holds. `ValueError` as `take_actions_of`."""
        for module_id, replay in buffer.replays().items():
            take_actions_of(self._parts[module_id], replay)

    def _num_added(self) -> int:
        return 0 if self._buffer is None else self._buffer.num_added


def take_actions_of(part: Any, buffer: ReplayBuffer) -> None:
    """Note in the buffer that it holds the actions that `part` learns from.

    `ValueError` where it has others, gives out sequences and `part` has no memory, or the reverse.
    """
    length, remembers = buffer.options.sequence_length, bool(getattr(part, "is_stateful", False))
    if remembers and length is None:
        raise ValueError(
            "a policy with memory learns from sequences: give a ReplayBuffer(..., sequence_length=80), or set "
            "replay(sequence_length=80)"
        )
    if length is not None and not remembers:
        raise ValueError(
            f"sequence_length={length} is for a policy with memory, and this one has none; leave it out, or set "
            "rl_module(model_config={'recurrent': 'lstm'})"
        )
    form: ActionForm | None = getattr(part, "action_form", None)
    if len(buffer) and buffer.action_form != form:
        raise ValueError(
            f"the buffer holds {describe_actions(buffer.action_form)}, and the policy learns from "
            f"{describe_actions(form)}; collect into one made with action_form=policy.action_form, which "
            "extend(buffer.to_batch()) fills, or set buffer.action_form where its actions are the policy's already"
        )
    buffer.action_form = form


def store_for(
    part: Any,
    buffer: Buffer | None,
    num_envs: int,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    num_steps: int,
    raise_on_nan: bool,
) -> RolloutStore | None:
    """Return what a collector of `num_envs` environments writes into, for its `buffer`.

    Raises `ValueError` where the buffer is for another number of environments or holds other actions than the policy's,
    or gives out sequences and the policy has no memory, or the reverse.
    """
    if isinstance(buffer, ReplayBuffer):
        writer = ReplayWriter(
            buffer,
            num_steps,
            num_envs,
            observation_space,
            action_space,
            raise_on_nan=raise_on_nan,
            keeps_states=bool(getattr(part, "is_stateful", False)),
        )
        take_actions_of(part, buffer)
        return writer
    if buffer is not None and not isinstance(buffer, RolloutStore):
        raise ValueError(f"buffer={buffer!r} is not allowed; it must be a ReplayBuffer, a RolloutStore, or None")
    if buffer is not None and buffer.num_envs != num_envs:
        raise ValueError(f"buffer.num_envs={buffer.num_envs} does not fit the {num_envs} environments")
    return buffer
