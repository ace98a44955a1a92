"""Errors that name a damaged file."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAMAGE = (
    *(KeyError, ValueError, OSError, EOFError, AttributeError, TypeError, IndexError),
    *(OverflowError, RuntimeError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""Errors that reading a damaged file can raise, whichever library finds the damage first."""


@contextmanager
def naming_damage(path: Path, kind: str) -> Iterator[None]:
    """Return a context in which an error of reading becomes a `ValueError` that names the file.

    A missing file raises `FileNotFoundError`.

    Args:
        path: File that is read in the context.
        kind: Description of the expected file, for the message.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except DAMAGE as error:
        raise ValueError(f"{path} is no readable {kind}: {error}") from error
