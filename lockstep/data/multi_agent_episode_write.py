"""Writing the columns of a `MultiAgentEpisode`: everything is checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.data.episode_access import Indices, as_rows, check_in_space, num_items
from lockstep.data.episode_columns import same_kind
from lockstep.data.multi_agent_episode_step import ACTIONS, EXTRAS, OBSERVATIONS, REWARDS, AgentID, Waiting
from lockstep.data.trees import concat_leaves, map_tree, row_of, stack_rows, zip_trees

if TYPE_CHECKING:
    from lockstep.data.multi_agent_episode_columns import MultiAgentColumns

Tree = Any


def set_columns(
    episode: MultiAgentColumns,
    what: str,
    key: str | None,
    new_data: Any,
    indices: Indices,
    agent_ids: Any,
    env_steps: bool,
    negative: bool,
    return_list: bool,
) -> None:
    """What the setters of `MultiAgentColumns` do; nothing is changed where anything does not fit."""
    times, single = (None, False) if not env_steps else episode._times(what, indices, negative, False)
    given: dict[AgentID, np.ndarray] = {}
    if return_list:
        if times is None:
            raise ValueError("return_list=True needs env_steps=True: agents' own steps have no common index")
        new_data, given = _by_agent(new_data, len(times), what)
        single = False
    if not isinstance(new_data, Mapping):
        raise TypeError(f"new_data is a {type(new_data).__name__}; a dict of agent id -> new {what} is needed")
    changes = []
    for agent in episode._chosen([*new_data] if agent_ids is None else agent_ids):
        if agent not in new_data:
            raise KeyError(f"new_data has no agent {agent!r}; it has {[*new_data]}")
        if times is None:
            where = episode._own_positions(agent, what, indices, negative, False)
            single = isinstance(where, int)
            positions = np.atleast_1d(np.arange(episode._available(agent, what))[where])
        else:
            positions = episode._positions_at(agent, what, times)
            must = given.get(agent, np.full(len(times), single))
            if (positions[must] < 0).any():
                time = int(times[must][positions[must] < 0][0])
                raise IndexError(f"agent {agent!r} has no {what} at t={time}, which cannot be set")
            positions = positions[must if return_list else positions >= 0]
        rows = stack_rows(what, [new_data[agent]]) if single else as_rows(new_data[agent], what)
        if num_items(rows) != len(positions):
            raise IndexError(f"agent {agent!r}: {num_items(rows)} new {what} for {len(positions)} places")
        if len(positions):
            changes.append(_prepared(episode, agent, what, key, positions, rows))
    for agent, column, row in changes:
        _write(episode, agent, what, key, column, row)


def _prepared(
    episode: MultiAgentColumns, agent: AgentID, what: str, key: str | None, positions: np.ndarray, rows: Tree
) -> tuple[AgentID, Tree, Any]:
    """(agent, its column with the new rows, the new value of what waits or None); nothing is changed."""
    single = episode.agent_episodes[agent]
    single._pack()
    name = key if key is not None else what
    space = {OBSERVATIONS: single.observation_space, ACTIONS: single.action_space}.get(what)
    steps = single._stored + (what == OBSERVATIONS)
    waits = positions == steps
    last = None
    try:
        if waits.any():
            last = _prepared_last(episode, agent, what, key, map_tree(lambda leaf: leaf[waits][-1:], rows), space)
        if what == EXTRAS and key not in single._extras and single._stored:
            wanted = steps - single._lookback + (episode._tracks[agent].waiting is not None)
            if len(positions) != wanted:
                raise KeyError(f"no extra model output {key!r}; a new one takes all {wanted} values at once")
            kept = map_tree(lambda leaf: leaf[~waits], rows)
            lead = map_tree(lambda leaf: np.zeros((single._lookback, *leaf.shape[1:]), leaf.dtype), kept)
            return agent, after(lead, kept, name), last
        if waits.all():
            return agent, None, last
        stored = map_tree(lambda leaf: leaf[~waits], rows)
        old = {OBSERVATIONS: single._obs, ACTIONS: single._actions, REWARDS: single._rewards}.get(what)
        if what == OBSERVATIONS and single._last_obs is not None:
            single._join()
            old = single._obs
        if what == EXTRAS:
            old = single._extras[name]
        where = positions[~waits] - single._lookback
        return agent, single._replaced(old, what, stored, where, True, space), last
    except (ValueError, IndexError, KeyError) as error:
        raise type(error)(f"agent {agent!r}: {error.args[0]}") from None


def _prepared_last(
    episode: MultiAgentColumns, agent: AgentID, what: str, key: str | None, rows: Tree, space: Any
) -> Any:
    """The checked new value of what waits, in the kind of numbers of the old one."""
    waiting = episode._tracks[agent].waiting
    if waiting is not None and what == ACTIONS:
        rows = zip_trees(same_kind, [rows, stack_rows(what, [waiting.action])], what)
    check_in_space(rows, space, key or what)
    return row_of(rows, 0)


def _write(episode: MultiAgentColumns, agent: AgentID, what: str, key: str | None, column: Tree, row: Any) -> None:
    single, track = episode.agent_episodes[agent], episode._tracks[agent]
    single._spare = {}
    if column is not None and what == EXTRAS:
        single._extras[str(key)] = column
        single._extra_keys = frozenset(single._extras)
    elif column is not None:
        setattr(single, {OBSERVATIONS: "_obs", ACTIONS: "_actions", REWARDS: "_rewards"}[what], column)
    if row is None or track.waiting is None:
        return
    if what == ACTIONS:
        track.waiting = Waiting(row, track.waiting.extras)
    elif what == EXTRAS:
        track.waiting = Waiting(track.waiting.action, {**(track.waiting.extras or {}), str(key): row})
    elif what == REWARDS:
        before = [entry for entry in track.partial_rewards if entry[0] <= track.times[-1]]
        track.partial_rewards = [*before, (episode.env_t, float(row))]


def after(tree: Tree, rows: Tree, name: str) -> Tree:
    """`rows` behind a column (None: no column yet)."""
    if tree is None:
        return rows
    return zip_trees(lambda parts: concat_leaves(parts, name), [tree, rows], name)


def _by_agent(new_data: Any, length: int, what: str) -> tuple[dict[AgentID, list[Any]], dict[AgentID, np.ndarray]]:
    """A list of dicts by env step as lists by agent, and at which indices each agent has a value."""
    if not isinstance(new_data, list) or not all(isinstance(item, Mapping) for item in new_data):
        raise TypeError("with return_list=True new_data is a list with one dict of agent id -> value for each index")
    if len(new_data) != length:
        raise IndexError(f"new_data has {len(new_data)} dicts of {what} for {length} env steps")
    agents = dict.fromkeys(agent for item in new_data for agent in item)
    rows = {agent: [item[agent] for item in new_data if agent in item] for agent in agents}
    return rows, {agent: np.array([agent in item for item in new_data]) for agent in agents}
