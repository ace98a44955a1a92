"""The infos of an episode as Minari keeps them: a dict of columns with one row for each observation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.data.leaf_codec import decode_object, encode_object

_JSON = "lockstep_json"
_PYTHON = {"bool": np.bool_, "int": np.int64, "float": np.float64}


def packed_infos(infos: Sequence[Any], name: str) -> tuple[dict[str, Any] | None, Any]:
    """Minari's infos, and what is needed to bring them back.

    Infos with the same numbers and arrays in each row become columns that other readers understand; all others one
    JSON text for each row. `TypeError` naming what JSON cannot say.
    """
    if all(type(info) is dict and not info for info in infos):
        return None, "empty"
    columns = _columns_of(infos)
    if columns is not None:
        kinds = {key: kind for key, (kind, _) in columns.items()}
        return {key: column for key, (_, column) in columns.items()}, kinds
    return {_JSON: [json.dumps(encode_object(info, name)) for info in infos]}, "json"


def _columns_of(infos: Sequence[Any]) -> dict[str, tuple[str, np.ndarray]] | None:
    first = infos[0]
    if not all(type(info) is dict and list(info) == list(first) for info in infos):
        return None
    columns = {}
    for key in first:
        column = _column_of([info[key] for info in infos])
        if column is None or type(key) is not str or "/" in key or key in ("", ".", _JSON):
            return None
        columns[key] = column
    return columns


def _column_of(values: list[Any]) -> tuple[str, np.ndarray] | None:
    kinds = {type(value) for value in values}
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    if kind in (bool, int, float):
        if kind is int and not all(-(2**63) <= value < 2**63 for value in values):
            return None
        return kind.__name__, np.array(values, dtype=_PYTHON[kind.__name__])
    if kind is np.ndarray or issubclass(kind, np.generic):
        alike = len({(value.dtype, value.shape) for value in values}) == 1
        if alike and values[0].dtype.kind in "biuf" and values[0].size:
            return "array" if kind is np.ndarray else "scalar", np.stack(values)
    return None


def unpacked_infos(found: Mapping[str, Any] | None, note: Any, count: int) -> list[Any] | None:
    """One info for each of `count` observations; without a note, rows of whatever columns there are.

    `ValueError` naming a column that has other rows.
    """
    if note == "empty" or not found:
        return None if note != "empty" else [{} for _ in range(count)]
    if note == "json":
        return [decode_object(json.loads(text)) for text in found[_JSON]]
    kinds = dict.fromkeys(found, "") if note is None else note
    rows: list[Any] = [{} for _ in range(count)]
    for key, kind in kinds.items():
        for row, value in zip(rows, _values_of(found[key], kind, count, key)):
            row[key] = value
    return rows


def _values_of(column: Any, kind: str, count: int, name: str) -> list[Any]:
    if isinstance(column, Mapping):
        inside = {key: _values_of(part, "", count, f"{name}/{key}") for key, part in column.items()}
        return [{key: part[row] for key, part in inside.items()} for row in range(count)]
    if np.ndim(column) == 0 or len(column) != count:
        raise ValueError(f"infos {name!r} have {np.shape(column)} rows for {count} observations")
    if kind in _PYTHON:
        return column.tolist()
    if kind == "array":
        return [np.array(value) for value in column]
    return [value.decode() if isinstance(value, bytes) else value for value in column]
