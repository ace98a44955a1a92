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
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

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
"""Format 1 (Lockstep 0.2) has neither `attempt` and `steps` nor a checksum of the manifest itself; it is read too."""
FIRST_READABLE_VERSION = (0, 2)
MANIFEST = "manifest.json"
CHECKSUM = "sha256"
ERROR = "error"
"""Name of the checkpoint of a run that ended with an error, beside the healthy ones."""
VERIFIED_EACH_TIME = 256 << 20
"""Bytes of a shared file up to which it is verified before every sharing; a larger one once in a process."""


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or is missing, damaged, foreign, or too new. The message says which."""


@dataclass
class _SharedFile:
    """A file of an earlier checkpoint, which the next one may get under a second name."""

    path: Path
    inode: int
    changed_ns: int
    entry: dict[str, Any]
    """Size and SHA-256, as in the manifest."""
    is_verified: bool = False
    """Whether the content has been read back and compared in this process."""

    def link_to(self, path: Path) -> bool:
        """Give the file the second name `path`; return False where that is not possible or the file is damaged."""
        if not self._is_intact():
            return False
        try:
            os.link(self.path, path)
        except OSError:
            return False
        found = path.stat()
        if (found.st_ino, found.st_mtime_ns) == (self.inode, self.changed_ns):
            return True
        path.unlink()  # another file has taken its place
        return False

    def _is_intact(self) -> bool:
        """Return whether the file can be read and holds what was written.

        A damaged file must not be shared, or one rotten bit would be in every later checkpoint.
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
    """A dict of state of which the owner promises: as long as this object is used, it does not change.

    When it is written to a checkpoint as a top-level key, it remembers its files. The next checkpoint on the same
    file system gets them under a second name (a hard link), which costs next to nothing; each is verified first. Where
    that does not work (the older checkpoint is gone, damaged, or on another disk) they are written again. It is read
    as a dict.
    """

    __slots__ = ("_files",)

    def __init__(self, *content: Any, **more: object) -> None:
        super().__init__(*content, **more)
        self._files: dict[str, _SharedFile] = {}

    def content(self) -> Mapping[str, Any]:
        """Return what is written: the dict itself. A subclass may make it only when it is needed."""
        return self

    def link_to(self, base: Path) -> dict[str, dict[str, Any]] | None:
        """Give the files written before a second name: `base` and their suffix.

        Returns size and SHA-256 by suffix, or None where the files must be written again.
        """
        entries: dict[str, dict[str, Any]] = {}
        for suffix, file in self._files.items():
            path = base.with_name(base.name + suffix)
            if not file.link_to(path):
                for linked in entries:
                    base.with_name(base.name + linked).unlink()
                self._files = {}
                return None
            entries[suffix] = dict(file.entry)
        return entries or None

    def remember_files(self, base: Path, entries: Mapping[str, dict[str, Any]]) -> None:
        """Remember that the files at `base` (and the suffixes of `entries`) hold this tree."""
        before, self._files = self._files, {}
        for suffix, entry in entries.items():
            path = base.with_name(base.name + suffix)
            try:
                found = path.stat()
            except OSError:
                self._files = {}
                return
            is_verified = suffix in before and before[suffix].inode == found.st_ino and before[suffix].is_verified
            self._files[suffix] = _SharedFile(path, found.st_ino, found.st_mtime_ns, dict(entry), is_verified)


class SealedArrays(SealedTree):
    """A `SealedTree` that is a flat dict of arrays."""

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
    """Write trees of state as one checkpoint directory and return its absolute path.

    `folders` maps a folder inside the checkpoint ("" is its root, "learner/rl_module/p0" a nested one) to a
    tree. Each top-level key `k` of a tree becomes `k.safetensors` where its value is a non-empty flat dict
    of arrays, else `k.json` (with `k.safetensors` beside it when there are arrays inside). `metadata`
    (plain JSON values) goes into the manifest. What `read_checkpoint` returns equals what was given, types
    included; dict subclasses come back as dict, tensors on the CPU.

    `steps` and `attempt` order the checkpoints of a run: `newest_checkpoint` returns the one with the most steps of
    the newest attempt. `carried`: other checkpoints by name, kept inside this one under hard links (copied where links
    are not possible); a damaged one is left out with a warning. They are not read with it: `carried_checkpoint` returns
    their path.

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
        sync_tree(temporary)
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


def read_checkpoint(path: str | os.PathLike[str], *, without: Collection[str] = ()) -> dict[str, StateTree]:
    """Return the trees of a checkpoint, or of any folder inside one, as `write_checkpoint` was given them.

    Every file is checked against the manifest before it is understood. Folders named in `without`, and those inside
    them, are neither looked at nor returned.

    Raises:
        CheckpointError: no checkpoint there, a damaged one (the file is named), or one of a newer format.
    """
    root = readable_path(Path(path).absolute())
    manifest = _read_manifest(root)
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
            try:
                value = _parse_entry(
                    contents.pop(base / f"{key}.json", None), contents.pop(base / f"{key}.safetensors", None)
                )
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise CheckpointError(f"checkpoint {root}: cannot understand {str(base / key)!r}: {error}") from error
            folders[folder][key] = value
    return folders


def verify_checkpoint(path: str | os.PathLike[str], *, without: Collection[str] = ()) -> dict[str, Any]:
    """Check every file of a checkpoint by size and SHA-256 and return its manifest.

    The manifest's keys: `format`, `lockstep_version`, `created_ns` (since 1970), `attempt`, `steps`, `metadata`,
    `folders` (folder -> top-level keys), `files` (name -> size, sha256), `carried` (name -> size and sha256 of that
    checkpoint's manifest), `sha256` (of all of these). Folders named in `without` are not looked at.

    Raises:
        CheckpointError: as `read_checkpoint`.
    """
    root = readable_path(Path(path).absolute())
    manifest = _read_manifest(root)
    for name, entry in _entries(manifest, without):
        _read_verified(root, name, entry)
    return manifest


def damaged_files(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the files of a checkpoint that are damaged, missing or unreadable, each with the reason.

    Raises:
        CheckpointError: the manifest itself cannot be read.
    """
    root = readable_path(Path(path).absolute())
    found = {}
    for name, entry in _read_manifest(root)["files"].items():
        try:
            _read_verified(root, name, entry)
        except CheckpointError as error:
            found[name] = str(error)
    return found


def carried_checkpoint(path: str | os.PathLike[str], name: str) -> Path | None:
    """Return the path of the checkpoint that `path` carries under `name`, verified; None where it carries none.

    Raises:
        CheckpointError: one of the two is damaged.
    """
    root = readable_path(Path(path).absolute())
    entry = _read_manifest(root).get("carried", {}).get(name)
    if entry is None:
        return None
    _read_verified(root, f"{name}/{MANIFEST}", entry)
    verify_checkpoint(root / name)
    return root / name


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the manifest of a checkpoint (see `verify_checkpoint`) without looking at its other files.

    Raises:
        CheckpointError: as `read_checkpoint`.
    """
    return _read_manifest(readable_path(Path(path).absolute()))


def copy_checkpoint(source: str | os.PathLike[str], target: Path) -> None:
    """Put the checkpoint `source` at `target` too, by hard links where possible; replace a checkpoint there.

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
    """Return the newest intact checkpoint among the directories in `directory`; None where there is none.

    The newest is the one with the most steps of the newest attempt, whatever the clock said; see `checkpoints_in`.
    A damaged or foreign directory is named by a warning and passed over. Folders named in `without` are not looked at.
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
    """Return the directories in `directory` that may be checkpoints, newest first; none is verified.

    Ordered by attempt, then by steps; where both are equal, by the time of writing. Those without a readable manifest
    come first, so that whoever wants the newest hears of them; or last. Left out: hidden ones (a save that was
    killed), and `error`, the state of a run at the error that ended it.
    """
    parent = Path(directory).absolute()
    if not parent.is_dir():
        return []
    found = [child for child in parent.iterdir() if child.is_dir() and not child.name.startswith(".")]
    found += interrupted_replacements(parent)
    unreadable = 1 if unreadable_first else -1
    candidates = (child for child in found if child.name != ERROR)
    return sorted(candidates, key=lambda child: _age_key(child, unreadable), reverse=True)


def newest_attempt(directory: str | os.PathLike[str]) -> int:
    """Return the number of the newest attempt that has a checkpoint in `directory`; 0 where there is none."""
    attempts = [0]
    parent = Path(directory)
    for child in (*checkpoints_in(parent), parent / ERROR):
        with contextlib.suppress(CheckpointError):
            attempts.append(int(read_manifest(child).get("attempt", 0)))
    return max(attempts)


def _age_key(path: Path, unreadable: int) -> tuple[int, int, int, int, str]:
    """Return attempt, steps and time of a checkpoint behind a zero, or zeros behind `unreadable`."""
    try:
        manifest = read_manifest(path)
    except CheckpointError:
        return unreadable, 0, 0, 0, path.name
    metadata = manifest["metadata"]
    steps = manifest.get("steps")
    if steps is None:  # format 1
        steps = metadata.get("env_step") or metadata.get("gradient_step") or 0
    return 0, int(manifest.get("attempt", 0)), int(steps), int(manifest["created_ns"]), path.name


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
        written = value.link_to(root / base) if isinstance(value, SealedTree) else None
        if written is None:
            written = _write_value(root / base, key, value.content() if isinstance(value, SealedTree) else value)
        for suffix, entry in written.items():
            files[f"{base}{suffix}"] = entry


def _write_value(base: Path, key: str, value: object) -> dict[str, dict[str, Any]]:
    """Write one top-level key as `base` with a suffix; return size and SHA-256 of its files by suffix."""
    written = {}
    arrays: dict[str, Array] = {}
    if isinstance(value, Mapping) and _is_flat(value):
        arrays = dict(value)
    else:
        # Without indentation, because only such text is written by Python's fast encoder.
        text = json.dumps(encode(value, key, arrays), allow_nan=False)
        written[".json"] = _write_file(base.with_name(f"{base.name}.json"), [text.encode("ascii")])
    if arrays:
        chunks = tensor_file_chunks(arrays)
        written[".safetensors"] = _write_file(base.with_name(f"{base.name}.safetensors"), chunks)
    return written


def _remember_sealed(
    target: Path, folders: Mapping[str, Mapping[str, Any]], files: Mapping[str, dict[str, Any]]
) -> None:
    for folder, tree in folders.items():
        for key, value in tree.items():
            if isinstance(value, SealedTree):
                base = f"{folder}/{key}" if folder else key
                names = {suffix: f"{base}{suffix}" for suffix in (".json", ".safetensors")}
                value.remember_files(target / base, {suffix: files[n] for suffix, n in names.items() if n in files})


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
    return {"size": size, "sha256": digest.hexdigest()}


def _carry_all(root: Path, carried: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Put other checkpoints below `root` by their names; return size and SHA-256 of the manifest of each."""
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
    """Verify the checkpoint `source` and give its files a second name below the new directory `target`."""
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
    """Write a manifest for each folder and each folder above one, deepest first, so that each covers those below."""
    keys: dict[str, list[str]] = {folder: [] for folder in folders}
    for name in files:
        folder, _, file = name.rpartition("/")
        key = file.rpartition(".")[0]
        if key not in keys[folder]:
            keys[folder].append(key)
    above = {str(parent) for folder in folders for parent in PurePosixPath(folder).parents}
    places = {"" if place == "." else place for place in above} | set(folders) | {""}
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
    """Return the SHA-256 of everything in a manifest but its own checksum, whatever the layout of its text."""
    plain = json.loads(json.dumps({name: value for name, value in manifest.items() if name != CHECKSUM}))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


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
    if version not in (1, FORMAT) or not _is_sound(manifest):
        raise CheckpointError(f"no lockstep checkpoint at {root}: its {MANIFEST} is foreign or damaged")
    # Format 1 has no checksum. One that has it nevertheless is a damaged manifest of format 2.
    if version == FORMAT or CHECKSUM in manifest or "attempt" in manifest:
        if manifest.get(CHECKSUM) != manifest_checksum(manifest):
            raise CheckpointError(
                f"damaged checkpoint {root}: the content of {MANIFEST} is not what was written (SHA-256)"
            )
    _check_version(root, manifest)
    return dict(manifest)


def _check_version(root: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of a development version, whose options and networks have other names."""
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
    """Yield name, size and SHA-256 of the files that are not inside the folders `without`."""
    for name, entry in manifest["files"].items():
        if not _is_within(name, without):
            yield name, entry


def _is_sound(manifest: dict[str, Any]) -> bool:
    files, folders = manifest.get("files"), manifest.get("folders")
    return (
        isinstance(manifest.get("created_ns"), int)
        and isinstance(manifest.get("metadata"), dict)
        and isinstance(manifest.get("carried", {}), dict)
        and isinstance(manifest.get("attempt", 0), int)
        and isinstance(manifest.get("steps", 0), int)
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
