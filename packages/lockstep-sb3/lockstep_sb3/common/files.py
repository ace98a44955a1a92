"""Files that are damaged, or of another kind."""

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
    """Raise `ValueError` that names the file if reading it fails. A missing file stays a `FileNotFoundError`.

    Args:
        path: the file that is read in this block.
        kind: words for the file that is expected, for the message.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except DAMAGE as error:
        raise ValueError(f"{path} is no readable {kind}: {error}") from error
