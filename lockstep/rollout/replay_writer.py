"""Writers of collected steps into replay buffers and episode stores: `ReplayWriter` for one agent, `PieceWriter` for
several."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """Rollout store in front of a `ReplayBuffer`: it holds one piece of a collect, then adds it to the buffer.

    A transition contains its next observation. So a collector writes all steps of a piece first, and then calls `end`
    with the observation after the last one. `end` adds the transitions to the buffer and empties the store. Where an
    episode ended, the next observation of the transition is the true final observation. Rows that only reset an
    environment or do not count are not added.

    Args:
        buffer: The replay buffer, with one sub-buffer for each environment.
        num_steps: Largest number of vector steps of one piece.
        num_envs: Number of environments.
        observation_space: Space of the stored observations.
        action_space: Action space of the environments.
        raise_on_nan: Whether a piece with a value that is not finite raises `MalformedBufferError`. Nothing of the
            piece is stored then.
        keeps_states: Whether the recurrent state before each row is stored, for a policy with recurrent layers.
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
        # Before `super().__init__`, which empties the store and with it these.
        self.abandoned: dict[int, np.ndarray] = {}
        """Environments whose episode was abandoned before a row, by row."""
        self.uncounted: dict[int, np.ndarray] = {}
        """Environments with a transition that does not count, by row."""
        super().__init__(num_steps, num_envs, observation_space, action_space)
        self.keeps_states = keeps_states
        self._replay = buffer
        self.raise_on_nan = raise_on_nan
        self.steps_before = 0
        """Number of vector steps of the present collect that are in the buffer already."""
        self.added = buffer.num_added
        """`num_added` of the buffer after the last write of this writer; if it differs, somebody else has written."""

    @property
    def buffer(self) -> ReplayBuffer:
        """The replay buffer that steps are added to."""
        return self._replay

    def begin_collect(self, lengths: np.ndarray) -> None:
        """Begin a collect. `lengths` `[B]`: number of steps so far of the running episode in each environment."""
        super().begin_collect(lengths)
        self.steps_before = 0
        if self.added != self._replay.num_added:
            # The newest rows of the buffer are not from this writer, and the next rows do not continue them.
            self.begin_in_mid_episode(lengths == 0)

    def begin_in_mid_episode(self, ended: np.ndarray) -> None:
        """Cut all episodes in the buffer. `ended` `[B]`: whether the next row of an environment begins an episode."""
        self.leave_out(np.arange(self.num_envs), ended)

    def reset_buffer(self, running: np.ndarray, keep_statistics: bool) -> None:
        """Empty this store and the replay buffer; see `RolloutStore.reset_buffer`."""
        self.clear()
        self._replay.reset(keep_statistics)
        if not keep_statistics:
            # The next rows of running episodes are in the middle of an episode, although the buffer is empty. With
            # `keep_statistics` the buffer itself remembers which episodes are running.
            self._replay.cut(np.flatnonzero(running), goes_on=True)

    def leave_out(self, envs: np.ndarray, ended: np.ndarray) -> None:
        """Cut the episodes of these environments in the buffer, because a transition is not stored.

        Args:
            envs: Environments `[n]`.
            ended: `[n]` whether the episode ended with the transition. Otherwise the next row is in the middle of an
                episode, and a stack of frames must not be filled up as at the beginning of one.
        """
        self._replay.cut(envs[ended])
        self._replay.cut(envs[~ended], goes_on=True)

    def add(self, batch: dict[str, Any], envs: np.ndarray) -> None:
        """Add one transition of each of these environments to the buffer at once."""
        self._replay.add(batch, envs)
        self.added = self._replay.num_added

    def end(self, size: int, obs: Tree) -> Tree:
        """Add `size` vector steps to the buffer, and return `obs` from the store's own memory.

        Args:
            size: Number of vector steps in this store.
            obs: Observations `[B, ...]` after the last vector step.

        Raises:
            MalformedBufferError: A value is not finite; nothing is added then.
        """
        next_obs = super().end(size, obs)
        if self.raise_on_nan:
            check_finite(self, 0, self.steps_before)

        is_plain = self.all_valid and not self.abandoned and type(self.obs) is np.ndarray
        if size > 1 and is_plain:
            self._add_all_steps(self.obs)
        else:
            self._add_step_by_step()

        self.steps_before += size
        self.added = self._replay.num_added
        self._empty()
        return next_obs

    def _add_step_by_step(self) -> None:
        """Add the vector steps one after the other, with cuts where transitions are missing."""
        # The episodes that ended in a vector step are one entry of `final_index`: rows `t * num_envs + b`.
        finals = {int(index[0]) // self.num_envs: (index, obs) for index, obs in zip(self.final_index, self.final_obs)}
        for t in range(self.size):
            if t in self.abandoned:
                self._replay.cut(self.abandoned[t])

            next_obs = rows_of(self.obs, t + 1)
            if t in finals:
                index, final_obs = finals[t]
                next_obs = map_tree(np.copy, next_obs)
                for leaf, final in zip(leaves(next_obs), leaves(final_obs)):
                    leaf[index - t * self.num_envs] = final
            batch = self._batch(t, next_obs)

            if t in self.uncounted:
                envs = self.uncounted[t]
                self.leave_out(envs, self.terminateds[t, envs] | self.truncateds[t, envs])
            # All rows at once is the usual case, and needs no copy of the rows.
            rows = None if self.all_valid else np.flatnonzero(self.valid[t])
            if rows is None or len(rows) == self.num_envs:
                self._replay.add(batch)
            elif len(rows):
                self._replay.add(rows_of(batch, rows), rows)

    def _add_all_steps(self, obs: np.ndarray) -> None:
        """Add all vector steps at once: the fast path for plain observations, if each row is a transition."""
        next_obs = obs[1 : self.size + 1]
        if self.final_index:
            next_obs = next_obs.copy()
            rows = next_obs.reshape(-1, *next_obs.shape[2:])
            for index, final_obs in zip(self.final_index, self.final_obs):
                rows[index] = final_obs
        self._replay.add_steps(self._batch(slice(self.size), next_obs))

    def _batch(self, t: int | slice, next_obs: Tree) -> dict[str, Any]:
        """Return the transitions of one vector step or of several."""
        batch = {
            Columns.OBS: rows_of(self.obs, t),
            Columns.ACTIONS: self.actions[t],
            Columns.REWARDS: self.rewards[t],
            Columns.TERMINATEDS: self.terminateds[t],
            Columns.TRUNCATEDS: self.truncateds[t],
            Columns.NEXT_OBS: next_obs,
        }
        if self.keeps_states:
            batch[Columns.STATE_IN] = self.states[t] if isinstance(t, int) else self.states_of(t)
        return batch

    def mark_valid(self, t: int, valid: np.ndarray | None, counting: np.ndarray | None) -> None:
        """Mark the rows of vector step `t` that count. The other rows are not stored; their episodes continue."""
        super().mark_valid(t, valid, counting)
        if counting is not None and not counting.all():
            is_uncounted = ~counting if valid is None else valid & ~counting
            self.uncounted[t] = np.flatnonzero(is_uncounted)

    def abandon_episodes(self, t: int, envs: np.ndarray) -> None:
        """Cut the running episodes of these environments before row `t`."""
        self.abandoned[t] = envs

    def _empty(self) -> None:
        super()._empty()
        self.abandoned = {}
        self.uncounted = {}

    def renew_episodes(self, envs: np.ndarray) -> None:
        """Begin new episodes in these environments: the next rows do not continue those in the buffer."""
        super().renew_episodes(envs)
        self._replay.cut(envs)

    def get_state(self) -> dict[str, Any]:
        """Return the writer's state: the number of rows that were added to the buffer. The buffer saves its own."""
        return {"added": self.added}

    def set_state(self, state: Any) -> None:
        """Restore the state that `get_state` returned. The store is empty, as it is between any two collects.

        The next rows continue the episodes in the buffer only if as many rows have been added to it as when the state
        was saved; otherwise it is another buffer, or somebody else has written to it.
        """
        self.added = int(state["added"])
        self._empty()


AgentBuffer = EpisodeStore | MultiAgentReplayBuffer
"""Buffer for the steps of several agents."""
Buffer = RolloutStore | ReplayBuffer | AgentBuffer
"""Buffer for steps that are collected on the host."""


class PieceWriter:
    """Writer of episodes of several agents, and of pieces of episodes, into a buffer.

    It cuts an episode in the buffer wherever the next piece does not continue it.

    Args:
        parts: The acting part of each module, by module id.
        agents: Agents of each module, by module id.
        spaces: The environments' observation spaces and action spaces, each by agent.
        num_envs: Number of environments that the pieces come from.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        agents: Mapping[str, Sequence[AgentID]],
        spaces: tuple[Mapping[AgentID, Any], Mapping[AgentID, Any]],
        num_envs: int,
    ) -> None:
        self._parts = parts
        self._agents = agents
        self._spaces = spaces
        self._num_envs = num_envs
        self._buffer: AgentBuffer | None = None
        self._open: set[int] = set()
        """Environments whose newest piece in the buffer is not the end of its episode."""
        self._added = 0
        """`num_added` of the buffer after the last write of this writer; if it differs, somebody else has written."""

    @property
    def buffer(self) -> AgentBuffer | None:
        """Buffer that pieces are stored in; None if they are not stored."""
        return self._buffer

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Store later pieces in `buffer`. Raises `ValueError` for a buffer that does not fit."""
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
        """Begin a collect. If somebody else has written to the buffer since, all episodes in it are cut."""
        if self._num_added() != self._added:
            self.cut()

    def cut(self, envs: Iterable[int] | None = None) -> None:
        """Cut the episodes of these environments in the buffer: later pieces do not continue them.

        `envs` defaults to all environments.
        """
        for b in range(self._num_envs) if envs is None else envs:
            self._open.discard(b)
            if self._buffer is not None:
                self._buffer.cut(b)
        self._added = self._num_added()

    def continue_episodes(self, envs: Iterable[int]) -> None:
        """Let the next pieces of these environments continue the episodes in the buffer, as a restored run does."""
        self._open = set(envs)
        self._added = self._num_added()

    def fit_replay(self, agents: Mapping[str, Sequence[AgentID]] | None = None) -> None:
        """Give each module that learns a replay buffer for its agents; see `MultiAgentReplayBuffer.fit`.

        `agents` by module id default to all agents with the spaces of the module. An `EpisodeStore` stays as it is.
        """
        if self._buffer is None:
            return
        # Inference-only modules never learn, and need no replay buffer.
        frozen = [module_id for module_id, part in self._parts.items() if part.module.inference_only]
        if agents is None:
            agents = self._agents_by_spaces(frozen)
        self._buffer.fit({module_id: names for module_id, names in agents.items() if names}, frozen)
        self._note_actions(self._buffer)
        self._added = self._num_added()

    def _agents_by_spaces(self, frozen: Collection[str]) -> dict[str, list[AgentID]]:
        """Return the agents that have the spaces of a module, by module id, without the `frozen` modules."""
        observation_spaces, action_spaces = self._spaces
        agents: dict[str, list[AgentID]] = {}
        for module_id, part in self._parts.items():
            if module_id in frozen:
                continue
            module_spaces = (part.observation_space, part.action_space)
            agents[module_id] = [
                agent
                for agent, observation_space in observation_spaces.items()
                if (observation_space, action_spaces[agent]) == module_spaces
            ]
        return agents

    def add(self, pieces: Sequence[tuple[MultiAgentEpisode, int]]) -> None:
        """Store pieces of episodes.

        Args:
            pieces: Each piece with the index of its environment; the pieces of an environment in the order of time.
        """
        if self._buffer is None:
            return
        # An open episode whose environment begins a new one was abandoned: no later piece will end it. Of several
        # pieces of an environment the dict keeps the first, because it is written last in reversed order.
        first_pieces = {b: piece for piece, b in reversed(pieces)}
        for b in sorted(first_pieces.keys() & self._open):
            if first_pieces[b].env_t_started == 0:
                self._buffer.cut(b)

        self._buffer.add(pieces)
        for piece, b in pieces:
            if piece.is_done:
                self._open.discard(b)
            else:
                self._open.add(b)
        self._added = self._num_added()

    def _note_actions(self, buffer: AgentBuffer) -> None:
        """Note in each module's replay buffer the form of its actions (`ActionForm`: space, and whether rescaled).

        Raises `ValueError` as `take_actions_of`.
        """
        for module_id, replay in buffer.replays().items():
            take_actions_of(self._parts[module_id], replay)

    def _num_added(self) -> int:
        return 0 if self._buffer is None else self._buffer.num_added


def take_actions_of(part: Any, buffer: ReplayBuffer) -> None:
    """Note in a replay buffer the form of the actions that `part` learns from.

    Args:
        part: The policy's acting part.
        buffer: The replay buffer that its steps are stored in.

    Raises:
        ValueError: The buffer holds actions of another form, or it returns sequences and the policy has no recurrent
            layers, or the reverse.
    """
    length = buffer.options.sequence_length
    is_recurrent = bool(getattr(part, "is_stateful", False))
    if is_recurrent and length is None:
        raise ValueError(
            "a policy with memory learns from sequences: give a ReplayBuffer(..., sequence_length=80), or set "
            "replay(sequence_length=80)"
        )
    if length is not None and not is_recurrent:
        raise ValueError(
            f"sequence_length={length} is for a policy with memory, and this one has none; leave it out, or set "
            "rl_module(model_config={'recurrent': 'lstm'})"
        )
    form: ActionForm | None = getattr(part, "action_form", None)
    if len(buffer) and buffer.action_form != form:
        raise ValueError(
            f"the buffer holds {describe_actions(buffer.action_form)}, and the policy learns from "
            f"{describe_actions(form)}; make a new buffer with action_form=policy.action_form and copy the rows with "
            "new.extend(buffer.to_batch()), or set buffer.action_form where its actions are the policy's already"
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
    """Return the store that a collector of one agent writes steps into.

    It is the buffer itself if that is a `RolloutStore`, and a `ReplayWriter` in front of a `ReplayBuffer`.

    Args:
        part: The policy's acting part.
        buffer: The collector's buffer; None to store nothing.
        num_envs: Number of environments.
        observation_space: Space of the stored observations.
        action_space: Action space of the environments.
        num_steps: Largest number of vector steps that a `ReplayWriter` adds at once.
        raise_on_nan: Whether a `ReplayWriter` raises `MalformedBufferError` for values that are not finite.

    Raises:
        ValueError: The buffer is for another number of environments or holds actions of another form, or it returns
            sequences and the policy has no recurrent layers, or the reverse.
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
