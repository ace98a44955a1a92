"""Arrays and tensors in one safetensors file, with exact types on the way back.

The file is plain safetensors, readable by any tool. What safetensors cannot say (was it a numpy array or a
torch tensor? which numpy type has no name there?) stands as JSON in the header's metadata.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors

Array: TypeAlias = np.ndarray | torch.Tensor

_KINDS_KEY = "lockstep"
_TORCH_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_NUMPY_NAMES: dict[str, str] = {
    "<f8": "F64",
    "<f4": "F32",
    "<f2": "F16",
    "<i8": "I64",
    "<i4": "I32",
    "<i2": "I16",
    "|i1": "I8",
    "<u8": "U64",
    "<u4": "U32",
    "<u2": "U16",
    "|u1": "U8",
    "|b1": "BOOL",
}


def is_array(value: object) -> bool:
    """Whether `value` is stored as an array: a torch tensor, a numpy array or memory map, no other
    subclass.
    """
    return isinstance(value, torch.Tensor) or type(value) in (np.ndarray, np.memmap)


def why_not_storable(value: Array) -> str | None:
    """The reason why this array cannot be written, or None where it can."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            return f"a tensor with layout {value.layout} on device {value.device}"
    elif value.dtype.hasobject or value.dtype.kind == "V":
        return f"an array of type {value.dtype}"
    return None


def _flatten(value: Array) -> tuple[str, list[int], Any, dict[str, Any]]:
    """safetensors name, shape, bytes (a flat uint8 array) and the kind entry for one array."""
    if isinstance(value, torch.Tensor):
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
    """The bytes of a safetensors file with these arrays, piece by piece (so that no copy of all is made).

    Views that share memory are written apart, each with its own values. Device, gradient flag and memory
    order are not kept: what is read lies on the CPU in C order.
    """
    kinds: dict[str, Any] = {}
    entries = []
    for name, value in arrays.items():
        dtype, shape, raw, kinds[name] = _flatten(value)
        entries.append((name, dtype, shape, raw))
    # Widest type first keeps every array aligned to its own item size, as the format asks.
    widths = {"64": 8, "32": 4, "16": 2}
    entries.sort(key=lambda entry: -widths.get(entry[1][-2:], 1))
    header: dict[str, Any] = {"__metadata__": {_KINDS_KEY: json.dumps(kinds)}}
    offset = 0
    for name, dtype, shape, raw in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + raw.size]}
        offset += raw.size
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, _, _, raw in entries:
        yield memoryview(raw)


def _restore(tensor: torch.Tensor, kind: Mapping[str, Any]) -> Array:
    if kind["is"] == "tensor":
        if "dtype" not in kind:
            return tensor
        dtype = getattr(torch, kind["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"unknown torch type {kind['dtype']!r}")
        return (tensor.view(dtype) if tensor.numel() else torch.empty(0, dtype=dtype)).reshape(kind["shape"])
    array = tensor.numpy()
    if "dtype" not in kind:
        return array
    numpy_dtype = np.dtype(kind["dtype"])
    if numpy_dtype.hasobject:
        raise ValueError("arrays of Python objects are never read")
    restored = np.empty(kind["shape"], numpy_dtype)
    if restored.nbytes != array.size:
        raise ValueError(f"{array.size} bytes do not make {kind['shape']} of {kind['dtype']}")
    if restored.nbytes:
        restored.reshape(-1).view(np.uint8)[:] = array
    return restored


def parse_tensor_file(content: bytes) -> dict[str, Array]:
    """The arrays of a safetensors file, in the order in which they were given to the writer.

    A file from elsewhere (without Lockstep's note in its header) gives torch tensors.

    Raises:
        ValueError: the content is no valid safetensors file.
    """
    try:
        tensors = load_safetensors(content)
        size = int.from_bytes(content[:8], "little")
        note = json.loads(content[8 : 8 + size]).get("__metadata__", {}).get(_KINDS_KEY)
        kinds = {name: {"is": "tensor"} for name in tensors} if note is None else json.loads(note)
        if set(kinds) != set(tensors):
            raise ValueError("its header and its note of types name different arrays")
        return {name: _restore(tensors[name], kind) for name, kind in kinds.items()}
    except (SafetensorError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"not a valid safetensors file: {error}") from error
