"""Checks of arguments, whose messages name the argument, its value and what is allowed; messages that parts share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires
from typing import Any, NoReturn, TypeGuard

import numpy as np


@dataclass(frozen=True)
class Limits:
    """The numbers that an option or argument may be."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    finite: bool = False

    def allow(self, number: float) -> bool:
        """Return whether `number` lies within the limits; NaN never does."""
        return (
            (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
            and (math.isfinite(number) if self.finite else not math.isnan(number))
        )

    def allow_after(self, number: float) -> bool:
        """Return whether a schedule may come to `number`: also to a limit that its start must be above or below."""
        return self.allow(number) or number in (self.gt, self.lt)

    def __str__(self) -> str:
        if self.ge is not None and self.le is not None:
            return f" between {self.ge:g} and {self.le:g}"
        words = (("above", self.gt), ("at least", self.ge), ("below", self.lt), ("at most", self.le))
        said = [f"{word} {limit:g}" for word, limit in words if limit is not None]
        return f", {' and '.join(said)}" if said else ""


# Tuples, since a union in the place of one is made anew, and searched more slowly, in every call.
_NUMBERS = (int, float, np.integer, np.floating)
_WHOLE_NUMBERS = (int, np.integer)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is an int or a float, Python's or NumPy's, and not True or False."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether `value` is a whole number, Python's or NumPy's, and not True or False."""
    return isinstance(value, _WHOLE_NUMBERS) and not isinstance(value, bool)


def suggestion(name: object, known: Iterable[str], *, elsewhere: Sequence[str] = (), most: int = 1) -> str:
    """Return "did you mean ...?" with up to `most` of the known names near to `name`, or a list of all of them.

    `elsewhere`: known names that mean the same as `name` does in other libraries; they come first.
    """
    names = list(dict.fromkeys(known))
    near = elsewhere or get_close_matches(str(name), names, n=most, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(names)}"


def misspelt_method(thing: object, prefixes: tuple[str, ...], elsewhere: Mapping[str, str] | None = None) -> str | None:
    """Return words about a method that nothing calls, with the nearest name; None where there is no such method.

    That is one whose name begins with one of the prefixes, and that no class of Lockstep above it has.

    Args:
        thing: an object, or its class.
        elsewhere: names of other libraries, and what the same is called here.
    """
    kind = thing if isinstance(thing, type) else type(thing)
    found = {**dict.fromkeys(dir(kind)), **(getattr(thing, "__dict__", None) or {})}
    ours = [vars(each) for each in kind.__mro__ if each.__module__.startswith("lockstep.")]
    known = sorted({name for names in ours for name in names if name.startswith(prefixes)})
    for name in found:
        if not name.startswith(prefixes) or name in known:
            continue
        if callable(inspect.getattr_static(thing, name)):
            nearest = (elsewhere or {}).get(name)
            advice = suggestion(name, known, elsewhere=[nearest] if nearest in known else ())
            return f"{kind.__name__} has a method {name}, which nothing calls; {advice}"
    return None


def check_whole(name: str, value: object, least: int, *, optional: bool = False) -> Any:
    """Return `value` as Python's int; `ValueError` unless it is whole and at least `least` (or None if `optional`)."""
    if optional and value is None:
        return None
    if not is_whole(value) or value < least:
        none = ", or None" if optional else ""
        raise ValueError(f"{name}={value!r} is not allowed; it must be a whole number, at least {least}{none}")
    return int(value)


def check_wholes(**values: object) -> list[int]:
    """Return the values as Python's ints; `ValueError` unless each is a whole number of at least 1."""
    return [check_whole(name, value, 1) for name, value in values.items()]


def check_number(name: str, value: object, *, optional: bool = False, **limits: float) -> None:
    """Raise `ValueError` unless `value` is a finite number within `limits` (`ge`, `gt`, ...), or None if `optional`."""
    bounds = Limits(finite=True, **limits)
    if not (optional and value is None) and not (is_number(value) and bounds.allow(value)):
        none = ", or None" if optional else ""
        raise ValueError(f"{name}={value!r} is not allowed; it must be a finite number{bounds}{none}")


def check_flags(**flags: object) -> None:
    """Raise `ValueError` unless each value is True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name}={value!r} is not allowed; it must be True or False")


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise `ValueError` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not allowed; choose one of {', '.join(map(repr, allowed))}")


def check_functions(**functions: object) -> None:
    """Raise `ValueError` unless each value is None or can be called."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise ValueError(f"{name}={function!r} is not allowed; it must be a function, or None")


def install_hint(extra: str) -> str:
    """Return the command that installs what an extra needs: `"pip install 'ray>=2.40'"`.

    The versions are those of the installed distribution's metadata (`pyproject.toml`).
    """
    try:
        found = requires("lockstep-rl") or []
    except PackageNotFoundError:  # run from a folder of sources
        return f"pip install the packages of the extra {extra!r} in pyproject.toml"
    parts = [text.partition(";") for text in found]
    packages = [name.strip() for name, _, marker in parts if marker.replace('"', "'").strip() == f"extra == '{extra}'"]
    return f"pip install {' '.join(map(repr, packages))}"


def no_copies(holds: str, instead: str) -> Callable[..., Any]:
    """Return a `__reduce__` for objects that hold what cannot be copied: `copy` and `pickle` raise `TypeError`."""

    def __reduce__(self: object) -> NoReturn:
        raise TypeError(f"this {type(self).__name__} holds {holds} and is neither copied nor pickled; {instead}")

    return __reduce__
