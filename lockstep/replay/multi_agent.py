"""`MultiAgentReplayBuffer`: replay buffers for the transitions of several agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from lockstep.data.agent_steps import AgentID
from lockstep.data.columns import Columns
from lockstep.data.multi_agent_episode import MultiAgentEpisode
from lockstep.data.row_source import RowSource
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trees import rows_of, zip_trees
from lockstep.replay.buffer import ReplayBuffer
from lockstep.replay.rows import REQUIRED
from lockstep.state.streams import RandomStreams

Row = dict[str, Any] | None
"""Columns of one row. None: the agent's episode is cut here."""


class MultiAgentReplayBuffer(RowSource):
    """Replay buffers of several modules, with a sub-buffer for each agent of each environment.

    Args:
        agents: agents that each module acts for, by module id.
        num_envs: number of environments.
        make: function of a module id and a number of sub-buffers that returns an empty buffer.

    Attributes:
        buffers: `ReplayBuffer` of each module, by module id. Options such as `beta` are set there.
        ignored: modules that never learn, whose transitions are not stored.
    """

    is_by_module: ClassVar[Literal[True]] = True
    __slots__ = ("agents", "buffers", "ignored", "make", "num_envs")

    def __init__(
        self, agents: Mapping[str, Sequence[AgentID]], num_envs: int, make: Callable[[str, int], ReplayBuffer]
    ) -> None:
        self.agents: dict[str, list[AgentID]] = {module_id: list(names) for module_id, names in agents.items()}
        self.num_envs = num_envs
        self.make = make
        self.ignored: frozenset[str] = frozenset()
        self.buffers = {module_id: make(module_id, num_envs * len(names)) for module_id, names in self.agents.items()}

    def __len__(self) -> int:
        """Return the number of transitions of all modules."""
        return sum(map(len, self.buffers.values()))

    @property
    def maxsize(self) -> int:
        """Number of transitions that fit, over all modules."""
        return sum(buffer.maxsize for buffer in self.buffers.values())

    @property
    def num_added(self) -> int:
        """Number of rows added in all, over all modules."""
        return sum(buffer.num_added for buffer in self.buffers.values())

    def fit(self, agents: Mapping[str, Sequence[AgentID]], ignored: Collection[str] = ()) -> None:
        """Adapt the buffers to other modules and agents, and drop the buffers of modules that are not named.

        A buffer that has transitions stays as it is, with the agents that it was made for: its sub-buffers cannot be
        assigned to others.

        Args:
            agents: agents that each module acts for, by module id.
            ignored: modules that never learn, whose transitions are not stored.
        """
        self.ignored = frozenset(ignored)
        new_buffers = {}
        new_agents = {}
        for module_id, names in agents.items():
            buffer = self.buffers.get(module_id)
            known = self.agents.get(module_id)
            if buffer is None or (list(names) != known and not len(buffer)):
                buffer = self.make(module_id, self.num_envs * len(names))
                known = list(names)
            new_buffers[module_id] = buffer
            new_agents[module_id] = known or []
        self.buffers = new_buffers
        self.agents = new_agents

    def check_agents(self, agents: Mapping[str, Sequence[AgentID]], module_ids: Collection[str], num_envs: int) -> None:
        """Check that steps of these agents can be added.

        Args:
            agents: agents that each module acts for, by module id.
            module_ids: all existing modules. A buffer for any other one is refused.
            num_envs: number of environments that the steps come from.

        Raises:
            ValueError: an agent has no sub-buffer, or a buffer has no module, or the number of environments differs.
        """
        lacks = any(set(acted_for) - set(self.agents.get(module_id, ())) for module_id, acted_for in agents.items())
        if lacks or set(self.agents) - set(module_ids) or self.num_envs != num_envs:
            raise ValueError(
                f"buffer is for {self.agents} in {self.num_envs} environments; make it for {agents} in {num_envs}"
            )

    def add(self, pieces: Sequence[tuple[MultiAgentEpisode, int]]) -> None:
        """Add the closed steps of pieces of episodes. Steps of different agents and environments are added together.

        Args:
            pieces: pieces with the indices of their environments. Each continues the last piece of its environment.

        Raises:
            KeyError: an agent is mapped to another module than the buffers were made for. Nothing is added in that
                case. Agents of modules in `ignored` are left out.
        """
        # All rows are gathered before the first one is added, so that a refused agent leaves no half of a step.
        waiting: dict[str, dict[int, list[Row]]] = {module_id: {} for module_id in self.agents}
        for piece, env_index in pieces:
            for agent, single in piece.agent_episodes.items():
                module_id = str(single.module_id)
                if module_id in self.ignored:
                    continue
                if agent not in self.agents.get(module_id, ()):
                    raise KeyError(
                        f"agent {agent!r} is mapped to the module {module_id!r} now, and the replay buffer was made "
                        f"for {self.agents}; give all mappings before the first step, policy_mapping_fn=[[0, f], "
                        "[step, g]], or set_policy_mapping_fn of the trainer"
                    )
                rows = waiting[module_id].setdefault(self._sub_buffer(module_id, agent, env_index), [])
                data = single.get_data_dict() if len(single) else {}
                columns = {name: data[name] for name in (*REQUIRED, Columns.STATE_IN) if name in data}
                rows += [rows_of(columns, slice(i, i + 1)) for i in range(len(single))]
                # An agent may be done without a step in this piece. Its last row was added as one that continues, and
                # must not be joined to the agent's next episode.
                if single.is_done and not len(single):
                    rows.append(None)
        for module_id, by_sub_buffer in waiting.items():
            self._add_rows(self.buffers[module_id], by_sub_buffer)

    @staticmethod
    def _add_rows(buffer: ReplayBuffer, by_sub_buffer: Mapping[int, Sequence[Row]]) -> None:
        """Add the rows of each sub-buffer in their order: the first of all sub-buffers at once, then the second."""
        for k in range(max(map(len, by_sub_buffer.values()), default=0)):
            now = {sub_buffer: rows[k] for sub_buffer, rows in by_sub_buffer.items() if k < len(rows)}
            cut = [sub_buffer for sub_buffer, row in now.items() if row is None]
            if cut:
                buffer.cut(cut)
            present = {sub_buffer: row for sub_buffer, row in now.items() if row is not None}
            if present:
                rows = [*present.values()]
                joined = {name: zip_trees(np.concatenate, [row[name] for row in rows], name) for name in rows[0]}
                buffer.add(joined, list(present))

    def _sub_buffer(self, module_id: str, agent: AgentID, env_index: int) -> int:
        """Return the sub-buffer of an agent of an environment, in its module's buffer."""
        agents = self.agents[module_id]
        return env_index * len(agents) + agents.index(agent)

    def cut(self, env_index: int) -> None:
        """Leave the episode under way in an environment, for all its agents. Nothing reaches over the boundary."""
        for module_id, agents in self.agents.items():
            self.buffers[module_id].cut([self._sub_buffer(module_id, agent, env_index) for agent in agents])

    def reset(self) -> None:
        """Empty the buffers of all modules."""
        for buffer in self.buffers.values():
            buffer.reset()

    def by_module(self) -> Mapping[str, ReplayBuffer]:
        return self.buffers

    def replays(self) -> Mapping[str, ReplayBuffer]:
        return self.buffers

    def draw(self, n: int) -> dict[str, SampleBatch]:
        return self.sample(n)

    def sample(self, n: int) -> dict[str, SampleBatch]:
        """Return `n` random transitions of each module that has any, drawn with replacement.

        `n=0` returns all transitions, each once, in random order. `ValueError` if there are none at all.
        """
        filled = {module_id: buffer for module_id, buffer in self.buffers.items() if len(buffer)}
        if not filled:
            raise ValueError("the buffer is empty: add transitions first")
        return {mid: buffer.sample(n) if n else buffer[buffer.permutation()] for mid, buffer in filled.items()}

    def seed_streams(self, seed: int) -> None:
        seeds = RandomStreams(seed).child("replay")
        for module_id, buffer in self.buffers.items():
            buffer.streams.set_state(RandomStreams(seeds.seed(module_id)).get_state())
