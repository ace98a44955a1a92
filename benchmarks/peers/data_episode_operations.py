"""The operations on episodes that ``data_player.py`` plays, and the situations in which the libraries may differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from data_player import Made, Play, extra_keys, lookback_of, plain, stacked
from gymnasium import spaces

Step = dict[str, Any]

SPACES = {
    "box": spaces.Box(-100.0, 100.0, (3,), np.float32),
    "discrete": spaces.Discrete(9),
    "dict": spaces.Dict({"a": spaces.Box(-100.0, 100.0, (2,), np.float32), "b": spaces.Discrete(9)}),
    "pair": spaces.MultiDiscrete([4, 5]),
}


def value(described: Any) -> Any:
    """One observation or action from JSON."""
    if isinstance(described, dict):
        return {"a": np.array(described["a"], np.float32), "b": int(described["b"])}
    if isinstance(described, list) and described and isinstance(described[0], int):
        return np.array(described, np.int64)
    return np.array(described, np.float32) if isinstance(described, list) else described


def new(state: Play, step: Step) -> Made:
    """An episode of given data."""
    given = {name: [value(item) for item in step[name]] for name in ("observations", "actions")}
    given |= {name: list(step[name]) for name in ("rewards", "infos")}
    given |= {name: None for name in given if not given[name]}
    options = {name: step[name] for name in ("id_", "terminated", "truncated", "t_started")}
    if step["len_lookback_buffer"] is not None:
        options["len_lookback_buffer"] = step["len_lookback_buffer"]
        state.mark("lookback_too_long", step["len_lookback_buffer"] > len(step["actions"]))
    else:
        state.mark("default_lookback", bool(step["actions"]))
    if step["spaces"]:
        options |= {"observation_space": SPACES[step["form"]], "action_space": SPACES[step["action_form"]]}
    extras = {key: list(values) for key, values in step["extras"].items()}
    return Made(state.library.SingleAgentEpisode(**given, **options, extra_model_outputs=extras or None))


def _uneven(step: Step) -> bool:
    steps = max(len(step["observations"]) - 1, 0)
    others = [len(step["actions"]), len(step["rewards"]), *map(len, step["extras"].values())]
    infos = len(step["infos"]) not in (0, len(step["observations"]))
    return infos or any(size != steps for size in others)


def add_reset(state: Play, step: Step) -> Made:
    episode = state.at(step["on"])
    episode.add_env_reset(value(step["observation"]), step["info"])
    return Made(episode, instead=step["on"])


def add_step(state: Play, step: Step) -> Made:
    """One step; with other extra keys than before it must be refused."""
    episode = state.at(step["on"])
    had = set(extra_keys(episode))
    stored = len(episode) + lookback_of(episode)
    state.mark("step_with_other_extras", stored > 0 and had != set(step["extras"]) and not episode.is_done)
    state.mark("step_before_reset", not episode.is_reset)
    episode.add_env_step(
        value(step["observation"]),
        value(step["action"]),
        step["reward"],
        step["info"],
        terminated=step["terminated"],
        truncated=step["truncated"],
        extra_model_outputs=step["extras"] or None,
    )
    return Made(episode, instead=step["on"])


def pack(state: Play, step: Step) -> Made:
    episode = state.at(step["on"])
    state.mark("pack_before_reset", not episode.is_reset)
    same = episode.to_numpy()
    return Made(same, instead=step["on"])


def cut(state: Play, step: Step) -> Made:
    episode = state.at(step["on"])
    state.mark("cut_before_reset", not episode.is_reset)
    return Made(episode.cut(len_lookback_buffer=step["lookback"]))


def cut_grow_concat(state: Play, step: Step) -> Made:
    """Cut, add steps to the successor, and join both again."""
    episode = state.at(step["on"])
    if step["pack"] and episode.is_reset:
        episode.to_numpy()
    successor = episode.cut(len_lookback_buffer=step["lookback"])
    keys = extra_keys(episode)
    for added in step["steps"]:
        successor.add_env_step(
            value(added["observation"]),
            value(added["action"]),
            added["reward"],
            added["info"],
            terminated=added["terminated"],
            extra_model_outputs=dict.fromkeys(keys, 0.5) or None,
        )
    if step["pack"]:
        successor.to_numpy()
    episode.concat_episode(successor)
    return Made(episode, instead=step["on"])


def slice_then_concat(state: Play, step: Step) -> Made:
    """Two slices that follow each other, joined."""
    episode = state.at(step["on"])
    if step["pack"] and episode.is_reset:
        episode.to_numpy()
        state.mark("concat_packed_without_steps", len(episode) == 0)
    at = min(step["at"], len(episode))
    first, second = episode[:at], episode[at:]
    first.concat_episode(second)
    return Made(first)


def concat_wrong(state: Play, step: Step) -> Any:
    """Any two of the pool: mostly refused."""
    first, second = state.at(step["on"]), state.at(step["other"])
    first.concat_episode(second)
    return first


def slice_episode(state: Play, step: Step) -> Made:
    episode = state.at(step["on"])
    start, stop, size = step["start"], step["stop"], len(episode)
    first = 0 if start is None else start + size if start < 0 else start
    last = size if stop is None else stop + size if stop < 0 else stop
    state.mark("episode_slice_step", step["step"] not in (None, 1))
    state.mark("episode_slice_backwards", first > last)
    state.mark("episode_slice_outside", first < 0 or last < 0 or first > size or last > size)
    if step["lookback"] is None:
        return Made(episode[slice(start, stop, step["step"])])
    return Made(episode.slice(slice(start, stop, step["step"]), len_lookback_buffer=step["lookback"]))


def slice_keeps_names(state: Play, step: Step) -> Any:
    """Agent, module and custom data of a slice and of a cut."""
    state.mark("slice_keeps_names", step["slice"])
    episode = state.library.SingleAgentEpisode(
        observations=[0.0, 1.0, 2.0],
        actions=[1, 2],
        rewards=[0.5, 0.5],
        len_lookback_buffer=0,
        agent_id="agent",
        module_id="module",
    )
    episode.custom_data["key"] = [1]
    part = episode[0:1] if step["slice"] else episode.cut()
    state.mark("cut_keeps_names", not step["slice"])
    return [part.agent_id, part.module_id, dict(part.custom_data)]


def one_step(state: Play, step: Step) -> Any:
    state.mark("episode_integer", True)
    return state.at(step["on"])[step["index"]]


def _indices(described: Any) -> Any:
    return slice(*described["slice"]) if isinstance(described, dict) else described


def _mark_read(state: Play, episode: Any, step: Step, items: int) -> None:
    """Situations of an index into a column of `items` items behind the lookback."""
    indices, negative, filled = _indices(step["indices"]), step["negative"], step["fill"] is not None
    lookback = lookback_of(episode)
    stored = lookback + items if episode.is_reset else 0

    def position(index: int) -> int:
        return lookback + index if index >= 0 or negative else stored + index

    numbers = indices if isinstance(indices, list) else [indices] if isinstance(indices, int) else []
    places = [position(index) for index in numbers]
    state.mark("index_before_lookback", negative and any(place < 0 for place in places) and not filled)
    state.mark("index_filled", filled and any(not 0 <= place < stored for place in places))
    state.mark("index_empty_list", indices == [])
    if isinstance(indices, slice):
        bounds = [position(bound) for bound in (indices.start, indices.stop) if bound is not None]
        opened = indices.start is None or indices.stop is None
        state.mark("slice_open_backwards", (indices.step or 1) < 0 and opened)
        state.mark("slice_before_start", any(bound < 0 for bound in bounds) and not filled)
        state.mark("slice_filled", any(not 0 <= bound <= stored for bound in bounds) and filled)


def read(state: Play, step: Step) -> Any:
    """`get_observations`, `get_actions`, `get_rewards`, `get_infos`, `get_extra_model_outputs`."""
    episode, name = state.at(step["on"]), step["name"]
    if step["pack"] and episode.is_reset:
        episode.to_numpy()
    options: dict[str, Any] = {"neg_index_as_lookback": step["negative"]}
    if step["fill"] is not None and name != "infos":
        options["fill"] = step["fill"]
    if step["indices"] is not None:
        options["indices"] = _indices(step["indices"])
    if step["one_hot"] and name in ("observations", "actions"):
        options["one_hot_discrete"] = True
        state.mark("one_hot_without_space", getattr(episode, f"{name[:-1]}_space") is None)
    items = len(episode) + (name in ("observations", "infos"))
    _mark_read(state, episode, {**step, "fill": step["fill"] if name != "infos" else None}, items)
    if name == "extras":
        state.mark("read_unknown_extra", step["key"] not in extra_keys(episode))
        return stacked(episode.get_extra_model_outputs(step["key"], **options))
    found = getattr(episode, f"get_{name}")(**options)
    return plain(found) if name == "infos" else stacked(found)


def put(state: Play, step: Step) -> Made:
    """`set_observations`, `set_actions`, `set_rewards`, `set_extra_model_outputs`."""
    episode, name = state.at(step["on"]), step["name"]
    if step["pack"] and episode.is_reset:
        episode.to_numpy()
    given = step["new"]
    made = value(given) if step["single"] else [value(item) for item in given]
    if not step["single"]:
        nested = bool(made) and isinstance(made[0], dict)
        state.mark("set_nested_rows", nested)
        made = {key: np.array([item[key] for item in made]) for key in made[0]} if nested else np.array(made)
    options: dict[str, Any] = {"new_data": made, "neg_index_as_lookback": step["negative"]}
    if step["indices"] is not None:
        options["at_indices"] = _indices(step["indices"])
    _mark_read(state, episode, {**step, "fill": None}, len(episode) + (name == "observations"))
    nested = isinstance(getattr(episode, f"{name[:-1]}_space", None), spaces.Dict)
    state.mark("set_nested_in_space", step["pack"] and nested)
    state.mark("set_nothing", not step["single"] and not given)
    state.mark("set_new_extra", name == "extras" and step["key"] not in extra_keys(episode))
    if name == "extras":
        episode.set_extra_model_outputs(key=step["key"], **options)
    else:
        getattr(episode, f"set_{name}")(**options)
    return Made(episode, instead=step["on"])


def set_outside_space(state: Play, step: Step) -> Any:
    """A value outside the space."""
    state.mark("set_outside_space", step["where"] != 0 or not step["pack"])
    episode = state.library.SingleAgentEpisode(
        observations=[1, 2, 3],
        actions=[1, 2],
        rewards=[0.5, 0.5],
        len_lookback_buffer=0,
        observation_space=SPACES["discrete"],
        action_space=SPACES["discrete"],
    )
    if step["pack"] and episode.is_reset:
        episode.to_numpy()
    new_data = [1, 2, 3]
    new_data[step["where"]] = 77
    episode.set_observations(new_data=np.array(new_data) if step["pack"] else new_data)
    return episode


def data_dict(state: Play, step: Step) -> Any:
    """`get_data_dict()` or the columns of `get_sample_batch()`, but for `infos` and `new_obs`."""
    episode = state.at(step["on"])
    state.mark("data_dict_without_steps", len(episode) == 0)
    if step["batch"]:
        episode.to_numpy()
    found = dict(episode.get_sample_batch() if step["batch"] else episode.get_data_dict())
    for name in ("infos", "new_obs"):
        found.pop(name, None)
    return {name: _without_dtype(stacked(part)) for name, part in sorted(found.items())}


def _without_dtype(shown: Any) -> Any:
    if isinstance(shown, dict) and "values" in shown:
        return {"values": shown["values"]}
    return {name: _without_dtype(part) for name, part in shown.items()} if isinstance(shown, dict) else shown


def data_dict_names(state: Play, step: Step) -> Any:
    state.mark("data_dict_new_obs")
    return sorted(state.at(step["on"]).get_data_dict())


def data_dict_infos(state: Play, step: Step) -> Any:
    episode = state.at(step["on"])
    state.mark("data_dict_infos", len(episode) > 0)
    return [plain(info) for info in episode.get_data_dict()["infos"]]


def totals(state: Play, step: Step) -> Any:
    episode = state.at(step["on"])
    return [float(episode.get_return()), len(episode), episode.env_steps(), episode.agent_steps()]


def round_trip(state: Play, step: Step) -> Made:
    """`from_state(get_state())`."""
    episode = state.at(step["on"])
    state.mark("state_without_steps", len(episode) == 0 and bool(extra_keys(episode)))
    return Made(state.library.SingleAgentEpisode.from_state(episode.get_state()))


def validate(state: Play, step: Step) -> Any:
    return state.at(step["on"]).validate()


OPERATIONS = {
    name: value_
    for name, value_ in globals().items()
    if callable(value_) and getattr(value_, "__module__", None) == __name__ and not name.startswith("_")
    and name != "value"
}  # fmt: skip
