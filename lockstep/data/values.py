"""Values from outside, checked against the space or the type that they are stored in: observations and rewards.

Every boundary uses this one mechanism: environments in this process and in workers, vectors of the user, the dicts of
several agents, and `compute_actions`. The rule for observations:

- The shape must be that of the space.
- A cast that numpy calls safe passes, and so does a rounding from one float type to another.
- Any other cast (int64 pixels for bytes, floats for whole numbers) is made and compared by value. One that changed a
  value is refused.
- Bounds are compared while the first episodes are played (`BoundsWatch`).
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from lockstep.data.trees import Tree, leaves_of_space

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose values are indices: one beyond the bounds has no meaning at all."""

_FIRST_EPISODES = 10
_FIRST_STEPS = 10_000


# -- one array ---


def checked_array(space: spaces.Space[Any], value: Tree, name: str, leading: tuple[int, ...] = ()) -> np.ndarray:
    """Return `value` as an array `[*leading, *space.shape]` of the space's dtype; the same array where it is one.

    Raises:
        ValueError: something else than numbers, another shape, or numbers that the dtype cannot hold.
    """
    shape, dtype = (*leading, *(space.shape or ())), np.dtype(space.dtype)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is a {type(value).__name__} that makes no array of numbers: {error}") from None
    if array.shape != shape:
        raise ValueError(
            f"{name} has shape {array.shape}, its space says {shape}; return observations of that shape, or declare "
            "theirs in observation_space"
        )
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has values of dtype {array.dtype}, its space {dtype}: {value!r}")
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        changed = np.atleast_1d(_changed(array, cast))
    if changed.any():
        place = tuple(np.argwhere(changed)[0].tolist()) if array.ndim else ()
        index = str(list(place)) if place else ""
        raise ValueError(
            f"{name}{index} is {array[place].item()!r} (dtype {array.dtype}), which its space {space_text(space)} "
            f"cannot hold: {dtype} would make {cast[place].item()!r} of it. Return values of dtype {dtype}, or declare "
            "another dtype in observation_space"
        )
    return cast


def _changed(array: np.ndarray, cast: np.ndarray) -> np.ndarray:
    """Return where a cast has changed a value."""
    if cast.dtype.kind == "f":
        if array.dtype.kind == "f":  # rounding is what floats do; a number that becomes infinite is lost
            return np.isfinite(array) != np.isfinite(cast)
        return cast.astype(array.dtype) != array
    return cast != array


def space_text(space: spaces.Space[Any]) -> str:
    """Return a space in words, without the bounds of all its entries."""
    text = repr(space)
    return text if len(text) < 120 else f"{type(space).__name__}(shape={space.shape}, dtype={space.dtype})"


def check_supported(space: spaces.Space[Any], name: str) -> None:
    """Raise `ValueError` for a space that has no array of fixed size (Text, Graph, Sequence, ...), or no entries."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            check_supported(part, f"{name}[{key!r}]")
    elif not isinstance(space, ARRAY_SPACES):
        raise ValueError(
            f"{name} is {space!r}, which has no array of fixed size. Allowed: Box, Discrete, MultiDiscrete, "
            "MultiBinary, and Dict or Tuple of these. Wrap the environment so that it gives one of them."
        )
    else:
        check_entries(space, name)


def check_entries(space: spaces.Space[Any], name: str) -> None:
    """Raise `ValueError` for a space that is, or has in it, an array without entries."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            check_entries(part, f"{name}[{key!r}]")
    elif isinstance(space, spaces.Space) and 0 in (space.shape or ()):
        raise ValueError(
            f"{name} is {space!r}, which has no entries (shape {space.shape}): there is nothing to see or to choose. "
            "Leave it out of the space, or give it at least one entry."
        )


def as_reward(reward: Tree, name: str = "the reward") -> float:
    """Return a reward as a float: a number, or an array or tensor with one.

    Raises:
        ValueError: None, text, or several numbers.
    """
    if type(reward) is float:
        return reward
    if hasattr(reward, "__array__") or isinstance(reward, list | tuple):
        array = np.asarray(reward)
        if array.shape in ((), (1,)) and array.dtype.kind in "biuf":
            return float(array.reshape(()))
    elif hasattr(reward, "__float__"):
        return float(reward)
    raise ValueError(f"{name} {reward!r} is a {type(reward).__name__}; one number is needed")


def as_rewards(rewards: Tree, num_envs: int) -> np.ndarray:
    """Return the rewards of a vector step as an array `[num_envs]`.

    Raises:
        ValueError: None, text, or another number of them; names the first row.
    """
    array = np.asarray(rewards)
    if array.dtype.kind in "biuf" and array.size == num_envs and array.shape[:1] == (num_envs,):
        return array.reshape(num_envs)
    if array.shape[:1] != (num_envs,):
        raise ValueError(
            f"the rewards have shape {array.shape}; a vector returns one number for each of {num_envs} rows"
        )
    return np.array([as_reward(reward, f"the reward of row {row}") for row, reward in enumerate(array.tolist())])


# -- observations of a space ---


class ObservationForm(ABC):
    """The arrays that hold the observations of a space, and the check of what is to be stored in them.

    Attributes:
        space: the space of one observation.
        name: what errors call it.
    """

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        self.space, self.name = space, name

    @staticmethod
    def of(space: spaces.Space[Any], name: str = "observation") -> ObservationForm:
        """Return the form of a space. What has no array of fixed size passes as it is, for a network of the user's."""
        if isinstance(space, spaces.Dict | spaces.Tuple):
            return _TreeForm(space, name)
        return _ArrayForm(space, name) if isinstance(space, ARRAY_SPACES) else _FreeForm(space, name)

    @abstractmethod
    def hold(self, value: Tree, leading: tuple[int, ...] = ()) -> Tree:
        """Return `[*leading, ...]` observations in the dtypes of the space; arrays that have them are not copied.

        Raises:
            ValueError: other keys or another shape, or values that the space cannot hold.
        """

    @abstractmethod
    def write(self, target: Tree, row: int, value: Tree) -> None:
        """Write one observation into a row of `target`, a tree `[B, ...]` of the space; errors as for `hold`."""

    @abstractmethod
    def copy(self, value: Tree) -> Tree:
        """Return a copy of one observation in the dtypes of the space; errors as for `hold`."""

    @abstractmethod
    def empty(self, number: int) -> Tree:
        """Return room for a number of observations, `[number, ...]`."""

    def rows(self, values: Sequence[Tree]) -> Tree:
        """Return copies of single observations as one tree `[len(values), ...]`; errors as for `hold`."""
        tree = self.empty(len(values))
        for row, value in enumerate(values):
            self.write(tree, row, value)
        return tree


class _ArrayForm(ObservationForm):
    """An observation that is one array."""

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        super().__init__(space, name)
        self._shape, self._dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        self._scalars: frozenset[type] = frozenset()
        """types of scalars that fit as they are"""
        if not self._shape:
            self._scalars = frozenset((np.int64, int) if self._dtype == np.int64 else (self._dtype.type,))

    def hold(self, value: Tree, leading: tuple[int, ...] = ()) -> Any:
        if type(value) is np.ndarray and value.dtype is self._dtype and value.shape == (*leading, *self._shape):
            return value
        return checked_array(self.space, value, self.name, leading)

    def write(self, target: np.ndarray, row: int, value: Tree) -> None:
        kind = type(value)
        if kind is np.ndarray:
            if value.dtype is self._dtype and value.shape == self._shape:
                target[row] = value
                return
        elif kind in self._scalars:
            target[row] = value
            return
        target[row] = checked_array(self.space, value, self.name)

    def copy(self, value: Tree) -> Any:
        return np.array(self.hold(value))[()]

    def empty(self, number: int) -> Tree:
        return np.zeros((number, *self._shape), self._dtype)


class _TreeForm(ObservationForm):
    """An observation that is a dict or a tuple of others."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, name: str) -> None:
        super().__init__(space, name)
        self._is_dict = isinstance(space, spaces.Dict)
        parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        self._parts = {key: ObservationForm.of(part, f"{name}[{key!r}]") for key, part in parts}

    def _check_keys(self, value: Tree) -> None:
        """Check that a value has the parts of the space, no others."""
        if self._is_dict:
            fits = isinstance(value, Mapping) and value.keys() == self._parts.keys()
        else:
            fits = isinstance(value, tuple | list) and len(value) == len(self._parts)
        if not fits:
            list(leaves_of_space(self.space, value, self.name))  # raises, with the reason

    def _joined(self, parts: dict[Any, Any]) -> Tree:
        return parts if self._is_dict else tuple(parts.values())

    def hold(self, value: Tree, leading: tuple[int, ...] = ()) -> Any:
        self._check_keys(value)
        return self._joined({key: form.hold(value[key], leading) for key, form in self._parts.items()})

    def write(self, target: Tree, row: int, value: Tree) -> None:
        self._check_keys(value)
        for key, form in self._parts.items():
            form.write(target[key], row, value[key])

    def copy(self, value: Tree) -> Any:
        self._check_keys(value)
        return self._joined({key: form.copy(value[key]) for key, form in self._parts.items()})

    def empty(self, number: int) -> Tree:
        return self._joined({key: form.empty(number) for key, form in self._parts.items()})


class _FreeForm(ObservationForm):
    """An observation without an array of fixed size."""

    def hold(self, value: Tree, leading: tuple[int, ...] = ()) -> Any:
        return value

    def write(self, target: Tree, row: int, value: Tree) -> None:
        target[row] = value

    def copy(self, value: Tree) -> Any:
        return copy.deepcopy(value)

    def empty(self, number: int) -> Tree:
        return [None] * number


NOT_A_ROW = (TypeError, ValueError, BufferError)
"""What the assignment to a view of `row_views` raises for something else than such a row."""


def row_views(target: Tree) -> list[memoryview] | None:
    """Return a memory view of each row of an array `[B, n]`; None for other trees.

    `views[row][:] = value` checks shape and dtype while it copies, and takes half the time of `array[row] = value`,
    which would broadcast and cast. It raises (`NOT_A_ROW`) for everything but an array `[n]` of the same dtype.
    """
    if isinstance(target, np.ndarray) and target.ndim == 2:
        return [memoryview(row) for row in target]
    return None


# -- bounds ---


class _Bounds(NamedTuple):
    path: tuple[Any, ...]
    name: str
    space: spaces.Space[Any]
    low: Any
    high: Any
    is_choice: bool


class OutsideError(ValueError):
    """A choice that the space does not have.

    Attributes:
        row: the row of the vector.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


class BoundsWatch:
    """Compares observations with the bounds of their space while the first episodes are played, then stops.

    A choice beyond its space (7 of `Discrete(4)`) is refused. A Box's bounds are what the environment promises and
    nothing that training stands on: numbers beyond them are warned of, once.
    """

    def __init__(self, space: spaces.Space[Any], num_envs: int = 1) -> None:
        self._bounds = _bounds(space, (), "observation")
        self._episodes_left = max(_FIRST_EPISODES, 2 * num_envs)
        self._steps_left = _FIRST_STEPS

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to look at."""
        return not self._bounds or self._episodes_left <= 0 or self._steps_left <= 0

    def look(self, obs: Tree, num_ended: int = 0, rows: Tree = None) -> None:
        """Look at observations `[k, ...]`, a step in which `num_ended` episodes ended.

        Args:
            rows: the rows of the vector that they are of; None: all.

        Raises:
            OutsideError: a choice that the space does not have.
        """
        self._steps_left -= 1
        self._episodes_left -= num_ended
        for bounds in list(self._bounds):
            values: Any = obs
            for key in bounds.path:
                values = values[key]
            outside = (values < bounds.low) | (values > bounds.high)
            if outside.any():
                self._report(bounds, values, outside, rows)

    def _report(self, bounds: _Bounds, values: np.ndarray, outside: np.ndarray, rows: Tree) -> None:
        row, *place = np.argwhere(outside)[0].tolist()
        value = values[(row, *place)].item()
        row = row if rows is None else int(rows[row])
        message = f"{bounds.name}{place or ''} is {value!r}, outside of its space {space_text(bounds.space)}"
        if bounds.is_choice:
            raise OutsideError(f"{message}; return a choice that the space has, or declare more of them", row)
        self._bounds.remove(bounds)
        warnings.warn(
            f"{message} (environment {row}). Training goes on with it: declare the bounds that hold in "
            "observation_space, as `lockstep doctor` (check_environment) advises",
            UserWarning,
            stacklevel=3,
        )


def _bounds(space: spaces.Space[Any], path: tuple[Any, ...], name: str) -> list[_Bounds]:
    """Return the bounds of all arrays in a space that some number of their dtype could break."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [found for key, part in parts for found in _bounds(part, (*path, key), f"{name}[{key!r}]")]
    if isinstance(space, spaces.Discrete):
        low, high = space.start, space.start + space.n - 1
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.int8(0), np.int8(1)
    elif isinstance(space, spaces.Box):
        low, high = space.low, space.high
        if _bounds_nothing(low, high):
            return []
    else:
        return []
    return [_Bounds(path, name, space, low, high, isinstance(space, CHOICES))]


def _bounds_nothing(low: np.ndarray, high: np.ndarray) -> bool:
    """Return whether a Box's bounds are the ends of its dtype, as for an image of bytes."""
    if low.dtype.kind == "f":
        return bool(np.isneginf(low).all() and np.isposinf(high).all())
    if low.dtype.kind == "b":
        return bool(not low.any() and high.all())
    ends = np.iinfo(low.dtype)
    return bool((low == ends.min).all() and (high == ends.max).all())
