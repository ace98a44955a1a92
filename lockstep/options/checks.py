"""Checks of arguments, and parts of error messages that several folders share.

Each message names the argument, its value and the values that are allowed.
"""

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
    """Limits of a number: of an option or an argument."""

    ge: float | None = None
    """Smallest number allowed."""
    gt: float | None = None
    """The number must be above this one."""
    le: float | None = None
    """Largest number allowed."""
    lt: float | None = None
    """The number must be below this one."""
    finite: bool = False
    """Whether infinity is refused. NaN always is."""

    def allow(self, number: float) -> bool:
        """Return whether `number` is within the limits. NaN never is."""
        return (
            (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
            and (math.isfinite(number) if self.finite else not math.isnan(number))
        )

    def allow_after(self, number: float) -> bool:
        """Return whether a schedule may reach `number` after its start.

        It may also reach a limit that its start must be above or below: a learning rate above 0 may decay to 0.
        """
        return self.allow(number) or number in (self.gt, self.lt)

    def __str__(self) -> str:
        """Return the limits in words, to be appended to "a number"."""
        if self.ge is not None and self.le is not None:
            return f" between {self.ge:g} and {self.le:g}"
        words = (("above", self.gt), ("at least", self.ge), ("below", self.lt), ("at most", self.le))
        phrases = [f"{word} {limit:g}" for word, limit in words if limit is not None]
        return f", {' and '.join(phrases)}" if phrases else ""


# Tuples instead of unions (`int | float`): `isinstance` builds a union in every call, and searches it more slowly.
_NUMBERS = (int, float, np.integer, np.floating)
_WHOLE_NUMBERS = (int, np.integer)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is an int or a float, Python's or NumPy's, and not True or False."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether `value` is a whole number, Python's or NumPy's, and not True or False."""
    return isinstance(value, _WHOLE_NUMBERS) and not isinstance(value, bool)


def suggestion(name: object, known: Iterable[str], *, elsewhere: Sequence[str] = (), most: int = 1) -> str:
    """Return "did you mean ...?" with the known names closest to an unknown one, or the list of all known names.

    Args:
        name: The unknown name.
        known: All known names.
        elsewhere: Known names with the meaning that `name` has in other libraries. They are suggested instead of names
            that only look alike.
        most: Largest number of suggestions.
    """
    names = list(dict.fromkeys(known))
    closest = elsewhere or get_close_matches(str(name), names, n=most, cutoff=0.5)
    if closest:
        return f"did you mean {' or '.join(map(repr, closest))}?"
    return f"there are {', '.join(names)}"


def misspelt_method(thing: object, prefixes: tuple[str, ...], elsewhere: Mapping[str, str] | None = None) -> str | None:
    """Return a message about a user's method that nothing calls, with the closest name, or None if there is none.

    Such a method has a name with one of the prefixes, and none of Lockstep's classes among the bases has that name.

    Args:
        thing: An object, or its class.
        prefixes: Beginnings of the names of methods that Lockstep calls, such as `"on_"`.
        elsewhere: Names in other libraries, and the name of the same method here.
    """
    cls = thing if isinstance(thing, type) else type(thing)
    # Methods may also be attributes of the object: `callback.on_step = function`.
    names = [*dir(cls), *(getattr(thing, "__dict__", None) or {})]
    lockstep_names: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.startswith("lockstep."):
            lockstep_names.update(vars(base))
    known = sorted(name for name in lockstep_names if name.startswith(prefixes))

    for name in names:
        if not name.startswith(prefixes) or name in known:
            continue
        if callable(inspect.getattr_static(thing, name)):
            equivalent = (elsewhere or {}).get(name)
            advice = suggestion(name, known, elsewhere=[equivalent] if equivalent in known else ())
            return f"{cls.__name__} has a method {name}, which nothing calls; {advice}"
    return None


def check_whole(name: str, value: object, least: int, *, optional: bool = False) -> Any:
    """Return `value` as a Python int, or None if it is None and `optional`.

    Raises:
        ValueError: The value is not a whole number of at least `least`.
    """
    if optional and value is None:
        return None
    if not is_whole(value) or value < least:
        none = ", or None" if optional else ""
        raise ValueError(f"{name}={value!r} is not allowed; it must be a whole number, at least {least}{none}")
    return int(value)


def check_wholes(**values: object) -> list[int]:
    """Return the values as Python ints.

    Raises:
        ValueError: A value is not a whole number of at least 1.
    """
    return [check_whole(name, value, 1) for name, value in values.items()]


def check_number(name: str, value: object, *, optional: bool = False, **limits: float) -> None:
    """Raise `ValueError` unless `value` is a finite number within `limits` (`ge`, `gt`, ...), or None if `optional`."""
    if optional and value is None:
        return
    bounds = Limits(finite=True, **limits)
    if not (is_number(value) and bounds.allow(value)):
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


def install_hint(extra: str, distribution: str = "lockstep-rl") -> str:
    """Return the command that installs the packages of an extra, such as `"pip install 'ray>=2.40'"`.

    The versions come from the metadata of the installed `distribution` (`pyproject.toml`), which declares the extra.
    """
    try:
        requirements = requires(distribution) or []
    except PackageNotFoundError:
        # The distribution runs from a folder of sources, which has no metadata.
        return f"pip install the packages of the extra {extra!r} in pyproject.toml of {distribution}"

    # A requirement reads `ray>=2.40; extra == 'ray'`. Build tools write either kind of quotes.
    packages = []
    for requirement in requirements:
        package, _, marker = requirement.partition(";")
        if marker.replace('"', "'").strip() == f"extra == '{extra}'":
            packages.append(package.strip())
    return f"pip install {' '.join(map(repr, packages))}"


def no_copies(holds: str, instead: str) -> Callable[..., Any]:
    """Return a method `__reduce__` that makes `copy` and `pickle` raise `TypeError`.

    Args:
        holds: Contents of the object that cannot be copied, for the message.
        instead: Advice what to do instead, for the message.
    """

    def __reduce__(self: object) -> NoReturn:
        raise TypeError(f"this {type(self).__name__} holds {holds} and is neither copied nor pickled; {instead}")

    return __reduce__
