"""Observations that a user hands to a policy, checked against its space before the network sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

ALONE = "give the observation alone, without the info that env.reset() returns beside it"


def checked_observations(space: spaces.Space[Any], obs: Any, *, batched: bool, name: str = "obs") -> tuple[Any, int]:
    """Return the tree of arrays `[B, ...]` that `obs` is, and `B`; without `batched` it is one observation and gets
    `B = 1`.

    Raises `ValueError` with what was given and what is expected: for another shape or kind of numbers, for keys of a
    Dict that are unknown or missing, and for NaN, of which no action can be made.
    """
    rows: dict[str, int] = {}
    tree = _checked(space, obs, batched, name, rows)
    if len(set(rows.values())) > 1:
        raise ValueError(f"the parts of the observations have different numbers of rows: {rows}")
    return tree, next(iter(rows.values()))


def _checked(space: spaces.Space[Any], obs: Any, batched: bool, name: str, rows: dict[str, int]) -> Any:
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            hint = f" ({ALONE})" if isinstance(obs, tuple) else ""
            raise ValueError(f"{name} is a {type(obs).__name__}, expected a dict with the keys {list(space)}{hint}")
        unknown, missing = [key for key in obs if key not in space.spaces], [key for key in space if key not in obs]
        if unknown or missing:
            raise ValueError(
                f"{name} has the keys {list(obs)}, expected {list(space)} (unknown: {unknown}, missing: {missing})"
            )
        return {key: _checked(part, obs[key], batched, f"{name}[{key!r}]", rows) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            parts = f" of {len(obs)} parts" if isinstance(obs, tuple | list) else ""
            raise ValueError(f"{name} is a {type(obs).__name__}{parts}, expected a tuple of {len(space.spaces)}")
        both = zip(space.spaces, obs, strict=True)
        return tuple(_checked(part, own, batched, f"{name}[{i}]", rows) for i, (part, own) in enumerate(both))
    if space.shape is None or space.dtype is None:  # not of numbers: for a network of the user's own
        rows[name] = len(obs) if batched else 1
        return obs if batched else [obs]
    array = _array(space, obs, batched, name)
    rows[name] = len(array)
    return array


def _array(space: spaces.Space[Any], obs: Any, batched: bool, name: str) -> np.ndarray:
    try:
        array = np.asarray(obs)
    except ValueError as error:
        raise ValueError(f"{name}={obs!r} makes no array of observations ({error}); {ALONE}") from error
    dtype: Any = space.dtype
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has the dtype {array.dtype}, expected {dtype}; {ALONE}")
    shape = space.shape or ()
    if (array.shape[1:] if batched else array.shape) != shape or (batched and array.ndim == 0):
        expected = f"[{', '.join(map(str, ('B', *shape)))}]" if batched else shape
        raise ValueError(
            f"{name} has the shape {array.shape}, expected {expected} (compute_actions takes B observations, "
            "compute_single_action one, without B)"
        )
    if array.dtype.kind == "f":
        broken = np.isnan(array)
        if broken.any():
            where = ", ".join(map(str, np.argwhere(broken)[0]))
            raise ValueError(
                f"{name}{where and f'[{where}]'} is NaN: no action can be chosen for it; mend the environment"
            )
        if np.dtype(dtype).kind != "f" and (array != np.rint(array)).any():
            raise ValueError(f"{name} has fractions (dtype {array.dtype}), expected whole numbers of {space}")
    return array if batched else array[None]
