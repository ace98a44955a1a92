"""Records of a run: flat names, aggregation between two writes, and strict JSON for them."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.state.replace import replacing_file

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LAST = (
    *("epoch", "env_step", "gradient_step", "step", "episode", "train_step", "train_episode", "test_step"),
    *("test_episode", "samples_seen", "dataset_passes", "weights_seq_no", "num_trainable_parameters", "epsilon"),
)


def flatten(data: Mapping[str, Any], prefix: str = "", *, exclude_arrays: bool = True) -> dict[str, Any]:
    """Return nested names joined by `/`, values as plain Python: numbers, bools, text, None, and lists of numbers.

    Arrays with more or fewer than one element, lists and tuples are left out with `exclude_arrays`.

    Raises `TypeError`: a value can be neither logged nor left out.
    """
    flat: dict[str, Any] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{key}/", exclude_arrays=exclude_arrays))
            continue
        plain = _loggable(value, key)
        if not (exclude_arrays and isinstance(plain, list)):
            flat[key] = plain
    return flat


def leaves(options: Mapping[str, Any], prefix: str = "", *, value_key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in nested dicts by path, `a.b`. An empty dict is a value, and so is one whose only key is
    `value_key`.
    """
    for name, value in options.items():
        if isinstance(value, Mapping) and value and set(value) != {value_key}:
            yield from leaves(value, f"{prefix}{name}.", value_key=value_key)
        else:
            yield f"{prefix}{name}", value


def _loggable(value: object, key: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return value.item() if value.ndim == 0 or value.numel() == 1 else value.tolist()
    if isinstance(value, np.ndarray | np.generic):
        return value.item() if value.size == 1 else value.tolist()
    if isinstance(value, list | tuple):
        return [_loggable(item, key) for item in value]
    if isinstance(value, str | os.PathLike):
        return str(value)
    raise TypeError(
        f"cannot log {key!r}: a {type(value).__name__} is neither a number, text, None, an array, nor a dict of these"
    )


def reduction_of(key: str) -> str:
    """Return how several values of one name become one: `mean`, `sum`, `max`, `min` or `last`.

    The last part of the name decides: `max` and `min` are themselves; `count`, `env_restarts`, `collect_time` and what
    begins with `n_` or `num_` add up, unless it ends in `_lifetime`; lifetime counters, positions (`epoch`, `env_step`,
    ...), what is of the whole run so far (`timing/...`), `epsilon` (`epsilon/...` by module) and `best_...` keep the
    last; all other are averaged.
    """
    group, name = _split(key)
    if name in ("max", "min"):
        return name
    if name.endswith("_lifetime") or name in _LAST or name.startswith("best_") or group in ("timing/", "epsilon/"):
        return "last"
    if name in ("count", "env_restarts", "collect_time") or name.startswith(("n_", "num_")):
        return "sum"
    return "mean"


def aggregate(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several flat records as one, in the order of first appearance; None stands for "no value" and is
    skipped.

    A `mean` or `std` that has a `count` beside it is weighted by it, so that means over collects of different length
    are the mean over all their episodes, and the deviation is that of the pooled sequence. A `median` is the mean of
    the medians, weighted in the same way: the median of the whole cannot be had from them. `collect_speed` is that of
    all steps in all seconds; what is averaged beside `num_module_steps_trained` is weighted by these rows.
    """
    if len(records) == 1:
        return dict(records[0])
    keys = dict.fromkeys(key for record in records for key in record)
    return {key: _aggregate_one(records, key, reduction_of(key)) for key in keys}


def _aggregate_one(records: Sequence[Mapping[str, Any]], key: str, reduction: str) -> Any:
    present = [record for record in records if record.get(key) is not None]
    values: list[Any] = [record[key] for record in present]
    if not values:
        return None
    if reduction == "last" or any(isinstance(value, str | bool) for value in values):
        return values[-1]
    if reduction == "sum":
        return sum(values)
    if reduction in ("max", "min"):
        return float(getattr(np, reduction)(values)) if len(values) > 1 else values[0]
    group, name = _split(key)
    numbers, weights = np.array(values, np.float64), _weights(present, group, name)
    with np.errstate(invalid="ignore", over="ignore"):
        means = [record.get(f"{group}mean") for record in present]
        if name == "std" and weights is not None and all(isinstance(mean, int | float) for mean in means):
            centre = np.average(np.array(means, np.float64), weights=weights)
            second = np.average(numbers**2 + (np.array(means, np.float64) - centre) ** 2, weights=weights)
            return float(np.sqrt(second))
        return float(np.average(numbers, weights=weights))


def _split(key: str) -> tuple[str, str]:
    """Return `a/b/` and `c` of `a/b/c`."""
    group, slash, name = key.rpartition("/")
    return group + slash, name


def _weights(records: Sequence[Mapping[str, Any]], group: str, name: str) -> np.ndarray | None:
    """Return the weights of the records' means: episodes, seconds, rows learned from; None if they are not known."""
    if name in ("mean", "median", "std"):
        key = f"{group}count"
    elif group == "returns/":  # of one of several agents
        key = "returns_stat/count"
    else:
        key = f"{group}{'collect_time' if name == 'collect_speed' else 'num_module_steps_trained'}"
    weights: list[Any] = [record.get(key) for record in records]
    known = all(isinstance(weight, int | float) and weight >= 0 for weight in weights)
    return np.array(weights, np.float64) if known and sum(weights) > 0 else None


def to_strict_json(value: object) -> Any:
    """Return `value` with NaN and infinities as the texts "NaN", "Infinity", "-Infinity", which strict JSON can
    hold.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): to_strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_strict_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return to_strict_json(value.tolist())
    return str(value) if isinstance(value, os.PathLike) else value


def from_strict_json(value: object) -> Any:
    """Return the inverse of `to_strict_json` for what JSON can hold."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: from_strict_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_strict_json(item) for item in value]
    return value


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write one JSON file at once: a reader sees the old content or the new, never a part.

    Raises `TypeError`: `value` holds something that JSON cannot. `OSError`: as the system says it; the old content
    stays.
    """
    text = json.dumps(to_strict_json(value), indent=2, allow_nan=False)
    with replacing_file(Path(path)) as temporary:
        temporary.write_text(text + "\n")


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of a `metrics.jsonl` (or of the run folder that holds one), NaN and infinities as floats.

    Each record: `scope` ("train", "test", ...), `step_type` ("env_step", "gradient_step", "epoch"), `step`,
    `wall_s` (seconds since the run began, stops not counted), `data` (name -> value). Damaged lines at the end of the
    file are left out: a kill tears the last line, and a power failure may leave zeros in place of the last ones.

    Raises `ValueError`: a line before an intact one is damaged; its number is named. `FileNotFoundError`: there is no
    such file.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "metrics.jsonl"
    records: list[dict[str, Any]] = []
    damage: ValueError | None = None
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = from_strict_json(parse_record(line))
        except ValueError as error:
            damage = damage or ValueError(f"{file}: line {number} is damaged ({error})")
            continue
        if damage is not None:
            raise damage
        records.append(record)
    return records


def parse_record(line: bytes) -> dict[str, Any]:
    """Return the record in a line of a `metrics.jsonl`, NaN and infinities as texts. `ValueError`: it is damaged."""
    record = json.loads(line)
    if not isinstance(record, dict) or not {"scope", "step_type", "step", "data"} <= set(record):
        raise ValueError("no record with scope, step_type, step and data")
    if not isinstance(record["data"], dict):
        raise ValueError("its data are not values by name")
    return record
