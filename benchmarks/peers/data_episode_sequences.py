"""Random sequences of operations on episodes (see ``data_sequences.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np

Step = dict[str, Any]
Random = np.random.Generator


def _chance(rng: Random, share: float) -> bool:
    return bool(rng.random() < share)


def _some(rng: Random, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


class Form:
    """What observations, actions and extra outputs of one sequence's episodes are."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.observations = _some(rng, ["box", "box", "discrete", "dict"])
        self.actions = _some(rng, ["discrete", "box", "pair"])
        self.spaces = _chance(rng, 0.6)
        self.keys = [key for key in ("action_logp", "vf_preds") if _chance(rng, 0.4)]

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
            "terminated": _chance(rng, 0.08),
            "truncated": _chance(rng, 0.05),
            "extras": self.extras() if _chance(rng, 0.96) else {"other": 0.5},
        }


def new(form: Form) -> Step:
    """An episode of given data, now and then with data missing."""
    rng = form.rng
    steps = int(rng.integers(0, 8))
    made: Step = {"op": "new", "form": form.observations, "action_form": form.actions, "spaces": form.spaces}
    made["observations"] = [form.value(form.observations) for _ in range(steps + 1)]
    made["actions"] = [form.value(form.actions) for _ in range(steps)]
    made["rewards"] = (rng.integers(-40, 40, steps) / 8).tolist()
    made["infos"] = [{"n": int(n)} for n in rng.integers(0, 99, steps + 1)] if _chance(rng, 0.7) else []
    made["extras"] = {key: (rng.integers(-40, 40, steps) / 8).tolist() for key in form.keys} if steps else {}
    made["id_"] = _some(rng, ["e", "e", "f"])
    ends = _chance(rng, 0.3)
    made["terminated"], made["truncated"] = ends, not ends and _chance(rng, 0.2)
    lookback = _some(rng, [0, 0, "auto", int(rng.integers(0, steps + 1)), int(rng.integers(0, steps + 1))])
    made["len_lookback_buffer"] = steps if lookback == "auto" else lookback
    if _chance(rng, 0.05):
        made["len_lookback_buffer"] = _some(rng, [None, 20])
    made["t_started"] = int(_some(rng, [0, 0, made["len_lookback_buffer"] or 0, 11]))
    if _chance(rng, 0.06):
        made[_some(rng, ["actions", "rewards", "infos", "observations"])].append(1)
    return made


def episode_sequence(rng: Random) -> list[Step]:
    """Episodes of given data and grown ones; then reading, writing, cutting and joining them."""
    form = Form(rng)
    steps = [new(form) for _ in range(int(rng.integers(1, 3)))]
    empty = {"observations": [], "actions": [], "rewards": [], "infos": [], "extras": {}, "id_": "g"}
    empty |= {"terminated": False, "truncated": False, "t_started": 0, "len_lookback_buffer": 0}
    steps.append({**steps[0], **empty})
    grown = len(steps) - 1
    steps.append({"op": "add_reset", "on": grown, "observation": form.value(form.observations), "info": {"n": 0}})
    steps += [{"op": "add_step", "on": grown, **form.step()} for _ in range(int(rng.integers(0, 6)))]
    if _chance(rng, 0.5):
        steps.append({"op": "pack", "on": int(rng.integers(9))})
    steps += [episode_step(rng, form) for _ in range(int(rng.integers(8, 14)))]
    return steps


def _number(rng: Random, low: int, high: int) -> int | None:
    return None if _chance(rng, 0.25) else int(rng.integers(low, high))


def _indices(rng: Random) -> Any:
    kind = _some(rng, ["none", "int", "int", "list", "slice", "slice", "slice"])
    if kind == "none":
        return None
    if kind == "int":
        return int(rng.integers(-5, 7))
    if kind == "list":
        return rng.integers(-3, 5, int(rng.integers(0, 4))).tolist()
    return {"slice": [_number(rng, -5, 7), _number(rng, -5, 9), _some(rng, [None, None, None, None, 2, -1])]}


def _read(rng: Random, form: Form) -> Step:
    return {
        "name": _some(rng, ["observations", "actions", "rewards", "infos", "extras"]),
        "key": _some(rng, [*form.keys, "action_logp"]),
        "indices": _indices(rng),
        "negative": _chance(rng, 0.4),
        "fill": _some(rng, [None, None, None, 0.0]),
        "one_hot": _chance(rng, 0.1),
        "pack": _chance(rng, 0.6),
    }


def _write(rng: Random, form: Form) -> Step:
    name = _some(rng, ["observations", "actions", "rewards", "extras"])
    forms = {"observations": form.observations, "actions": form.actions}
    indices = _indices(rng)
    single = isinstance(indices, int)
    count = len(indices) if isinstance(indices, list) else int(rng.integers(0, 7))

    def one() -> Any:
        return form.value(forms[name]) if name in forms else float(rng.integers(-40, 40)) / 8

    return {
        "name": name,
        "key": _some(rng, [*form.keys, "action_logp"]),
        "indices": indices,
        "single": single,
        "new": one() if single else [one() for _ in range(count)],
        "negative": _chance(rng, 0.3),
        "fill": None,
        "pack": _chance(rng, 0.6),
    }


def episode_step(rng: Random, form: Form) -> Step:
    """One random operation on episodes."""
    arguments: dict[str, Any] = {
        "read": lambda: _read(rng, form),
        "read ": lambda: _read(rng, form),
        "read  ": lambda: _read(rng, form),
        "put": lambda: _write(rng, form),
        "put ": lambda: _write(rng, form),
        "new": lambda: new(form),
        "add_reset": lambda: {"observation": form.value(form.observations), "info": {"n": 1}},
        "add_step": form.step,
        "add_step ": form.step,
        "pack": dict,
        "cut": lambda: {"lookback": int(rng.integers(0, 4))},
        "cut_grow_concat": lambda: {
            "lookback": int(rng.integers(0, 3)),
            "pack": _chance(rng, 0.5),
            "steps": [form.step() | {"terminated": False} for _ in range(int(rng.integers(0, 4)))],
        },
        "slice_then_concat": lambda: {"at": int(rng.integers(0, 8)), "pack": _chance(rng, 0.5)},
        "concat_wrong": lambda: {"other": int(rng.integers(9))},
        "slice_episode": lambda: {
            "start": _number(rng, -3, 6),
            "stop": _number(rng, -3, 9),
            "step": _some(rng, [None, None, None, None, None, 2]),
            "lookback": _some(rng, [None, None, 0, 1, 3]),
        },
        "slice_keeps_names": lambda: {"slice": _chance(rng, 0.5)},
        "one_step": lambda: {"index": int(rng.integers(-2, 4))},
        "set_outside_space": lambda: {"where": int(rng.integers(3)), "pack": _chance(rng, 0.5)},
        "data_dict": lambda: {"batch": _chance(rng, 0.5)},
        "data_dict_names": dict,
        "data_dict_infos": dict,
        "totals": dict,
        "round_trip": dict,
        "validate": dict,
    }
    name = _some(rng, list(arguments))
    return {"on": int(rng.integers(9)), **arguments[name](), "op": name.strip()}
