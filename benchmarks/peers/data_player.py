"""Play sequences of operations on batches and episodes, with whichever library's classes it is given.

A sequence is plain JSON (made by ``data_sequences.py``): steps such as ``{"op": "getitem_slice", "on": 0, "start": 2,
"stop": 5}``. A pool of batches (or episodes) is numbered; what some operations make is put into the pool. The trace
holds one entry for each step: the result or the kind of error in plain values, and the *marks* of the step, names of
the situations in which the libraries are known to differ (``data_mended.md``). A step with a mark is recorded, but
changes nothing: what follows goes on from objects that are the same in both libraries.

NumPy, torch and the standard library alone, beside the library that is played.
"""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import protocol
import torch

NO_END_S = 0.05


class Endless(BaseException):
    """A call that does not come back; no `except Exception` on its way may swallow it."""


@dataclass
class Library:
    """What is compared."""

    name: str
    version: str
    SampleBatch: Any
    MultiAgentBatch: Any
    SingleAgentEpisode: Any
    MultiAgentEpisode: Any
    concat_samples: Any
    concat_samples_into_ma_batch: Any
    convert_ma_batch_to_sample_batch: Any
    requirement: Callable[[str], Any]
    """a view requirement that names a column"""


@dataclass
class Play:
    """One sequence being played."""

    library: Library
    pool: list[Any] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)

    def mark(self, name: str, applies: bool = True) -> None:
        """Note that the step is in a situation of the list."""
        if applies:
            self.marks.add(name)

    def at(self, number: int) -> Any:
        """Return a copy of an object of the pool, so that nothing a step does reaches another one."""
        return copy.deepcopy(self.pool[number % len(self.pool)])


def play(library: Library, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the trace of one sequence."""
    from data_batch_operations import ADDS, READS, REPLACES
    from data_episode_operations import ADDS as EPISODE_ADDS
    from data_episode_operations import READS as EPISODE_READS
    from data_episode_operations import REPLACES as EPISODE_REPLACES
    from data_multi_operations import READS as MULTI_READS

    adds, replaces = ADDS | EPISODE_ADDS, REPLACES | EPISODE_REPLACES
    operations: dict[str, Callable[..., Any]] = {**adds, **replaces, **READS, **EPISODE_READS, **MULTI_READS}
    state, trace = Play(library), list[dict[str, Any]]()
    for step in steps:
        state.marks, result = set(), None
        operation, number = step["op"], step.get("on", 0)
        try:
            result = in_time(lambda step=step: operation_of(state, operations, step))
            shown = plain(result)
        except (Exception, Endless) as error:
            result, shown = None, {"error": type(error).__name__}
        else:
            if not state.marks and operation in adds:
                state.pool.append(result)
            elif not state.marks and operation in replaces:
                state.pool[number % len(state.pool)] = result
        trace.append({"result": shown, "marks": sorted(state.marks)})
    return trace


def operation_of(state: Play, operations: dict[str, Callable[..., Any]], step: dict[str, Any]) -> Any:
    """Return the result of one step, on a copy of the object that it names."""
    arguments = {name: value for name, value in step.items() if name not in ("op", "on")}
    return operations[step["op"]](state, state.at(step.get("on", 0)) if state.pool else None, **arguments)


def in_time(work: Callable[[], Any]) -> Any:
    """Return the result of ``work``; raise `Endless` where it does not come back."""

    def stop(*_: Any) -> None:
        raise Endless

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 5.0)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def ends_soon() -> None:
    """Tell that the call that follows is known not to end in one library; it gets a short time only."""
    signal.setitimer(signal.ITIMER_REAL, NO_END_S)


# ---- data from JSON, and results to JSON -----------------------------------------------------------------------


def column(described: Any) -> Any:
    """Return a column from its description."""
    kind = described["kind"]
    if kind == "dict":
        return {name: column(part) for name, part in described["items"].items()}
    if kind == "tuple":
        return tuple(column(part) for part in described["items"])
    if kind in ("list", "number"):
        return copy.deepcopy(described["values"])
    array = np.array(described["values"], dtype=described["dtype"]).reshape(described["shape"])
    return torch.from_numpy(array) if kind == "torch" else array


def columns(described: dict[str, Any]) -> dict[str, Any]:
    """Return all columns of a batch."""
    return {name: column(part) for name, part in described.items()}


def plain(value: Any) -> Any:
    """Return any result as JSON, in one form for both libraries."""
    if hasattr(value, "policy_batches"):
        modules = {str(key): plain(part) for key, part in value.policy_batches.items()}
        return {"multi_agent_batch": modules, "env_steps": int(value.env_steps())}
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
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "__iter__"):
        return [plain(part) for part in value]
    raise TypeError(f"no plain form for {type(value).__name__}")


def plain_batch(batch: Any) -> dict[str, Any]:
    """Return columns and marks of a batch; objects (infos) as a list, whatever holds them."""
    shown = {}
    for name in sorted(dict.keys(batch)):
        part = dict.__getitem__(batch, name)
        if name == "infos" and isinstance(part, list):
            part = object_array(part)
        shown[name] = plain(part)
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


def plain_episode(episode: Any) -> dict[str, Any]:
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


def library_of(name: str) -> Library:
    """Return Lockstep's classes or RLlib's."""
    names = ("concat_samples", "concat_samples_into_ma_batch", "convert_ma_batch_to_sample_batch")
    if name == "lockstep":
        import lockstep
        from lockstep import data

        classes = ("SampleBatch", "MultiAgentBatch", "SingleAgentEpisode", "MultiAgentEpisode")
        found = {each: getattr(data, each) for each in (*classes, *names)}
        return Library(name, lockstep.__version__, **found, requirement=lambda column: column)
    import logging

    import ray
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.policy import sample_batch
    from ray.rllib.policy.view_requirement import ViewRequirement

    logging.disable(logging.WARNING)
    found = {each: getattr(sample_batch, each) for each in ("SampleBatch", "MultiAgentBatch", *names)}
    found |= {"SingleAgentEpisode": SingleAgentEpisode, "MultiAgentEpisode": MultiAgentEpisode}
    return Library(name, ray.__version__, **found, requirement=lambda column: ViewRequirement(data_col=column))


def main() -> None:
    """Play the sequences of the file ``source`` with ``library``; write the traces to the file ``target``."""
    work = protocol.read(__doc__)
    library = library_of(work.library)
    sequences = json.loads(Path(work.source).read_text(encoding="utf-8"))
    traces = [play(library, sequence["steps"]) for sequence in sequences]
    Path(work.target).write_text(json.dumps(traces, default=str), encoding="utf-8")
    protocol.print_line(library.name, library.version, sequences=len(traces))


if __name__ == "__main__":
    main()
