"""`Section`: a part of a configuration, which can be frozen."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any, ClassVar, NoReturn, Self

FROZEN = "this configuration is frozen; change a copy()"


class Section:
    """Base of the dataclasses that hold the options of a configuration."""

    shared: ClassVar[tuple[str, ...]] = ()
    """options of which copies have the same object"""

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_frozen"):
            raise ValueError(FROZEN)
        object.__setattr__(self, name, value)

    def freeze(self) -> None:
        """From now on setting an option raises `ValueError`, and so does changing a dict or list in place."""
        for field in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, frozen(getattr(self, field.name)))
        object.__setattr__(self, "_frozen", True)

    def copy(self) -> Self:
        """An independent section that is not frozen."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        kept = {id(options[name]): options[name] for name in self.shared}
        return replace(self, **copy.deepcopy(options, kept))  # type: ignore[type-var]


def _refuse(*_: Any, **__: Any) -> NoReturn:
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


def frozen(value: Any) -> Any:
    """`value` with all its dicts, lists and sets, nested ones too, as ones that refuse changes; equal to it."""
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, dict):
        return FrozenDict({key: frozen(part) for key, part in value.items()})
    if isinstance(value, list):
        return FrozenList(frozen(part) for part in value)
    if type(value) is tuple:
        return tuple(frozen(part) for part in value)
    return value
