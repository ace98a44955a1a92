"""The user's trust in files, and signatures by which the user's own files are recognised.

A signature is an HMAC of names and arguments in a file, with a key that only the user can read. `state/trust.py`
decides what needs trust or a signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TRUST_VARIABLE = "LOCKSTEP_TRUST"
"""Environment variable by which the user trusts all files, for jobs that a scheduler starts again."""
HOW_TO_TRUST = f"pass trust=True (on the command line --trust, for jobs that a scheduler starts {TRUST_VARIABLE}=1)"
"""Part of messages that says how to trust a file."""
SIGNATURES = "signatures.json"
"""Name of a file that `lockstep trust` writes: signatures of those files below its folder that hold none themselves."""


def trusts_files(trust: bool = False) -> bool:
    """Return whether the user trusts files: by the argument `trust`, or by `LOCKSTEP_TRUST=1`."""
    return bool(trust) or os.environ.get(TRUST_VARIABLE, "") not in ("", "0")


def signature_of(payload: object) -> str | None:
    """Return the user's signature over `payload`, which consists of plain values and arrays.

    The key is created on first use, in the user's configuration folder, readable by its owner only. Without a place for
    a key the result is None.
    """
    key = _user_key(create=True)
    return None if key is None else _authenticate(key, payload)


def is_signature(payload: object, signature: object, file: str | Path | None = None) -> bool:
    """Return whether the user has signed `payload`.

    Args:
        payload: Plain values and arrays.
        signature: The result of `signature_of` that is stored with the payload, or anything else from the file.
        file: Path of the file. A `signatures.json` above it may hold the signature instead.
    """
    key = _user_key(create=False)
    if key is None:
        return False
    expected = _authenticate(key, payload)
    candidates = [signature, *_signatures_above(file)]
    # `compare_digest` takes the same time for every text: a guess cannot be improved letter by letter.
    return any(isinstance(each, str) and hmac.compare_digest(each.encode(), expected.encode()) for each in candidates)


def write_signatures(folder: str | Path, payloads: Sequence[object]) -> Path:
    """Sign payloads that were read from files in `folder`, and add the signatures to its `signatures.json`.

    Returns:
        The path of `signatures.json`.

    Raises:
        ValueError: There is no place for the user's key.
    """
    signatures = [signature_of(payload) for payload in payloads]
    path = Path(folder) / SIGNATURES
    if None in signatures:
        raise ValueError(
            f"nothing can be signed: no key can be kept in {_key_path() or 'a home folder'}. Set HOME (or "
            f"XDG_CONFIG_HOME) to a folder of your own, or {HOW_TO_TRUST}"
        )
    known = set(_signatures_in(path))
    text = json.dumps({"signatures": sorted(known.union(map(str, signatures)))}, indent=1) + "\n"
    path.write_text(text, encoding="utf-8")
    return path


def _authenticate(key: bytes, payload: object) -> str:
    """Return the signature of `payload` with a key: an HMAC of its canonical form."""
    text = json.dumps(["lockstep", _canonical(payload)], ensure_ascii=True)
    return hmac.new(key, text.encode("ascii"), hashlib.sha256).hexdigest()


def _canonical(value: object) -> Any:
    """Return `value` in a form whose JSON is equal before the value is written to a file and after it is read.

    A round trip turns tuples into lists, number keys into text and numpy scalars into numbers, and loses the order of
    keys.
    """
    if isinstance(value, Mapping):
        pairs = [[str(key), _canonical(part)] for key, part in value.items()]
        return {"dict": sorted(pairs, key=lambda pair: pair[0])}
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    if isinstance(value, np.generic):
        return _canonical(value.item())
    if isinstance(value, np.ndarray):
        return {"array": [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]}
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, str) else value
    return {"other": repr(value)}


def _signatures_above(file: str | Path | None) -> list[str]:
    """Return the signatures in the nearest `signatures.json` at or above `file`.

    Five folders up are enough for any file of a run. A higher folder, such as the home folder, is not searched.
    """
    if file is None:
        return []
    path = Path(file).absolute()
    for folder in (path, *path.parents[:5]):
        if (folder / SIGNATURES).is_file():
            return _signatures_in(folder / SIGNATURES)
    return []


def _signatures_in(path: Path) -> list[str]:
    """Return the signatures in a `signatures.json`, or an empty list if it is missing or damaged."""
    try:
        signatures = json.loads(path.read_bytes())["signatures"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not isinstance(signatures, list):
        return []
    return [each for each in signatures if isinstance(each, str)]


_KEY_BYTES = 32
"""Length of a key."""
_KEYS: dict[Path, bytes] = {}
"""Keys that were read in this process, by the path of their file."""


def _key_path() -> Path | None:
    """Return the path of the user's key, or None without a home folder."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(configured):
        return Path(configured) / "lockstep" / "trust.key"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".config" / "lockstep" / "trust.key" if home.is_dir() else None


def _user_key(*, create: bool) -> bytes | None:
    """Return the user's key, which is made if there is none and `create`; otherwise None."""
    path = _key_path()
    if path is None:
        return None
    if path not in _KEYS:
        key = _read_key(path)
        if key is None and create and not path.exists():
            key = _make_key(path)
        if key is None:
            return None
        _KEYS[path] = key
    return _KEYS[path]


def _read_key(path: Path) -> bytes | None:
    """Return the key in a file that only the user can read and write, or None for any other file.

    A key that others know or can replace is worthless: they could sign files in the user's name.
    """
    try:
        # No symbolic link: it may lead to another user's file.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        # The status of the open file: the path may lead to another file by now.
        status = os.fstat(descriptor)
        is_private = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)
        key = b""
        if is_private and stat.S_ISREG(status.st_mode):
            key = file.read(_KEY_BYTES + 1)  # one more, so that a longer file is refused
    if len(key) == _KEY_BYTES:
        return key
    warnings.warn(
        f"{path} is not used: it must be a file of {_KEY_BYTES} bytes that belongs to you and that nobody else can "
        "read. Your own runs are not recognised without it; delete it, and a new one is made",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _make_key(path: Path) -> bytes | None:
    """Create the key file and return the key, or the key that another process has just created.

    The result is None if no file can be created.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            # Complete before it has its name, and unlike a rename a link never replaces the key of another process.
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    except OSError:
        return None
    return _read_key(path)
