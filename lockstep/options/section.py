"""Options of a configuration: declared once as fields of a section, checked when they are set, frozen on demand."""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, field, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar, Union, cast

import numpy as np

from lockstep.options.checks import Limits, is_number, is_whole
from lockstep.options.schedules import Schedule

FROZEN = "this configuration is frozen; change a copy()"


def option(default: Any = MISSING, *, factory: Callable[[], Any] | Any = MISSING, **limits: Any) -> Any:
    """Declare an option with its default and the numbers that it may be; its meaning stands below as a docstring.

    The limits hold for a number, for each value of a schedule and for the values of a dict; None and text are left
    to the field's type.

    Args:
        default: the value where none is set.
        factory: makes the default, in place of `default`, where it can be changed (a list, a dict).
        limits: `ge`, `gt`, `le`, `lt` (at least, above, at most, below); `finite=True` refuses infinity.
    """
    return field(default=default, default_factory=factory, metadata={"limits": Limits(**limits)})


_CONSTANT = (bool, int, float, str, NoneType)
"""types of most options, of which a copy is the value itself"""

ConfigT = TypeVar("ConfigT", covariant=True)
"""the class of the configuration that a section belongs to"""


class Section(Generic[ConfigT]):
    """Base of the dataclasses that hold the options of a configuration: `config.training.lr` reads one.

    Called with options (`config.training(lr=1e-3)`) a section sets them and returns the configuration. Each subclass
    names its options in the signature of `__call__`, for editors and type checkers.

    Each option is checked against the type and the limits of its field whenever it is set, by the constructor too.

    Raises:
        TypeError: a value of another type than the field's.
        ValueError: a number beyond the limits, a text that is no choice, a schedule that cannot be; or the section is
            frozen. Each names the option, its value and what is allowed.
    """

    name: ClassVar[str] = ""
    """the name of the section in a configuration"""
    shared: ClassVar[tuple[str, ...]] = ()
    """options of which copies have the same object"""
    _declarations: ClassVar[Mapping[str, tuple[Any, Limits]]]
    _defaults: ClassVar[Mapping[str, object]]

    def __setattr__(self, name: str, value: object) -> None:
        if self.__dict__.get("_frozen"):
            raise ValueError(FROZEN)
        object.__setattr__(self, name, self._checked(name, value) if name in self.declared() else value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the options without the configuration, which takes its sections back when it is read."""
        return {name: value for name, value in self.__dict__.items() if name != "_config"}

    def join(self, config: ConfigT) -> Self:  # type: ignore[misc]
        """Make this a section of `config`; returns the section."""
        object.__setattr__(self, "_config", config)
        return self

    def change(self, options: Mapping[str, object]) -> ConfigT:
        """Set options through the configuration, which knows names of other sections too, and return it."""
        config: ConfigT = self.__dict__["_config"]
        config.set_section(self.name, options)  # type: ignore[attr-defined]
        return config

    def set_options(self, options: Mapping[str, object]) -> None:
        """Set several options, all of them or, where one is refused, none."""
        if self.__dict__.get("_frozen"):
            raise ValueError(FROZEN)
        checked = {name: self._checked(name, value) for name, value in options.items()}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _checked(self, name: str, value: object) -> Any:
        value = self.prepare(name, value)
        if value is not self._checked_defaults().get(name, MISSING):
            _check(f"{self.name}.{name}" if self.name else name, value, *self.declared()[name])
        return value

    @classmethod
    def _checked_defaults(cls) -> Mapping[str, object]:
        """Return the defaults that are numbers, texts or None, by name, checked once for the class.

        Configurations are made and copied often, and most of their options have the default.
        """
        if "_defaults" not in vars(cls):
            options = {each.name: each.default for each in fields(cls) if type(each.default) in _CONSTANT}  # type: ignore[arg-type]
            for name, value in options.items():
                _check(f"{cls.name}.{name}" if cls.name else name, value, *cls.declared()[name])
            cls._defaults = options
        return cls._defaults

    @classmethod
    def declared(cls) -> Mapping[str, tuple[Any, Limits]]:
        """Return the type and the limits of each option by name."""
        if "_declarations" not in vars(cls):
            hints = typing.get_type_hints(cls)
            options = [each.name for each in fields(cls)]  # type: ignore[arg-type]
            cls._declarations = {name: (hints[name], _limits_of(cls, name)) for name in options}
        return cls._declarations

    def prepare(self, name: str, value: object) -> Any:
        """Return the form in which an option is kept; sections that take several forms override it."""
        return value

    def validate(self) -> None:
        """Refuse options that do not go together; `ValueError` names both. Sections override it."""

    def check_schedules(self, steps: Sequence[int]) -> None:
        """Ask the functions that give values over time for those at `steps`; `ValueError` as `Schedule` raises it."""
        for name, (hint, _) in self.declared().items():
            value = getattr(self, name)
            if callable(value) and _is_schedule(hint):
                schedule = Schedule(value, f"{self.name}.{name}")
                for step in steps:
                    schedule(step)

    def changed_options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        default = type(self)()
        return {name: value for name, value in self.options().items() if value != getattr(default, name)}

    def options(self) -> dict[str, Any]:
        """Return all options by name, the objects themselves."""
        return {name: getattr(self, name) for name in self.declared()}

    def freeze(self) -> None:
        """Refuse changes from now on, with `ValueError`; those of dicts and lists in place too."""
        for name, value in self.options().items():
            object.__setattr__(self, name, frozen(value))
        object.__setattr__(self, "_frozen", True)

    def copy(self) -> Self:
        """Return an independent section that is not frozen."""
        options = self.options()
        kept = {id(options[name]): options[name] for name in self.shared}
        new = object.__new__(type(self))
        for name, value in options.items():  # not set by `setattr`: they were checked when they were set
            vars(new)[name] = value if type(value) in _CONSTANT else copy.deepcopy(value, kept)
        return new


# -- checks ---


def _limits_of(section: type, name: str) -> Limits:
    """Those of the nearest class that declares some: a subclass with another default keeps them."""
    for owner in section.__mro__:
        declared = vars(owner).get("__dataclass_fields__", {}).get(name)
        if declared is not None and "limits" in declared.metadata:
            return cast(Limits, declared.metadata["limits"])
    return Limits()


def _check(name: str, value: object, hint: object, limits: Limits) -> None:
    wrong = not _fits(value, hint)
    if wrong or not _are_allowed(name, value, hint, limits):
        kind = TypeError if wrong and not _is_unknown_choice(value, hint) else ValueError
        raise kind(f"{name}={value!r} is not allowed; it must be {_spoken(hint, limits)}")


def _are_allowed(name: str, value: object, hint: object, limits: Limits) -> bool:
    """Return whether the limits allow the number that `value` is, or the values of its points or of a dict."""
    if is_number(value):
        return limits.allow(value)
    if isinstance(value, Mapping):
        return all(limits.allow(part) for part in value.values() if is_number(part))
    if _is_schedule(hint) and isinstance(value, _POINTS):
        Schedule(value, name)
        first, *later = (point[1] for point in value)
        return limits.allow(first) and all(map(limits.allow_after, later))
    return True


def _is_schedule(hint: object) -> bool:
    """Whether it is a number over time: `ScheduleLike`, or None beside it."""
    parts = typing.get_args(hint)
    return float in parts and any(typing.get_origin(part) is _FUNCTION for part in parts)


_UNIONS = (Union, UnionType)
_FUNCTION: Any = Callable
_POINTS: Any = (list, tuple, np.ndarray)


def _fits(value: object, hint: object) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if _is_schedule(hint):
        return (
            is_number(value) or isinstance(value, _POINTS) or callable(value) or (value is None and NoneType in parts)
        )
    if origin in _UNIONS:
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    kind = origin or hint
    if hint is Any or not isinstance(kind, type):
        return True
    if kind is _FUNCTION:
        return callable(value)
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind in (int, float):
        return is_whole(value) if kind is int else is_number(value)
    if isinstance(value, str):
        return kind in (str, object)  # not a sequence of letters
    if issubclass(kind, Mapping):
        items = value.items() if isinstance(value, Mapping) and parts else ()
        return isinstance(value, Mapping) and all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in items)
    if issubclass(kind, Collection):
        kinds = (list, tuple) if kind in (list, tuple) else kind  # JSON knows lists only
        return isinstance(value, kinds) and all(_fits(each, parts[0]) for each in value if parts)
    return isinstance(value, kind)


def _is_unknown_choice(value: object, hint: object) -> bool:
    """Whether `value` is a text, or has texts, where other texts would be right."""
    if typing.get_origin(hint) is Literal:
        return isinstance(value, str)
    values = value if isinstance(value, list | tuple) else [value]
    return any(_is_unknown_choice(each, part) for part in typing.get_args(hint) for each in values)


_WORDS: dict[object, str] = {bool: "True or False", str: "a text", NoneType: "None", type: "a class"}


def _spoken(hint: object, limits: Limits) -> str:
    """Say what a type and limits allow."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    kind = origin or hint
    if _is_schedule(hint):
        text = f"{_spoken(float, limits)}, points [[0, v0], [t1, v1], ...], or a function of the step"
        return f"{text}, or None" if NoneType in parts else text
    if origin in _UNIONS:
        return ", or ".join(dict.fromkeys(_spoken(part, limits) for part in parts))
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}" if len(parts) > 1 else repr(parts[0])
    if kind in (int, float):
        name = "a whole number" if kind is int else "a finite number" if limits.finite else "a number"
        return f"{name}{limits}"
    if kind is _FUNCTION:
        return "a function"
    if isinstance(kind, type) and kind is not str and issubclass(kind, Collection):
        name = "a dict" if issubclass(kind, Mapping) else "a list"
        return f"{name} with each item {_spoken(parts[-1], limits)}" if parts and parts[-1] is not Any else name
    return _WORDS.get(hint) or f"a {getattr(kind, '__name__', hint)}"


# -- freezing ---


def _refuse(*_: object, **__: object) -> NoReturn:
    raise ValueError(FROZEN)


class FrozenDict(dict[Any, Any]):
    """A dict that refuses changes; deep copies of it are plain dicts."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> Any:
        return dict, (list(self.items()),)


class FrozenList(list[Any]):
    """A list that refuses changes; deep copies of it are plain lists."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = sort = reverse = clear = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> Any:
        return list, (tuple(self),)


def frozen(value: object) -> Any:
    """Return `value` with all its dicts, lists and sets, nested ones too, as ones that refuse changes; equal to it."""
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, dict):
        return FrozenDict({key: frozen(part) for key, part in value.items()})
    if isinstance(value, list):
        return FrozenList(frozen(part) for part in value)
    if type(value) is tuple:
        return tuple(frozen(part) for part in value)
    return value


def by_path(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by path, `{"training.lr": 1e-3}`; they may come nested, as `{"training": {"lr": 1e-3}}`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if "." not in name and isinstance(value, Mapping):
            flat |= {f"{name}.{option}": each for option, each in value.items()}
        else:
            flat[name] = value
    return flat
