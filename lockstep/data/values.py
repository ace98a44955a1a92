"""Checks of observations and rewards that come from outside of Lockstep.

All boundaries use these checks: environments in this process and in workers, the user's own vectors, environments of
several agents, and `compute_actions`. The rules for observations:

- The shape must equal the shape of the space.
- A cast that numpy calls safe is made, and so is rounding from one float type to another.
- Any other cast (int64 pixels to bytes, floats to whole numbers) is made and compared with the original. If it
  changed a value, the observation is refused.
- Bounds are compared during the first episodes only (`BoundsWatch`): a comparison in every step would slow small
  environments down.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from lockstep.data.trees import Tree, leaves_of_space

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
CHOICES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose values are indices: a value outside of the bounds has no meaning at all."""

_FIRST_EPISODES = 10
_FIRST_STEPS = 10_000


# -- single arrays ---


def checked_array(space: spaces.Space[Any], value: Tree, name: str, leading: tuple[int, ...] = ()) -> np.ndarray:
    """Return `value` as an array `[*leading, *space.shape]` in the dtype of the space.

    An array that has this dtype already is returned without a copy.

    Raises:
        ValueError: the value is not numeric, has another shape, or has numbers that the dtype cannot hold.
    """
    shape = (*leading, *(space.shape or ()))
    dtype = np.dtype(space.dtype)
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
    """Return a bool mask of the values that a cast has changed."""
    if cast.dtype.kind != "f":
        return cast != array
    if array.dtype.kind == "f":
        # Rounding is what floats do; a number that becomes infinite is lost.
        return np.isfinite(array) != np.isfinite(cast)
    # Whole numbers are compared in their own dtype: numpy would compare an int64 and a float32 as rounded floats.
    return cast.astype(array.dtype) != array


def space_text(space: spaces.Space[Any]) -> str:
    """Return a space as text for messages; a long one without the bounds of its entries."""
    text = repr(space)
    return text if len(text) < 120 else f"{type(space).__name__}(shape={space.shape}, dtype={space.dtype})"


def check_supported(space: spaces.Space[Any], name: str) -> None:
    """Check that all parts of a space are arrays of fixed size that have entries.

    Raises:
        ValueError: a part is a Text, Graph, Sequence or other space, or has no entries.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in _keyed_parts(space):
            check_supported(part, f"{name}[{key!r}]")
    elif not isinstance(space, ARRAY_SPACES):
        raise ValueError(
            f"{name} is {space!r}, which has no array of fixed size. Allowed: Box, Discrete, MultiDiscrete, "
            "MultiBinary, and Dict or Tuple of these. Wrap the environment so that it gives one of them."
        )
    else:
        check_entries(space, name)


def check_entries(space: spaces.Space[Any], name: str) -> None:
    """Raise `ValueError` if a space, or a part of it, is an array without entries."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, part in _keyed_parts(space):
            check_entries(part, f"{name}[{key!r}]")
    elif isinstance(space, spaces.Space) and 0 in (space.shape or ()):
        raise ValueError(
            f"{name} is {space!r}, which has no entries (shape {space.shape}): there is nothing to see or to choose. "
            "Leave it out of the space, or give it at least one entry."
        )


def _keyed_parts(space: spaces.Dict | spaces.Tuple) -> Iterable[tuple[Any, spaces.Space[Any]]]:
    """Return (key, space) of each part of a Dict, or (position, space) of each part of a Tuple."""
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def as_reward(reward: Tree, name: str = "the reward") -> float:
    """Return a reward as a float. It may be a number, or an array or tensor that holds one number.

    Raises:
        ValueError: the reward is None, text, or several numbers.
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
        ValueError: a reward is None or text (the message names the first such row), or there are more or fewer.
    """
    array = np.asarray(rewards)
    if array.dtype.kind in "biuf" and array.size == num_envs and array.shape[:1] == (num_envs,):
        return array.reshape(num_envs)
    if array.shape[:1] != (num_envs,):
        raise ValueError(
            f"the rewards have shape {array.shape}; a vector returns one number for each of {num_envs} rows"
        )
    return np.array([as_reward(reward, f"the reward of row {row}") for row, reward in enumerate(array.tolist())])


# -- observations ---


class ObservationForm(ABC):
    """Storage for the observations of a space, which checks the values that are written to it.

    Attributes:
        space: Space of a single observation.
        name: Name of the observation in errors.
    """

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        self.space = space
        self.name = name

    @staticmethod
    def of(space: spaces.Space[Any], name: str = "observation") -> ObservationForm:
        """Return the form of a space.

        Values of spaces without an array of fixed size are passed on unchecked, for the user's own networks.
        """
        if isinstance(space, spaces.Dict | spaces.Tuple):
            return _TreeForm(space, name)
        if isinstance(space, ARRAY_SPACES):
            return _ArrayForm(space, name)
        return _FreeForm(space, name)

    @abstractmethod
    def hold(self, value: Tree, leading: tuple[int, ...] = ()) -> Tree:
        """Return observations `[*leading, ...]` in the dtypes of the space. Arrays in these dtypes are not copied.

        Raises:
            ValueError: keys or shapes differ from the space, or its dtype cannot hold a value.
        """

    @abstractmethod
    def write(self, target: Tree, row: int, value: Tree) -> None:
        """Write one observation into row `row` of `target`, a tree `[B, ...]`; errors as in `hold`."""

    @abstractmethod
    def copy(self, value: Tree) -> Tree:
        """Return a copy of one observation in the dtypes of the space; errors as in `hold`."""

    @abstractmethod
    def empty(self, number: int) -> Tree:
        """Return a new tree `[number, ...]` for that many observations."""

    def rows(self, values: Sequence[Tree]) -> Tree:
        """Return copies of single observations as one tree `[len(values), ...]`; errors as in `hold`."""
        tree = self.empty(len(values))
        for row, value in enumerate(values):
            self.write(tree, row, value)
        return tree


class _ArrayForm(ObservationForm):
    """An observation that is one array."""

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        super().__init__(space, name)
        self._shape = tuple(space.shape or ())
        self._dtype = np.dtype(space.dtype)
        self._scalars: frozenset[type] = frozenset()
        """Types of scalars that need no check."""
        if not self._shape:
            self._scalars = frozenset((np.int64, int) if self._dtype == np.int64 else (self._dtype.type,))

    # Called for every environment in every step: the first tests of `hold` and `write` accept the usual value without
    # another call, and `is` on dtypes is faster than `==`.

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
        return np.array(self.hold(value))[()]  # [()] makes a numpy scalar of an array without axes

    def empty(self, number: int) -> Tree:
        return np.zeros((number, *self._shape), self._dtype)


class _TreeForm(ObservationForm):
    """An observation that is a dict or a tuple of observations."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, name: str) -> None:
        super().__init__(space, name)
        self._is_dict = isinstance(space, spaces.Dict)
        self._parts = {key: ObservationForm.of(part, f"{name}[{key!r}]") for key, part in _keyed_parts(space)}

    def _check_keys(self, value: Tree) -> None:
        """Raise `ValueError` unless a value has exactly the parts of the space."""
        if self._is_dict:
            fits = isinstance(value, Mapping) and value.keys() == self._parts.keys()
        else:
            fits = isinstance(value, tuple | list) and len(value) == len(self._parts)
        if not fits:
            list(leaves_of_space(self.space, value, self.name))  # raises the error that names the keys

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
    """An observation whose space has no array of fixed size. Rows are stored in a list."""

    def hold(self, value: Tree, leading: tuple[int, ...] = ()) -> Any:
        return value

    def write(self, target: Tree, row: int, value: Tree) -> None:
        target[row] = value

    def copy(self, value: Tree) -> Any:
        return copy.deepcopy(value)

    def empty(self, number: int) -> Tree:
        return [None] * number


NOT_A_ROW = (TypeError, ValueError, BufferError)
"""Errors of an assignment to a view of `row_views` if the value is not an array of its shape and dtype."""


def row_views(target: Tree) -> list[memoryview] | None:
    """Return a memory view of each row of an array `[B, n]`, or None for other trees.

    `views[row][:] = value` copies in half the time of `array[row] = value`, and it checks shape and dtype: it raises
    an error of `NOT_A_ROW` for everything but an array `[n]` of the same dtype, which numpy would broadcast or cast.
    """
    if isinstance(target, np.ndarray) and target.ndim == 2:
        return [memoryview(row) for row in target]
    return None


# -- bounds ---


class _Bounds(NamedTuple):
    """Bounds of one array of an observation."""

    path: tuple[Any, ...]
    """Keys that lead to the array in an observation."""
    name: str
    """Name of the array in messages."""
    space: spaces.Space[Any]
    low: Any
    high: Any
    is_choice: bool
    """Whether the values are indices, which must lie within the bounds."""


class OutsideError(ValueError):
    """Error for an observed choice that its space does not have.

    Attributes:
        row: Row of the vector environment that returned it.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row


class BoundsWatch:
    """Comparison of observations with the bounds of their space, during the first episodes.

    A choice outside its space (7 of `Discrete(4)`) is refused, since one-hot vectors and embeddings cannot represent
    it. Training does not depend on the bounds of a Box: a number outside of them causes one warning.
    """

    def __init__(self, space: spaces.Space[Any], num_envs: int = 1) -> None:
        self._bounds = _finite_bounds(space, (), "observation")
        self._episodes_left = max(_FIRST_EPISODES, 2 * num_envs)
        self._steps_left = _FIRST_STEPS

    @property
    def is_over(self) -> bool:
        """Whether the comparison has ended, or the space has no bounds."""
        return not self._bounds or self._episodes_left <= 0 or self._steps_left <= 0

    def look(self, obs: Tree, num_ended: int = 0, rows: Tree = None) -> None:
        """Compare the observations `[k, ...]` of one vector step.

        Args:
            obs: Observations of k rows of the vector.
            num_ended: Number of episodes that ended in the step.
            rows: Numbers of the k rows. None for all rows of the vector.

        Raises:
            OutsideError: an observed choice is not in its space.
        """
        self._steps_left -= 1
        self._episodes_left -= num_ended
        for bounds in list(self._bounds):  # a copy, since `_report` removes bounds
            values: Any = obs
            for key in bounds.path:
                values = values[key]
            outside = (values < bounds.low) | (values > bounds.high)
            if outside.any():
                self._report(bounds, values, outside, rows)

    def _report(self, bounds: _Bounds, values: np.ndarray, outside: np.ndarray, rows: Tree) -> None:
        """Refuse the first value outside its bounds, or warn of it and stop comparing with these bounds."""
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


def _finite_bounds(space: spaces.Space[Any], path: tuple[Any, ...], name: str) -> list[_Bounds]:
    """Return the bounds of all arrays of a space, without those that every number of the dtype fulfils."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        bounds = []
        for key, part in _keyed_parts(space):
            bounds += _finite_bounds(part, (*path, key), f"{name}[{key!r}]")
        return bounds

    low: Any
    high: Any
    if isinstance(space, spaces.Discrete):
        low, high = space.start, space.start + space.n - 1
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.int8(0), np.int8(1)
    elif isinstance(space, spaces.Box) and not _is_whole_range(space.low, space.high):
        low, high = space.low, space.high
    else:
        return []
    return [_Bounds(path, name, space, low, high, isinstance(space, CHOICES))]


def _is_whole_range(low: np.ndarray, high: np.ndarray) -> bool:
    """Return whether the bounds of a Box are the limits of its dtype, as for an image of bytes."""
    if low.dtype.kind == "f":
        return bool(np.isneginf(low).all() and np.isposinf(high).all())
    if low.dtype.kind == "b":
        return bool(not low.any() and high.all())
    limits = np.iinfo(low.dtype)
    return bool((low == limits.min).all() and (high == limits.max).all())
