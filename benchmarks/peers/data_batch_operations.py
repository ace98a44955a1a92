"""The operations on batches that ``data_player.py`` plays, and the situations in which the libraries may differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from data_player import Made, Play, columns, ends_soon, object_array, plain

Step = dict[str, Any]


def num_rows(batch: Any) -> int:
    """Real rows, read from the columns themselves."""
    if "seq_lens" in batch:
        return int(sum(int(length) for length in batch["seq_lens"]))
    for name, part in batch.items():
        if name != "infos":
            while isinstance(part, dict | tuple):
                part = next(iter(part.values())) if isinstance(part, dict) else part[0]
            return len(part)
    return 0


def has_sequences(batch: Any) -> bool:
    return "seq_lens" in batch


def construct(state: Play, step: Step) -> Made:
    """A batch of given columns."""
    given = columns(step["columns"])
    lengths = {name: len(part) for name, part in given.items() if not isinstance(part, dict | tuple | int | float)}
    plain_lengths = {size for name, size in lengths.items() if name not in ("seq_lens", "state_in_0")}
    state.mark("ragged_batch", len(plain_lengths) > 1)
    state.mark("number_as_column", any(isinstance(part, int | float) for part in given.values()))
    if "seq_lens" in given and plain_lengths:
        state.mark("seq_lens_do_not_fit", sum(given["seq_lens"]) != min(plain_lengths))
    batch = state.library.SampleBatch(given)
    batch.num_grad_updates = step.get("num_grad_updates")
    return Made(batch)


def keep_dones(state: Play, step: Step) -> Any:
    """A batch that is given `dones`, and what it reads."""
    state.mark("dones_given")
    return state.library.SampleBatch({"obs": np.arange(3), "dones": np.array(step["flags"])})["dones"]


def construct_with_wrong_key(state: Play, step: Step) -> Any:
    """A column whose name is no string."""
    return state.library.SampleBatch({step["key"]: np.arange(3)})


def sizes(state: Play, step: Step) -> Any:
    """All that counts rows."""
    batch = state.at(step["on"])
    return [len(batch), batch.count, batch.env_steps(), batch.agent_steps()]


def after_changes(state: Play, step: Step) -> Any:
    """`len` after the columns were replaced by shorter ones."""
    state.mark("len_is_live", num_rows(state.at(step["on"])) > 0)
    batch = state.at(step["on"])
    shorter = batch[: num_rows(batch) // 2] if num_rows(batch) // 2 else None
    if shorter is None:
        for name in list(batch):
            dict.__delitem__(batch, name)
    else:
        dict.update(batch, dict(shorter))
    return len(batch)


def _mark_slice(state: Play, batch: Any, start: int | None, stop: int | None, step: int | None) -> None:
    state.mark("slice_to_zero", stop == 0)
    state.mark("slice_with_step", step not in (None, 1))
    if has_sequences(batch) and num_rows(batch):
        rows = num_rows(batch)
        negative = (start or 0) < 0 or (stop is not None and stop < 0)
        state.mark("slice_of_sequences_beyond", (start or 0) > rows or negative)


def getitem_slice(state: Play, step: Step) -> Made:
    """`batch[a:b]`, `batch[a:b:c]`."""
    batch, start, stop, stride = state.at(step["on"]), step["start"], step["stop"], step.get("step")
    _mark_slice(state, batch, start, stop, stride)
    part = batch[slice(start, stop, stride)]
    return Made(part)


def slice_method(state: Play, step: Step) -> Any:
    """`batch.slice(a, b)`."""
    batch = state.at(step["on"])
    state.mark("slice_method_cuts_sequences", has_sequences(batch))
    state.mark("slice_method_of_infos", "infos" in batch)
    return batch.slice(step["start"], step["stop"])


def concat(state: Play, step: Step) -> Made:
    """`a.concat(b)` and `concat_samples([...])`."""
    parts = [state.at(number) for number in step["all"]]
    filled = [part for part in parts if num_rows(part)]
    names = [set(part) for part in filled]
    if names:
        state.mark("concat_missing_in_first", any(other - names[0] for other in names[1:]))
    state.mark("concat_of_empties", bool(parts) and not filled)
    lengths = [part["seq_lens"] for part in filled if has_sequences(part)]
    state.mark("concat_of_torch_seq_lens", any(isinstance(part, torch.Tensor) for part in lengths))
    known = [part.num_grad_updates for part in filled]
    if len(parts) == 2 and step.get("method"):
        made = parts[0].concat(parts[1])
    else:
        made = state.library.concat_samples(parts)
    if any(value is not None for value in known) and abs((made.num_grad_updates or 0) - _weighted(filled)) > 1e-9:
        raise ArithmeticError("num_grad_updates is not the mean over the rows")
    return Made(made)


def _weighted(parts: list[Any]) -> float:
    known = [(num_rows(part), part.num_grad_updates) for part in parts if part.num_grad_updates is not None]
    return sum(rows * value for rows, value in known) / sum(rows for rows, _ in known)


def copy_batch(state: Play, step: Step) -> Made:
    """A deep or shallow copy."""
    return Made(state.at(step["on"]).copy(shallow=step["shallow"]))


def copy_then_write(state: Play, step: Step) -> Any:
    """What a copy holds after the original's arrays were written to."""
    batch = state.at(step["on"])
    torches = any(isinstance(part, torch.Tensor) for part in batch.values())
    state.mark("deep_copy_of_tensors", torches and not step["shallow"])
    state.mark("shallow_copy_of_infos", "infos" in batch and num_rows(batch) > 0 and step["shallow"])
    made = batch.copy(shallow=step["shallow"])
    for name, part in dict.items(batch):
        if name == "seq_lens":
            continue
        if isinstance(part, np.ndarray | torch.Tensor) and part.dtype not in (object, np.dtype(object)):
            if not isinstance(part, np.ndarray) or part.dtype.kind in "iuf":
                part[...] = 7
        elif name == "infos" and len(part):
            part[0]["written"] = True
    return made


def rows(state: Play, step: Step) -> Any:
    """`list(batch.rows())`."""
    batch = state.at(step["on"])
    state.mark("rows_of_states", has_sequences(batch) and "state_in_0" in batch)
    state.mark("rows_of_padded", bool(batch.zero_padded))
    state.mark("rows_of_infos", "infos" in batch)
    return [{name: plain(part) for name, part in row.items()} for row in batch.rows()]


def get_columns(state: Play, step: Step) -> Any:
    """`batch.columns(names)`."""
    names = step["names"]
    state.mark("infos_are_a_list", "infos" in names)
    return state.at(step["on"]).columns(names)


def get(state: Play, step: Step) -> Any:
    """`batch.get(name, default)`."""
    batch = state.at(step["on"])
    _mark_dones(state, batch, step["name"])
    state.mark("infos_are_a_list", step["name"] == "infos" and "infos" in batch)
    return batch.get(step["name"], "default")


def getitem(state: Play, step: Step) -> Any:
    """`batch[name]`."""
    batch = state.at(step["on"])
    _mark_dones(state, batch, step["name"])
    state.mark("infos_are_a_list", step["name"] == "infos" and "infos" in batch)
    return batch[step["name"]]


def _mark_dones(state: Play, batch: Any, name: str) -> None:
    state.mark("dones_read", name == "dones" and "truncateds" in batch)


def set_column(state: Play, step: Step) -> Made:
    """`batch[name] = column`."""
    batch = state.at(step["on"])
    given = columns({"given": step["column"]})["given"]
    rows_now = num_rows(batch)
    length = len(given) if hasattr(given, "__len__") else 1
    state.mark("set_ragged_column", rows_now > 0 and rows_now != length and not batch.zero_padded)
    state.mark("set_column_of_padded", bool(batch.zero_padded))
    state.mark("set_in_empty_batch", rows_now == 0)
    batch[step["name"]] = given
    return Made(batch, instead=step["on"])


def delete_column(state: Play, step: Step) -> Made:
    """`del batch[name]`."""
    batch = state.at(step["on"])
    del batch[step["name"]]
    return Made(batch, instead=step["on"])


def split_by_episode(state: Play, step: Step) -> Any:
    """`list(batch.split_by_episode(...))`."""
    batch = state.at(step["on"])
    flags = "terminateds" in batch or "truncateds" in batch
    state.mark("split_of_nothing", num_rows(batch) == 0)
    if step["key"] is None and "eps_id" not in batch:
        state.mark("split_by_truncateds_only", flags and "terminateds" not in batch)
    state.mark("split_by_dones_key", step["key"] == "dones")
    state.mark("split_by_any_key", step["key"] not in (None, "eps_id", "dones") and step["key"] in batch)
    state.mark("split_inside_sequences", has_sequences(batch) and _crosses(batch, step["key"]))
    return list(batch.split_by_episode(step["key"]) if step["key"] else batch.split_by_episode())


def _crosses(batch: Any, key: str | None) -> bool:
    """Whether an episode begins inside a sequence."""
    starts = set(np.cumsum(np.asarray(batch["seq_lens"])).tolist()) | {0}
    if (key or "eps_id") in batch and key != "dones":
        ids = np.asarray(batch[key or "eps_id"])
        cuts = (np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist() if not batch.zero_padded else [-1]
    elif "terminateds" in batch:
        ends = np.asarray(batch["terminateds"]).astype(bool)
        if "truncateds" in batch:
            ends = ends | np.asarray(batch["truncateds"]).astype(bool)
        cuts = (np.flatnonzero(ends[:-1]) + 1).tolist() if not batch.zero_padded else [-1]
    else:
        cuts = []
    return bool(set(cuts) - starts)


def timeslices(state: Play, step: Step) -> Any:
    """`batch.timeslices(size=...)`, `(num_slices=...)`, both, neither."""
    batch, size, number = state.at(step["on"]), step["size"], step["num_slices"]
    total = num_rows(batch)
    state.mark("timeslices_both_arguments", size is not None and number is not None)
    if size is not None and number is None:
        state.mark("timeslices_remainder", total % size != 0)
        if total % size:
            ends_soon()
    state.mark("timeslices_more_than_rows", size is None and number is not None and number > total)
    state.mark("timeslices_of_sequences", has_sequences(batch))
    return list(batch.timeslices(size=size, num_slices=number))


def as_multi_agent(state: Play, step: Step) -> Any:
    """`batch.as_multi_agent(...)`."""
    batch = state.at(step["on"])
    return batch.as_multi_agent(step["module_id"]) if step["module_id"] else batch.as_multi_agent()


def size_bytes(state: Play, step: Step) -> Any:
    """Bytes of all leaves."""
    batch = state.at(step["on"])
    kinds = {type(part) for part in batch.values()}
    state.mark("bytes_of_tensors_and_objects", torch.Tensor in kinds or "infos" in batch)
    return int(batch.size_bytes())


def ends(state: Play, step: Step) -> Any:
    """`is_terminated_or_truncated()`."""
    batch = state.at(step["on"])
    state.mark("end_of_nothing", num_rows(batch) == 0)
    state.mark("end_of_padded", bool(batch.zero_padded))
    state.mark("end_by_truncateds_only", "terminateds" not in batch and "truncateds" in batch)
    return bool(batch.is_terminated_or_truncated())


def single_trajectory(state: Play, step: Step) -> Any:
    """`is_single_trajectory()`."""
    batch = state.at(step["on"])
    ids = np.asarray(batch["eps_id"]) if "eps_id" in batch else np.zeros(0)
    state.mark("trajectory_by_eps_id", len(set(ids.tolist())) > 1)
    state.mark("trajectory_of_padded", bool(batch.zero_padded))
    state.mark("trajectory_without_terminateds", "terminateds" not in batch)
    return bool(batch.is_single_trajectory())


def shuffle(state: Play, step: Step) -> Any:
    """The rows after a shuffle, sorted: which rows there are, not their order."""
    batch = state.at(step["on"])
    state.mark("shuffle_of_sequences", has_sequences(batch))
    state.mark("shuffle_of_infos", "infos" in batch and num_rows(batch) > 1)
    if "infos" in batch:
        del batch["infos"]
        state.marks.discard("shuffle_of_infos")
    same = batch.shuffle() is batch
    return [same, sorted(str(plain(dict(row))) for row in batch.rows())]


def shuffle_infos(state: Play, step: Step) -> Any:
    """Whether infos go with their rows in 5 shuffles: every info names its row."""
    count = max(num_rows(state.at(step["on"])), 8)
    state.mark("shuffle_of_infos")
    together = True
    for _ in range(5):
        batch = state.library.SampleBatch(
            {"a": np.arange(count), "infos": object_array([{"a": i} for i in range(count)])}
        )
        batch.shuffle()
        together &= all(info["a"] == row for info, row in zip(batch["infos"], batch["a"].tolist()))
    return together


def to_device(state: Play, step: Step) -> Any:
    """`to_device("cpu")`: tensors, float64 narrowed."""
    batch = state.at(step["on"])
    state.mark("infos_to_device", "infos" in batch)
    same = batch.to_device("cpu") is batch
    return [same, batch]


def single_step(state: Play, step: Step) -> Any:
    """`get_single_step_input_dict`."""
    batch, index = state.at(step["on"]), step["index"]
    names = [name for name in step["names"] if name in batch]
    wanted = {name: state.library.requirement(name) for name in names}
    state.mark("single_step_of_nested", index != "last" and any(isinstance(batch[n], dict | tuple) for n in names))
    state.mark("single_step_of_padded", bool(batch.zero_padded))
    state.mark("single_step_of_nothing", num_rows(batch) == 0)
    outside = index != "last" and not -num_rows(batch) <= index < num_rows(batch)
    state.mark("single_step_outside", outside and num_rows(batch) > 0)
    state.mark(
        "single_step_without_after",
        index == "last" and "obs" in names and "new_obs" not in batch and num_rows(batch) > 0,
    )
    state.mark("single_step_state", "state_in_0" in names)
    return batch.get_single_step_input_dict(wanted, index)


def read_padded(state: Play, step: Step) -> Any:
    """Rows and ends of two sequences, padded; the last one ends."""
    flags = np.array([False, False, True])
    batch = state.library.SampleBatch({"a": np.arange(3), "terminateds": flags, "seq_lens": np.array([1, 2])})
    batch.right_zero_pad(step["length"])
    if step["what"] == "rows":
        state.mark("rows_of_padded")
        return [int(row["a"]) for row in batch.rows()]
    if step["what"] == "end":
        state.mark("end_of_padded", step["length"] > 2)
        return bool(batch.is_terminated_or_truncated())
    if step["what"] == "single_step":
        state.mark("single_step_of_padded", step["length"] > 2)
        return batch.get_single_step_input_dict({"a": state.library.requirement("a")})["a"]
    state.mark("trajectory_of_padded", step["length"] > 2)
    return bool(batch.is_single_trajectory())


def training(state: Play, step: Step) -> Any:
    """`set_training` and `is_training`."""
    batch = state.at(step["on"])
    before = bool(batch.is_training)
    batch.set_training(step["value"])
    return [before, batch.is_training, batch[0 : max(1, num_rows(batch))].is_training]


def right_zero_pad(state: Play, step: Step) -> Made:
    """`right_zero_pad(length)`."""
    batch, length = state.at(step["on"]), step["length"]
    if has_sequences(batch):
        longest = max((int(n) for n in batch["seq_lens"]), default=0)
        state.mark("pad_too_short", length < longest)
        state.mark("pad_twice", bool(batch.zero_padded))
        texts = [part for part in batch.values() if isinstance(part, np.ndarray) and part.dtype.kind == "U"]
        state.mark("pad_objects", "infos" in batch or bool(texts))
        state.mark("pad_tuples", any(isinstance(part, tuple) for part in batch.values()))
        state.mark("pad_tensors", any(isinstance(part, torch.Tensor) for part in batch.values()))
        state.mark("pad_spreads_states", not step["exclude_states"] and "state_in_0" in batch)
    same = batch.right_zero_pad(length, exclude_states=step["exclude_states"])
    return Made(same, instead=step["on"])


def compressed(state: Play, step: Step) -> Any:
    """`compress` and back."""
    batch = state.at(step["on"])
    state.mark("compress_empty", num_rows(batch) == 0)
    state.mark(
        "compress_other", any(isinstance(batch.get(name), dict | tuple | torch.Tensor) for name in ("obs", "new_obs"))
    )
    batch.compress(bulk=step["bulk"])
    batch.decompress_if_needed()
    return batch


# ---- several modules ---------------------------------------------------------------------------------------------


def _multi(state: Play, step: Step) -> Any:
    parts = {name: state.at(number) for name, number in step["modules"].items()}
    return state.library.MultiAgentBatch(parts, step["env_steps"])


def multi_sizes(state: Play, step: Step) -> Any:
    """Counts of a `MultiAgentBatch`, and what it holds."""
    batch = _multi(state, step)
    return [len(batch), batch.count, batch.env_steps(), batch.agent_steps(), batch, batch.as_multi_agent() is batch]


def multi_copy(state: Play, step: Step) -> Any:
    return _multi(state, step).copy()


def multi_concat(state: Play, step: Step) -> Any:
    """Two `MultiAgentBatch`es, and a `SampleBatch` between them."""
    batch, between = _multi(state, step), state.at(step["on"])
    filled = [part for part in (*batch.policy_batches.values(), between) if num_rows(part)]
    state.mark("concat_missing_in_first", len({frozenset(part) for part in filled}) > 1)
    lengths = [part["seq_lens"] for part in filled if has_sequences(part)]
    state.mark("concat_of_torch_seq_lens", any(isinstance(part, torch.Tensor) for part in lengths))
    state.mark("multi_concat_of_empties", any(not num_rows(part) for part in (*batch.policy_batches.values(), between)))
    make = state.library.concat_samples_into_ma_batch if step["into"] else state.library.concat_samples
    return make([batch, between, batch])


def multi_wrap(state: Play, step: Step) -> Any:
    """`wrap_as_needed`, and back with `convert_ma_batch_to_sample_batch`."""
    parts = {name: state.at(number) for name, number in step["modules"].items()}
    wrapped = state.library.MultiAgentBatch.wrap_as_needed(parts, step["env_steps"])
    return [wrapped, state.library.convert_ma_batch_to_sample_batch(wrapped)]


def multi_getitem(state: Play, step: Step) -> Any:
    return _multi(state, step)[step["name"]]


def multi_wrong_value(state: Play, step: Step) -> Any:
    return state.library.MultiAgentBatch({"a": {"obs": np.arange(2)}}, 2)


def multi_timeslices(state: Play, step: Step) -> Any:
    """`timeslices(k)` of rows that name episode, step and agent."""
    parts = {name: state.library.SampleBatch(columns(part)) for name, part in step["parts"].items()}
    ids = [item for part in parts.values() for item in part["eps_id"].tolist()]
    firsts = list(dict.fromkeys(ids))
    state.mark("multi_order_of_episodes", firsts != sorted(firsts))
    pieces = list(state.library.MultiAgentBatch(parts, step["env_steps"]).timeslices(step["k"]))
    state.mark("multi_timeslices_columns", step["with_names"])
    if not step["with_names"]:
        for part in (part for piece in pieces for part in piece.policy_batches.values()):
            part.pop("unroll_id", None)
    return pieces


OPERATIONS = {
    name: value
    for name, value in globals().items()
    if callable(value) and getattr(value, "__module__", None) == __name__ and not name.startswith("_")
    and name not in ("num_rows", "has_sequences")
}  # fmt: skip
