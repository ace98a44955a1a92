"""Random sequences of operations for ``data_player.py``, as plain JSON. The same seed gives the same sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

Step = dict[str, Any]
Random = np.random.Generator


def sequences(seed: int, counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return ``counts`` of each kind: batch, sequence (with seq_lens), episode and multi (several agents)."""
    makers = {"batch": batch_sequence, "sequence": sequence_sequence, "episode": episode_sequence}
    makers["multi"] = multi_sequence
    made = []
    for kind, count in counts.items():
        for number in range(count):
            rng = np.random.default_rng([seed, *kind.encode(), number])
            made.append({"kind": kind, "number": number, "steps": makers[kind](rng)})
    return made


def chance(rng: Random, share: float) -> bool:
    return bool(rng.random() < share)


def some(rng: Random, items: Any) -> Any:
    """Return one of the items."""
    return items[int(rng.integers(len(items)))]


def bound(rng: Random, low: int, high: int, missing: float = 0.25) -> int | None:
    return None if chance(rng, missing) else int(rng.integers(low, high))


def array(rng: Random, dtype: str, *shape: int, kind: str = "array") -> dict[str, Any]:
    """Return the description of an array."""
    values: Any
    if dtype == "bool":
        values = (rng.random(shape) < 0.25).tolist()
    elif dtype.startswith("float"):
        values = (rng.integers(-40, 40, shape) / 8).tolist()
    elif dtype.startswith("<U"):
        values = rng.integers(100, 999, shape).astype(str).tolist()
    else:
        values = rng.integers(0, 9, shape).tolist()
    return {"kind": kind, "dtype": dtype, "shape": list(shape), "values": values}


def observation(rng: Random, form: str, rows: int, kind: str) -> dict[str, Any]:
    if form == "dict":
        parts = {"camera": array(rng, "float32", rows, 2, 2, kind=kind), "speed": array(rng, "int64", rows, kind=kind)}
        return {"kind": "dict", "items": parts}
    if form == "tuple":
        parts = [array(rng, "float32", rows, 2, kind=kind), array(rng, "float64", rows, kind=kind)]
        return {"kind": "tuple", "items": parts}
    return array(rng, form, rows, 3, kind=kind)


class Form:
    """Which columns the batches of one sequence have, and in which form."""

    def __init__(self, rng: Random) -> None:
        self.kind = "torch" if chance(rng, 0.2) else "array"
        self.obs = some(rng, ["float32", "float64", "dict", "tuple", "uint8"])
        wanted = ("new_obs", "rewards", "terminateds", "truncateds", "eps_id", "t", "infos", "action_logp")
        self.names = [name for name in wanted if chance(rng, 0.6)]
        self.ids = some(rng, ["int64", "<U3"]) if self.kind == "array" else "int64"
        self.has_states = chance(rng, 0.7)
        self.lists = self.kind == "array" and chance(rng, 0.2)
        """`actions` and `rewards` given as lists"""

    def columns(self, rng: Random, rows: int) -> dict[str, Any]:
        made = {
            "obs": observation(rng, self.obs, rows, self.kind),
            "actions": array(rng, "int64", rows, kind=self.kind),
        }
        for name in self.names:
            if name == "new_obs":
                made[name] = observation(rng, self.obs, rows, self.kind)
            elif name == "infos":
                made[name] = {"kind": "list", "values": [{"n": int(n)} for n in rng.integers(0, 99, rows)]}
            elif name == "eps_id":
                made[name] = array(rng, self.ids, rows)
                made[name]["values"] = sorted(made[name]["values"]) if chance(rng, 0.7) else made[name]["values"]
                made[name]["kind"] = self.kind
            else:
                dtype = {"terminateds": "bool", "truncateds": "bool", "t": "int64", "rewards": "float32"}
                made[name] = array(rng, dtype.get(name, "float64"), rows, kind=self.kind)
        if self.lists:
            made["actions"] = {"kind": "list", "values": made["actions"]["values"]}
        return made


def batch_sequence(rng: Random) -> list[Step]:
    """Return batches of plain rows."""
    form = Form(rng)
    steps: list[Step] = []
    for _ in range(int(rng.integers(2, 4))):
        rows = 0 if chance(rng, 0.12) else int(rng.integers(1, 11))
        steps.append({"op": "construct", "described": form.columns(rng, rows), **grad_updates(rng)})
    if chance(rng, 0.15):
        steps.append({"op": "construct", "described": Form(rng).columns(rng, 4)})
    steps.extend(batch_step(rng, form) for _ in range(int(rng.integers(8, 14))))
    return steps


def grad_updates(rng: Random) -> dict[str, Any]:
    return {"num_grad_updates": float(rng.integers(1, 9))} if chance(rng, 0.3) else {}


def sequence_sequence(rng: Random) -> list[Step]:
    """Return batches with ``seq_lens`` and states."""
    form = Form(rng)
    steps: list[Step] = []
    for _ in range(int(rng.integers(1, 4))):
        lengths = rng.integers(1, 5, int(rng.integers(1, 5))).tolist()
        parts = form.columns(rng, sum(lengths))
        parts["seq_lens"] = {"kind": "array", "dtype": "int32", "shape": [len(lengths)], "values": lengths}
        if form.has_states:
            parts["state_in_0"] = array(rng, "float32", len(lengths), 2, kind=form.kind)
        if form.kind == "torch":
            parts["seq_lens"]["kind"] = "torch"
        steps.append({"op": "construct", "described": parts, **grad_updates(rng)})
    for _ in range(int(rng.integers(7, 12))):
        steps.append(batch_step(rng, form))
        if chance(rng, 0.25):
            steps.append(
                {
                    "op": "right_zero_pad",
                    "on": int(rng.integers(9)),
                    "length": int(rng.integers(3, 7)),
                    "exclude_states": not chance(rng, 0.1),
                }
            )
    return steps


def bounds(rng: Random) -> Step:
    low = -4 if chance(rng, 0.2) else 0
    return {"start": bound(rng, low, 9, 0.3), "stop": bound(rng, low, 13, 0.3)}


NAMES = ["obs", "new_obs", "actions", "rewards", "dones", "infos", "eps_id", "nothing"]
PADDED = ["rows", "end", "trajectory", "single_step"]
KEYS = [None, None, "eps_id", "dones", "t"]


def batch_step(rng: Random, form: Form) -> Step:
    """Return one random operation on batches."""
    on = int(rng.integers(9))
    arguments: dict[str, Any] = {
        "sizes": dict,
        "after_changes": dict,
        "getitem_slice": lambda: {**bounds(rng), "step": some(rng, [None, None, None, None, 1, 2, -1])},
        "slice_method": lambda: {"start": int(rng.integers(0, 6)), "stop": int(rng.integers(0, 12))},
        "concat": lambda: {
            "numbers": rng.integers(0, 9, int(rng.integers(0, 4))).tolist(),
            "method": chance(rng, 0.5),
        },
        "copy_batch": lambda: {"shallow": chance(rng, 0.5)},
        "copy_then_write": lambda: {"shallow": chance(rng, 0.5)},
        "rows": dict,
        "get_columns": lambda: {"names": [some(rng, NAMES[:4]), some(rng, NAMES[:4])]},
        "get": lambda: {"name": some(rng, NAMES)},
        "getitem": lambda: {"name": some(rng, NAMES)},
        "set_column": lambda: {
            "name": some(rng, ["vf_preds", "rewards"]),
            "column": array(rng, "float32", int(rng.integers(0, 11)), kind=form.kind),
        },
        "delete_column": lambda: {"name": some(rng, ["actions", "rewards", "nothing"])},
        "split_by_episode": lambda: {"key": some(rng, KEYS)},
        "timeslices": lambda: timeslices_arguments(rng),
        "as_multi_agent": lambda: {"module_id": some(rng, [None, "other"])},
        "size_bytes": dict,
        "ends": dict,
        "single_trajectory": dict,
        "shuffle": dict,
        "shuffle_infos": dict,
        "to_device": dict,
        "single_step": lambda: {
            "index": some(rng, ["last", "last", 0, 1, -1, 12]),
            "names": ["obs", "prev_actions", "state_in_0"],
        },
        "read_padded": lambda: {"reading": some(rng, PADDED), "length": int(rng.integers(2, 5))},
        "training": lambda: {"value": chance(rng, 0.5)},
        "compressed": lambda: {"bulk": chance(rng, 0.5)},
        "construct_with_wrong_key": lambda: {"key": some(rng, [3, None, "fine"])},
        "construct": lambda: broken_columns(rng),
        "keep_dones": lambda: {"flags": (rng.random(3) < 0.5).tolist()},
        **multi_arguments(rng),
    }
    name = some(rng, list(arguments))
    return {"op": name, "on": on, **arguments[name]()}


def timeslices_arguments(rng: Random) -> Step:
    size, number = int(rng.integers(1, 6)), int(rng.integers(1, 7))
    return some(
        rng,
        [{"size": size, "num_slices": None}] * 3
        + [{"size": None, "num_slices": number}] * 3
        + [{"size": size, "num_slices": number}],
    )


def broken_columns(rng: Random) -> Step:
    """Return a batch with a fault: ragged, with a number for a column, with `seq_lens` that do not fit."""
    rows = int(rng.integers(2, 6))
    parts = {"obs": array(rng, "float32", rows, 2), "rewards": array(rng, "float32", rows)}
    fault = some(rng, ["ragged", "number", "seq_lens"])
    if fault == "ragged":
        parts["rewards"] = array(rng, "float32", rows + 1)
    elif fault == "number":
        parts = {"rewards": {"kind": "number", "values": 3.5}}
    else:
        parts["seq_lens"] = {"kind": "array", "dtype": "int32", "shape": [2], "values": [1, rows]}
    return {"described": parts}


def multi_arguments(rng: Random) -> dict[str, Any]:
    """Return operations on `MultiAgentBatch`."""

    def modules() -> Step:
        names = some(rng, [["default_policy"], ["a", "b"], ["default_policy", "b"], ["a"]])
        return {"modules": {name: int(rng.integers(9)) for name in names}, "env_steps": int(rng.integers(1, 20))}

    return {
        "multi_sizes": modules,
        "multi_copy": modules,
        "multi_concat": lambda: {**modules(), "into": chance(rng, 0.5)},
        "multi_wrap": modules,
        "multi_getitem": lambda: {**modules(), "name": some(rng, ["a", "b", "c"])},
        "multi_wrong_value": dict,
        "multi_timeslices": lambda: multi_timeslices_arguments(rng),
    }


def multi_timeslices_arguments(rng: Random) -> Step:
    """Return modules whose rows are steps of common episodes; each module takes part in some of the steps."""
    length = int(rng.integers(2, 6))
    order = [0, 1] if chance(rng, 0.7) else [1, 0]
    steps = [(episode, t) for episode in order for t in range(length)]
    parts = {}
    for agent, name in enumerate(["a", "b"]):
        taken = [pair for pair in steps if chance(rng, 0.7)] or steps[:1]
        rows = len(taken)
        whole = {"kind": "array", "dtype": "int64", "shape": [rows]}
        parts[name] = {
            "obs": array(rng, "float32", rows, 2),
            "eps_id": {**whole, "values": [episode for episode, _ in taken]},
            "t": {**whole, "values": [t for _, t in taken]},
            "agent_index": {**whole, "values": [agent] * rows},
        }
    return {"parts": parts, "k": int(rng.integers(1, 5)), "env_steps": len(steps), "with_names": chance(rng, 0.2)}


# ---- episodes -----------------------------------------------------------------------------------------------------


class EpisodeForm:
    """What observations, actions and extra outputs of one sequence's episodes are."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.observations = some(rng, ["box", "box", "discrete", "dict"])
        self.actions = some(rng, ["discrete", "box", "pair"])
        self.spaces = chance(rng, 0.6)
        self.keys = [key for key in ("action_logp", "vf_preds") if chance(rng, 0.4)]

    def value(self, form: str) -> Any:
        rng = self.rng
        if form == "box":
            return (rng.integers(-40, 40, 3) / 8).tolist()
        if form == "dict":
            return {"a": (rng.integers(-40, 40, 2) / 8).tolist(), "b": int(rng.integers(9))}
        if form == "pair":
            return [int(rng.integers(4)), int(rng.integers(5))]
        return int(rng.integers(9))

    def extras(self) -> dict[str, float]:
        return {key: float(self.rng.integers(-40, 40)) / 8 for key in self.keys}

    def step(self) -> Step:
        rng = self.rng
        return {
            "observation": self.value(self.observations),
            "action": self.value(self.actions),
            "reward": float(rng.integers(-40, 40)) / 8,
            "info": {"n": int(rng.integers(99))},
            "terminated": chance(rng, 0.08),
            "truncated": chance(rng, 0.05),
            "extras": self.extras() if chance(rng, 0.96) else {"other": 0.5},
        }


def new_episode(form: EpisodeForm) -> Step:
    """Return an episode of given data, now and then with data missing."""
    rng = form.rng
    steps = int(rng.integers(0, 8))
    made: Step = {"op": "new", "form": form.observations, "action_form": form.actions, "spaces": form.spaces}
    made["observations"] = [form.value(form.observations) for _ in range(steps + 1)]
    made["actions"] = [form.value(form.actions) for _ in range(steps)]
    made["rewards"] = (rng.integers(-40, 40, steps) / 8).tolist()
    made["infos"] = [{"n": int(n)} for n in rng.integers(0, 99, steps + 1)] if chance(rng, 0.7) else []
    made["extras"] = {key: (rng.integers(-40, 40, steps) / 8).tolist() for key in form.keys} if steps else {}
    made["id_"] = some(rng, ["e", "e", "f"])
    ends = chance(rng, 0.3)
    made["terminated"], made["truncated"] = ends, not ends and chance(rng, 0.2)
    lookback = some(rng, [0, 0, "auto", int(rng.integers(0, steps + 1)), int(rng.integers(0, steps + 1))])
    made["len_lookback_buffer"] = steps if lookback == "auto" else lookback
    if chance(rng, 0.05):
        made["len_lookback_buffer"] = some(rng, [None, 20])
    made["t_started"] = int(some(rng, [0, 0, made["len_lookback_buffer"] or 0, 11]))
    if chance(rng, 0.06):
        made[some(rng, ["actions", "rewards", "infos", "observations"])].append(1)
    return made


def episode_sequence(rng: Random) -> list[Step]:
    """Return episodes of given data and grown ones; then reading, writing, cutting and joining them."""
    form = EpisodeForm(rng)
    steps = [new_episode(form) for _ in range(int(rng.integers(1, 3)))]
    empty = {"observations": [], "actions": [], "rewards": [], "infos": [], "extras": {}, "id_": "g"}
    empty |= {"terminated": False, "truncated": False, "t_started": 0, "len_lookback_buffer": 0}
    steps.append({**steps[0], **empty})
    grown = len(steps) - 1
    steps.append({"op": "add_reset", "on": grown, "observation": form.value(form.observations), "info": {"n": 0}})
    steps += [{"op": "add_step", "on": grown, **form.step()} for _ in range(int(rng.integers(0, 6)))]
    if chance(rng, 0.5):
        steps.append({"op": "pack", "on": int(rng.integers(9))})
    steps += [episode_step(rng, form) for _ in range(int(rng.integers(8, 14)))]
    return steps


def indices_of(rng: Random) -> Any:
    kind = some(rng, ["none", "int", "int", "list", "slice", "slice", "slice"])
    if kind == "none":
        return None
    if kind == "int":
        return int(rng.integers(-5, 7))
    if kind == "list":
        return rng.integers(-3, 5, int(rng.integers(0, 4))).tolist()
    return {"slice": [bound(rng, -5, 7), bound(rng, -5, 9), some(rng, [None, None, None, None, 2, -1])]}


def read_arguments(rng: Random, form: EpisodeForm) -> Step:
    return {
        "name": some(rng, ["observations", "actions", "rewards", "infos", "extras"]),
        "key": some(rng, [*form.keys, "action_logp"]),
        "indices": indices_of(rng),
        "negative": chance(rng, 0.4),
        "fill": some(rng, [None, None, None, 0.0]),
        "one_hot": chance(rng, 0.1),
        "pack": chance(rng, 0.6),
    }


def put_arguments(rng: Random, form: EpisodeForm) -> Step:
    name = some(rng, ["observations", "actions", "rewards", "extras"])
    forms = {"observations": form.observations, "actions": form.actions}
    indices = indices_of(rng)
    single = isinstance(indices, int)
    count = len(indices) if isinstance(indices, list) else int(rng.integers(0, 7))

    def one() -> Any:
        return form.value(forms[name]) if name in forms else float(rng.integers(-40, 40)) / 8

    return {
        "name": name,
        "key": some(rng, [*form.keys, "action_logp"]),
        "indices": indices,
        "single": single,
        "new": one() if single else [one() for _ in range(count)],
        "negative": chance(rng, 0.3),
        "pack": chance(rng, 0.6),
    }


def episode_step(rng: Random, form: EpisodeForm) -> Step:
    """Return one random operation on episodes."""
    arguments: dict[str, Any] = {
        "read": lambda: read_arguments(rng, form),
        "read ": lambda: read_arguments(rng, form),
        "read  ": lambda: read_arguments(rng, form),
        "put": lambda: put_arguments(rng, form),
        "put ": lambda: put_arguments(rng, form),
        "new": lambda: new_episode(form),
        "add_reset": lambda: {"observation": form.value(form.observations), "info": {"n": 1}},
        "add_step": form.step,
        "add_step ": form.step,
        "pack": dict,
        "cut": lambda: {"lookback": int(rng.integers(0, 4))},
        "cut_grow_concat": lambda: {
            "lookback": int(rng.integers(0, 3)),
            "pack": chance(rng, 0.5),
            "steps": [form.step() | {"terminated": False} for _ in range(int(rng.integers(0, 4)))],
        },
        "slice_then_concat": lambda: {"at": int(rng.integers(0, 8)), "pack": chance(rng, 0.5)},
        "concat_wrong": lambda: {"other": int(rng.integers(9))},
        "slice_episode": lambda: {
            "start": bound(rng, -3, 6),
            "stop": bound(rng, -3, 9),
            "step": some(rng, [None, None, None, None, None, 2]),
            "lookback": some(rng, [None, None, 0, 1, 3]),
        },
        "slice_keeps_names": lambda: {"sliced": chance(rng, 0.5)},
        "one_step": lambda: {"index": int(rng.integers(-2, 4))},
        "set_outside_space": lambda: {"where": int(rng.integers(3)), "pack": chance(rng, 0.5)},
        "data_dict": lambda: {"batch": chance(rng, 0.5)},
        "data_dict_names": dict,
        "data_dict_infos": dict,
        "totals": dict,
        "round_trip": dict,
        "validate": dict,
    }
    name = some(rng, list(arguments))
    return {"on": int(rng.integers(9)), **arguments[name](), "op": name.strip()}


# ---- episodes of several agents -----------------------------------------------------------------------------------

AGENTS = ("a", "b", "c")


def schedule(rng: Random) -> Step:
    """Return agents that act together or in turns, appear late, finish early; the last step may end all."""
    first = [agent for agent in AGENTS if chance(rng, 0.6)] or ["a"]
    able, waiting, done = set(first), set(), set()
    turns = chance(rng, 0.4)
    reset = {agent: float(rng.integers(99)) for agent in first}
    steps = []
    length = int(rng.integers(1, 8))
    for number in range(length):
        actors = sorted(able)[:1] if turns else [agent for agent in sorted(able) if chance(rng, 0.85)]
        able -= set(actors)
        waiting |= set(actors)
        newcomers = [agent for agent in AGENTS if agent not in able | waiting | done and chance(rng, 0.3)]
        last = number == length - 1
        seen = [agent for agent in sorted(waiting) if chance(rng, 0.75) or not able]
        rewarded = sorted({*seen, *(agent for agent in sorted(waiting) if chance(rng, 0.4))})
        ended = [agent for agent in seen if chance(rng, 0.06)]
        everyone = last and chance(rng, 0.5)
        truncated = everyone and chance(rng, 0.4)
        steps.append(
            {
                "observations": {agent: float(rng.integers(99)) for agent in [*seen, *newcomers]},
                "actions": {agent: int(rng.integers(9)) for agent in actors},
                "rewards": {agent: float(rng.integers(-40, 40)) / 8 for agent in rewarded},
                "terminateds": {**dict.fromkeys(ended, True), "__all__": everyone and not truncated},
                "truncateds": {"__all__": truncated},
            }
        )
        able = (able | set(seen) | set(newcomers)) - set(ended)
        waiting -= set(seen)
        done |= set(ended)
        if not able | waiting:
            steps[-1]["terminateds"]["__all__"] = True
            steps[-1]["truncateds"]["__all__"] = False
            break
    return {"reset": reset, "steps": steps}


def multi_sequence(rng: Random) -> list[Step]:
    """Return one schedule, read in every way."""
    played = schedule(rng)
    length = len(played["steps"])
    steps = [
        {"op": "several_agents"},
        {"op": "several_counts"},
        {"op": "several_to_act"},
        {"op": "several_returns", "hanging": chance(rng, 0.5)},
        {"op": "several_cut", "at": int(rng.integers(0, length))},
        {"op": "several_concat", "at": int(rng.integers(0, length))},
    ]
    for _ in range(4):
        indices: Any = [None, int(rng.integers(-3, 6)), [int(rng.integers(0, 3)), int(rng.integers(2, 6))]]
        by_env = chance(rng, 0.7)
        steps.append(
            {
                "op": "several_read",
                "name": ["observations", "actions", "rewards"][int(rng.integers(3))],
                "indices": indices[int(rng.integers(3))],
                "env_steps": by_env,
                "as_list": False,
            }
        )
        steps[-1]["as_list"] = by_env and not isinstance(steps[-1]["indices"], int) and chance(rng, 0.5)
    return [{**step, **played} for step in steps]
