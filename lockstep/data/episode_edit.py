"""What changes an episode or makes another from it: pieces, joining, setters, checks, state."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.episode_access import (
    check_in_space,
    copied,
    num_items,
    trees_equal,
)
from lockstep.data.space_codec import describe_space, space_from
from lockstep.data.trees import as_column, concat_leaves, copy_leaf, map_tree, row_of, stack_rows, zip_trees

if TYPE_CHECKING:
    from lockstep.data.episode import SingleAgentEpisode
    from lockstep.data.sample_batch import SampleBatch

Tree = Any


def check_lengths(episode: SingleAgentEpisode) -> int:
    """Number of steps stored, lookback included; `ValueError` naming the data that do not fit."""
    columns = {"actions": episode._actions, "rewards": episode._rewards, **episode._extras}
    sizes = {name: num_items(column) for name, column in columns.items() if column is not None}
    if episode._obs is None:
        if sizes or episode._infos:
            given = sorted(sizes) + ["infos"] * bool(episode._infos)
            raise ValueError(f"an episode with {given} needs observations, one more than actions")
        episode._infos = None
        return 0
    observations = num_items(episode._obs) + (episode._last_obs is not None)
    if observations == 0:
        raise ValueError("observations are given but empty; leave them out for an episode that is not reset")
    steps = observations - 1
    for name in ("actions", "rewards", *episode._extras):
        if sizes.get(name, 0) != steps:
            raise ValueError(
                f"{observations} observations make {steps} steps, but there are {sizes.get(name, 0)} {name}"
            )
    if episode._infos is not None and len(episode._infos) != observations:
        raise ValueError(f"{observations} observations need as many infos, but there are {len(episode._infos)}")
    return steps


def check_new_keys(episode: SingleAgentEpisode, keys: Any) -> None:
    """`ValueError` unless the step is the first one; columns of other keys, which have no row yet, are dropped."""
    if episode._new_steps or episode._lookback + len(episode):
        raise ValueError(
            f"extra model outputs have the keys {sorted(keys or ())} at t={episode.t}, and had "
            f"{sorted(episode._extra_keys or ())} before; a new key can only come with the first step"
        )
    episode._extras = {}


def _cut_tree(tree: Tree, start: int, stop: int) -> Tree:
    if tree is None or type(tree) is np.ndarray:
        return None if tree is None else tree[start:stop]
    return map_tree(lambda leaf: leaf[start:stop], tree)


def piece(episode: SingleAgentEpisode, start: int, stop: int, lookback: int) -> SingleAgentEpisode:
    """Steps `start:stop` with `lookback` steps before them, as views."""
    if lookback < 0:
        raise ValueError(f"len_lookback_buffer={lookback}; it cannot be negative")
    episode._pack()
    first = episode._lookback + start - lookback
    last = episode._lookback + stop
    new = object.__new__(type(episode))
    new.id_, new.agent_id, new.module_id = episode.id_, episode.agent_id, episode.module_id
    new.multi_agent_episode_id = episode.multi_agent_episode_id
    new.observation_space, new.action_space = episode.observation_space, episode.action_space
    new.custom_data = _copied(episode.custom_data) if episode.custom_data else {}
    at_end = stop == len(episode)
    new.is_terminated = at_end and episode.is_terminated
    new.is_truncated = at_end and episode.is_truncated
    apart = at_end and episode._last_obs is not None
    new._obs = _cut_tree(episode._obs, first, last if apart else last + 1)
    new._last_obs = episode._last_obs if apart else None
    new._actions = _cut_tree(episode._actions, first, last)
    new._rewards = _cut_tree(episode._rewards, first, last)
    new._extras = {key: _cut_tree(tree, first, last) for key, tree in episode._extras.items()}
    new._extra_keys = episode._extra_keys
    new._infos = None if episode._infos is None else _copied_infos(episode._infos[first : last + 1])
    new._new_obs, new._new_steps, new._spare, new._source = [], [], {}, None
    new._lookback = lookback
    new.t_started, new.t = episode.t_started + start, episode.t_started + stop
    new._duration, new._start_time, new._last_time = 0.0, episode._last_time, episode._last_time
    return new


def successor(episode: SingleAgentEpisode, lookback: int) -> SingleAgentEpisode:
    """What `cut` gives: a piece without steps, with rows of its own."""
    new = piece(episode, len(episode), len(episode), lookback)
    for name in ("_obs", "_last_obs", "_actions", "_rewards", "_extras"):
        tree = getattr(new, name)
        setattr(new, name, None if tree is None else map_tree(_copied_leaf, tree))
    return new


def _copied_leaf(leaf: Any) -> Any:
    return copy_leaf(leaf) if hasattr(leaf, "dtype") else leaf


def _copied_infos(infos: list[Any] | None) -> list[Any] | None:
    """Infos of their own; None, which stands for empty ones, where all are empty."""
    if infos is None or infos.count({}) == len(infos):
        return None
    return list(map(_copied, infos))


def _copied(value: Any) -> Any:
    """A copy that shares no dict, list or array; what cannot be copied (a lock, a handle) is shared."""
    kind = type(value)
    if kind is dict:
        return {key: _copied(part) for key, part in value.items()}
    if kind is list or kind is tuple:
        return kind(map(_copied, value))
    if kind in (int, float, bool, str, type(None)):
        return value
    if kind is np.ndarray and value.dtype != object:
        return value.copy()
    try:
        return deepcopy(value)
    except TypeError:
        return value


def concat(episode: SingleAgentEpisode, other: SingleAgentEpisode) -> None:
    """Appends `other` in place."""
    if not isinstance(other, type(episode)):
        raise TypeError(f"concat_episode takes a {type(episode).__name__}, not {other!r}")
    check_contiguous(episode, other)
    if episode._infos is not None or other._infos is not None:
        episode._infos = episode._all_infos()[:-1] + other._all_infos()[other._lookback :]
    steps, begin = episode._lookback + len(episode), other._lookback
    if len(other):
        episode._actions = _joined(episode._actions, _cut_tree(other._actions, begin, other._stored), "actions")
        episode._rewards = _joined(episode._rewards, _cut_tree(other._rewards, begin, other._stored), "rewards")
        for key, tree in other._extras.items():
            episode._extras[key] = _joined(episode._extras.get(key), _cut_tree(tree, begin, other._stored), key)
        episode._extra_keys = other._extra_keys
    mine = _cut_tree(episode._obs, 0, steps)
    theirs = _cut_tree(other._obs, begin, other._stored + 1)
    episode._obs = _joined(mine, theirs, "observations")
    episode._last_obs = other._last_obs
    episode._spare, episode._source = {}, None
    episode.t = other.t
    episode.is_terminated, episode.is_truncated = other.is_terminated, other.is_truncated
    episode._duration += other.get_duration_s()
    episode.custom_data.update(other.custom_data)


def _joined(first: Tree, second: Tree, name: str) -> Tree:
    if first is None:
        return copied(second)
    return zip_trees(lambda parts: concat_leaves(parts, name), [first, second], name)


def check_contiguous(episode: SingleAgentEpisode, other: SingleAgentEpisode) -> None:
    """`ValueError` unless `other` can follow `episode`."""
    if other.id_ != episode.id_:
        raise ValueError(f"the episodes have different ids, {episode.id_!r} and {other.id_!r}")
    if episode.is_done:
        raise ValueError(f"episode {episode.id_} ended at t={episode.t}; nothing can follow")
    if other.t_started != episode.t:
        raise ValueError(f"the first piece ends at t={episode.t}, the second begins at t={other.t_started}")
    if not (episode.is_reset and other.is_reset):
        raise ValueError("both pieces need an observation; call add_env_reset first")
    last, first = episode.get_observations(-1), other.get_observations(0)
    if not trees_equal(last, first):
        raise ValueError(f"the first piece ends with observation {last!r}, the second begins with {first!r}")
    both = episode._stored and len(other)
    if both and set(episode._extra_keys or ()) != set(other._extra_keys or ()):
        raise ValueError(
            f"extra model outputs differ: {sorted(episode._extra_keys or ())} and {sorted(other._extra_keys or ())}"
        )


def validate(episode: SingleAgentEpisode) -> None:
    """Checks lengths, the count of steps, and that values lie in the spaces."""
    episode._pack()
    steps = check_lengths(episode)
    if episode.t - episode.t_started != steps - episode._lookback:
        raise ValueError(
            f"t={episode.t} and t_started={episode.t_started} do not fit {steps} stored steps, "
            f"{episode._lookback} of them lookback"
        )
    if episode.is_done and not episode.is_reset:
        raise ValueError(f"episode {episode.id_} is done but has no observation")
    if episode._rewards is not None and (episode._rewards.ndim != 1 or not np.isfinite(episode._rewards).all()):
        raise ValueError(f"rewards must be one finite number for each step, got {episode._rewards!r}")
    if episode._obs is not None:
        check_in_space(episode._obs, episode.observation_space, "observations")
        if episode._last_obs is not None:
            check_in_space(stack_rows("obs", [episode._last_obs]), episode.observation_space, "last observation")
    if episode._actions is not None:
        check_in_space(episode._actions, episode.action_space, "actions")


def data_dict(episode: SingleAgentEpisode) -> dict[str, Any]:
    """Columns of T rows."""
    episode._pack()
    if not episode.is_reset:
        raise ValueError(f"episode {episode.id_} has no observation yet; call add_env_reset first")
    first, steps = episode._lookback, len(episode)
    last = first + steps
    obs = _cut_tree(episode._obs, first, last)
    if episode._last_obs is None:
        new_obs = _cut_tree(episode._obs, first + 1, last + 1)
    else:
        tail = map_tree(lambda leaf: np.asarray(leaf)[None], episode._last_obs)
        later = _cut_tree(episode._obs, first + 1, last)
        new_obs = zip_trees(lambda parts: concat_leaves(parts, "new_obs"), [later, tail], "new_obs")
        new_obs = _cut_tree(new_obs, 0, steps)
    ends = np.zeros((2, steps), dtype=bool)
    if steps:
        ends[:, -1] = episode.is_terminated, episode.is_truncated
    return {
        Columns.OBS: obs,
        Columns.NEXT_OBS: new_obs,
        Columns.ACTIONS: episode.get_actions(),
        Columns.REWARDS: episode.get_rewards(),
        Columns.INFOS: as_column(Columns.INFOS, list(episode._all_infos()[first + 1 :])),
        Columns.TERMINATEDS: ends[0],
        Columns.TRUNCATEDS: ends[1],
        Columns.T: np.arange(episode.t_started, episode.t),
        Columns.EPS_ID: np.full(steps, episode.id_),
        **{key: _cut_tree(tree, first, last) for key, tree in episode._extras.items()},
    }


_OWN_COLUMNS = {
    *(Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS, Columns.TERMINATEDS),
    *(Columns.TRUNCATEDS, Columns.DONES, Columns.T, Columns.EPS_ID, Columns.SEQ_LENS, Columns.AGENT_ID),
    *(Columns.MODULE_ID, Columns.STATE_IN),
}


def arguments_from_batch(batch: SampleBatch) -> dict[str, Any]:
    """Arguments of the constructor for the episode in a batch."""
    if not len(batch):
        raise ValueError("an empty batch is no episode")
    if not batch.is_single_trajectory():
        raise ValueError("the batch holds more than one episode; use split_by_episode() first")
    flat = batch.copy(shallow=True).unpad().to_numpy()
    _check_steps(flat)
    tail = map_tree(lambda leaf: leaf[-1:], flat[Columns.NEXT_OBS])
    observations = _joined(flat[Columns.OBS], tail, Columns.OBS)
    arguments: dict[str, Any] = {
        "observations": observations,
        "actions": flat[Columns.ACTIONS],
        "rewards": flat[Columns.REWARDS],
        "terminated": bool(flat[Columns.TERMINATEDS][-1]) if Columns.TERMINATEDS in flat else False,
        "truncated": bool(flat[Columns.TRUNCATEDS][-1]) if Columns.TRUNCATEDS in flat else False,
        "t_started": int(flat[Columns.T][0]) if Columns.T in flat else 0,
        "extra_model_outputs": {key: tree for key, tree in flat.items() if key not in _OWN_COLUMNS},
    }
    if Columns.INFOS in flat:
        arguments["infos"] = [{}, *flat[Columns.INFOS]]
    for column, name in ((Columns.EPS_ID, "id_"), (Columns.AGENT_ID, "agent_id"), (Columns.MODULE_ID, "module_id")):
        if column in flat:
            value = flat[column][0]
            arguments[name] = value.item() if isinstance(value, np.generic) else value
    return arguments


def _check_steps(flat: SampleBatch) -> None:
    """`ValueError` naming the first row that does not follow the one before."""
    if Columns.T in flat:
        jumps = np.flatnonzero(np.diff(flat[Columns.T]) != 1)
        if len(jumps):
            row = int(jumps[0])
            times = flat[Columns.T][row : row + 2].tolist()
            raise ValueError(
                f"column 't', row {row + 1}: {times[1]} does not follow {times[0]}; steps must be in order"
            )
    before = map_tree(lambda leaf: leaf[:-1], flat[Columns.NEXT_OBS])
    after = map_tree(lambda leaf: leaf[1:], flat[Columns.OBS])
    if not trees_equal(before, after):
        row = next(i for i in range(len(flat) - 1) if not trees_equal(row_of(before, i), row_of(after, i)))
        raise ValueError(
            f"column 'new_obs', row {row} is not column 'obs', row {row + 1}: they are not steps one after another"
        )


_PLAIN = ("id_", "agent_id", "module_id", "multi_agent_episode_id", "is_terminated", "is_truncated", "t", "t_started")


def get_state(episode: SingleAgentEpisode) -> dict[str, Any]:
    """Plain values and copies of the arrays."""
    episode._pack()
    if episode._last_obs is not None:
        episode._join()
    return {
        **{name: getattr(episode, name) for name in _PLAIN},
        "custom_data": deepcopy(episode.custom_data),
        "len_lookback_buffer": episode._lookback,
        "duration_s": episode.get_duration_s(),
        "observations": None if episode._obs is None else copied(episode._obs),
        "actions": None if episode._actions is None else copied(episode._actions),
        "rewards": None if episode._rewards is None else copied(episode._rewards),
        "extra_model_outputs": {key: copied(tree) for key, tree in episode._extras.items()},
        "infos": _copied_infos(episode._infos),
        "observation_space": describe_space(episode.observation_space),
        "action_space": describe_space(episode.action_space),
    }


def restore(cls: type[SingleAgentEpisode], state: Mapping[str, Any]) -> SingleAgentEpisode:
    """The episode of a state; `KeyError` naming what a foreign state lacks."""
    missing = [name for name in (*_PLAIN, "observations", "len_lookback_buffer") if name not in state]
    if missing:
        raise KeyError(f"this is no state of an episode; it lacks {missing}")
    episode = cls(
        state["id_"],
        observations=state["observations"],
        actions=state["actions"],
        rewards=state["rewards"],
        infos=state["infos"],
        extra_model_outputs=state["extra_model_outputs"],
        observation_space=space_from(state["observation_space"]),
        action_space=space_from(state["action_space"]),
        t_started=state["t_started"],
        len_lookback_buffer=state["len_lookback_buffer"],
        terminated=state["is_terminated"],
        truncated=state["is_truncated"],
        agent_id=state["agent_id"],
        module_id=state["module_id"],
        multi_agent_episode_id=state["multi_agent_episode_id"],
    )
    episode.custom_data = deepcopy(state["custom_data"])
    episode._duration = state["duration_s"]
    return episode
