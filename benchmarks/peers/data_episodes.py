"""Operations on episodes, the situations (marks) in which the libraries may differ, and random sequences of them.

`OPERATIONS` is the table, as in ``data_batches.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from data_forms import (
    Draw,
    Operation,
    Play,
    Step,
    adds,
    bound,
    chance,
    extra_keys,
    lookback_of,
    plain,
    reads,
    replaces,
    some,
    stacked,
    whole,
)  # fmt: skip
from gymnasium import spaces

SPACES = {
    "box": spaces.Box(-100.0, 100.0, (3,), np.float32),
    "discrete": spaces.Discrete(9),
    "dict": spaces.Dict({"a": spaces.Box(-100.0, 100.0, (2,), np.float32), "b": spaces.Discrete(9)}),
    "pair": spaces.MultiDiscrete([4, 5]),
}


def value(described: Any) -> Any:
    """Return one observation or action from JSON."""
    if isinstance(described, dict):
        return {"a": np.array(described["a"], np.float32), "b": int(described["b"])}
    if isinstance(described, list) and described and isinstance(described[0], int):
        return np.array(described, np.int64)
    return np.array(described, np.float32) if isinstance(described, list) else described


def packed(episode: Any, pack: bool) -> Any:
    """Return the episode, packed if it is to be and can be."""
    return episode.to_numpy() if pack and episode.is_reset else episode


def new(
    play: Play,
    _: Any,
    form: str,
    action_form: str,
    spaces: bool,
    extras: dict[str, list[float]],
    len_lookback_buffer: int | None,
    **parts: Any,
) -> Any:
    """Return an episode of given data."""
    steps = len(parts["actions"])
    parts |= {name: [value(item) for item in parts[name]] for name in ("observations", "actions")}
    for name in ("observations", "actions", "rewards", "infos"):
        parts[name] = list(parts[name]) or None
    if len_lookback_buffer is not None:
        parts["len_lookback_buffer"] = len_lookback_buffer
        play.mark("lookback_too_long", len_lookback_buffer > steps)
    else:
        play.mark("default_lookback", steps > 0)
    if spaces:
        parts |= {"observation_space": SPACES[form], "action_space": SPACES[action_form]}
    outputs = {key: list(values) for key, values in extras.items()}
    return play.library.SingleAgentEpisode(**parts, extra_model_outputs=outputs or None)


def small_episode(play: Play, observations: list[Any], **options: Any) -> Any:
    """Return an episode of two steps."""
    parts = {"actions": [1, 2], "rewards": [0.5, 0.5], "len_lookback_buffer": 0}
    return play.library.SingleAgentEpisode(observations=observations, **parts, **options)


def add_reset(play: Play, episode: Any, observation: Any, info: Any) -> Any:
    episode.add_env_reset(value(observation), info)
    return episode


def add_step(play: Play, episode: Any, extras: dict[str, float], **step: Any) -> Any:
    """Add one step; with other extra keys than before it must be refused."""
    stored = len(episode) + lookback_of(episode)
    changed = set(extra_keys(episode)) != set(extras)
    play.mark("step_with_other_extras", stored > 0 and changed and not episode.is_done)
    play.mark("step_before_reset", not episode.is_reset)
    grow(episode, step, extras)
    return episode


def grow(episode: Any, step: dict[str, Any], extras: dict[str, float]) -> None:
    episode.add_env_step(
        value(step["observation"]),
        value(step["action"]),
        step["reward"],
        step["info"],
        terminated=step["terminated"],
        truncated=step["truncated"],
        extra_model_outputs=extras or None,
    )


def pack(play: Play, episode: Any) -> Any:
    play.mark("pack_before_reset", not episode.is_reset)
    return episode.to_numpy()


def cut(play: Play, episode: Any, lookback: int) -> Any:
    play.mark("cut_before_reset", not episode.is_reset)
    return episode.cut(len_lookback_buffer=lookback)


def cut_grow_concat(play: Play, episode: Any, lookback: int, pack: bool, steps: list[dict[str, Any]]) -> Any:
    """Cut, add steps to the successor, and join both again."""
    packed(episode, pack)
    successor = episode.cut(len_lookback_buffer=lookback)
    for added in steps:
        grow(successor, {**added, "truncated": False}, dict.fromkeys(extra_keys(episode), 0.5))
    if pack:
        successor.to_numpy()
    episode.concat_episode(successor)
    return episode


def slice_then_concat(play: Play, episode: Any, at: int, pack: bool) -> Any:
    """Join two slices that follow each other."""
    packed(episode, pack)
    play.mark("concat_packed_without_steps", pack and episode.is_reset and len(episode) == 0)
    at = min(at, len(episode))
    first, second = episode[:at], episode[at:]
    first.concat_episode(second)
    return first


def concat_wrong(play: Play, episode: Any, other: int) -> Any:
    """Join any two of the pool: mostly refused."""
    episode.concat_episode(play.at(other))
    return episode


def slice_episode(play: Play, episode: Any, start: Any, stop: Any, step: Any, lookback: int | None) -> Any:
    size = len(episode)
    first = 0 if start is None else start + size if start < 0 else start
    last = size if stop is None else stop + size if stop < 0 else stop
    play.mark("episode_slice_step", step not in (None, 1))
    play.mark("episode_slice_backwards", first > last)
    play.mark("episode_slice_outside", first < 0 or last < 0 or first > size or last > size)
    if lookback is None:
        return episode[slice(start, stop, step)]
    return episode.slice(slice(start, stop, step), len_lookback_buffer=lookback)


def slice_keeps_names(play: Play, _: Any, sliced: bool) -> Any:
    """Return agent, module and custom data of a slice or of a cut."""
    play.mark("slice_keeps_names", sliced)
    play.mark("cut_keeps_names", not sliced)
    episode = small_episode(play, [0.0, 1.0, 2.0], agent_id="agent", module_id="module")
    episode.custom_data["key"] = [1]
    part = episode[0:1] if sliced else episode.cut()
    return [part.agent_id, part.module_id, dict(part.custom_data)]


def one_step(play: Play, episode: Any, index: int) -> Any:
    play.mark("episode_integer")
    return episode[index]


def indices_of(described: Any) -> Any:
    return slice(*described["slice"]) if isinstance(described, dict) else described


def mark_read(play: Play, episode: Any, described: Any, negative: bool, filled: bool, items: int) -> None:
    """Mark the situations of an index into a column of `items` items behind the lookback."""
    indices, lookback = indices_of(described), lookback_of(episode)
    stored = lookback + items if episode.is_reset else 0

    def position(index: int) -> int:
        return lookback + index if index >= 0 or negative else stored + index

    numbers = indices if isinstance(indices, list) else [indices] if isinstance(indices, int) else []
    places = [position(index) for index in numbers]
    play.mark("index_before_lookback", negative and any(place < 0 for place in places) and not filled)
    play.mark("index_filled", filled and any(not 0 <= place < stored for place in places))
    play.mark("index_empty_list", indices == [])
    if isinstance(indices, slice):
        bounds = [position(bound) for bound in (indices.start, indices.stop) if bound is not None]
        opened = indices.start is None or indices.stop is None
        play.mark("slice_open_backwards", (indices.step or 1) < 0 and opened)
        play.mark("slice_before_start", any(bound < 0 for bound in bounds) and not filled)
        play.mark("slice_filled", any(not 0 <= bound <= stored for bound in bounds) and filled)


def read(
    play: Play,
    episode: Any,
    name: str,
    key: str,
    indices: Any,
    negative: bool,
    fill: float | None,
    one_hot: bool,
    pack: bool,
) -> Any:
    """Call `get_observations`, `get_actions`, `get_rewards`, `get_infos` or `get_extra_model_outputs`."""
    packed(episode, pack)
    options: dict[str, Any] = {"neg_index_as_lookback": negative}
    filled = fill is not None and name != "infos"
    if filled:
        options["fill"] = fill
    if indices is not None:
        options["indices"] = indices_of(indices)
    if one_hot and name in ("observations", "actions"):
        options["one_hot_discrete"] = True
        play.mark("one_hot_without_space", getattr(episode, f"{name[:-1]}_space") is None)
    mark_read(play, episode, indices, negative, filled, len(episode) + (name in ("observations", "infos")))
    if name == "extras":
        play.mark("read_unknown_extra", key not in extra_keys(episode))
        return stacked(episode.get_extra_model_outputs(key, **options))
    found = getattr(episode, f"get_{name}")(**options)
    return plain(found) if name == "infos" else stacked(found)


def put(
    play: Play,
    episode: Any,
    name: str,
    key: str,
    indices: Any,
    single: bool,
    new: Any,
    negative: bool,
    pack: bool,
) -> Any:
    """Call `set_observations`, `set_actions`, `set_rewards` or `set_extra_model_outputs`."""
    packed(episode, pack)
    made = value(new) if single else [value(item) for item in new]
    if not single:
        nested = bool(made) and isinstance(made[0], dict)
        play.mark("set_nested_rows", nested)
        made = {part: np.array([item[part] for item in made]) for part in made[0]} if nested else np.array(made)
    options: dict[str, Any] = {"new_data": made, "neg_index_as_lookback": negative}
    if indices is not None:
        options["at_indices"] = indices_of(indices)
    mark_read(play, episode, indices, negative, False, len(episode) + (name == "observations"))
    nested = isinstance(getattr(episode, f"{name[:-1]}_space", None), spaces.Dict)
    play.mark("set_nested_in_space", pack and nested)
    play.mark("set_nothing", not single and not new)
    play.mark("set_new_extra", name == "extras" and key not in extra_keys(episode))
    if name == "extras":
        episode.set_extra_model_outputs(key=key, **options)
    else:
        getattr(episode, f"set_{name}")(**options)
    return episode


def set_outside_space(play: Play, _: Any, where: int, pack: bool) -> Any:
    play.mark("set_outside_space", where != 0 or not pack)
    discrete = SPACES["discrete"]
    episode = small_episode(play, [1, 2, 3], observation_space=discrete, action_space=discrete)
    packed(episode, pack)
    new_data = [1, 2, 3]
    new_data[where] = 77
    episode.set_observations(new_data=np.array(new_data) if pack else new_data)
    return episode


def data_dict(play: Play, episode: Any, batch: bool) -> Any:
    """Return `get_data_dict()` or the columns of `get_sample_batch()`, but for `infos` and `new_obs`."""
    play.mark("data_dict_without_steps", len(episode) == 0)
    if batch:
        episode.to_numpy()
    found = dict(episode.get_sample_batch() if batch else episode.get_data_dict())
    for name in ("infos", "new_obs"):
        found.pop(name, None)
    return {name: without_dtype(stacked(part)) for name, part in sorted(found.items())}


def without_dtype(shown: Any) -> Any:
    if isinstance(shown, dict) and "values" in shown:
        return {"values": shown["values"]}
    return {name: without_dtype(part) for name, part in shown.items()} if isinstance(shown, dict) else shown


def data_dict_names(play: Play, episode: Any) -> list[str]:
    play.mark("data_dict_new_obs")
    return sorted(episode.get_data_dict())


def data_dict_infos(play: Play, episode: Any) -> Any:
    play.mark("data_dict_infos", len(episode) > 0)
    return [plain(info) for info in episode.get_data_dict()["infos"]]


def totals(play: Play, episode: Any) -> list[float]:
    return [float(episode.get_return()), len(episode), episode.env_steps(), episode.agent_steps()]


def round_trip(play: Play, episode: Any) -> Any:
    play.mark("state_without_steps", len(episode) == 0 and bool(extra_keys(episode)))
    return play.library.SingleAgentEpisode.from_state(episode.get_state())


# ---- random arguments ----------------------------------------------------------------------------------------


class Form:
    """What observations, actions and extra outputs of one sequence's episodes are."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.observations = draw.some(["box", "box", "discrete", "dict"])
        self.actions = draw.some(["discrete", "box", "pair"])
        self.spaces = draw.chance(0.6)
        self.keys = [key for key in ("action_logp", "vf_preds") if draw.chance(0.4)]

    def value(self, form: str) -> Any:
        draw = self.draw
        if form == "box":
            return draw.eighths(3)
        if form == "dict":
            return {"a": draw.eighths(2), "b": draw.whole(0, 9)}
        return [draw.whole(0, 4), draw.whole(0, 5)] if form == "pair" else draw.whole(0, 9)

    def step(self) -> Step:
        draw = self.draw
        return {
            "observation": self.value(self.observations),
            "action": self.value(self.actions),
            "reward": draw.eighths(),
            "info": {"n": draw.whole(0, 99)},
            "terminated": draw.chance(0.08),
            "truncated": draw.chance(0.05),
            "extras": {key: draw.eighths() for key in self.keys} if draw.chance(0.96) else {"other": 0.5},
        }


def episode_data(draw: Draw, form: Form) -> Step:
    """Return the data of an episode, now and then with some missing."""
    steps = draw.whole(0, 8)
    made: Step = {"form": form.observations, "action_form": form.actions, "spaces": form.spaces}
    made["observations"] = [form.value(form.observations) for _ in range(steps + 1)]
    made["actions"] = [form.value(form.actions) for _ in range(steps)]
    made["rewards"] = draw.eighths(steps)
    made["infos"] = [{"n": int(n)} for n in draw.rng.integers(0, 99, steps + 1)] if draw.chance(0.7) else []
    made["extras"] = {key: draw.eighths(steps) for key in form.keys} if steps else {}
    made["id_"] = draw.some(["e", "e", "f"])
    ends = draw.chance(0.3)
    made["terminated"], made["truncated"] = ends, not ends and draw.chance(0.2)
    made["len_lookback_buffer"] = draw.some([0, 0, steps, draw.whole(0, steps + 1), draw.whole(0, steps + 1)])
    if draw.chance(0.05):
        made["len_lookback_buffer"] = draw.some([None, 20])
    made["t_started"] = draw.some([0, 0, made["len_lookback_buffer"] or 0, 11])
    if draw.chance(0.06):
        made[draw.some(["actions", "rewards", "infos", "observations"])].append(1)
    return made


def random_indices(draw: Draw, _: Form) -> Any:
    kind = draw.some(["none", "int", "int", "list", "slice", "slice", "slice"])
    if kind == "none":
        return None
    if kind == "int":
        return draw.whole(-5, 7)
    if kind == "list":
        return draw.rng.integers(-3, 5, draw.whole(0, 4)).tolist()
    return {"slice": [draw.bound(-5, 7), draw.bound(-5, 9), draw.some([None, None, None, None, 2, -1])]}


def put_arguments(draw: Draw, form: Form) -> Step:
    name = draw.some(["observations", "actions", "rewards", "extras"])
    forms = {"observations": form.observations, "actions": form.actions}
    indices = random_indices(draw, form)
    single = isinstance(indices, int)
    count = len(indices) if isinstance(indices, list) else draw.whole(0, 7)

    def value() -> Any:
        return form.value(forms[name]) if name in forms else draw.eighths()

    return {
        "name": name,
        "key": draw.some([*form.keys, "action_logp"]),
        "indices": indices,
        "single": single,
        "new": value() if single else [value() for _ in range(count)],
        "negative": draw.chance(0.3),
        "pack": draw.chance(0.6),
    }


OPERATIONS: dict[str, Operation] = {
    "read": reads(
        read,
        share=3,
        name=some(["observations", "actions", "rewards", "infos", "extras"]),
        key=lambda draw, form: draw.some([*form.keys, "action_logp"]),
        indices=random_indices,
        negative=chance(0.4),
        fill=some([None, None, None, 0.0]),
        one_hot=chance(0.1),
        pack=chance(0.6),
    ),
    "put": replaces(put, put_arguments, share=2),
    "new": adds(new, episode_data),
    "add_reset": replaces(
        add_reset,
        observation=lambda draw, form: form.value(form.observations),
        info=lambda draw, form: {"n": 1},
    ),
    "add_step": replaces(add_step, lambda draw, form: form.step(), share=2),
    "pack": replaces(pack),
    "cut": adds(cut, lookback=whole(0, 4)),
    "cut_grow_concat": replaces(
        cut_grow_concat,
        lookback=whole(0, 3),
        pack=chance(),
        steps=lambda draw, form: [form.step() | {"terminated": False} for _ in range(draw.whole(0, 4))],
    ),
    "slice_then_concat": adds(slice_then_concat, at=whole(0, 8), pack=chance()),
    "concat_wrong": reads(concat_wrong, other=whole(0, 9)),
    "slice_episode": adds(
        slice_episode,
        start=bound(-3, 6),
        stop=bound(-3, 9),
        step=some([None, None, None, None, None, 2]),
        lookback=some([None, None, 0, 1, 3]),
    ),
    "slice_keeps_names": reads(slice_keeps_names, sliced=chance()),
    "one_step": reads(one_step, index=whole(-2, 4)),
    "set_outside_space": reads(set_outside_space, where=whole(0, 3), pack=chance()),
    "data_dict": reads(data_dict, batch=chance()),
    "data_dict_names": reads(data_dict_names),
    "data_dict_infos": reads(data_dict_infos),
    "totals": reads(totals),
    "round_trip": adds(round_trip),
    "validate": reads(lambda play, episode: episode.validate()),
}


def step_of(draw: Draw, form: Form) -> Step:
    """Return one random operation on episodes."""
    name, on = draw.operation(OPERATIONS), draw.whole(0, 9)
    return {"op": name, "on": on, **OPERATIONS[name].draw(draw, form)}


def episode_sequence(draw: Draw) -> list[Step]:
    """Return episodes of given data and grown ones; then reading, writing, cutting and joining them."""
    form = Form(draw)
    steps = [{"op": "new", **episode_data(draw, form)} for _ in range(draw.whole(1, 3))]
    empty = {"observations": [], "actions": [], "rewards": [], "infos": [], "extras": {}, "id_": "g"}
    empty |= {"terminated": False, "truncated": False, "t_started": 0, "len_lookback_buffer": 0}
    grown = len(steps)
    steps.append({**steps[0], **empty})
    steps.append({"op": "add_reset", "on": grown, "observation": form.value(form.observations), "info": {"n": 0}})
    steps += [{"op": "add_step", "on": grown, **form.step()} for _ in range(draw.whole(0, 6))]
    if draw.chance():
        steps.append({"op": "pack", "on": draw.whole(0, 9)})
    return steps + [step_of(draw, form) for _ in range(draw.whole(8, 14))]
