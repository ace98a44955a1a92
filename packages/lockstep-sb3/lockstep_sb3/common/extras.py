"""Errors that name the command which installs an optional package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.options import install_hint


@contextmanager
def naming_extra(user: str, extra: str, distribution: str = "lockstep-sb3") -> Iterator[None]:
    """Return a context in which a failed import becomes an `ImportError` that says what to install.

    Args:
        user: Function or class that needs the package, for the message.
        extra: Extra that the package belongs to.
        distribution: Distribution that declares the extra, "lockstep-sb3" or "lockstep-rl".
    """
    try:
        yield
    except ImportError as error:
        hint = install_hint(extra, distribution)
        raise ImportError(f"{user} needs a package that is not installed: {hint} ({error})") from error
