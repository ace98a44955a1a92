"""Messages that several parts share: how to install an extra, why an object is not copied."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires
from typing import Any, NoReturn

DISTRIBUTION = "lockstep-rl"


def install_hint(extra: str) -> str:
    """Return the command that installs what an extra needs: `"pip install 'ray>=2.40'"`.

    The versions are those of the installed distribution's metadata (`pyproject.toml`).
    """
    try:
        found = requires(DISTRIBUTION) or []
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
