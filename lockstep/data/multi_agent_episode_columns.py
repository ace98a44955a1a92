"""Reading and writing the columns of a `MultiAgentEpisode`, by environment steps or by each agent's own steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Any

import numpy as np

from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.episode_access import (
    Indices,
    num_items,
    one_hot,
    positions_of,
    read_list,
    read_tree,
)
from lockstep.data.multi_agent_episode_step import ACTIONS, EXTRAS, INFOS, OBSERVATIONS, REWARDS, AgentID, AgentTrack
from lockstep.data.multi_agent_episode_write import after, set_columns
from lockstep.data.trees import row_of, stack_rows

Tree = Any


class MultiAgentColumns:
    """One `SingleAgentEpisode` for each agent, and the environment time at which each of its observations came."""

    __slots__ = ("_lookback", "_tracks", "agent_episodes", "env_t", "env_t_started", "id_")

    id_: str
    agent_episodes: dict[AgentID, SingleAgentEpisode]
    env_t: int
    env_t_started: int
    _tracks: dict[AgentID, AgentTrack]
    _lookback: int

    # ---- reading -----------------------------------------------------------------------------------------

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Observations `{agent: column}` at `indices`, which are env steps (T + 1 of them).

        An agent's column has a row for each index at which it observed; agents without any are left out. With
        `fill` each agent has a row for each index. An int gives single rows. `return_list` gives one dict for each
        index. With `env_steps=False` the indices are each agent's own steps. Indices, `neg_index_as_lookback`,
        `fill` and `one_hot_discrete` are as in `SingleAgentEpisode.get_observations`. Raises `IndexError` outside
        the episode without `fill`, `KeyError` for unknown agents, `ValueError` for `return_list` with own steps.
        """
        return self._get(
            OBSERVATIONS,
            None,
            indices,
            agent_ids,
            env_steps,
            neg_index_as_lookback,
            fill,
            one_hot_discrete,
            return_list,
        )

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Infos, as lists; see `get_observations`."""
        return self._get(INFOS, None, indices, agent_ids, env_steps, neg_index_as_lookback, fill, False, return_list)

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Actions (T env steps); see `get_observations`.

        An action has the index of the observation that it answers. One that waits for the next observation counts.
        """
        return self._get(
            ACTIONS, None, indices, agent_ids, env_steps, neg_index_as_lookback, fill, one_hot_discrete, return_list
        )

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: float | None = None,
        return_list: bool = False,
    ) -> Any:
        """Rewards of the actions, with their indices: each the sum until the agent's next observation."""
        return self._get(REWARDS, None, indices, agent_ids, env_steps, neg_index_as_lookback, fill, False, return_list)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Model outputs under `key` with the indices of the actions; None: a dict of all keys for each agent."""
        return self._get(EXTRAS, key, indices, agent_ids, env_steps, neg_index_as_lookback, fill, False, return_list)

    def _get(
        self,
        what: str,
        key: str | None,
        indices: Indices,
        agent_ids: Any,
        env_steps: bool,
        negative: bool,
        fill: Any,
        hot: bool,
        return_list: bool,
    ) -> Any:
        agents = self._chosen(agent_ids)
        if not env_steps:
            if return_list:
                raise ValueError("return_list=True needs env_steps=True: agents' own steps have no common index")
            return self._by_own_steps(what, key, agents, indices, negative, fill, hot)
        times, single = self._times(what, indices, negative, fill is not None)
        read: dict[AgentID, tuple[np.ndarray, Any]] = {}
        for agent in agents:
            positions = self._positions_at(agent, what, times)
            found = positions >= 0
            if fill is None:
                positions = positions[found]
            else:
                found = np.ones_like(found)
            column = self._column(agent, what, key, hot) if len(positions) else {}
            if not isinstance(column, dict) or column:
                read[agent] = found, _read(column, positions, fill, self._available(agent, what))
        if return_list:
            result: list[dict[AgentID, Any]] = [{} for _ in range(len(times))]
            for agent, (found, rows) in read.items():
                for row, index in enumerate(np.flatnonzero(found).tolist()):
                    result[index][agent] = _row(rows, row)
            return result
        return {agent: _row(rows, 0) if single else rows for agent, (_, rows) in read.items()}

    def _by_own_steps(
        self, what: str, key: str | None, agents: list[AgentID], indices: Indices, negative: bool, fill: Any, hot: bool
    ) -> dict[AgentID, Any]:
        read = {}
        for agent in agents:
            where = self._own_positions(agent, what, indices, negative, fill is not None)
            value = _read(self._column(agent, what, key, hot), where, fill, self._available(agent, what))
            if isinstance(where, int) or (len(value) if isinstance(value, list) else num_items(value)):
                read[agent] = value
        return read

    # ---- writing -----------------------------------------------------------------------------------------

    def set_observations(
        self,
        *,
        new_data: Any,
        at_indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        return_list: bool = False,
    ) -> None:
        """Replaces observations by `new_data`, which has the form in which the getter with these arguments gives them.

        `agent_ids` limits the agents that are set. Raises `IndexError` where lengths do not fit, `ValueError` for a
        value outside the agent's space, `KeyError` for an agent that is not there; nothing is changed then.
        """
        set_columns(
            self, OBSERVATIONS, None, new_data, at_indices, agent_ids, env_steps, neg_index_as_lookback, return_list
        )

    def set_actions(
        self,
        *,
        new_data: Any,
        at_indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        return_list: bool = False,
    ) -> None:
        """Replaces actions, waiting ones too; see `set_observations`."""
        set_columns(self, ACTIONS, None, new_data, at_indices, agent_ids, env_steps, neg_index_as_lookback, return_list)

    def set_rewards(
        self,
        *,
        new_data: Any,
        at_indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        return_list: bool = False,
    ) -> None:
        """Replaces rewards, those of waiting actions too; see `set_observations`."""
        set_columns(self, REWARDS, None, new_data, at_indices, agent_ids, env_steps, neg_index_as_lookback, return_list)

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: Any,
        at_indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        return_list: bool = False,
    ) -> None:
        """Replaces outputs under `key`; a new key takes a value for every step. See `set_observations`."""
        set_columns(self, EXTRAS, key, new_data, at_indices, agent_ids, env_steps, neg_index_as_lookback, return_list)

    # ---- where things are --------------------------------------------------------------------------------

    def _chosen(self, agent_ids: Any) -> list[AgentID]:
        """The agents asked for; `KeyError` for one that has no observation in this episode."""
        if agent_ids is None:
            return [*self.agent_episodes]
        one = isinstance(agent_ids, str) or not isinstance(agent_ids, Collection)
        if not one and isinstance(agent_ids, tuple) and agent_ids in self.agent_episodes:
            one = True
        chosen = [agent_ids] if one else [*agent_ids]
        for agent in chosen:
            if agent not in self.agent_episodes:
                raise KeyError(f"no agent {agent!r} in episode {self.id_}; its agents are {[*self.agent_episodes]}")
        return chosen

    def _times(self, what: str, indices: Indices, negative: bool, fill: bool) -> tuple[np.ndarray, bool]:
        """Environment times that env-step `indices` mean, and whether they are one int."""
        stored = self._lookback + self.env_t - self.env_t_started + (what in (OBSERVATIONS, INFOS))
        where = positions_of(indices, self._lookback, stored, negative, fill=fill, what=what)
        if isinstance(where, slice):
            positions = np.arange(stored)[where]
        else:
            positions = np.atleast_1d(np.asarray(where, dtype=np.int64))
        return positions + (self.env_t_started - self._lookback), isinstance(where, int)

    def _available(self, agent: AgentID, what: str) -> int:
        """Rows an agent has: stored ones, and for actions one that waits."""
        stored = self.agent_episodes[agent]._stored
        return stored + (what in (OBSERVATIONS, INFOS) or self._tracks[agent].waiting is not None)

    def _own_positions(
        self, agent: AgentID, what: str, indices: Indices, negative: bool, fill: bool
    ) -> int | slice | np.ndarray:
        single, stored = self.agent_episodes[agent], self._available(agent, what)
        return positions_of(indices, single._lookback, stored, negative, fill=fill, what=f"{what} of agent {agent!r}")

    def _positions_at(self, agent: AgentID, what: str, times: np.ndarray) -> np.ndarray:
        """Row of an agent's column for each time, -1 where it has none."""
        known = self._tracks[agent].times
        if len(times) == 1:  # without a look at all of them
            time = int(times[0])
            at = bisect_left(known, time)
            found = at < min(len(known), self._available(agent, what)) and known[at] == time
            return np.array([at if found and time >= self.env_t_started - self._lookback else -1])
        own = np.asarray(known, dtype=np.int64)
        positions = np.searchsorted(own, times)
        inside = positions < min(len(own), self._available(agent, what))
        inside &= times >= self.env_t_started - self._lookback
        inside[inside] = own[positions[inside]] == times[inside]
        return np.where(inside, positions, -1)

    def _column(self, agent: AgentID, what: str, key: str | None, hot: bool) -> Tree:
        """An agent's whole column, with what waits as its last row; a list for infos."""
        single, track = self.agent_episodes[agent], self._tracks[agent]
        if what == INFOS:
            return single._all_infos()
        single._pack()
        if what == OBSERVATIONS:
            if single._last_obs is not None:
                single._join()
            tree, row, space = single._obs, None, single.observation_space
        else:
            tree, row, space = self._step_column(agent, what, key), None, single.action_space
            if track.waiting is not None:
                row = _waiting_row(agent, track, what, key)
        if row is not None:
            tree = after(tree, stack_rows(what, [row]), what)
        if tree is None:
            tree = np.empty(0, dtype=np.float32)
        return one_hot(tree, space, what) if hot else tree

    def _step_column(self, agent: AgentID, what: str, key: str | None) -> Tree:
        single = self.agent_episodes[agent]
        if what == ACTIONS:
            return single._actions
        if what == REWARDS:
            return single._rewards
        if key is None:
            return dict(single._extras) if single._stored else None
        if single._stored and key not in single._extras:
            raise KeyError(f"agent {agent!r} has no extra model output {key!r}; it has {sorted(single._extras)}")
        return single._extras.get(key)


def _waiting_row(agent: AgentID, track: AgentTrack, what: str, key: str | None) -> Any:
    """Action, reward or model outputs of an action that waits."""
    action, extras = track.waiting or (None, None)
    if what == ACTIONS:
        return action
    if what == REWARDS:
        return track.waiting_reward()
    if key is None:
        return dict(extras or {})
    if extras is None or key not in extras:
        raise KeyError(f"agent {agent!r} has no extra model output {key!r}; it has {sorted(extras or ())}")
    return extras[key]


def _read(column: Any, where: Any, fill: Any, available: int) -> Any:
    return read_list(column, where, fill) if isinstance(column, list) else read_tree(column, where, fill, available)


def _row(rows: Any, index: int) -> Any:
    return rows[index] if isinstance(rows, list) else row_of(rows, index)
