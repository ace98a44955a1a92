"""`MultiAgentReplayBuffer`: the transitions of several agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

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
"""columns of one row; None: the episode is cut"""


class MultiAgentReplayBuffer(RowSource):
    """A `ReplayBuffer` for each module, with a sub-buffer for each agent of each environment.

    `agents`: module id -> the agents that it acts for. `make(module_id, buffer_num)` gives a module's empty buffer.
    A module's own is `buffers[module_id]`, where `beta` can be set.
    """

    is_by_module = True
    __slots__ = ("agents", "buffers", "ignored", "make", "num_envs")

    def __init__(
        self, agents: Mapping[str, Sequence[AgentID]], num_envs: int, make: Callable[[str, int], ReplayBuffer]
    ) -> None:
        self.agents: dict[str, list[AgentID]] = {module_id: list(names) for module_id, names in agents.items()}
        self.num_envs, self.make = num_envs, make
        self.ignored: frozenset[str] = frozenset()
        """modules that never learn, whose transitions are not kept"""
        self.buffers = {module_id: make(module_id, num_envs * len(names)) for module_id, names in self.agents.items()}

    def __len__(self) -> int:
        """Return the number of transitions of all modules."""
        return sum(map(len, self.buffers.values()))

    @property
    def maxsize(self) -> int:
        """Number of transitions that fit, of all modules."""
        return sum(buffer.maxsize for buffer in self.buffers.values())

    @property
    def num_added(self) -> int:
        """Rows added in all, of all modules."""
        return sum(buffer.num_added for buffer in self.buffers.values())

    def fit(self, agents: Mapping[str, Sequence[AgentID]], ignored: Collection[str] = ()) -> None:
        """Have a buffer for each of these modules, with room for these agents, and none for others.

        A buffer with transitions stays as it is, for the agents that it was made for.
        """
        self.ignored = frozenset(ignored)
        buffers, kept = {}, {}
        for module_id, names in agents.items():
            buffer, known = self.buffers.get(module_id), self.agents.get(module_id)
            if buffer is None or (list(names) != known and not len(buffer)):
                buffer, known = self.make(module_id, self.num_envs * len(names)), list(names)
            buffers[module_id], kept[module_id] = buffer, known or []
        self.buffers, self.agents = buffers, kept

    def check_agents(self, agents: Mapping[str, Sequence[AgentID]], module_ids: Collection[str], num_envs: int) -> None:
        """Raise `ValueError` unless steps of these agents can be added.

        Args:
            agents: module id -> the agents that it acts for.
            module_ids: all modules that there are. A buffer for any other one is refused.
            num_envs: number of environments that the steps come from.
        """
        lacks = any(set(acted_for) - set(self.agents.get(module_id, ())) for module_id, acted_for in agents.items())
        if lacks or set(self.agents) - set(module_ids) or self.num_envs != num_envs:
            raise ValueError(
                f"buffer is for {self.agents} in {self.num_envs} environments; make it for {agents} in {num_envs}"
            )

    def add(self, pieces: Sequence[tuple[MultiAgentEpisode, int]]) -> None:
        """Add the closed steps of pieces of episodes, each with its environment's index, whose last piece it follows.

        Steps of different agents and environments go in together. `KeyError`, adding nothing, for an agent whose module
        is another than it was made for. Those of modules that never learn are passed over.
        """
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
                if single.is_done and not len(single):  # it ended without a step of its own
                    rows.append(None)
        for module_id, by_sub in waiting.items():
            self._add_rows(self.buffers[module_id], by_sub)

    @staticmethod
    def _add_rows(buffer: ReplayBuffer, by_sub: Mapping[int, Sequence[Row]]) -> None:
        """Add each sub-buffer's rows in their order: the first of all of them at once, then the second, and so on."""
        for k in range(max(map(len, by_sub.values()), default=0)):
            now = {sub: rows[k] for sub, rows in by_sub.items() if k < len(rows)}
            cut = [sub for sub, row in now.items() if row is None]
            if cut:
                buffer.cut(cut)
            present = {sub: row for sub, row in now.items() if row is not None}
            if present:
                whole = [*present.values()]
                joined = {name: zip_trees(np.concatenate, [row[name] for row in whole], name) for name in whole[0]}
                buffer.add(joined, list(present))

    def _sub_buffer(self, module_id: str, agent: AgentID, env_index: int) -> int:
        agents = self.agents[module_id]
        return env_index * len(agents) + agents.index(agent)

    def cut(self, env_index: int) -> None:
        """Leave the episode under way in this environment: nothing reaches over the boundary."""
        for module_id, agents in self.agents.items():
            self.buffers[module_id].cut([self._sub_buffer(module_id, agent, env_index) for agent in agents])

    def reset(self) -> None:
        """Empty all modules' buffers."""
        for buffer in self.buffers.values():
            buffer.reset()

    def by_module(self) -> Mapping[str, ReplayBuffer]:
        return self.buffers

    def replays(self) -> Mapping[str, ReplayBuffer]:
        return self.buffers

    def draw(self, n: int) -> dict[str, SampleBatch]:
        return self.sample(n)

    def sample(self, n: int) -> dict[str, SampleBatch]:
        """Return `n` transitions of each module that has any, drawn at random with replacement; 0: all, once each.

        `ValueError` where there are none at all.
        """
        filled = {module_id: buffer for module_id, buffer in self.buffers.items() if len(buffer)}
        if not filled:
            raise ValueError("the buffer is empty: add transitions first")
        return {mid: buffer.sample(n) if n else buffer[buffer.permutation()] for mid, buffer in filled.items()}

    def seed_streams(self, seed: int) -> None:
        seeds = RandomStreams(seed).child("replay")
        for module_id, buffer in self.buffers.items():
            buffer.streams.set_state(RandomStreams(seeds.seed(module_id)).get_state())
