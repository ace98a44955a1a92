"""`SampleBatch` as a `TensorDict` and back, without loss.

Leaves become tensors that share their memory. What a `TensorDict` cannot say (arrays, tuples, layout) is a note
beside the columns, which stays when the `TensorDict` is indexed or joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lockstep.data.trees import Tree, is_numeric, object_rows, to_torch_leaf
from lockstep.options.checks import install_hint

_NOTE = "_lockstep"
_CAN_BE_TENSORS = "?bhilqBHILefdFD"


def _tensordict() -> Any:
    try:
        import tensordict
    except ImportError:
        raise ImportError(f"tensordicts need the package: {install_hint('tensordict')}") from None
    return tensordict


def to_tensordict(columns: Mapping[str, Tree], num_rows: int | None, marks: Mapping[str, Any]) -> Any:
    """Return columns as a `TensorDict` with `num_rows` as batch size; `ValueError` for one named like the note."""
    library = _tensordict()
    if _NOTE in columns:
        raise ValueError(f"a column is named {_NOTE!r}, which a tensordict needs for its note; rename it")
    kinds: dict[str, Any] = {}
    result = library.TensorDict({}, batch_size=[] if num_rows is None else [num_rows])
    for name, column in columns.items():
        _put(library, result, name, column, kinds, name)
    result.set_non_tensor(_NOTE, {"marks": dict(marks), "kinds": kinds})
    return result


def _put(library: Any, target: Any, key: str, column: Tree, kinds: dict[str, Any], path: str) -> None:
    if isinstance(column, dict | tuple):
        inside = column if isinstance(column, dict) else {str(index): part for index, part in enumerate(column)}
        kinds[path] = {"kind": "tuple"} if isinstance(column, tuple) else {"kind": "dict"}
        branch = library.TensorDict({}, batch_size=target.batch_size)
        for name, part in inside.items():
            if not isinstance(name, str):
                raise TypeError(f"column {path!r} has the key {name!r}; a tensordict takes str only")
            _put(library, branch, name, part, kinds, f"{path}/{name}")
        target.set(key, branch)
        return
    if isinstance(column, torch.Tensor):
        target.set(key, column)
        return
    tensor = to_torch_leaf(column) if is_numeric(column) and column.dtype.char in _CAN_BE_TENSORS else column
    kinds[path] = {"kind": "array", "dtype": column.dtype.str, "shape": column.shape[1:]}
    if isinstance(tensor, torch.Tensor):
        target.set(key, tensor)
    elif target.batch_size and len(column):
        # A box around each row: the library would take apart lists and stack tensors.
        target.set(key, library.NonTensorStack(*[library.NonTensorData(data=_Row(row)) for row in column]))
    else:
        kinds[path] = {**kinds[path], "kind": "whole"}
        target.set_non_tensor(key, column)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One row of text or objects."""

    value: Any


def from_tensordict(tensordict: Any) -> tuple[dict[str, Tree], dict[str, Any]]:
    """Return columns and marks; `TypeError` for another type, `ValueError` for more than one batch dimension."""
    library = _tensordict()
    if not isinstance(tensordict, library.TensorDictBase):
        raise TypeError(f"a TensorDict is needed, got a {type(tensordict).__name__}")
    if len(tensordict.batch_size) > 1:
        raise ValueError(
            f"batch_size is {list(tensordict.batch_size)}; rows have one dimension: use tensordict.reshape(-1)"
        )
    note = tensordict.get_non_tensor(_NOTE, {"marks": {}, "kinds": {}})
    names = [name for name in list(tensordict.keys()) if name != _NOTE]
    return {name: _column(library, tensordict.get(name), note["kinds"], name) for name in names}, note["marks"]


def _column(library: Any, value: Any, kinds: Mapping[str, Any], path: str) -> Any:
    kind = kinds.get(path, {"kind": "tensor"})
    if isinstance(value, torch.Tensor):
        if kind["kind"] != "array":
            return value
        array, dtype = value.detach().cpu().numpy(), np.dtype(kind["dtype"])
        return array if array.dtype == dtype else array.astype(dtype)
    if library.is_non_tensor(value):
        if kind["kind"] == "whole":
            return value.data
        return _rows(value, kind, path)
    inside = {key: _column(library, value.get(key), kinds, f"{path}/{key}") for key in list(value.keys())}
    return tuple(inside.values()) if kind["kind"] == "tuple" else inside


def _rows(value: Any, kind: Mapping[str, Any], path: str) -> np.ndarray:
    """Return rows of text or objects, which were boxed or come from elsewhere."""
    parts = value.unbind(0) if value.batch_size else [value]
    rows = [part.data.value if isinstance(part.data, _Row) else part.data for part in parts]
    if kind["kind"] != "array":
        return object_rows(rows)
    out = np.empty((len(rows), *kind["shape"]), dtype=np.dtype(kind["dtype"]))
    for index, row in enumerate(rows):
        out[index] = row
    return out
