"""Records of a run: flat names, aggregation between two writes, and conversion to strict JSON."""

import itertools
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
"""Names of values that describe the run at one moment: of several records the last one counts."""


def flatten(data: Mapping[str, Any], prefix: str = "", *, exclude_arrays: bool = True) -> dict[str, Any]:
    """Return nested values as one flat dict, with names joined by `/`.

    Values become plain Python: numbers, bools, text, None, and lists of these. An array of one element is a number.

    Args:
        data: values by name, which may be nested.
        prefix: beginning of all names.
        exclude_arrays: whether arrays of another size, lists and tuples are left out.

    Raises:
        TypeError: a value cannot be logged.
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
    """Yield the values of nested dicts with their paths `a.b`.

    An empty dict is a value, and so is a dict whose only key is `value_key`.
    """
    for name, value in options.items():
        if isinstance(value, Mapping) and value and set(value) != {value_key}:
            yield from leaves(value, f"{prefix}{name}.", value_key=value_key)
        else:
            yield f"{prefix}{name}", value


def _loggable(value: object, key: str) -> Any:
    """Return a value as plain Python. `TypeError`, which names `key`, for a value that cannot be logged."""
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
    """Return how several values of one name become one value: `mean`, `sum`, `max`, `min` or `last`.

    The last part of the name decides:

    - `max` and `min` are their own reductions.
    - `last` is for lifetime counters (`..._lifetime`), positions (`epoch`, `env_step`, ...), times of the whole run
      (`timing/...`), `epsilon` (`epsilon/...` by module) and `best_...`.
    - `sum` is for `count`, `env_restarts`, `collect_time` and names that begin with `n_` or `num_`.
    - `mean` is for all others.
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
    """Return several flat records as one, with names in the order of their first appearance.

    None means "no value" and is skipped. The values of a name are combined as `reduction_of` says, and means are
    weighted if their weights are known:

    - A `mean` or `std` with a `count` in the same group is weighted by it. So the means of collects of different
      lengths become the mean over all their episodes, and the deviations become the deviation over all episodes.
    - A `median` is the mean of the medians with the same weights; the median of all episodes cannot be computed from
      them.
    - `collect_speed` is all steps divided by all seconds.
    - Means with a `num_module_steps_trained` in the same group are weighted by these rows.
    """
    if len(records) == 1:
        return dict(records[0])
    keys = dict.fromkeys(itertools.chain.from_iterable(records))
    return {key: _aggregate_one(records, key, reduction_of(key)) for key in keys}


def _aggregate_one(records: Sequence[Mapping[str, Any]], key: str, reduction: str) -> Any:
    """Combine the values of one name in several records."""
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
    numbers = np.array(values, np.float64)
    weights = _weights(present, group, name)
    means = [record.get(f"{group}mean") for record in present]
    has_means = all(isinstance(mean, int | float) for mean in means)
    with np.errstate(invalid="ignore", over="ignore"):
        if name == "std" and weights is not None and has_means:
            # Variance of the pooled episodes: E[std_i^2 + (mean_i - mean)^2].
            centre = np.average(np.array(means, np.float64), weights=weights)
            variance = np.average(numbers**2 + (np.array(means, np.float64) - centre) ** 2, weights=weights)
            return float(np.sqrt(variance))
        return float(np.average(numbers, weights=weights))


def _split(key: str) -> tuple[str, str]:
    """Return the group and the last part of a name: `a/b/` and `c` for `a/b/c`."""
    group, slash, name = key.rpartition("/")
    return group + slash, name


def _weights(records: Sequence[Mapping[str, Any]], group: str, name: str) -> np.ndarray | None:
    """Return the weights of the records' means (episodes, seconds or rows), None if they are not known."""
    if name in ("mean", "median", "std"):
        key = f"{group}count"
    elif group == "returns/":  # mean return of one of several agents, which has no separate count
        key = "returns_stat/count"
    elif name == "collect_speed":
        key = f"{group}collect_time"
    else:
        key = f"{group}num_module_steps_trained"
    weights: list[Any] = [record.get(key) for record in records]
    are_known = all(isinstance(weight, int | float) and weight >= 0 for weight in weights)
    return np.array(weights, np.float64) if are_known and sum(weights) > 0 else None


def to_strict_json(value: object) -> Any:
    """Return a value with NaN and infinities as the texts "NaN", "Infinity" and "-Infinity".

    Strict JSON has no numbers for them.
    """
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): to_strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_strict_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return to_strict_json(value.tolist())
    return str(value) if isinstance(value, os.PathLike) else value


def from_strict_json(value: object) -> Any:
    """Return a value from JSON with the texts of `to_strict_json` as NaN and infinities again."""
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: from_strict_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_strict_json(item) for item in value]
    return value


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write a JSON file atomically: a reader sees the old content or the new, never a part.

    Raises:
        TypeError: JSON cannot hold the value.
        OSError: the file cannot be written. The old content stays.
    """
    text = json.dumps(to_strict_json(value), indent=2, allow_nan=False)
    with replacing_file(Path(path)) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the records of a `metrics.jsonl`, with NaN and infinities as floats.

    A record has `scope` ("train", "test", ...), `step_type` ("env_step", "gradient_step", "epoch"), `step`, `wall_s`
    (seconds since the run began, without the time between an end and a resumption) and `data` (values by name).

    Damaged lines at the end of the file are left out: a kill truncates the last line, and a power failure may leave
    zeros in place of the last ones.

    Args:
        path: the file, or the run folder that holds it.

    Raises:
        ValueError: a line before an intact one is damaged; the message has its number.
        FileNotFoundError: there is no such file.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "metrics.jsonl"
    records: list[dict[str, Any]] = []
    damage: ValueError | None = None  # raised only if an intact line follows
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
    """Return the record in a line of a `metrics.jsonl`, with NaN and infinities as texts. `ValueError` if damaged."""
    record = json.loads(line)
    if not isinstance(record, dict) or not {"scope", "step_type", "step", "data"} <= set(record):
        raise ValueError("no record with scope, step_type, step and data")
    if not isinstance(record["data"], dict):
        raise ValueError("its data are not values by name")
    return record
