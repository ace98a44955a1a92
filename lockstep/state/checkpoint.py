"""Checkpoints: trees of state as a directory of JSON and safetensors files under a manifest.

A checkpoint is written beside its place under a hidden name, every file and directory is synced to the
disk, the manifest (sizes and SHA-256 of all files) comes last, and one rename puts the whole in place. A
process that is killed at any moment leaves the old state or the new one, never a mixture. Nothing is ever
unpickled.

Every folder inside a checkpoint has a manifest of its own and is thereby a checkpoint that can be moved,
checked and read by itself (one module out of a group, say).
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lockstep._version import __version__
from lockstep.state.replace import clear_stale, move_into_place, sync_directory, temporary_sibling
from lockstep.state.tree import (
    Array,
    StateTree,
    StateTypeError,
    decode,
    encode,
    is_array,
    parse_tensor_file,
    tensor_file_chunks,
    why_not_storable,
)

FORMAT = 1
MANIFEST = "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or is missing, damaged, foreign, or too new. The message says which."""


class SealedArrays(dict[str, Any]):
    """A flat dict of arrays of which the owner says: as long as this object is used, they do not change.

    When it is written to a checkpoint as a top-level key, it remembers the file. The next checkpoint on the same
    file system gets that file under a second name (a hard link), which costs next to nothing. Where that does not
    work (the older checkpoint is gone, or on another disk) the arrays are written again. It is read as a dict.
    """

    __slots__ = ("_entry", "_home")

    def __init__(self, *arrays: Any, **more: Any) -> None:
        super().__init__(*arrays, **more)
        self._home: tuple[Path, int, int] | None = None
        self._entry: dict[str, Any] = {}

    def link_to(self, path: Path) -> dict[str, Any] | None:
        """Put the file written before at `path` too; return its size and SHA-256, or None where that does not work."""
        if self._home is None:
            return None
        home, inode, changed = self._home
        try:
            os.link(home, path)
        except OSError:
            self._home = None
            return None
        found = path.stat()
        if (found.st_ino, found.st_mtime_ns) != (inode, changed):  # another file has taken its place
            path.unlink()
            self._home = None
            return None
        return dict(self._entry)

    def written_to(self, path: Path, entry: dict[str, Any]) -> None:
        """Remember that the file at `path` holds these arrays."""
        with contextlib.suppress(OSError):
            found = path.stat()
            self._home, self._entry = (path, found.st_ino, found.st_mtime_ns), dict(entry)


def write_checkpoint(
    path: str | os.PathLike[str] | None,
    folders: Mapping[str, Mapping[str, Any]],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write trees of state as one checkpoint directory and return its absolute path.

    `folders` maps a folder inside the checkpoint ("" is its root, "learner/rl_module/p0" a nested one) to a
    tree. Each top-level key `k` of a tree becomes `k.safetensors` where its value is a non-empty flat dict
    of arrays, else `k.json` (with `k.safetensors` beside it when there are arrays inside). `metadata`
    (plain JSON values) goes into the manifest. What `read_checkpoint` returns equals what was given, types
    included; dict subclasses come back as dict, tensors on the CPU.

    `path` None: a new folder below the system's folder for temporary files.
    An older checkpoint at `path` is replaced at once (atomically where the system can swap two names); any
    other non-empty file or directory there is refused.

    Raises:
        CheckpointError: a value that has no safe form on disk, an illegal name, something else at `path`,
            or the disk's refusal (full, read-only, no such place). Nothing half-written is left.
    """
    path = Path(tempfile.mkdtemp(prefix="lockstep_")) / "checkpoint" if path is None else path
    target = Path(path).absolute()
    _check_target(target)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_stale(target.parent)
        temporary = temporary_sibling(target)
        temporary.mkdir()
        files: dict[str, dict[str, Any]] = {}
        for folder, tree in folders.items():
            for part in folder.split("/") if folder else ():
                _check_name(part, f"folder {folder!r}")
            _write_folder(temporary, folder, tree, files)
        _write_manifests(temporary, list(folders), files, dict(metadata or {}))
        move_into_place(temporary, target)
        _remember_sealed(target, folders, files)
    except StateTypeError as error:
        raise CheckpointError(f"cannot write checkpoint {target}: {error}") from error
    except RecursionError as error:
        raise CheckpointError(f"cannot write checkpoint {target}: a tree of state contains itself") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"cannot write checkpoint {target}: {reason}. Nothing half-written is left; earlier checkpoints "
            "are untouched. Free space or choose another place, then save again."
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, StateTree]:
    """Return the trees of a checkpoint, or of any folder inside one, as `write_checkpoint` was given them.

    Every file is checked against the manifest before it is understood.

    Raises:
        CheckpointError: no checkpoint there, a damaged one (the file is named), or one of a newer format.
    """
    root = Path(path).absolute()
    manifest = _read_manifest(root)
    contents: dict[PurePosixPath, bytes] = {}
    for name, entry in manifest["files"].items():
        content = _read_verified(root, name, entry)
        if PurePosixPath(name).name != MANIFEST:
            contents[PurePosixPath(name)] = content
    folders: dict[str, StateTree] = {folder: {} for folder in manifest["folders"]}
    for folder, keys in manifest["folders"].items():
        for key in keys:
            base = PurePosixPath(folder)
            try:
                value = _parse_entry(
                    contents.pop(base / f"{key}.json", None), contents.pop(base / f"{key}.safetensors", None)
                )
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise CheckpointError(f"checkpoint {root}: cannot understand {str(base / key)!r}: {error}") from error
            folders[folder][key] = value
    return folders


def verify_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Check every file of a checkpoint by size and SHA-256 and return its manifest.

    The manifest's keys: `format`, `lockstep_version`, `created_ns` (since 1970), `metadata`, `folders`
    (folder -> top-level keys), `files` (name -> size, sha256).

    Raises:
        CheckpointError: as `read_checkpoint`.
    """
    root = Path(path).absolute()
    manifest = _read_manifest(root)
    for name, entry in manifest["files"].items():
        _read_verified(root, name, entry)
    return manifest


def newest_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """Return the newest intact checkpoint among the directories in `directory`; None where there is none.

    Newest by the time of writing. A damaged or foreign directory is named by a warning and passed over;
    hidden ones (a save that was killed) are not looked at.
    """
    parent = Path(directory).absolute()
    if not parent.is_dir():
        return None
    candidates = [child for child in parent.iterdir() if child.is_dir() and not child.name.startswith(".")]
    for candidate in sorted(candidates, key=_age_key, reverse=True):
        try:
            verify_checkpoint(candidate)
        except CheckpointError as error:
            warnings.warn(f"passed over {candidate.name}: {error}", RuntimeWarning, stacklevel=2)
        else:
            return candidate
    return None


def _age_key(path: Path) -> tuple[int, str]:
    try:
        return int(_read_manifest(path)["created_ns"]), path.name
    except CheckpointError:
        return path.stat().st_mtime_ns, path.name


# Writing


def _check_target(target: Path) -> None:
    if target.is_dir():
        if (target / MANIFEST).exists() or not any(target.iterdir()):
            return
        raise CheckpointError(
            f"cannot write checkpoint {target}: the directory holds something that is no checkpoint. "
            "Give a new or empty path."
        )
    if target.exists():
        raise CheckpointError(f"cannot write checkpoint {target}: a file is in its place. Give another path.")


def _check_name(name: object, what: str) -> None:
    legal = isinstance(name, str) and 0 < len(name.encode("utf-8", "replace")) <= 200 and name.isprintable()
    if not legal or str(name)[0] == "." or str(name).endswith(" ") or any(mark in str(name) for mark in '/\\:*?"<>|'):
        raise CheckpointError(
            f"cannot write a checkpoint with the {what}: names become file names, so they must be printable "
            'text of at most 200 bytes without / \\ : * ? " < > | and without a dot in front'
        )


def _write_folder(root: Path, folder: str, tree: Mapping[str, Any], files: dict[str, dict[str, Any]]) -> None:
    directory = root / folder
    directory.mkdir(parents=True, exist_ok=True)
    for key, value in tree.items():
        _check_name(key, f"key {key!r}")
        if key == PurePosixPath(MANIFEST).stem:
            raise CheckpointError(f"the key {key!r} is taken by the checkpoint's own manifest: use another name")
        base = f"{folder}/{key}" if folder else key
        arrays: dict[str, Array] = {}
        if _is_flat(value):
            arrays = dict(value)
        else:
            text = json.dumps(encode(value, key, arrays), indent=1, allow_nan=False)
            files[f"{base}.json"] = _write_file(root / f"{base}.json", [text.encode("ascii")])
        if arrays:
            name = f"{base}.safetensors"
            linked = value.link_to(root / name) if isinstance(value, SealedArrays) else None
            files[name] = linked or _write_file(root / name, tensor_file_chunks(arrays))


def _remember_sealed(
    target: Path, folders: Mapping[str, Mapping[str, Any]], files: Mapping[str, dict[str, Any]]
) -> None:
    for folder, tree in folders.items():
        for key, value in tree.items():
            name = f"{folder}/{key}.safetensors" if folder else f"{key}.safetensors"
            if isinstance(value, SealedArrays) and name in files:
                value.written_to(target / name, files[name])


def _is_flat(value: object) -> bool:
    """Return whether this is a non-empty dict from text to arrays, which needs no JSON beside its safetensors file."""
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(type(name) is str and name != "__metadata__" and name.isprintable() for name in value)
        and all(is_array(item) and why_not_storable(item) is None for item in value.values())
    )


def _write_file(path: Path, chunks: Iterable[Any]) -> dict[str, Any]:
    digest = hashlib.sha256()
    size = 0
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def _write_manifests(
    root: Path, folders: list[str], files: dict[str, dict[str, Any]], metadata: dict[str, Any]
) -> None:
    """Write a manifest for each folder and each folder above one, deepest first, so that each covers those below."""
    keys: dict[str, list[str]] = {folder: [] for folder in folders}
    for name in files:
        folder, _, file = name.rpartition("/")
        key = file.rpartition(".")[0]
        if key not in keys[folder]:
            keys[folder].append(key)
    above = {str(parent) for folder in folders for parent in PurePosixPath(folder).parents}
    places = {"" if place == "." else place for place in above} | set(folders) | {""}
    created = time.time_ns()
    for place in sorted(places, key=lambda name: (-len(PurePosixPath(name).parts), name)):
        prefix = f"{place}/" if place else ""
        inside = [name for name in keys if name == place or name.startswith(prefix)]
        manifest = {
            "format": FORMAT,
            "lockstep_version": __version__,
            "created_ns": created,
            "metadata": metadata,
            "folders": {name[len(prefix) :]: keys[name] for name in inside},
            "files": {name[len(prefix) :]: entry for name, entry in files.items() if name.startswith(prefix)},
        }
        try:
            text = json.dumps(manifest, indent=1, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"checkpoint metadata must be plain JSON values: {error}") from error
        files[f"{prefix}{MANIFEST}"] = _write_file(root / place / MANIFEST, [text.encode("ascii")])
        sync_directory(root / place)


# Reading


def _read_manifest(root: Path) -> dict[str, Any]:
    file = root / MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        found = "has no manifest.json" if root.is_dir() else "is not a directory"
        raise CheckpointError(f"no checkpoint at {root}: it {found}") from error
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {root}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"damaged checkpoint {root}: {MANIFEST} is not valid JSON ({error})") from error
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"checkpoint {root} has format {version}, written by lockstep "
            f"{manifest.get('lockstep_version')}; this is lockstep {__version__}, which reads formats up to "
            f"{FORMAT}. Upgrade lockstep-rl to read it."
        )
    if version != FORMAT or not _is_sound(manifest):
        raise CheckpointError(f"no lockstep checkpoint at {root}: its {MANIFEST} is foreign or damaged")
    return dict(manifest)


def _is_sound(manifest: dict[str, Any]) -> bool:
    files, folders = manifest.get("files"), manifest.get("folders")
    return (
        isinstance(manifest.get("created_ns"), int)
        and isinstance(manifest.get("metadata"), dict)
        and isinstance(files, dict)
        and all(isinstance(entry, dict) and {"size", "sha256"} <= set(entry) for entry in files.values())
        and isinstance(folders, dict)
        and all(isinstance(keys, list) and all(isinstance(key, str) for key in keys) for keys in folders.values())
    )


def _read_verified(root: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise CheckpointError(f"damaged checkpoint {root}: its manifest points outside, to {name!r}")
    try:
        content = (root / inside).read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"damaged checkpoint {root}: {name} is missing") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {name} of checkpoint {root}: {error.strerror or error}") from error
    if len(content) != entry["size"]:
        raise CheckpointError(f"damaged checkpoint {root}: {name} has {len(content)} bytes, not {entry['size']}")
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"damaged checkpoint {root}: the content of {name} is not what was written (SHA-256)")
    return content


def _parse_entry(text: bytes | None, tensors: bytes | None) -> Any:
    arrays = {} if tensors is None else parse_tensor_file(tensors)
    if text is not None:
        return decode(json.loads(text), arrays)
    if tensors is None:
        raise ValueError("the manifest lists neither its .json nor its .safetensors")
    return arrays
