"""Lossless conversion of state trees to JSON with a safetensors file for the arrays, and back.

Plain values are plain JSON: `{"lr": 0.1}` is stored as `{"lr": 0.1}`. A value that JSON cannot express becomes an
object with one `$` key: `$tuple`, `$dict` (keys that are not text, or begin with `$`), `$float` (infinite, NaN), `$int`
(wider than 64 bits, in hex), `$numpy` (a numpy scalar), `$array` (the name of an array in the safetensors file).

The safetensors file can be read by any tool. Facts that safetensors cannot express are JSON in the header's metadata:
whether an entry was a numpy array or a torch tensor, and numpy types that have no name there.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

from lockstep.state.sizes import bytes_of, check_holds

Array: TypeAlias = np.ndarray | torch.Tensor
"""An array that a tree of state can hold."""

JsonValue: TypeAlias = Any
"""Value that `json.loads` returns: None, bool, int, float, str, or a list or dict (with text keys) of these."""

StateTree: TypeAlias = dict[str, Any]
"""Nested state: dicts (text or int keys), lists and tuples over None, bool, int, float, str, numpy scalars, numpy
arrays and torch tensors."""

_ALLOWED = "dict (str or int keys), list, tuple, None, bool, int, float, str, numpy scalars and arrays, tensors"

_KINDS_KEY = "lockstep"
"""Key in the header's metadata with the kind of each array: `{"is": "tensor"}`, with `dtype` and `shape` if needed."""
_TYPES: tuple[tuple[str, torch.dtype, str | None], ...] = (
    ("F64", torch.float64, "<f8"),
    ("F32", torch.float32, "<f4"),
    ("F16", torch.float16, "<f2"),
    ("BF16", torch.bfloat16, None),
    ("I64", torch.int64, "<i8"),
    ("I32", torch.int32, "<i4"),
    ("I16", torch.int16, "<i2"),
    ("I8", torch.int8, "|i1"),
    ("U64", torch.uint64, "<u8"),
    ("U32", torch.uint32, "<u4"),
    ("U16", torch.uint16, "<u2"),
    ("U8", torch.uint8, "|u1"),
    ("BOOL", torch.bool, "|b1"),
    ("F8_E4M3", torch.float8_e4m3fn, None),
    ("F8_E5M2", torch.float8_e5m2, None),
)
"""Names of types in safetensors, with their torch dtype and numpy type."""
_TORCH_NAMES = {dtype: name for name, dtype, _ in _TYPES}
_NUMPY_NAMES = {kind: name for name, _, kind in _TYPES if kind}


def is_array(value: object) -> bool:
    """Return whether `value` is stored as an array.

    That is a torch tensor, a numpy array or a memory map. Other subclasses of numpy arrays would not come back as such.
    """
    return isinstance(value, torch.Tensor) or type(value) in (np.ndarray, np.memmap)


def why_not_storable(value: Array) -> str | None:
    """Return the reason why an array cannot be written, or None if it can."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            return f"a tensor with layout {value.layout} on device {value.device}"
    elif value.dtype.hasobject or value.dtype.kind == "V":
        return f"an array of type {value.dtype}"
    return None


def _flatten(value: Array) -> tuple[str, list[int], Any, dict[str, Any]]:
    """Return the entry of an array in a safetensors file.

    Returns:
        `(type name, shape, bytes, kind)`: the first two for the header, the bytes as a flat uint8 array, and the
        array's entry in the header's metadata. An array whose type has no name in safetensors is stored as bytes (U8),
        and its type and shape are in the kind.
    """
    if isinstance(value, torch.Tensor):
        # Conjugate and negative views are lazy: their memory does not hold the values yet.
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        # An empty tensor may have strides that cannot be viewed as bytes.
        raw = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
        name = _TORCH_NAMES.get(plain.dtype)
        if name is not None:
            return name, list(plain.shape), raw, {"is": "tensor"}
        kind = {"is": "tensor", "dtype": str(plain.dtype).removeprefix("torch."), "shape": list(plain.shape)}
        return "U8", [raw.size], raw, kind

    shape = list(value.shape)
    flat = np.ascontiguousarray(value).reshape(-1)
    raw = flat.view(np.uint8) if flat.dtype.itemsize and flat.size else np.empty(0, np.uint8)
    name = _NUMPY_NAMES.get(value.dtype.str)
    if name is not None:
        return name, shape, raw, {"is": "ndarray"}
    return "U8", [raw.size], raw, {"is": "ndarray", "dtype": value.dtype.str, "shape": shape}


def tensor_file_chunks(arrays: Mapping[str, Array]) -> Iterator[Any]:
    """Yield the bytes of a safetensors file with these arrays, in chunks, so that the whole file is never in memory.

    Views that share memory are written separately, each with its own values. Device, gradient flag and memory order
    are not stored: arrays are read to the CPU in C order.
    """
    kinds: dict[str, Any] = {}
    entries = []
    for name, value in arrays.items():
        dtype, shape, raw, kinds[name] = _flatten(value)
        entries.append((name, dtype, shape, raw))
    # Widest type first aligns every array to its item size, as the format requires.
    widths = {"64": 8, "32": 4, "16": 2}
    entries.sort(key=lambda entry: -widths.get(entry[1][-2:], 1))
    header: dict[str, Any] = {"__metadata__": {_KINDS_KEY: json.dumps(kinds)}}
    offset = 0
    for name, dtype, shape, raw in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + raw.size]}
        offset += raw.size
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)  # so that the first array is aligned
    yield len(text).to_bytes(8, "little") + text
    for _, _, _, raw in entries:
        yield memoryview(raw)


def _restore(tensor: torch.Tensor, kind: Mapping[str, Any]) -> Array:
    """Return the array that `_flatten` was given, from the tensor in the file and the kind in the metadata.

    Raises:
        ValueError: The kind names no type, a type of Python objects, or a size that the tensor does not have.
    """
    if kind["is"] == "tensor":
        if "dtype" not in kind:
            return tensor
        dtype = getattr(torch, kind["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"unknown torch type {kind['dtype']!r}")
        flat = tensor.view(dtype) if tensor.numel() else torch.empty(0, dtype=dtype)
        return flat.reshape(kind["shape"])

    array = tensor.numpy()
    if "dtype" not in kind:
        return array
    numpy_dtype = np.dtype(kind["dtype"])
    if numpy_dtype.hasobject:
        raise ValueError("arrays of Python objects are never read")
    # Before the allocation: a file of a few bytes may claim any shape.
    what = f"an array of {kind['dtype']} of shape {kind['shape']}"
    check_holds(what, bytes_of(what, kind["shape"], numpy_dtype), array.size)
    restored = np.empty(kind["shape"], numpy_dtype)
    if restored.nbytes:
        restored.reshape(-1).view(np.uint8)[:] = array
    return restored


def parse_tensor_file(content: bytes) -> dict[str, Array]:
    """Return the arrays of a safetensors file, in the order in which the writer was given them.

    Raises:
        ValueError: The content is not a valid safetensors file, or lacks Lockstep's metadata in its header.
    """
    try:
        tensors = load_safetensors(content)
        size = int.from_bytes(content[:8], "little")
        # The metadata is read here as well, because the safetensors library does not return it.
        kinds = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][_KINDS_KEY])
        if set(kinds) != set(tensors):
            raise ValueError("its header and its note of types name different arrays")
        return {name: _restore(tensors[name], kind) for name, kind in kinds.items()}
    except (SafetensorError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"not a valid safetensors file: {error}") from error


class StateTypeError(ValueError):
    """A value in a tree of state cannot be written."""


def encode(value: object, where: str, arrays: dict[str, Array]) -> Any:
    """Return `value` as a value that JSON can hold.

    Args:
        value: The value.
        where: Path of the value in its tree, for messages and names of arrays.
        arrays: Dict that the arrays in `value` are added to, under their paths.

    Raises:
        StateTypeError: A leaf or key has a type that cannot be written. The message names its path.
    """
    if value is None or isinstance(value, bool) or type(value) is str:
        return value
    if type(value) is int:
        return value if -(2**63) <= value < 2**63 else {"$int": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, np.generic):
        return _encode_scalar(value, where)
    if isinstance(value, Mapping):
        return _encode_dict(value, where, arrays)
    if type(value) is list:
        return [encode(item, f"{where}/{index}", arrays) for index, item in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": [encode(item, f"{where}/{index}", arrays) for index, item in enumerate(value)]}
    if is_array(value):
        array: Array = value  # type: ignore[assignment]
        reason = why_not_storable(array)
        if reason is None:
            name = where if where.isprintable() else f"array {len(arrays)}"
            # Paths may collide: {"a/b": x} and {"a": {"b": y}} have the same one.
            while name in arrays or name == "__metadata__":
                name += "+"
            arrays[name] = array
            return {"$array": name}
        raise StateTypeError(f"state at {where!r} is {reason}, which has no safe form on disk")
    raise StateTypeError(
        f"state at {where!r} is of type {type(value).__module__}.{type(value).__qualname__}; allowed are "
        f"{_ALLOWED}. Turn it into these in get_state()."
    )


def _encode_scalar(value: np.generic, where: str) -> Any:
    """Return a numpy scalar as JSON, with its type and its bytes in hex: decimal digits would not restore its bits."""
    if isinstance(value, np.str_):
        return {"$numpy": "str", "value": str(value)}
    if value.dtype.kind not in "biufcmM":
        raise StateTypeError(f"state at {where!r} is a numpy scalar of type {value.dtype}; allowed are {_ALLOWED}")
    return {"$numpy": value.dtype.str, "hex": value.tobytes().hex()}


def _encode_dict(value: Mapping[Any, Any], where: str, arrays: dict[str, Array]) -> Any:
    """Return a dict as a JSON object or, if its keys are not plain text, as a list of pairs under `$dict`."""
    for key in value:
        if type(key) not in (str, int):
            raise StateTypeError(f"state at {where!r} has the key {key!r}; keys must be str or int")
    items = [(key, encode(item, f"{where}/{key}", arrays)) for key, item in value.items()]
    if all(type(key) is str and not key.startswith("$") for key, _ in items):
        return dict(items)
    return {"$dict": [[key if type(key) is str else {"$int": hex(key)}, item] for key, item in items]}


def decode(value: JsonValue, arrays: Mapping[str, Array]) -> Any:
    """Return the value that `encode` was given.

    Args:
        value: The JSON value.
        arrays: The arrays of the safetensors file, by name.

    Raises:
        ValueError: The JSON was not written by `encode`, or names an array that `arrays` does not have.
    """
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    # `encode` never writes another key first in an object with a tag, and no other key that begins with "$".
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: decode(item, arrays) for key, item in value.items()}
    body = value[tag]
    if tag == "$tuple":
        return tuple(decode(item, arrays) for item in body)
    if tag == "$dict":
        return {key if isinstance(key, str) else int(key["$int"], 16): decode(item, arrays) for key, item in body}
    if tag == "$float":
        return float(body)
    if tag == "$int":
        return int(body, 16)
    if tag == "$numpy":
        if body == "str":
            return np.str_(value["value"])
        return np.frombuffer(bytes.fromhex(value["hex"]), np.dtype(body))[0]
    if tag == "$array":
        if body not in arrays:
            raise ValueError(f"the array {body!r} is missing from the safetensors file")
        return arrays[body]
    raise ValueError(f"unknown mark {tag!r}: written by a newer version?")
