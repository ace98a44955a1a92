"""Checkpoints: directories of JSON and safetensors files with a manifest, which hold trees of state.

A checkpoint is written in this order, so that a process that is killed at any moment leaves the old state or the new
one, never a mixture:

1. All files are written under a hidden name next to the target. A reader never looks there.
2. The manifest, with the sizes and SHA-256 of all files, is written last: a directory without one is not a checkpoint,
   and one whose files differ from its manifest is damaged.
3. Every file and directory is synced to the disk. A rename may reach the disk before the content that was written
   earlier, and a power failure would then leave a checkpoint of empty files under its final name.
4. One rename puts the whole directory in place.

Nothing is ever unpickled: reading a checkpoint runs no code from it.

Every folder inside a checkpoint has its own manifest. So it is a checkpoint itself, which can be moved, verified and
read alone (one module of a group, for example).
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from lockstep._version import __version__
from lockstep.state.replace import (
    clear_stale,
    interrupted_replacements,
    move_into_place,
    readable_path,
    sync_tree,
    temporary_sibling,
)
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

FORMAT = 2
"""Format of new checkpoints. Format 1 (Lockstep 0.2) can be read as well. It has no `attempt` and `steps`, and no
checksum of the manifest."""
FIRST_READABLE_VERSION = (0, 2)
"""First version (major, minor) of Lockstep whose checkpoints can be read."""
MANIFEST = "manifest.json"
"""Name of the manifest's file."""
CHECKSUM = "sha256"
"""Key of the manifest's checksum of itself."""
ERROR = "error"
"""Name of the checkpoint of a run that ended with an error, next to the checkpoints of healthy states."""
VERIFIED_EACH_TIME = 256 << 20
"""Largest size in bytes of a shared file that is verified each time it is shared. A larger one is verified once in a
process, because reading it takes longer than a training step may wait."""


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or is missing, damaged, foreign, or too new. The message says which."""


@dataclass
class _SharedFile:
    """File of an earlier checkpoint that later ones may share by hard links."""

    path: Path
    inode: int
    """Inode when the file was written. Another one is another file under the same name."""
    changed_ns: int
    """Time of the last change when the file was written."""
    entry: dict[str, Any]
    """Size and SHA-256, as in the manifest."""
    is_verified: bool = False
    """Whether the content was read back and compared in this process."""

    def link_to(self, path: Path) -> bool:
        """Link the file to the second name `path`. Return whether that was possible and the file is intact."""
        if not self._is_intact():
            return False
        try:
            os.link(self.path, path)
        except OSError:
            return False
        # Checked at the new name, which no other process replaces. A check of `self.path` before the link could be
        # outdated by then.
        status = path.stat()
        if (status.st_ino, status.st_mtime_ns) == (self.inode, self.changed_ns):
            return True
        path.unlink()
        return False

    def _is_intact(self) -> bool:
        """Return whether the file can be read and holds the content that was written.

        A damaged file must not be shared: one flipped bit would be in every later checkpoint, and no intact one would
        be left to resume from.
        """
        if self.entry["size"] > VERIFIED_EACH_TIME and self.is_verified:
            return True
        try:
            with open(self.path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return False
        self.is_verified = digest == self.entry["sha256"]
        return self.is_verified


class SealedTree(dict[str, Any]):
    """Dict of state whose owner promises that it does not change as long as this object is used.

    When it is written to a checkpoint as a top-level key, it remembers its files. The next checkpoint on the same file
    system shares these files by hard links, which takes almost no time; each file is verified first. If that is not
    possible (the older checkpoint is deleted, damaged, or on another disk), the dict is written again. It is read back
    as a plain dict.
    """

    __slots__ = ("_files",)

    def __init__(self, *content: Any, **more: object) -> None:
        super().__init__(*content, **more)
        # By suffix: a top-level key has up to two files, `.json` and `.safetensors`.
        self._files: dict[str, _SharedFile] = {}

    def content(self) -> Mapping[str, Any]:
        """Return the content to write: the dict itself. A subclass may compute it only when it is needed."""
        return self

    def link_to(self, base: Path) -> dict[str, dict[str, Any]] | None:
        """Link the files that were written before to new names: `base` with their suffixes.

        Returns:
            Size and SHA-256 of each file by suffix, or None if the files must be written again.
        """
        entries: dict[str, dict[str, Any]] = {}
        for suffix, file in self._files.items():
            path = base.with_name(base.name + suffix)
            if not file.link_to(path):
                # All files or none: the writer creates new files, and refuses names that exist.
                for linked in entries:
                    base.with_name(base.name + linked).unlink()
                self._files = {}
                return None
            entries[suffix] = dict(file.entry)
        return entries or None

    def remember_files(self, base: Path, entries: Mapping[str, dict[str, Any]]) -> None:
        """Remember the files that hold this dict: `base` with the suffixes of `entries`.

        Args:
            base: Path of the files without suffix.
            entries: Size and SHA-256 of each file by suffix.
        """
        before = self._files
        self._files = {}
        for suffix, entry in entries.items():
            path = base.with_name(base.name + suffix)
            try:
                status = path.stat()
            except OSError:
                self._files = {}
                return
            # A link to a verified file is the same content, which need not be verified again.
            is_verified = suffix in before and before[suffix].inode == status.st_ino and before[suffix].is_verified
            self._files[suffix] = _SharedFile(path, status.st_ino, status.st_mtime_ns, dict(entry), is_verified)


class SealedArrays(SealedTree):
    """`SealedTree` that is a flat dict of arrays."""

    __slots__ = ()


def write_checkpoint(
    path: str | os.PathLike[str] | None,
    folders: Mapping[str, Mapping[str, Any]],
    *,
    metadata: Mapping[str, Any] | None = None,
    steps: int = 0,
    attempt: int = 0,
    carried: Mapping[str, Path] | None = None,
) -> Path:
    """Write trees of state as one checkpoint directory, and return its absolute path.

    Each top-level key `k` of a tree becomes the file `k.safetensors` if its value is a non-empty flat dict of arrays.
    Otherwise it becomes `k.json`, with `k.safetensors` next to it if there are arrays in the value. `read_checkpoint`
    returns equal trees with the same types, except that subclasses of dict become dicts and tensors are on the CPU.

    Args:
        path: Directory of the checkpoint. An older checkpoint there is replaced (atomically if the system can swap two
            names); anything else there that is not empty is refused. None makes a new folder for temporary files.
        folders: Trees of state by folder inside the checkpoint. `""` is its root, `"learner/rl_module/p0"` a nested
            folder.
        metadata: Plain JSON values for the manifest.
        steps: Number of steps of the run. With `attempt` it orders the checkpoints of a run: `newest_checkpoint`
            returns the one with the most steps of the newest attempt.
        attempt: Number of the attempt at this run. It grows each time that the run is resumed.
        carried: Other checkpoints by name, to be kept inside this one by hard links (or as copies if links are not
            possible). A damaged one is left out with a warning. They are not read with this checkpoint;
            `carried_checkpoint` returns their path.

    Raises:
        CheckpointError: A value has no safe form on disk, a name is illegal, something else is at `path`, or the disk
            refuses (full, read-only, no such place). Nothing unfinished is left.
    """
    if path is None:
        path = Path(tempfile.mkdtemp(prefix="lockstep_")) / "checkpoint"
    target = Path(path).absolute()
    _check_target(target)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Before writing, because the leftovers of a killed save may fill the disk.
        clear_stale(target.parent)

        # The content goes to a hidden directory in the same folder, and so on the same file system, where a rename is
        # atomic.
        temporary = temporary_sibling(target)
        temporary.mkdir()
        files: dict[str, dict[str, Any]] = {}
        sealed: list[_WrittenTree] = []
        for folder, tree in folders.items():
            for part in folder.split("/") if folder else ():
                _check_name(part, f"folder {folder!r}")
            sealed += _write_folder(temporary, folder, tree, files)

        # The manifests come after all files, whose checksums they hold.
        facts = {
            "format": FORMAT,
            "lockstep_version": __version__,
            "created_ns": time.time_ns(),
            "attempt": attempt,
            "steps": steps,
            "metadata": dict(metadata or {}),
            "carried": _carry_all(temporary, carried or {}),
        }
        _write_manifests(temporary, list(folders), files, facts)

        # Everything must be on the disk before the rename, which makes it the newest checkpoint: see the top of this
        # file.
        sync_tree(temporary)
        move_into_place(temporary, target)

        # Sealed trees remember their files for the next checkpoint. After the rename, because these are final paths.
        for written in sealed:
            written.tree.remember_files(target / written.base, written.entries)
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
        # Also after a KeyboardInterrupt. After the rename there is nothing at this path any more.
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def read_checkpoint(path: str | os.PathLike[str], *, without: Collection[str] = ()) -> dict[str, StateTree]:
    """Return the trees of a checkpoint, or of a folder inside one, as `write_checkpoint` was given them.

    Args:
        path: Directory of the checkpoint.
        without: Folders that are neither verified nor returned, with all folders inside them.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged (the message names the file), or it has a newer format.
    """
    root = readable_path(Path(path).absolute())
    manifest = _read_manifest(root)

    # Every file is verified before any is parsed, from the same bytes: a file may change between two reads.
    contents: dict[PurePosixPath, bytes] = {}
    for name, entry in _entries(manifest, without):
        content = _read_verified(root, name, entry)
        if PurePosixPath(name).name != MANIFEST:
            contents[PurePosixPath(name)] = content

    folders: dict[str, StateTree] = {}
    for folder, keys in manifest["folders"].items():
        if _is_within(folder, without):
            continue
        folders[folder] = {}
        for key in keys:
            base = PurePosixPath(folder)
            # `pop`, so that a file's bytes are freed when its arrays exist.
            text = contents.pop(base / f"{key}.json", None)
            tensors = contents.pop(base / f"{key}.safetensors", None)
            try:
                value = _parse_entry(text, tensors)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise CheckpointError(f"checkpoint {root}: cannot understand {str(base / key)!r}: {error}") from error
            folders[folder][key] = value
    return folders


def verify_checkpoint(path: str | os.PathLike[str], *, without: Collection[str] = ()) -> dict[str, Any]:
    """Check the size and SHA-256 of every file of a checkpoint, and return its manifest.

    The keys of the manifest are `format`, `lockstep_version`, `created_ns` (nanoseconds since 1970), `attempt`,
    `steps`, `metadata`, `folders` (top-level keys of each folder), `files` (`size` and `sha256` of each file),
    `carried` (`size` and `sha256` of the manifest of each carried checkpoint), and `sha256` (of all other entries).

    Args:
        path: Directory of the checkpoint.
        without: Folders that are not verified, with all folders inside them.

    Raises:
        CheckpointError: As for `read_checkpoint`.
    """
    root = readable_path(Path(path).absolute())
    manifest = _read_manifest(root)
    for name, entry in _entries(manifest, without):
        _read_verified(root, name, entry)
    return manifest


def damaged_files(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the names of the files of a checkpoint that are damaged, missing or unreadable, each with the reason.

    Raises:
        CheckpointError: The manifest itself cannot be read.
    """
    root = readable_path(Path(path).absolute())
    reasons = {}
    for name, entry in _read_manifest(root)["files"].items():
        try:
            _read_verified(root, name, entry)
        except CheckpointError as error:
            reasons[name] = str(error)
    return reasons


def carried_checkpoint(path: str | os.PathLike[str], name: str) -> Path | None:
    """Return the path of the checkpoint that the one at `path` carries under `name`, or None if it carries none.

    The carried checkpoint is verified.

    Raises:
        CheckpointError: One of the two checkpoints is damaged.
    """
    root = readable_path(Path(path).absolute())
    entry = _read_manifest(root).get("carried", {}).get(name)
    if entry is None:
        return None
    # Its manifest must be the one that was carried: an intact checkpoint put there later is not.
    _read_verified(root, f"{name}/{MANIFEST}", entry)
    verify_checkpoint(root / name)
    return root / name


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of a checkpoint (see `verify_checkpoint`) without reading its other files.

    Raises:
        CheckpointError: As for `read_checkpoint`.
    """
    return _read_manifest(readable_path(Path(path).absolute()))


def copy_checkpoint(source: str | os.PathLike[str], target: Path) -> None:
    """Copy the checkpoint `source` to `target`, by hard links if possible. A checkpoint there is replaced.

    The order of the steps is that of `write_checkpoint`.

    Raises:
        CheckpointError: `source` is damaged, or `target` cannot be written.
    """
    _check_target(target)
    temporary = temporary_sibling(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        clear_stale(target.parent)
        _link_checkpoint(Path(source), temporary)
        sync_tree(temporary)
        move_into_place(temporary, target)
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def newest_checkpoint(directory: str | os.PathLike[str], *, without: Collection[str] = ()) -> Path | None:
    """Return the newest intact checkpoint among the directories in `directory`, or None if there is none.

    The newest is the one with the most steps of the newest attempt, whatever the clock said when it was written (see
    `checkpoints_in`). A damaged or foreign directory is passed over with a warning that names it. Folders in `without`
    are not verified.
    """
    for candidate in checkpoints_in(directory):
        try:
            verify_checkpoint(candidate, without=without)
        except CheckpointError as error:
            warnings.warn(f"passed over {candidate.name}: {error}", RuntimeWarning, stacklevel=2)
        else:
            return candidate
    return None


def checkpoints_in(directory: str | os.PathLike[str], *, unreadable_first: bool = True) -> list[Path]:
    """Return the directories in `directory` that may be checkpoints, newest first, without verifying them.

    They are ordered by attempt, then by steps, then by the time of writing. Hidden directories (of a save that was
    killed) and `error` (the state of a run at the error that ended it) are left out.

    Args:
        directory: Folder of the checkpoints.
        unreadable_first: Whether directories without a readable manifest come first, so that a search for the newest
            checkpoint reports them. Otherwise they come last.
    """
    parent = Path(directory).absolute()
    if not parent.is_dir():
        return []
    candidates = [child for child in parent.iterdir() if child.is_dir() and not child.name.startswith(".")]
    candidates += interrupted_replacements(parent)
    candidates = [child for child in candidates if child.name != ERROR]
    unreadable_rank = 1 if unreadable_first else -1
    return sorted(candidates, key=lambda child: _age_key(child, unreadable_rank), reverse=True)


def newest_attempt(directory: str | os.PathLike[str]) -> int:
    """Return the number of the newest attempt with a checkpoint in `directory`, or 0 if there is none."""
    attempts = [0]
    parent = Path(directory)
    for child in (*checkpoints_in(parent), parent / ERROR):
        with contextlib.suppress(CheckpointError):
            attempts.append(int(read_manifest(child).get("attempt", 0)))
    return max(attempts)


def _age_key(path: Path, unreadable_rank: int) -> tuple[int, int, int, int, str]:
    """Return the key by which checkpoints are sorted: rank (0, or `unreadable_rank`), attempt, steps, time and name.

    The name makes the order the same in every file system, if all else is equal.
    """
    try:
        manifest = read_manifest(path)
    except CheckpointError:
        return unreadable_rank, 0, 0, 0, path.name
    metadata = manifest["metadata"]
    steps = manifest.get("steps")
    if steps is None:  # format 1, where trainers wrote the steps to the metadata
        steps = metadata.get("env_step") or metadata.get("gradient_step") or 0
    return 0, int(manifest.get("attempt", 0)), int(steps), int(manifest["created_ns"]), path.name


# Writing


def _check_target(target: Path) -> None:
    """Raise `CheckpointError` if there is something at `target` that a checkpoint must not replace."""
    if target.is_dir():
        if (target / MANIFEST).exists() or not any(target.iterdir()):
            return
        raise CheckpointError(
            f"cannot write checkpoint {target}: the directory holds something that is not a checkpoint. "
            "Give a new or empty path."
        )
    if target.exists():
        raise CheckpointError(f"cannot write checkpoint {target}: a file is in its place. Give another path.")


def _check_name(name: object, what: str) -> None:
    """Raise `CheckpointError` unless `name` is a legal file name on every system.

    The limit of 200 bytes leaves room for a suffix within the 255 bytes that file systems allow.
    """
    is_short_text = isinstance(name, str) and 0 < len(name.encode("utf-8", "replace")) <= 200 and name.isprintable()
    text = str(name)
    if not is_short_text or text[0] == "." or text.endswith(" ") or any(mark in text for mark in '/\\:*?"<>|'):
        raise CheckpointError(
            f"cannot write a checkpoint with the {what}: names become file names, so they must be printable "
            'text of at most 200 bytes without / \\ : * ? " < > | and without a dot in front'
        )


class _WrittenTree(NamedTuple):
    """Sealed tree that was written to a checkpoint."""

    tree: SealedTree
    base: str
    """Name of its files without suffix, in the checkpoint."""
    entries: dict[str, dict[str, Any]]
    """Size and SHA-256 of its files by suffix."""


def _write_folder(
    root: Path, folder: str, tree: Mapping[str, Any], files: dict[str, dict[str, Any]]
) -> list[_WrittenTree]:
    """Write a tree to a folder below `root`, and return the sealed trees in it.

    Size and SHA-256 of each file are added to `files`, by name.
    """
    sealed = []
    directory = root / folder
    directory.mkdir(parents=True, exist_ok=True)
    for key, value in tree.items():
        _check_name(key, f"key {key!r}")
        if key == PurePosixPath(MANIFEST).stem:
            raise CheckpointError(f"the key {key!r} is taken by the checkpoint's own manifest: use another name")
        base = f"{folder}/{key}" if folder else key
        if isinstance(value, SealedTree):
            entries = value.link_to(root / base) or _write_value(root / base, key, value.content())
            sealed.append(_WrittenTree(value, base, entries))
        else:
            entries = _write_value(root / base, key, value)
        for suffix, entry in entries.items():
            files[f"{base}{suffix}"] = entry
    return sealed


def _write_value(base: Path, key: str, value: object) -> dict[str, dict[str, Any]]:
    """Write the value of a top-level key to the files `base` with a suffix.

    Returns:
        Size and SHA-256 of each file by suffix.
    """
    written = {}
    arrays: dict[str, Array] = {}
    if isinstance(value, Mapping) and _is_flat(value):
        arrays = dict(value)
    else:
        # Without indentation, because Python's fast encoder only writes such text.
        text = json.dumps(encode(value, key, arrays), allow_nan=False)
        written[".json"] = _write_file(base.with_name(f"{base.name}.json"), [text.encode("ascii")])
    if arrays:
        chunks = tensor_file_chunks(arrays)
        written[".safetensors"] = _write_file(base.with_name(f"{base.name}.safetensors"), chunks)
    return written


def _is_flat(value: object) -> bool:
    """Return whether this is a non-empty dict from text to arrays, for which a safetensors file is enough."""
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(type(name) is str and name != "__metadata__" and name.isprintable() for name in value)
        and all(is_array(item) and why_not_storable(item) is None for item in value.values())
    )


def _write_file(path: Path, chunks: Iterable[Any]) -> dict[str, Any]:
    """Write the chunks to a new file, and return its size and SHA-256.

    The digest is computed from the chunks and not from the file: so an error of the disk is found when it is read.
    """
    digest = hashlib.sha256()
    size = 0
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def _carry_all(root: Path, carried: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Link other checkpoints into `root` under their names, and return size and SHA-256 of the manifest of each."""
    entries = {}
    for name, source in carried.items():
        _check_name(name, f"carried checkpoint {name!r}")
        try:
            _link_checkpoint(source, root / name)
        except CheckpointError as error:
            shutil.rmtree(root / name, ignore_errors=True)
            warnings.warn(f"not kept in the new checkpoint: {error}", RuntimeWarning, stacklevel=3)
            continue
        content = (root / name / MANIFEST).read_bytes()
        entries[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return entries


def _link_checkpoint(source: Path, target: Path) -> None:
    """Verify the checkpoint `source`, and link its files into the new directory `target`."""
    source = readable_path(source.absolute())
    names = [*verify_checkpoint(source)["files"], MANIFEST]
    for directory in sorted({(target / name).parent for name in names}):
        directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            os.link(source / name, target / name)
        except OSError:  # another disk, or a file system without hard links
            _write_file(target / name, [(source / name).read_bytes()])


def _write_manifests(
    root: Path, folders: list[str], files: dict[str, dict[str, Any]], facts: Mapping[str, Any]
) -> None:
    """Write a manifest to each folder, to each folder above one, and to the root.

    The deepest folders come first: a manifest is a file that those above it list in turn, so that one read of the
    outermost manifest verifies all.

    Args:
        root: Directory of the checkpoint.
        folders: Its folders.
        files: Size and SHA-256 of each file by name. The manifests are added.
        facts: All other entries of a manifest.
    """
    # The top-level keys of each folder, from the names of its files.
    keys: dict[str, list[str]] = {folder: [] for folder in folders}
    for name in files:
        folder, _, file = name.rpartition("/")
        key = file.rpartition(".")[0]
        if key not in keys[folder]:
            keys[folder].append(key)

    places = {"", *folders}
    for folder in folders:
        places.update("" if str(parent) == "." else str(parent) for parent in PurePosixPath(folder).parents)
    for place in sorted(places, key=lambda name: (-len(PurePosixPath(name).parts), name)):
        prefix = f"{place}/" if place else ""
        inside = [name for name in keys if name == place or name.startswith(prefix)]
        manifest = {
            **facts,
            "carried": {} if place else facts["carried"],
            "folders": {name[len(prefix) :]: keys[name] for name in inside},
            "files": {name[len(prefix) :]: entry for name, entry in files.items() if name.startswith(prefix)},
        }
        try:
            text = json.dumps({**manifest, CHECKSUM: manifest_checksum(manifest)}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"checkpoint metadata must be plain JSON values: {error}") from error
        files[f"{prefix}{MANIFEST}"] = _write_file(root / place / MANIFEST, [text.encode("ascii")])


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all entries of a manifest except its checksum.

    It does not depend on the layout of the text or the order of keys. The first round trip through JSON makes the
    values what a reader gets (tuples become lists, number keys become text).
    """
    plain = json.loads(json.dumps({name: value for name, value in manifest.items() if name != CHECKSUM}))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


# Reading


def _read_manifest(root: Path) -> dict[str, Any]:
    """Return the manifest in the directory `root`.

    Raises:
        CheckpointError: There is no manifest, it is damaged or foreign, or it has a format or version that this version
            of Lockstep cannot read.
    """
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
    if version not in (1, FORMAT) or not _is_sound(manifest):
        raise CheckpointError(f"no lockstep checkpoint at {root}: its {MANIFEST} is foreign or damaged")
    # Format 1 has no checksum. If a manifest says 1 but has entries of format 2, its `format` is damaged.
    if version == FORMAT or CHECKSUM in manifest or "attempt" in manifest:
        if manifest.get(CHECKSUM) != manifest_checksum(manifest):
            raise CheckpointError(
                f"damaged checkpoint {root}: the content of {MANIFEST} is not what was written (SHA-256)"
            )
    _check_version(root, manifest)
    return dict(manifest)


def _check_version(root: Path, manifest: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` for a checkpoint of a development version, which has other options and networks."""
    written_by = str(manifest.get("lockstep_version"))
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})", written_by)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < FIRST_READABLE_VERSION:
        raise CheckpointError(
            f"checkpoint {root} was written by lockstep {written_by}, a development version; lockstep {__version__} "
            "cannot read it. Train again, or use it with the version that wrote it."
        )


def _is_within(name: str, folders: Collection[str]) -> bool:
    """Return whether a file or folder is one of `folders` or inside one."""
    return any(name == folder or name.startswith(f"{folder}/") for folder in folders)


def _entries(manifest: Mapping[str, Any], without: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each file's name and entry (size and SHA-256), except for files inside the folders `without`."""
    for name, entry in manifest["files"].items():
        if not _is_within(name, without):
            yield name, entry


def _is_sound(manifest: dict[str, Any]) -> bool:
    """Return whether the entries of a manifest have the types that readers rely on."""
    files = manifest.get("files")
    folders = manifest.get("folders")
    if not isinstance(files, dict) or not isinstance(folders, dict):
        return False
    for keys in folders.values():
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            return False
    return (
        isinstance(manifest.get("created_ns"), int)
        and isinstance(manifest.get("metadata"), dict)
        and isinstance(manifest.get("carried", {}), dict)
        and isinstance(manifest.get("attempt", 0), int)
        and isinstance(manifest.get("steps", 0), int)
        and all(isinstance(entry, dict) and {"size", "sha256"} <= set(entry) for entry in files.values())
    )


def _read_verified(root: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    """Return the content of a file of a checkpoint.

    Raises:
        CheckpointError: The file is missing, cannot be read, or differs from its `entry` in size or SHA-256.
    """
    # A manifest is data from a stranger: it must not make Lockstep read files elsewhere.
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
    """Return the value of a top-level key from the contents of its `.json` and `.safetensors` files."""
    arrays = {} if tensors is None else parse_tensor_file(tensors)
    if text is not None:
        return decode(json.loads(text), arrays)
    if tensors is None:
        raise ValueError("the manifest lists neither its .json nor its .safetensors")
    return arrays
