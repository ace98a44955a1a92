"""Options of a configuration, which are fields of a section.

An option is declared once, with its type, limits and default. It is checked whenever it is set, and a configuration can
be frozen.
"""

from __future__ import annotations

import copy
import itertools
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, field, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar, Union, cast

import numpy as np

from lockstep.options.checks import Limits, is_number, is_whole
from lockstep.options.schedules import Schedule

FROZEN = "this configuration is frozen; change a copy()"
"""Message of the `ValueError` that a frozen configuration raises."""


def option(default: Any = MISSING, *, factory: Callable[[], Any] | Any = MISSING, **limits: Any) -> Any:
    """Return a dataclass field that declares an option with its default and limits.

    The docstring below the field describes the option. Limits apply to a number, to each value of a schedule and to the
    values of a dict. None and text are checked by the field's type alone.

    Args:
        default: Value of the option unless another is set.
        factory: Function that makes the default, for mutable ones (a list, a dict). Replaces `default`.
        limits: `ge`, `gt`, `le`, `lt` (at least, above, at most, below). `finite=True` refuses infinity.
    """
    return field(default=default, default_factory=factory, metadata={"limits": Limits(**limits)})


_IMMUTABLE_TYPES = (bool, int, float, str, NoneType)
"""Types of most options. A value of these is its own copy."""

ConfigT = TypeVar("ConfigT", covariant=True)
"""Class of the configuration that a section belongs to."""


class Section(Generic[ConfigT]):
    """Base of the dataclasses that hold the options of a configuration.

    `config.training.lr` reads an option. `config.training(lr=1e-3)` sets options and returns the configuration. Each
    subclass names its options in the signature of `__call__`, for editors and type checkers.

    An option is checked against the type and the limits of its field whenever it is set, also by the constructor.

    Raises:
        TypeError: A value has another type than its field.
        ValueError: A number is beyond its limits, a text is not one of the choices, or a schedule is not possible. The
            message names the option, its value and what is allowed. Also if the section is frozen.
    """

    name: ClassVar[str] = ""
    """Name of the section in a configuration."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Names of the options whose object a copy of the section shares. All others are copied deeply."""
    _declarations: ClassVar[Mapping[str, tuple[Any, Limits]]]
    _defaults: ClassVar[Mapping[str, object]]

    def __setattr__(self, name: str, value: object) -> None:
        if self.__dict__.get("_frozen"):
            raise ValueError(FROZEN)
        if name in self.declared():
            value = self._checked(name, value)
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the options without the configuration, which calls `join` again when it is unpickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_config"}

    def join(self, config: ConfigT) -> Self:  # type: ignore[misc]
        """Attach this section to `config`, and return the section."""
        # Bypasses `__setattr__`, because a frozen section may be attached as well.
        object.__setattr__(self, "_config", config)
        return self

    def change(self, options: Mapping[str, object]) -> ConfigT:
        """Set options and return the configuration.

        The configuration sets them, because its message about an unknown option suggests options of other sections.
        """
        config: ConfigT = self.__dict__["_config"]
        config.set_section(self.name, options)  # type: ignore[attr-defined]
        return config

    def set_options(self, options: Mapping[str, object]) -> None:
        """Set several options. If one of them is refused, none is set."""
        if self.__dict__.get("_frozen"):
            raise ValueError(FROZEN)
        checked = {name: self._checked(name, value) for name, value in options.items()}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def _path_of(cls, name: str) -> str:
        """Return the name of an option with that of its section, for messages: `"training.lr"`."""
        return f"{cls.name}.{name}" if cls.name else name

    def _checked(self, name: str, value: object) -> Any:
        """Return the value to store for an option. Raises `TypeError` or `ValueError` if it is not allowed."""
        value = self.prepare(name, value)
        if value is not self._checked_defaults().get(name, MISSING):
            _check(self._path_of(name), value, *self.declared()[name])
        return value

    @classmethod
    def _checked_defaults(cls) -> Mapping[str, object]:
        """Return the immutable defaults by name, which are checked once for the class.

        Configurations are made and copied often, and most of their options have the default: a value that is the
        default object itself need not be checked again.
        """
        # `vars`, not `hasattr`: a subclass must not find the defaults of its base.
        if "_defaults" not in vars(cls):
            options = {each.name: each.default for each in fields(cls) if type(each.default) in _IMMUTABLE_TYPES}  # type: ignore[arg-type]
            for name, value in options.items():
                _check(cls._path_of(name), value, *cls.declared()[name])
            cls._defaults = options
        return cls._defaults

    @classmethod
    def declared(cls) -> Mapping[str, tuple[Any, Limits]]:
        """Return the type and the limits of each option, by name."""
        if "_declarations" not in vars(cls):
            hints = typing.get_type_hints(cls)
            options = [each.name for each in fields(cls)]  # type: ignore[arg-type]
            cls._declarations = {name: (hints[name], _limits_of(cls, name)) for name in options}
        return cls._declarations

    def prepare(self, name: str, value: object) -> Any:
        """Return the form in which an option is stored. Sections that accept several forms override this."""
        return value

    def validate(self) -> None:
        """Check that the options fit together. Sections override this.

        Raises:
            ValueError: Two options exclude each other; the message names both.
        """

    def check_schedules(self, steps: Sequence[int]) -> None:
        """Check the values at `steps` of all schedules that are functions, so that a run does not stop there.

        Raises:
            ValueError: A function returns a value that `Schedule` refuses.
        """
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
        """Return all options by name. The values are not copied."""
        return {name: getattr(self, name) for name in self.declared()}

    def freeze(self) -> None:
        """Freeze the section: every later change raises `ValueError`, also a change of a dict or list in place."""
        for name, value in self.options().items():
            object.__setattr__(self, name, frozen(value))
        object.__setattr__(self, "_frozen", True)

    def copy(self) -> Self:
        """Return an independent copy of the section that is not frozen."""
        options = self.options()
        # An object in the memo of `deepcopy` counts as copied already, so it is shared.
        memo = {id(options[name]): options[name] for name in self.shared}
        new = object.__new__(type(self))
        # Bypasses `__setattr__` for speed: the values were checked when they were set.
        for name, value in options.items():
            vars(new)[name] = value if type(value) in _IMMUTABLE_TYPES else copy.deepcopy(value, memo)
        return new


# -- checks ---


def _limits_of(section: type, name: str) -> Limits:
    """Return the limits that the section or its nearest base class declares for an option.

    So a subclass that only changes the default keeps the limits.
    """
    for owner in section.__mro__:
        declared = vars(owner).get("__dataclass_fields__", {}).get(name)
        if declared is not None and "limits" in declared.metadata:
            return cast(Limits, declared.metadata["limits"])
    return Limits()


def _check(name: str, value: object, hint: object, limits: Limits) -> None:
    """Raise `TypeError` or `ValueError` unless `value` has the type `hint` and is within the limits."""
    has_type = _has_type(value, hint)
    if has_type and _limits_allow(name, value, hint, limits):
        return
    is_value_error = has_type or _is_unknown_choice(value, hint)
    error = ValueError if is_value_error else TypeError
    raise error(f"{name}={value!r} is not allowed; it must be {_description(hint, limits)}")


def _limits_allow(name: str, value: object, hint: object, limits: Limits) -> bool:
    """Return whether the limits allow a value: a number, all values of a dict, or all values of a schedule's points."""
    if is_number(value):
        return limits.allow(value)
    if isinstance(value, Mapping):
        return all(limits.allow(part) for part in value.values() if is_number(part))
    if _is_schedule(hint) and isinstance(value, _POINTS):
        Schedule(value, name)  # raises `ValueError` for points that do not make a schedule
        first, *later = (point[1] for point in value)
        return limits.allow(first) and all(map(limits.allow_after, later))
    return True


def _is_schedule(hint: object) -> bool:
    """Return whether a type is `ScheduleLike`, or `ScheduleLike | None`."""
    parts = typing.get_args(hint)
    return float in parts and any(typing.get_origin(part) is _FUNCTION for part in parts)


_UNIONS = (Union, UnionType)
_FUNCTION: Any = Callable
_POINTS: Any = (list, tuple, np.ndarray)
"""Types of the points of a schedule."""


def _has_type(value: object, hint: object) -> bool:
    """Return whether `value` has the type `hint`, as far as the values of options need it.

    It differs from `isinstance` in what users write and JSON stores: NumPy's numbers are numbers, True is not one, a
    text is not a sequence, and a tuple may be a list.
    """
    origin = typing.get_origin(hint)
    parts = typing.get_args(hint)
    if _is_schedule(hint):
        if value is None:
            return NoneType in parts
        return is_number(value) or isinstance(value, _POINTS) or callable(value)
    if origin in _UNIONS:
        return any(_has_type(value, part) for part in parts)
    if origin is Literal:
        # The type as well: True equals 1.
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
        return kind in (str, object)  # not a collection of letters
    if issubclass(kind, Mapping):
        if not isinstance(value, Mapping):
            return False
        items = value.items() if parts else ()
        return all(_has_type(key, parts[0]) and _has_type(part, parts[1]) for key, part in items)
    if issubclass(kind, Collection):
        kinds = (list, tuple) if kind in (list, tuple) else kind  # JSON has only lists
        return isinstance(value, kinds) and all(_has_type(each, parts[0]) for each in value if parts)
    return isinstance(value, kind)


def _is_unknown_choice(value: object, hint: object) -> bool:
    """Return whether `value` is or contains a text in the place of a choice, which is a `ValueError`."""
    if typing.get_origin(hint) is Literal:
        return isinstance(value, str)
    values = value if isinstance(value, list | tuple) else [value]
    pairs = itertools.product(typing.get_args(hint), values)
    return any(_is_unknown_choice(each, part) for part, each in pairs)


_WORDS: dict[object, str] = {bool: "True or False", str: "a text", NoneType: "None", type: "a class"}


def _description(hint: object, limits: Limits) -> str:
    """Return the words of a message for the values that a type and limits allow, such as "a number, at least 0"."""
    origin = typing.get_origin(hint)
    parts = typing.get_args(hint)
    kind = origin or hint
    if _is_schedule(hint):
        text = f"{_description(float, limits)}, points [[0, v0], [t1, v1], ...], or a function of the step"
        return f"{text}, or None" if NoneType in parts else text
    if origin in _UNIONS:
        return ", or ".join(dict.fromkeys(_description(part, limits) for part in parts))
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}" if len(parts) > 1 else repr(parts[0])
    if kind is int:
        return f"a whole number{limits}"
    if kind is float:
        name = "a finite number" if limits.finite else "a number"
        return f"{name}{limits}"
    if kind is _FUNCTION:
        return "a function"
    if isinstance(kind, type) and kind is not str and issubclass(kind, Collection):
        name = "a dict" if issubclass(kind, Mapping) else "a list"
        if not parts or parts[-1] is Any:
            return name
        return f"{name} with each item {_description(parts[-1], limits)}"
    return _WORDS.get(hint) or f"a {getattr(kind, '__name__', hint)}"


# -- freezing ---


def _refuse(*_: object, **__: object) -> NoReturn:
    """Raise `ValueError`: the method of a frozen dict or list that would change it."""
    raise ValueError(FROZEN)


class FrozenDict(dict[Any, Any]):
    """Dict of a frozen configuration, whose changes raise `ValueError`. A deep copy or pickle of it is a plain dict."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> Any:
        return dict, (list(self.items()),)


class FrozenList(list[Any]):
    """List of a frozen configuration, whose changes raise `ValueError`. A deep copy or pickle of it is a plain list."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = sort = reverse = clear = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> Any:
        return list, (tuple(self),)


def frozen(value: object) -> Any:
    """Return an equal value whose dicts, lists and sets, also nested ones, cannot be changed."""
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, dict):
        return FrozenDict({key: frozen(part) for key, part in value.items()})
    if isinstance(value, list):
        return FrozenList(frozen(part) for part in value)
    if type(value) is tuple:  # not a named tuple, whose constructor takes other arguments
        return tuple(frozen(part) for part in value)
    return value


def settings_by_path(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a flat dict by path, such as `{"training.lr": 1e-3}`.

    Args:
        settings: Settings by path, or by section: `{"training": {"lr": 1e-3}}`.
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if "." not in name and isinstance(value, Mapping):
            flat |= {f"{name}.{option}": each for option, each in value.items()}
        else:
            flat[name] = value
    return flat
