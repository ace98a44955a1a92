"""Operations on batches, the situations (marks) in which the libraries may differ, and random sequences of them.

`OPERATIONS` is the table: of each operation what becomes of its result, its function and how its arguments are drawn.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import numpy as np
import torch
from data_forms import (
    Draw,
    Operation,
    Play,
    Step,
    adds,
    chance,
    columns,
    object_array,
    plain,
    reads,
    replaces,
    row_of,
    some,
    whole,
)  # fmt: skip


def num_rows(batch: Any) -> int:
    """Return the number of real rows, read from the columns themselves."""
    if "seq_lens" in batch:
        return int(sum(int(length) for length in batch["seq_lens"]))
    for name, part in batch.items():
        if name != "infos":
            while isinstance(part, dict | tuple):
                part = next(iter(part.values())) if isinstance(part, dict) else part[0]
            return len(part)
    return 0


def has_tensors(parts: Any) -> bool:
    return any(isinstance(part, torch.Tensor) for part in parts)


def construct(play: Play, _: Any, described: dict[str, Any], num_grad_updates: float | None = None) -> Any:
    parts = columns(described)
    lengths = {name: len(part) for name, part in parts.items() if not isinstance(part, dict | tuple | int | float)}
    plain_lengths = {size for name, size in lengths.items() if name not in ("seq_lens", "state_in_0")}
    play.mark("ragged_batch", len(plain_lengths) > 1)
    play.mark("number_as_column", any(isinstance(part, int | float) for part in parts.values()))
    if "seq_lens" in parts and plain_lengths:
        play.mark("seq_lens_do_not_fit", sum(parts["seq_lens"]) != min(plain_lengths))
    batch = play.library.SampleBatch(parts)
    batch.num_grad_updates = num_grad_updates
    return batch


def keep_dones(play: Play, _: Any, flags: list[bool]) -> Any:
    play.mark("dones_given")
    return play.library.SampleBatch({"obs": np.arange(3), "dones": np.array(flags)})["dones"]


def after_changes(play: Play, batch: Any) -> int:
    """Return the length after the columns were replaced by shorter ones."""
    half = num_rows(batch) // 2
    play.mark("len_is_live", num_rows(batch) > 0)
    if half:
        dict.update(batch, dict(batch[:half]))
    else:
        for name in list(batch):
            dict.__delitem__(batch, name)
    return len(batch)


def getitem_slice(play: Play, batch: Any, start: int | None, stop: int | None, step: int | None = None) -> Any:
    play.mark("slice_to_zero", stop == 0)
    play.mark("slice_with_step", step not in (None, 1))
    if "seq_lens" in batch and num_rows(batch):
        negative = (start or 0) < 0 or (stop is not None and stop < 0)
        play.mark("slice_of_sequences_beyond", (start or 0) > num_rows(batch) or negative)
    return batch[slice(start, stop, step)]


def slice_method(play: Play, batch: Any, start: int, stop: int) -> Any:
    play.mark("slice_method_cuts_sequences", "seq_lens" in batch)
    play.mark("slice_method_of_infos", "infos" in batch)
    return batch.slice(start, stop)


def concat(play: Play, _: Any, numbers: list[int], method: bool) -> Any:
    """Join batches with `a.concat(b)` or `concat_samples([...])`."""
    parts = [play.at(number) for number in numbers]
    filled = [part for part in parts if num_rows(part)]
    names = [set(part) for part in filled]
    if names:
        play.mark("concat_missing_in_first", any(other - names[0] for other in names[1:]))
    play.mark("concat_of_empties", bool(parts) and not filled)
    play.mark("concat_of_torch_seq_lens", has_tensors(part.get("seq_lens") for part in filled))
    made = parts[0].concat(parts[1]) if len(parts) == 2 and method else play.library.concat_samples(parts)
    known = [(num_rows(part), part.num_grad_updates) for part in filled if part.num_grad_updates is not None]
    if known:
        mean = sum(rows * value for rows, value in known) / sum(rows for rows, _ in known)
        if abs((made.num_grad_updates or 0) - mean) > 1e-9:
            raise ArithmeticError("num_grad_updates is not the mean over the rows")
    return made


def copy_then_write(play: Play, batch: Any, shallow: bool) -> Any:
    """Return what a copy holds after the original's arrays were written to."""
    play.mark("deep_copy_of_tensors", has_tensors(batch.values()) and not shallow)
    play.mark("shallow_copy_of_infos", "infos" in batch and num_rows(batch) > 0 and shallow)
    made = batch.copy(shallow=shallow)
    for name, part in dict.items(batch):
        if name == "infos" and len(part):
            part[0]["written"] = True
        elif isinstance(part, torch.Tensor) or (isinstance(part, np.ndarray) and part.dtype.kind in "iuf"):
            if name != "seq_lens":
                part[...] = 7
    return made


def rows(play: Play, batch: Any) -> Any:
    play.mark("rows_of_states", "seq_lens" in batch and "state_in_0" in batch)
    play.mark("rows_of_padded", bool(batch.zero_padded))
    play.mark("rows_of_infos", "infos" in batch)
    return [{name: plain(part) for name, part in row.items()} for row in batch.rows()]


def get_columns(play: Play, batch: Any, names: list[str]) -> Any:
    play.mark("infos_are_a_list", "infos" in names)
    return batch.columns(names)


def mark_column(play: Play, batch: Any, name: str) -> None:
    play.mark("dones_read", name == "dones" and "truncateds" in batch)
    play.mark("infos_are_a_list", name == "infos" and "infos" in batch)


def get(play: Play, batch: Any, name: str) -> Any:
    mark_column(play, batch, name)
    return batch.get(name, "default")


def getitem(play: Play, batch: Any, name: str) -> Any:
    mark_column(play, batch, name)
    return batch[name]


def set_column(play: Play, batch: Any, name: str, column: dict[str, Any]) -> Any:
    values = columns({name: column})[name]
    length = len(values) if hasattr(values, "__len__") else 1
    ragged = num_rows(batch) > 0 and num_rows(batch) != length
    play.mark("set_ragged_column", ragged and not batch.zero_padded)
    play.mark("set_column_of_padded", bool(batch.zero_padded))
    play.mark("set_in_empty_batch", num_rows(batch) == 0)
    batch[name] = values
    return batch


def delete_column(play: Play, batch: Any, name: str) -> Any:
    del batch[name]
    return batch


def split_by_episode(play: Play, batch: Any, key: str | None) -> Any:
    flags = "terminateds" in batch or "truncateds" in batch
    play.mark("split_of_nothing", num_rows(batch) == 0)
    if key is None and "eps_id" not in batch:
        play.mark("split_by_truncateds_only", flags and "terminateds" not in batch)
    play.mark("split_by_dones_key", key == "dones")
    play.mark("split_by_any_key", key not in (None, "eps_id", "dones") and key in batch)
    play.mark("split_inside_sequences", "seq_lens" in batch and crosses(batch, key))
    return list(batch.split_by_episode(key) if key else batch.split_by_episode())


def crosses(batch: Any, key: str | None) -> bool:
    """Return whether an episode begins inside a sequence."""
    starts = set(np.cumsum(np.asarray(batch["seq_lens"])).tolist()) | {0}
    if (key or "eps_id") in batch and key != "dones":
        ids = np.asarray(batch[key or "eps_id"])
        begins = ids[1:] != ids[:-1]
    elif "terminateds" in batch:
        begins = np.asarray(batch["terminateds"]).astype(bool)
        if "truncateds" in batch:
            begins = begins | np.asarray(batch["truncateds"]).astype(bool)
        begins = begins[:-1]
    else:
        return False
    cuts = [-1] if batch.zero_padded else (np.flatnonzero(begins) + 1).tolist()
    return bool(set(cuts) - starts)


def timeslices(play: Play, batch: Any, size: int | None, num_slices: int | None) -> Any:
    total = num_rows(batch)
    play.mark("timeslices_both_arguments", size is not None and num_slices is not None)
    if size is not None and num_slices is None:
        play.mark("timeslices_remainder", total % size != 0)
        if total % size:
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # RLlib's call does not end
    play.mark("timeslices_more_than_rows", size is None and num_slices is not None and num_slices > total)
    play.mark("timeslices_of_sequences", "seq_lens" in batch)
    return list(batch.timeslices(size=size, num_slices=num_slices))


def size_bytes(play: Play, batch: Any) -> int:
    play.mark("bytes_of_tensors_and_objects", has_tensors(batch.values()) or "infos" in batch)
    return int(batch.size_bytes())


def ends(play: Play, batch: Any) -> bool:
    play.mark("end_of_nothing", num_rows(batch) == 0)
    play.mark("end_of_padded", bool(batch.zero_padded))
    play.mark("end_by_truncateds_only", "terminateds" not in batch and "truncateds" in batch)
    return bool(batch.is_terminated_or_truncated())


def single_trajectory(play: Play, batch: Any) -> bool:
    ids = np.asarray(batch["eps_id"]) if "eps_id" in batch else np.zeros(0)
    play.mark("trajectory_by_eps_id", len(set(ids.tolist())) > 1)
    play.mark("trajectory_of_padded", bool(batch.zero_padded))
    play.mark("trajectory_without_terminateds", "terminateds" not in batch)
    return bool(batch.is_single_trajectory())


def shuffle(play: Play, batch: Any) -> Any:
    """Return the rows after a shuffle, sorted: which rows there are, not their order."""
    play.mark("shuffle_of_sequences", "seq_lens" in batch)
    if "infos" in batch:
        del batch["infos"]
    same = batch.shuffle() is batch
    return [same, sorted(str(plain(dict(row))) for row in batch.rows())]


def shuffle_infos(play: Play, batch: Any) -> bool:
    """Return whether infos go with their rows in 5 shuffles: every info names its row."""
    count = max(num_rows(batch), 8)
    play.mark("shuffle_of_infos")
    together = True
    for _ in range(5):
        infos = object_array([{"a": number} for number in range(count)])
        batch = play.library.SampleBatch({"a": np.arange(count), "infos": infos})
        batch.shuffle()
        together &= all(info["a"] == row for info, row in zip(batch["infos"], batch["a"].tolist()))
    return together


def to_device(play: Play, batch: Any) -> Any:
    play.mark("infos_to_device", "infos" in batch)
    return [batch.to_device("cpu") is batch, batch]


def single_step(play: Play, batch: Any, index: Any, names: list[str]) -> Any:
    names, total = [name for name in names if name in batch], num_rows(batch)
    nested = any(isinstance(batch[name], dict | tuple) for name in names)
    without_after = index == "last" and "obs" in names and "new_obs" not in batch
    play.mark("single_step_of_nested", index != "last" and nested)
    play.mark("single_step_of_padded", bool(batch.zero_padded))
    play.mark("single_step_of_nothing", total == 0)
    play.mark("single_step_outside", index != "last" and not -total <= index < total and total > 0)
    play.mark("single_step_without_after", without_after and total > 0)
    play.mark("single_step_state", "state_in_0" in names)
    return batch.get_single_step_input_dict({name: play.library.requirement(name) for name in names}, index)


def read_padded(play: Play, _: Any, reading: str, length: int) -> Any:
    """Read rows or ends of two sequences, padded; the last one ends."""
    flags = np.array([False, False, True])
    batch = play.library.SampleBatch({"a": np.arange(3), "terminateds": flags, "seq_lens": np.array([1, 2])})
    batch.right_zero_pad(length)
    if reading == "rows":
        play.mark("rows_of_padded")
        return [int(row["a"]) for row in batch.rows()]
    if reading == "end":
        play.mark("end_of_padded", length > 2)
        return bool(batch.is_terminated_or_truncated())
    if reading == "single_step":
        play.mark("single_step_of_padded", length > 2)
        return batch.get_single_step_input_dict({"a": play.library.requirement("a")})["a"]
    play.mark("trajectory_of_padded", length > 2)
    return bool(batch.is_single_trajectory())


def training(play: Play, batch: Any, value: bool) -> Any:
    before = bool(batch.is_training)
    batch.set_training(value)
    return [before, batch.is_training, batch[0 : max(1, num_rows(batch))].is_training]


def right_zero_pad(play: Play, batch: Any, length: int, exclude_states: bool) -> Any:
    if "seq_lens" in batch:
        longest = max((int(n) for n in batch["seq_lens"]), default=0)
        texts = any(isinstance(part, np.ndarray) and part.dtype.kind == "U" for part in batch.values())
        play.mark("pad_too_short", length < longest)
        play.mark("pad_twice", bool(batch.zero_padded))
        play.mark("pad_objects", "infos" in batch or texts)
        play.mark("pad_tuples", any(isinstance(part, tuple) for part in batch.values()))
        play.mark("pad_tensors", has_tensors(batch.values()))
        play.mark("pad_spreads_states", not exclude_states and "state_in_0" in batch)
    return batch.right_zero_pad(length, exclude_states=exclude_states)


def compressed(play: Play, batch: Any, bulk: bool) -> Any:
    """Return a batch that was compressed and decompressed."""
    observed = [batch.get(name) for name in ("obs", "new_obs")]
    play.mark("compress_empty", num_rows(batch) == 0)
    play.mark("compress_other", any(isinstance(part, dict | tuple | torch.Tensor) for part in observed))
    batch.compress(bulk=bulk)
    batch.decompress_if_needed()
    return batch


# ---- several modules ---------------------------------------------------------------------------------------------


def multi(play: Play, modules: dict[str, int], env_steps: int) -> Any:
    return play.library.MultiAgentBatch({name: play.at(number) for name, number in modules.items()}, env_steps)


def multi_sizes(play: Play, _: Any, **modules: Any) -> Any:
    batch = multi(play, **modules)
    return [len(batch), batch.count, batch.env_steps(), batch.agent_steps(), batch, batch.as_multi_agent() is batch]


def multi_concat(play: Play, between: Any, into: bool, **modules: Any) -> Any:
    """Join two `MultiAgentBatch`es, and a `SampleBatch` between them."""
    batch = multi(play, **modules)
    parts = [*batch.policy_batches.values(), between]
    filled = [part for part in parts if num_rows(part)]
    play.mark("concat_missing_in_first", len({frozenset(part) for part in filled}) > 1)
    play.mark("concat_of_torch_seq_lens", has_tensors(part.get("seq_lens") for part in filled))
    play.mark("multi_concat_of_empties", len(filled) < len(parts))
    make = play.library.concat_samples_into_ma_batch if into else play.library.concat_samples
    return make([batch, between, batch])


def multi_wrap(play: Play, _: Any, modules: dict[str, int], env_steps: int) -> Any:
    """Return `wrap_as_needed`, and back with `convert_ma_batch_to_sample_batch`."""
    parts = {name: play.at(number) for name, number in modules.items()}
    wrapped = play.library.MultiAgentBatch.wrap_as_needed(parts, env_steps)
    return [wrapped, play.library.convert_ma_batch_to_sample_batch(wrapped)]


def multi_timeslices(play: Play, _: Any, parts: dict[str, Any], k: int, env_steps: int, with_names: bool) -> Any:
    """Return `timeslices(k)` of rows that name episode, step and agent."""
    made = {name: play.library.SampleBatch(columns(part)) for name, part in parts.items()}
    firsts = list(dict.fromkeys(item for part in made.values() for item in part["eps_id"].tolist()))
    play.mark("multi_order_of_episodes", firsts != sorted(firsts))
    pieces = list(play.library.MultiAgentBatch(made, env_steps).timeslices(k))
    play.mark("multi_timeslices_columns", with_names)
    if not with_names:
        for part in (part for piece in pieces for part in piece.policy_batches.values()):
            part.pop("unroll_id", None)
    return pieces


# ---- random arguments ----------------------------------------------------------------------------------------


DTYPES = {"terminateds": "bool", "truncateds": "bool", "t": "int64", "rewards": "float32", "action_logp": "float64"}


class Form:
    """Which columns the batches of one sequence have, and in which form."""

    def __init__(self, draw: Draw) -> None:
        self.kind = "torch" if draw.chance(0.2) else "array"
        self.obs = draw.some(["float32", "float64", "dict", "tuple", "uint8"])
        wanted = ("new_obs", "rewards", "terminateds", "truncateds", "eps_id", "t", "infos", "action_logp")
        self.names = [name for name in wanted if draw.chance(0.6)]
        self.ids = draw.some(["int64", "<U3"]) if self.kind == "array" else "int64"
        self.has_states = draw.chance(0.7)
        self.lists = self.kind == "array" and draw.chance(0.2)
        """`actions` and `rewards` given as lists"""

    def columns(self, draw: Draw, rows: int) -> Step:
        made = {"obs": self.observations(draw, rows), "actions": draw.array("int64", rows, kind=self.kind)}
        for name in self.names:
            if name == "new_obs":
                made[name] = self.observations(draw, rows)
            elif name == "infos":
                made[name] = {"kind": "list", "values": [{"n": int(n)} for n in draw.rng.integers(0, 99, rows)]}
            else:
                made[name] = draw.array(DTYPES.get(name, self.ids), rows, kind=self.kind)
            if name == "eps_id" and draw.chance(0.7):
                made[name]["values"].sort()
        if self.lists:
            made["actions"] = {"kind": "list", "values": made["actions"]["values"]}
        return made

    def observations(self, draw: Draw, rows: int) -> Step:
        array = partial(draw.array, kind=self.kind)
        if self.obs == "dict":
            return {"kind": "dict", "items": {"camera": array("float32", rows, 2, 2), "speed": array("int64", rows)}}
        if self.obs == "tuple":
            return {"kind": "tuple", "items": [array("float32", rows, 2), array("float64", rows)]}
        return array(self.obs, rows, 3)


def bounds(draw: Draw, _: Form) -> Step:
    low = -4 if draw.chance(0.2) else 0
    return {"start": draw.bound(low, 9, 0.3), "stop": draw.bound(low, 13, 0.3)}


def size_or_number(draw: Draw, _: Form) -> Step:
    size, number = draw.whole(1, 6), draw.whole(1, 7)
    return draw.some(
        [{"size": size, "num_slices": None}] * 3
        + [{"size": None, "num_slices": number}] * 3
        + [{"size": size, "num_slices": number}]
    )


def broken_columns(draw: Draw, _: Form) -> Step:
    """Return a batch with a fault: ragged, with a number for a column, with `seq_lens` that do not fit."""
    rows = draw.whole(2, 6)
    parts = {"obs": draw.array("float32", rows, 2), "rewards": draw.array("float32", rows)}
    fault = draw.some(["ragged", "number", "seq_lens"])
    if fault == "ragged":
        parts["rewards"] = draw.array("float32", rows + 1)
    elif fault == "number":
        parts = {"rewards": {"kind": "number", "values": 3.5}}
    else:
        parts["seq_lens"] = row_of("int32", [1, rows])
    return {"described": parts}


def modules_of(draw: Draw, _: Form) -> Step:
    names = draw.some([["default_policy"], ["a", "b"], ["default_policy", "b"], ["a"]])
    return {"modules": {name: draw.whole(0, 9) for name in names}, "env_steps": draw.whole(1, 20)}


def common_episodes(draw: Draw, _: Form) -> Step:
    """Return modules whose rows are steps of common episodes; each module takes part in some of the steps."""
    length = draw.whole(2, 6)
    order = [0, 1] if draw.chance(0.7) else [1, 0]
    steps = [(episode, t) for episode in order for t in range(length)]
    parts = {}
    for agent, name in enumerate(["a", "b"]):
        taken = [pair for pair in steps if draw.chance(0.7)] or steps[:1]
        parts[name] = {
            "obs": draw.array("float32", len(taken), 2),
            "eps_id": row_of("int64", [episode for episode, _ in taken]),
            "t": row_of("int64", [t for _, t in taken]),
            "agent_index": row_of("int64", [agent] * len(taken)),
        }
    return {"parts": parts, "k": draw.whole(1, 5), "env_steps": len(steps), "with_names": draw.chance(0.2)}


NAMES = ["obs", "new_obs", "actions", "rewards", "dones", "infos", "eps_id", "nothing"]
OPERATIONS: dict[str, Operation] = {
    "sizes": reads(lambda play, batch: [len(batch), batch.count, batch.env_steps(), batch.agent_steps()]),
    "after_changes": reads(after_changes),
    "getitem_slice": adds(getitem_slice, bounds, step=some([None, None, None, None, 1, 2, -1])),
    "slice_method": reads(slice_method, start=whole(0, 6), stop=whole(0, 12)),
    "concat": adds(
        concat, numbers=lambda draw, form: draw.rng.integers(0, 9, draw.whole(0, 4)).tolist(), method=chance()
    ),
    "copy_batch": adds(lambda play, batch, shallow: batch.copy(shallow=shallow), shallow=chance()),
    "copy_then_write": reads(copy_then_write, shallow=chance()),
    "rows": reads(rows),
    "get_columns": reads(get_columns, names=lambda draw, form: [draw.some(NAMES[:4]), draw.some(NAMES[:4])]),
    "get": reads(get, name=some(NAMES)),
    "getitem": reads(getitem, name=some(NAMES)),
    "set_column": replaces(
        set_column,
        name=some(["vf_preds", "rewards"]),
        column=lambda draw, form: draw.array("float32", draw.whole(0, 11), kind=form.kind),
    ),
    "delete_column": replaces(delete_column, name=some(["actions", "rewards", "nothing"])),
    "split_by_episode": reads(split_by_episode, key=some([None, None, "eps_id", "dones", "t"])),
    "timeslices": reads(timeslices, size_or_number),
    "as_multi_agent": reads(
        lambda play, batch, module_id: batch.as_multi_agent(*filter(None, [module_id])),
        module_id=some([None, "other"]),
    ),
    "size_bytes": reads(size_bytes),
    "ends": reads(ends),
    "single_trajectory": reads(single_trajectory),
    "shuffle": reads(shuffle),
    "shuffle_infos": reads(shuffle_infos),
    "to_device": reads(to_device),
    "single_step": reads(
        single_step,
        index=some(["last", "last", 0, 1, -1, 12]),
        names=lambda draw, form: ["obs", "prev_actions", "state_in_0"],
    ),
    "read_padded": reads(read_padded, reading=some(["rows", "end", "trajectory", "single_step"]), length=whole(2, 5)),
    "training": reads(training, value=chance()),
    "compressed": reads(compressed, bulk=chance()),
    "construct_with_wrong_key": reads(
        lambda play, _, key: play.library.SampleBatch({key: np.arange(3)}), key=some([3, None, "fine"])
    ),
    "construct": adds(construct, broken_columns),
    "keep_dones": reads(keep_dones, flags=lambda draw, form: (draw.rng.random(3) < 0.5).tolist()),
    "multi_sizes": reads(multi_sizes, modules_of),
    "multi_copy": reads(lambda play, _, **modules: multi(play, **modules).copy(), modules_of),
    "multi_concat": reads(multi_concat, modules_of, into=chance()),
    "multi_wrap": reads(multi_wrap, modules_of),
    "multi_getitem": reads(
        lambda play, _, name, **modules: multi(play, **modules)[name], modules_of, name=some(["a", "b", "c"])
    ),
    "multi_wrong_value": reads(lambda play, _: play.library.MultiAgentBatch({"a": {"obs": np.arange(2)}}, 2)),
    "multi_timeslices": reads(multi_timeslices, common_episodes),
    "right_zero_pad": replaces(right_zero_pad, share=0),  # of sequences alone
}


def step_of(draw: Draw, form: Form) -> Step:
    """Return one random operation on batches."""
    on, name = draw.whole(0, 9), draw.operation(OPERATIONS)
    return {"op": name, "on": on, **OPERATIONS[name].draw(draw, form)}


def batch_of(draw: Draw, parts: Step) -> Step:
    updates = {"num_grad_updates": float(draw.whole(1, 9))} if draw.chance(0.3) else {}
    return {"op": "construct", "described": parts, **updates}


def batch_sequence(draw: Draw) -> list[Step]:
    """Return batches of plain rows."""
    form = Form(draw)
    steps = []
    for _ in range(draw.whole(2, 4)):
        rows = 0 if draw.chance(0.12) else draw.whole(1, 11)
        steps.append(batch_of(draw, form.columns(draw, rows)))
    if draw.chance(0.15):
        steps.append({"op": "construct", "described": Form(draw).columns(draw, 4)})
    return steps + [step_of(draw, form) for _ in range(draw.whole(8, 14))]


def sequence_sequence(draw: Draw) -> list[Step]:
    """Return batches with ``seq_lens`` and states."""
    form = Form(draw)
    steps = []
    for _ in range(draw.whole(1, 4)):
        lengths = draw.rng.integers(1, 5, draw.whole(1, 5)).tolist()
        parts = form.columns(draw, sum(lengths))
        parts["seq_lens"] = row_of("int32", lengths, form.kind)
        if form.has_states:
            parts["state_in_0"] = draw.array("float32", len(lengths), 2, kind=form.kind)
        steps.append(batch_of(draw, parts))
    for _ in range(draw.whole(7, 12)):
        steps.append(step_of(draw, form))
        if draw.chance(0.25):
            where = {"on": draw.whole(0, 9), "length": draw.whole(3, 7), "exclude_states": not draw.chance(0.1)}
            steps.append({"op": "right_zero_pad", **where})
    return steps
