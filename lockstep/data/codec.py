"""Lossless codec for columns: plain arrays and JSON, without pickle; and `.npz` files.

A column is described by a tree of JSON. Its leaves hold the keys of arrays, which each file format stores in its own
way. Tensors become arrays of the same bits. Rows of objects (`infos`) may be None, bool, int, float, str, arrays,
numpy scalars, and dicts, lists and tuples of them.

Files may come from strangers: reading one must not import or execute anything that it names, nor allocate memory by its
claims alone.
"""

from __future__ import annotations

import base64
import json
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.data.trees import Leaf, Tree, object_rows
from lockstep.state.replace import replacing_file
from lockstep.state.sizes import check_archive, check_claim

Put = Callable[[np.ndarray, str], Any]
"""Function that stores an array, given with the path of its leaf, and returns its key: a JSON value."""
Get = Callable[[Any], np.ndarray]
"""Function that returns the array of a key."""

_BITS: dict[torch.dtype, torch.dtype] = {torch.bfloat16: torch.uint16}
_BITS |= {getattr(torch, name): torch.uint8 for name in dir(torch) if name.startswith("float8_")}
"""Torch types that numpy lacks, each with the type of the same width that stores its bits."""

ALLOWED_OBJECTS = "None, bool, int, float, str, arrays, numpy scalars, tensors, and dicts, lists and tuples of them"


def encode_column(column: Tree, put: Put, put_objects: Put, path: str) -> Any:
    """Return the JSON description of a column. Its arrays go to `put`, its arrays of objects to `put_objects`.

    Raises:
        TypeError: a key or leaf cannot be stored; names its `path`.
    """
    if isinstance(column, dict):
        for key in column:
            if type(key) not in (str, int, bool):
                raise TypeError(f"column {path!r} has the key {key!r}; keys must be str or int to be written")
        # Pairs, not an object: JSON would make strings of the keys.
        items = [[key, encode_column(part, put, put_objects, f"{path}/{key}")] for key, part in column.items()]
        return {"kind": "dict", "items": items}
    if isinstance(column, tuple):
        parts = [encode_column(part, put, put_objects, f"{path}/{i}") for i, part in enumerate(column)]
        return {"kind": "tuple", "items": parts}
    if isinstance(column, np.ndarray) and column.dtype == object:
        return {"kind": "objects", "key": put_objects(column, path)}
    array, kind = plain_array(column, path)
    return {**kind, "key": put(array, path)}


def decode_column(item: Mapping[str, Any], get: Get, get_objects: Get) -> Any:
    """Return the column that `encode_column` described."""
    kind = item["kind"]
    if kind == "dict":
        return {key: decode_column(part, get, get_objects) for key, part in item["items"]}
    if kind == "tuple":
        return tuple(decode_column(part, get, get_objects) for part in item["items"])
    if kind == "objects":
        return get_objects(item["key"])
    return restored_leaf(get(item["key"]), item)


def array_keys(item: Mapping[str, Any]) -> Iterator[Any]:
    """Iterate over the keys of all arrays in the description of a column."""
    if "key" in item:
        yield item["key"]
    else:
        for part in item["items"]:
            yield from array_keys(part[1] if item["kind"] == "dict" else part)


def plain_array(leaf: Leaf, path: str) -> tuple[np.ndarray, dict[str, str]]:
    """Return a leaf as a numpy array, and its kind, with which `restored_leaf` makes the leaf again.

    Tensors on the CPU share their memory with the array.

    Raises:
        TypeError: files cannot hold the array (structured, masked, or of objects); names its `path`.
    """
    if isinstance(leaf, torch.Tensor):
        return _array_of_tensor(leaf, path)

    if type(leaf) not in (np.ndarray, np.memmap) or leaf.dtype.hasobject or leaf.dtype.kind == "V":
        raise TypeError(
            f"column {path!r} is a {type(leaf).__name__} of {getattr(leaf, 'dtype', None)}, which cannot be written; "
            "allowed are plain arrays of numbers, bools, text, bytes and dates, and dense tensors"
        )
    return leaf, {"kind": "array", "dtype": leaf.dtype.str}


def _array_of_tensor(tensor: torch.Tensor, path: str) -> tuple[np.ndarray, dict[str, str]]:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"column {path!r} is a tensor with layout {tensor.layout}; dense tensors can be written")

    kind = {"kind": "tensor", "dtype": str(tensor.dtype).removeprefix("torch.")}
    # Lazy conjugation and negation are flags of a tensor, which numpy does not know.
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    bits = _BITS.get(plain.dtype)
    if bits is not None:
        plain = plain.view(bits)
    try:
        return plain.numpy(), kind
    except TypeError:
        raise TypeError(f"column {path!r} is a tensor of {tensor.dtype}, which cannot be written") from None


def restored_leaf(array: np.ndarray, kind: Mapping[str, Any]) -> Any:
    """Return the leaf from which `plain_array` made `array` and `kind`.

    Raises:
        ValueError: the kind is unknown.
        ClaimedSizeError: the array does not fit into memory in the type that `kind` claims.
    """
    if kind["kind"] == "array":
        dtype = plain_dtype(kind["dtype"])
        if array.dtype == dtype:
            return array
        # A file may claim a wide type for narrow data, such as text of a million characters.
        check_claim(f"a column of type {kind['dtype']}", array.size * dtype.itemsize)
        return array.astype(dtype)

    torch_dtype = getattr(torch, kind["dtype"], None)
    if kind["kind"] != "tensor" or not isinstance(torch_dtype, torch.dtype):
        raise ValueError(f"unknown kind of column {kind['kind']!r} {kind['dtype']!r}")
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch_dtype) if torch_dtype in _BITS else tensor


def plain_dtype(text: str) -> np.dtype:
    """Return the numpy dtype that a file names; `ValueError` for objects and structures."""
    dtype = np.dtype(text)
    if dtype.hasobject or dtype.kind == "V":
        raise ValueError(f"arrays of type {text!r} are not read")
    return dtype


# ---- objects as JSON -----------------------------------------------------------------------------------------


def objects_to_text(rows: np.ndarray, path: str) -> list[str]:
    """Return each object of an array as one JSON text."""
    return [json.dumps(encode_object(row, path)) for row in rows.reshape(-1)]


def text_to_objects(texts: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """Return the array of objects that `objects_to_text` wrote."""
    return object_rows([decode_object(json.loads(text)) for text in texts]).reshape(shape)


def encode_object(value: object, path: str) -> Any:
    """Return an object as JSON, with the bytes of arrays as base64.

    Raises:
        TypeError: the object, or one in it, is of another type than those allowed; names the column `path`.
    """
    # Exact types: a subclass of int, float or list would come back as its base class.
    if value is None or type(value) in (bool, str, int, float):
        return value
    if type(value) is list:
        return [encode_object(item, path) for item in value]
    if isinstance(value, tuple):
        return {"kind": "tuple", "items": [encode_object(item, path) for item in value]}
    if isinstance(value, dict):
        pairs = [[encode_object(key, path), encode_object(item, path)] for key, item in value.items()]
        return {"kind": "dict", "items": pairs}
    if isinstance(value, np.ndarray) and value.dtype == object:
        rows = [encode_object(item, path) for item in value.reshape(-1)]
        return {"kind": "objects", "shape": list(value.shape), "items": rows}
    if isinstance(value, np.generic):
        array, kind = plain_array(np.asarray(value), path)
        return {**kind, "kind": "scalar", "base64": _base64(array)}
    if isinstance(value, np.ndarray | torch.Tensor):
        array, kind = plain_array(value, path)
        return {**kind, "stored": array.dtype.str, "shape": list(array.shape), "base64": _base64(array)}
    raise TypeError(
        f"column {path!r} holds a {type(value).__name__}, which cannot be written without pickle; allowed are "
        f"{ALLOWED_OBJECTS}"
    )


def decode_object(item: Tree) -> Any:
    """Return the object that `encode_object` described."""
    if isinstance(item, list):
        return [decode_object(part) for part in item]
    if not isinstance(item, dict):
        return item

    kind = item["kind"]
    if kind == "tuple":
        return tuple(decode_object(part) for part in item["items"])
    if kind == "dict":
        return {decode_object(key): decode_object(part) for key, part in item["items"]}
    if kind == "objects":
        return object_rows([decode_object(part) for part in item["items"]]).reshape(item["shape"])

    content = base64.b64decode(item["base64"], validate=True)
    if kind == "scalar":
        return np.frombuffer(content, plain_dtype(item["dtype"]))[0]
    # A copy, since an array on bytes is read-only.
    array = np.frombuffer(content, plain_dtype(item["stored"])).reshape(item["shape"]).copy()
    return restored_leaf(array, item)


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


# ---- files ---------------------------------------------------------------------------------------------------

FORMAT = "lockstep-sample-batch"
_INDEX = "__index__"
"""Name of the array in an `.npz` file that holds the JSON text."""
DAMAGE = (
    *(KeyError, ValueError, OSError, EOFError, AttributeError, TypeError, IndexError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, SyntaxError, OverflowError, RuntimeError),
)
"""Errors that numpy, zipfile, JSON and Lockstep's own checks raise on damaged files."""


class MissingColumnError(KeyError):
    """Error for a requested column that an intact file does not have."""


@contextmanager
def naming_damage(path: Path, kind: str) -> Iterator[None]:
    """Turn errors of damaged files into a `ValueError` that names the file. Missing files and columns pass."""
    try:
        yield
    except (MissingColumnError, FileNotFoundError):
        raise
    except DAMAGE as error:
        raise ValueError(f"{path} is no readable {kind}: {error}") from error


def write_npz(path: Path, columns: Mapping[str, Tree], marks: Mapping[str, Any]) -> Path:
    """Write columns to one `.npz` file, and return its path. The file appears when it is complete.

    Each leaf is one array of the file. One more array holds a JSON text with names, nesting and kinds.
    """
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    arrays: dict[str, np.ndarray] = {}

    def put(array: np.ndarray, _: str) -> str:
        key = f"array_{len(arrays)}"
        arrays[key] = array
        return key

    def put_objects(rows: np.ndarray, name: str) -> Any:
        return {"shape": list(rows.shape), "rows": objects_to_text(rows, name)}

    arrays[_INDEX] = np.frombuffer(encode_note(columns, marks, put, put_objects).encode(), dtype=np.uint8)
    with replacing_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return path


def read_npz(path: Path) -> tuple[dict[str, Tree], dict[str, Any]]:
    """Return the columns and the marks of a file. Call it within `naming_damage`."""
    check_archive(path)
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    note = decode_note(arrays[_INDEX].tobytes())

    def get_objects(key: Mapping[str, Any]) -> np.ndarray:
        return text_to_objects(key["rows"], key["shape"])

    columns = {name: decode_column(item, arrays.__getitem__, get_objects) for name, item in note["columns"].items()}
    return columns, note["marks"]


def encode_note(columns: Mapping[str, Tree], marks: Mapping[str, Any], put: Put, put_objects: Put) -> str:
    """Return the JSON text that describes the columns and marks of a file."""
    described = {name: encode_column(column, put, put_objects, name) for name, column in columns.items()}
    described_marks = {name: encode_object(value, name) for name, value in marks.items()}
    return json.dumps({"format": FORMAT, "version": 1, "marks": described_marks, "columns": described})


def decode_note(text: bytes) -> dict[str, Any]:
    """Return `{"columns": ..., "marks": ...}` of the text of `encode_note`. Columns stay descriptions.

    Raises:
        ValueError: the text has another format.
    """
    note = json.loads(text)
    if note["format"] != FORMAT:
        raise ValueError(f"its format is {note['format']!r}")
    marks = {name: decode_object(value) for name, value in note["marks"].items()}
    return {"columns": note["columns"], "marks": marks}
