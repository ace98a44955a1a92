"""Objects that cannot be copied say so, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def no_copies(holds: str, instead: str) -> Callable[..., Any]:
    """A `__reduce__` for a class whose objects hold what cannot be copied: `copy` and `pickle` raise `TypeError`."""

    def __reduce__(self: object) -> NoReturn:
        raise TypeError(f"this {type(self).__name__} holds {holds} and is neither copied nor pickled; {instead}")

    return __reduce__
