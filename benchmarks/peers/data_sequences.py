"""Random sequences of operations for ``data_player.py``, as plain JSON. The same seed gives the same sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from data_episode_sequences import episode_sequence
from data_multi_sequences import multi_sequence

Step = dict[str, Any]
Random = np.random.Generator


def sequences(seed: int, counts: dict[str, int]) -> list[dict[str, Any]]:
    """``counts`` of each kind: ``batch``, ``sequence`` (with seq_lens), ``episode``, ``multi`` (several agents)."""
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
    """One of the items."""
    return items[int(rng.integers(len(items)))]


def number_or_none(rng: Random, low: int, high: int) -> int | None:
    return None if chance(rng, 0.3) else int(rng.integers(low, high))


def array(rng: Random, dtype: str, *shape: int, kind: str = "array") -> dict[str, Any]:
    """The description of an array."""
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
    """Batches of plain rows."""
    form = Form(rng)
    steps: list[Step] = []
    for _ in range(int(rng.integers(2, 4))):
        rows = 0 if chance(rng, 0.12) else int(rng.integers(1, 11))
        steps.append({"op": "construct", "columns": form.columns(rng, rows), **grad_updates(rng)})
    if chance(rng, 0.15):
        steps.append({"op": "construct", "columns": Form(rng).columns(rng, 4)})
    steps.extend(batch_step(rng, form) for _ in range(int(rng.integers(8, 14))))
    return steps


def grad_updates(rng: Random) -> dict[str, Any]:
    return {"num_grad_updates": float(rng.integers(1, 9))} if chance(rng, 0.3) else {}


def sequence_sequence(rng: Random) -> list[Step]:
    """Batches with ``seq_lens`` and states."""
    form = Form(rng)
    steps: list[Step] = []
    for _ in range(int(rng.integers(1, 4))):
        lengths = rng.integers(1, 5, int(rng.integers(1, 5))).tolist()
        given = form.columns(rng, sum(lengths))
        given["seq_lens"] = {"kind": "array", "dtype": "int32", "shape": [len(lengths)], "values": lengths}
        if form.has_states:
            given["state_in_0"] = array(rng, "float32", len(lengths), 2, kind=form.kind)
        if form.kind == "torch":
            given["seq_lens"]["kind"] = "torch"
        steps.append({"op": "construct", "columns": given, **grad_updates(rng)})
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


def _bounds(rng: Random) -> Step:
    low = -4 if chance(rng, 0.2) else 0
    return {"start": number_or_none(rng, low, 9), "stop": number_or_none(rng, low, 13)}


NAMES = ["obs", "new_obs", "actions", "rewards", "dones", "infos", "eps_id", "nothing"]
PADDED = ["rows", "end", "trajectory", "single_step"]
KEYS = [None, None, "eps_id", "dones", "t"]


def batch_step(rng: Random, form: Form) -> Step:
    """One random operation on batches."""
    on = int(rng.integers(9))
    arguments: dict[str, Any] = {
        "sizes": dict,
        "after_changes": dict,
        "getitem_slice": lambda: {**_bounds(rng), "step": some(rng, [None, None, None, None, 1, 2, -1])},
        "slice_method": lambda: {"start": int(rng.integers(0, 6)), "stop": int(rng.integers(0, 12))},
        "concat": lambda: {
            "all": rng.integers(0, 9, int(rng.integers(0, 4))).tolist(),
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
        "read_padded": lambda: {"what": some(rng, PADDED), "length": int(rng.integers(2, 5))},
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
    """A batch with a fault: ragged, with a number for a column, with `seq_lens` that do not fit."""
    rows = int(rng.integers(2, 6))
    given = {"obs": array(rng, "float32", rows, 2), "rewards": array(rng, "float32", rows)}
    fault = some(rng, ["ragged", "number", "seq_lens"])
    if fault == "ragged":
        given["rewards"] = array(rng, "float32", rows + 1)
    elif fault == "number":
        given = {"rewards": {"kind": "number", "values": 3.5}}
    else:
        given["seq_lens"] = {"kind": "array", "dtype": "int32", "shape": [2], "values": [1, rows]}
    return {"columns": given}


def multi_arguments(rng: Random) -> dict[str, Any]:
    """Operations on `MultiAgentBatch`."""

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
    """Modules whose rows are steps of common episodes; each module takes part in some of the steps."""
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
