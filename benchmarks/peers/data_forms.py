"""Random data as plain JSON, that data as columns, results as plain values: what the tables of operations share.

NumPy, torch and the standard library alone, beside the library that is played.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

Step = dict[str, Any]


@dataclass
class Play:
    """One sequence being played."""

    library: Any
    pool: list[Any] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)

    def mark(self, name: str, applies: bool = True) -> None:
        """Note that the step is in a situation of the list."""
        if applies:
            self.marks.add(name)

    def at(self, number: int) -> Any:
        """Return a copy of an object of the pool, so that nothing a step does reaches another one."""
        return copy.deepcopy(self.pool[number % len(self.pool)])


class Draw:
    """Random plain values; the same seed gives the same ones."""

    def __init__(self, seed: list[int]) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, share: float = 0.5) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < share)

    def some(self, items: Any) -> Any:
        """Return one of the items."""
        return items[int(self.rng.integers(len(items)))]

    def whole(self, low: int, high: int) -> int:
        """Return a whole number below `high`."""
        return int(self.rng.integers(low, high))

    def bound(self, low: int, high: int, missing: float = 0.25) -> int | None:
        """Return a bound of a slice."""
        return None if self.chance(missing) else self.whole(low, high)

    def eighths(self, *shape: int) -> Any:
        """Return numbers that every float holds exactly."""
        return (self.rng.integers(-40, 40, shape) / 8).tolist()

    def array(self, dtype: str, *shape: int, kind: str = "array") -> Step:
        """Return the description of an array."""
        if dtype == "bool":
            values = (self.rng.random(shape) < 0.25).tolist()
        elif dtype.startswith("float"):
            values = self.eighths(*shape)
        elif dtype.startswith("<U"):
            values = self.rng.integers(100, 999, shape).astype(str).tolist()
        else:
            values = self.rng.integers(0, 9, shape).tolist()
        return {"kind": kind, "dtype": dtype, "shape": list(shape), "values": values}

    def operation(self, operations: dict[str, Operation]) -> str:
        """Return the name of one of the operations, each by its share."""
        return str(self.some([name for name, row in operations.items() for _ in range(row.share)]))


class Operation:
    """A row of a table of operations: it `adds` its result to the pool, `replaces` its object by it, or `reads`.

    Args:
        effect: one of these words.
        run: takes the play, a copy of an object of the pool (or None) and the arguments of the step.
        several: draws some of the arguments together.
        share: how many tickets it has when one of the table is drawn.
        arguments: by name, what draws each.
    """

    def __init__(
        self,
        effect: str,
        run: Callable[..., Any],
        several: Callable[[Draw, Any], Step] = lambda draw, form: {},
        share: int = 1,
        **arguments: Callable[[Draw, Any], Any],
    ) -> None:
        self.effect, self.run, self.several, self.share, self.arguments = effect, run, several, share, arguments

    def draw(self, draw: Draw, form: Any) -> Step:
        """Return random arguments."""
        return {**self.several(draw, form), **{name: each(draw, form) for name, each in self.arguments.items()}}


adds, replaces, reads = (partial(Operation, effect) for effect in ("adds", "replaces", "reads"))


def drawn(method: str) -> Callable[..., Callable[[Draw, Any], Any]]:
    """Return what makes an argument of a method of `Draw`."""
    return lambda *values: lambda draw, form: getattr(draw, method)(*values)


whole, chance, some, bound = map(drawn, ("whole", "chance", "some", "bound"))


def row_of(dtype: str, values: list[Any], kind: str = "array") -> Step:
    """Return the description of an array of one axis."""
    return {"kind": kind, "dtype": dtype, "shape": [len(values)], "values": values}


# ---- data from JSON, and results to JSON -----------------------------------------------------------------------


def column(described: Step) -> Any:
    """Return a column from its description."""
    kind = described["kind"]
    if kind == "dict":
        return columns(described["items"])
    if kind == "tuple":
        return tuple(column(part) for part in described["items"])
    if kind in ("list", "number"):
        return copy.deepcopy(described["values"])
    array = np.array(described["values"], dtype=described["dtype"]).reshape(described["shape"])
    return torch.from_numpy(array) if kind == "torch" else array


def columns(described: Step) -> dict[str, Any]:
    """Return all columns of a batch."""
    return {name: column(part) for name, part in described.items()}


def plain(value: Any) -> Any:
    """Return any result as JSON, in one form for both libraries."""
    if hasattr(value, "policy_batches"):
        return {"multi_agent_batch": plain(value.policy_batches), "env_steps": int(value.env_steps())}
    if type(value).__name__ == "SampleBatch":
        return plain_batch(value)
    if type(value).__name__ == "SingleAgentEpisode":
        return plain_episode(value)
    if isinstance(value, torch.Tensor):
        return {**plain(value.numpy()), "torch": True}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"objects": [plain(item) for item in value.reshape(-1)], "shape": list(value.shape)}
    if isinstance(value, np.ndarray):
        return {"values": value.tolist(), "shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [plain(part) for part in value]


def plain_batch(batch: Any) -> Step:
    """Return columns and marks of a batch; objects (infos) as a list, whatever holds them."""
    shown = {}
    for name in sorted(dict.keys(batch)):
        part = dict.__getitem__(batch, name)
        shown[name] = plain(object_array(part) if name == "infos" and isinstance(part, list) else part)
    return {
        "columns": shown,
        "rows": len(batch),
        "zero_padded": bool(batch.zero_padded),
        "time_major": bool(batch.time_major),
        "max_seq_len": None if batch.max_seq_len is None else int(batch.max_seq_len),
    }


def object_array(items: list[Any]) -> np.ndarray:
    """Return a list of objects as an array of objects."""
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array


def stacked(rows: Any) -> Any:
    """Return what a getter gives as a tree of arrays: lists of rows are stacked, as packing would stack them."""
    if isinstance(rows, list):
        if rows and isinstance(rows[0], dict):
            return {key: stacked([row[key] for row in rows]) for key in rows[0]}
        return {"values": np.array(rows).tolist()}  # a list of rows has no dtype
    if isinstance(rows, dict):
        return {key: stacked(part) for key, part in rows.items()}
    return plain(rows)


def plain_episode(episode: Any) -> Step:
    """Return all that an episode holds, with its lookback."""
    lookback = lookback_of(episode)
    everything = {"indices": slice(-lookback, None), "neg_index_as_lookback": True} if lookback else {}
    return {
        "id": episode.id_,
        "t": [episode.t_started, episode.t, len(episode)],
        "ends": [bool(episode.is_terminated), bool(episode.is_truncated), bool(episode.is_done)],
        "is_reset": bool(episode.is_reset),
        "lookback": lookback,
        "observations": stacked(episode.get_observations(**everything)),
        "actions": stacked(episode.get_actions(**everything)),
        "rewards": stacked(episode.get_rewards(**everything)),
        "infos": plain(episode.get_infos(**everything)),
        "extras": {
            key: stacked(episode.get_extra_model_outputs(key, **everything)) for key in sorted(extra_keys(episode))
        },
        "names": [episode.agent_id, episode.module_id],
        "custom_data": plain(episode.custom_data),
    }


def lookback_of(episode: Any) -> int:
    """Return the number of steps before the first that can be looked back at."""
    return int(episode.len_lookback_buffer if hasattr(episode, "len_lookback_buffer") else episode.actions.lookback)


def extra_keys(episode: Any) -> list[str]:
    """Return the names of the extra model outputs."""
    if hasattr(episode, "extra_model_outputs"):
        return list(episode.extra_model_outputs)
    names = ("obs", "new_obs", "actions", "rewards", "infos", "terminateds", "truncateds", "t", "eps_id")
    return [name for name in episode.get_data_dict() if name not in names] if episode.is_reset else []
