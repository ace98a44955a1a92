"""A tree of state as JSON plus arrays, and back without loss.

JSON stays plain where it can (`{"lr": 0.1}` is `{"lr": 0.1}`); what JSON cannot say is an object with one
`$` key: `$tuple`, `$dict` (keys that are not text, or begin with `$`), `$float` (infinite, NaN), `$int`
(wider than 64 bits, in hex), `$numpy` (a numpy scalar), `$array` (the name of an array in the file beside
it).
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from lockstep.state.tensorfile import Array, is_array, why_not_storable

StateTree: TypeAlias = dict[str, Any]
"""Nested state: dicts (text or int keys), lists and tuples over None, bool, int, float, str, numpy scalars,
numpy arrays and torch tensors."""

_ALLOWED = "dict (str or int keys), list, tuple, None, bool, int, float, str, numpy scalars and arrays, tensors"


class StateTypeError(ValueError):
    """A tree of state holds something that cannot be written."""


def encode(value: object, where: str, arrays: dict[str, Array]) -> Any:
    """`value` as something JSON can hold; arrays found inside go to `arrays` under a name made of their path.

    Raises:
        StateTypeError: a leaf or key of a kind that cannot be written; the message says where it stands.
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
    if isinstance(value, np.str_):
        return {"$numpy": "str", "value": str(value)}
    if value.dtype.kind not in "biufcmM":
        raise StateTypeError(f"state at {where!r} is a numpy scalar of type {value.dtype}; allowed are {_ALLOWED}")
    return {"$numpy": value.dtype.str, "hex": value.tobytes().hex()}


def _encode_dict(value: Mapping[Any, Any], where: str, arrays: dict[str, Array]) -> Any:
    for key in value:
        if type(key) not in (str, int):
            raise StateTypeError(f"state at {where!r} has the key {key!r}; keys must be str or int")
    items = [(key, encode(item, f"{where}/{key}", arrays)) for key, item in value.items()]
    if all(type(key) is str and not key.startswith("$") for key, _ in items):
        return dict(items)
    return {"$dict": [[key if type(key) is str else {"$int": hex(key)}, item] for key, item in items]}


def decode(value: Any, arrays: Mapping[str, Array]) -> Any:
    """The inverse of `encode`.

    Raises:
        ValueError: the JSON was not written by `encode`, or names an array that `arrays` does not have.
    """
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
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
            raise ValueError(f"the array {body!r} is missing from the file beside it")
        return arrays[body]
    raise ValueError(f"unknown mark {tag!r}: written by a newer version?")
