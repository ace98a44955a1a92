"""Lossless conversion of a `SampleBatch` to a `TensorDict` and back.

Leaves become tensors that share memory with the batch. A note next to the columns keeps the properties that a
`TensorDict` cannot express: which leaves were arrays, which dicts were tuples, and the layout. The note survives
indexing and joining of the `TensorDict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from lockstep.data.trees import Tree, is_numeric, object_rows, to_torch_leaf
from lockstep.options.checks import install_hint

_NOTE = "_lockstep"
"""Key of the note."""
_TENSOR_TYPES = "?bhilqBHILefdFD"
"""Characters of the numpy dtypes that a `TensorDict` holds as tensors."""


def _tensordict() -> Any:
    try:
        import tensordict
    except ImportError:
        raise ImportError(f"tensordicts need the package: {install_hint('tensordict')}") from None
    return tensordict


def to_tensordict(columns: Mapping[str, Tree], num_rows: int | None, marks: Mapping[str, Any]) -> Any:
    """Return columns as a `TensorDict`.

    Args:
        columns: Columns of the batch.
        num_rows: Batch size of the `TensorDict`; None for no batch dimension (a batch with sequences).
        marks: Layout and marks of the batch, which the note keeps.

    Raises:
        ValueError: a column has the name of the note.
    """
    library = _tensordict()
    if _NOTE in columns:
        raise ValueError(f"a column is named {_NOTE!r}, which a tensordict needs for its note; rename it")
    kinds: dict[str, Any] = {}
    result = library.TensorDict({}, batch_size=[] if num_rows is None else [num_rows])
    for name, column in columns.items():
        _put(library, result, name, column, kinds, name)
    result.set_non_tensor(_NOTE, {"marks": dict(marks), "kinds": kinds})
    return result


def _put(library: ModuleType, target: Any, key: str, column: Tree, kinds: dict[str, Any], path: str) -> None:
    """Set `target[key]` to a column, and write the kinds of its parts into `kinds` under their paths."""
    if isinstance(column, dict | tuple):
        is_tuple = isinstance(column, tuple)
        parts: dict[Any, Tree] = {str(i): part for i, part in enumerate(column)} if is_tuple else dict(column)
        kinds[path] = {"kind": "tuple" if is_tuple else "dict"}
        branch = library.TensorDict({}, batch_size=target.batch_size)
        for name, part in parts.items():
            if not isinstance(name, str):
                raise TypeError(f"column {path!r} has the key {name!r}; a tensordict takes str only")
            _put(library, branch, name, part, kinds, f"{path}/{name}")
        target.set(key, branch)
        return

    if isinstance(column, torch.Tensor):
        target.set(key, column)
        return

    kinds[path] = {"kind": "array", "dtype": column.dtype.str, "shape": column.shape[1:]}
    if is_numeric(column) and column.dtype.char in _TENSOR_TYPES:
        target.set(key, to_torch_leaf(column))
    elif target.batch_size and len(column):
        # A box around each row: the library would take lists apart and stack tensors.
        target.set(key, library.NonTensorStack(*[library.NonTensorData(data=_Row(row)) for row in column]))
    else:
        kinds[path]["kind"] = "whole"
        target.set_non_tensor(key, column)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Box around one row of text or objects."""

    value: Any


def from_tensordict(tensordict: Any) -> tuple[dict[str, Tree], dict[str, Any]]:
    """Return the columns and the marks of a `TensorDict`; one from elsewhere has no marks.

    Raises:
        TypeError: the argument is not a `TensorDict`.
        ValueError: it has more than one batch dimension.
    """
    library = _tensordict()
    if not isinstance(tensordict, library.TensorDictBase):
        raise TypeError(f"a TensorDict is needed, got a {type(tensordict).__name__}")
    if len(tensordict.batch_size) > 1:
        raise ValueError(
            f"batch_size is {list(tensordict.batch_size)}; rows have one dimension: use tensordict.reshape(-1)"
        )
    note = tensordict.get_non_tensor(_NOTE, {"marks": {}, "kinds": {}})
    names = [name for name in list(tensordict.keys()) if name != _NOTE]
    columns = {name: _column(library, tensordict.get(name), note["kinds"], name) for name in names}
    return columns, note["marks"]


def _column(library: ModuleType, value: Any, kinds: Mapping[str, Any], path: str) -> Any:
    """Return the column of an entry of a `TensorDict`; the inverse of `_put`."""
    kind = kinds.get(path, {"kind": "tensor"})
    if isinstance(value, torch.Tensor):
        if kind["kind"] != "array":
            return value
        array = value.detach().cpu().numpy()
        dtype = np.dtype(kind["dtype"])  # with the byte order, which the tensor lost
        return array if array.dtype == dtype else array.astype(dtype)

    if library.is_non_tensor(value):
        if kind["kind"] == "whole":
            return value.data
        return _rows(value, kind)

    parts = {key: _column(library, value.get(key), kinds, f"{path}/{key}") for key in list(value.keys())}
    return tuple(parts.values()) if kind["kind"] == "tuple" else parts


def _rows(value: Any, kind: Mapping[str, Any]) -> np.ndarray:
    """Return rows of text or objects, which are boxed unless another program made the `TensorDict`."""
    parts = value.unbind(0) if value.batch_size else [value]
    rows = [part.data.value if isinstance(part.data, _Row) else part.data for part in parts]
    if kind["kind"] != "array":
        return object_rows(rows)

    array = np.empty((len(rows), *kind["shape"]), dtype=np.dtype(kind["dtype"]))
    for index, row in enumerate(rows):
        array[index] = row
    return array
