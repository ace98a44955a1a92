"""Which objects a file may name, and how a name becomes an object.

A file from a stranger is data. It may name a class of the kind that an option expects, in a module that is installed.
Everything else (functions, other objects, modules in the current folder) needs the user's word or the user's own
signature. Names are turned into objects in this file alone (`state/names.py` turns objects into names):

- `import_object` finds what the user has typed, without any check;
- `FileNames` finds what a file names, with the checks above;
- `NameInFile` is a name that is looked up later: it remembers its file, and `find_named` asks for the same checks then.

An object of the running script (`__main__`) has a name that means something else in every other script. A file that
names one gets it only from `handed_in`.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import secrets
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from lockstep.state.names import (
    SCRIPT_MODULES,
    current_name,
    is_of_lockstep,
    is_of_script,
    name_of,
    names_script,
    script_name,
)

TRUST_VARIABLE = "LOCKSTEP_TRUST"
"""Environment variable with the user's word, for jobs that a scheduler starts again."""
HOW_TO_TRUST = f"pass trust=True (on the command line --trust, for jobs that a scheduler starts {TRUST_VARIABLE}=1)"
SIGNATURE = "signature"
"""Key of a dict that holds the signature over the names and arguments in it."""
SIGNATURES = "signatures.json"
"""File in a folder with signatures of files below it that hold none themselves. `lockstep trust` writes it."""

SCRIPT = "script"
"""Key of a configuration with the sources of its objects that are defined in the script that ran."""
CLASS_KEYS = ("module_class", "learner_class", "class")
"""Keys whose text names a class, and never another object."""
NAME_KEYS = ("__import__", "encoder", "env", "rl_module_spec", *CLASS_KEYS)
"""Keys whose text names an object."""
ARGUMENT_KEYS = ("env_config", "encoder_config", "optimizer_kwargs", "learner_config_dict", "evaluation_config")
"""Keys whose value is handed to a named object."""
PETTINGZOO = ("pettingzoo", "mpe2")
"""Packages whose modules have a function `env` or `parallel_env` that a file may name."""
KNOWN_ENVIRONMENTS = ("ALE/", "MinAtar/", "lockstep/", "tensor/", *(f"{package}." for package in PETTINGZOO))
"""Beginnings of the ids and module names of environments in packages that Lockstep knows."""


class UntrustedError(ValueError):
    """A file names, or holds, something that it may hold only if the user trusts it. The message says what to do."""


class NotHandedInError(UntrustedError):
    """A file names an object of the script that wrote it. No word of the user helps; the object must be handed in."""


class WrongKindError(UntrustedError):
    """A file names an object of another kind than its option takes. No word of the user helps."""


# -- the user's word and signature ---


def trusts_files(trust: bool = False) -> bool:
    """Return whether the user has given the word: as an argument, or by `LOCKSTEP_TRUST=1`."""
    return bool(trust) or os.environ.get(TRUST_VARIABLE, "") not in ("", "0")


def signature_of(payload: object) -> str | None:
    """Return the user's signature over `payload`, plain values with arrays; None where there is no key.

    The key is made at first use, in the user's configuration folder, readable by its owner only.
    """
    key = _user_key(create=True)
    return None if key is None else _authenticate(key, payload)


def is_signature(payload: object, signature: object, file: str | Path | None = None) -> bool:
    """Return whether the user has signed `payload`.

    `signature`: what `signature_of` returned when it was written. `file`: where it was read, above which a
    `signatures.json` may hold the signature instead.
    """
    key = _user_key(create=False)
    if key is None:
        return False
    expected = _authenticate(key, payload)
    found = [signature, *_signatures_above(file)]
    return any(isinstance(each, str) and hmac.compare_digest(each.encode(), expected.encode()) for each in found)


def write_signatures(folder: str | Path, payloads: Sequence[object]) -> Path:
    """Sign payloads that were read from files in `folder`, in the folder's `signatures.json`, and return its path.

    Raises `ValueError` where the user has no key.
    """
    signatures = [signature_of(payload) for payload in payloads]
    path = Path(folder) / SIGNATURES
    if None in signatures:
        raise ValueError(
            f"nothing can be signed: no key can be kept in {_key_path() or 'a home folder'}. Set HOME (or "
            f"XDG_CONFIG_HOME) to a folder of your own, or {HOW_TO_TRUST}"
        )
    known = set(_signatures_in(path))
    path.write_text(json.dumps({"signatures": sorted(known.union(map(str, signatures)))}, indent=1) + "\n")
    return path


def _authenticate(key: bytes, payload: object) -> str:
    text = json.dumps(["lockstep", _canonical(payload)], ensure_ascii=True)
    return hmac.new(key, text.encode("ascii"), hashlib.sha256).hexdigest()


def _canonical(value: object) -> Any:
    """Return `value` in a form whose JSON is the same before it is written to a file and after it is read."""
    if isinstance(value, Mapping):
        return {"dict": sorted(([str(key), _canonical(part)] for key, part in value.items()), key=lambda pair: pair[0])}
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
    """Return the signatures in the nearest `signatures.json` at or above `file`, within a run's depth of folders."""
    if file is None:
        return []
    place = Path(file).absolute()
    for folder in (place, *place.parents[:5]):
        if (folder / SIGNATURES).is_file():
            return _signatures_in(folder / SIGNATURES)
    return []


def _signatures_in(path: Path) -> list[str]:
    try:
        found = json.loads(path.read_bytes())["signatures"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


_KEY_BYTES = 32
_KEYS: dict[Path, bytes] = {}
"""Keys by the path of their file."""


def _key_path() -> Path | None:
    """Return the path of the user's key; None without a home folder."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(configured):
        return Path(configured) / "lockstep" / "trust.key"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".config" / "lockstep" / "trust.key" if home.is_dir() else None


def _user_key(*, create: bool) -> bytes | None:
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
    """Return the key in a file that belongs to the user alone; None for any other file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        owned = not hasattr(os, "geteuid") or (found.st_uid == os.geteuid() and not found.st_mode & 0o077)
        key = file.read(_KEY_BYTES + 1) if owned and stat.S_ISREG(found.st_mode) else b""
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
    """Make the key, or return the one that another process has just made; None where none can be kept."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            os.link(temporary, path)  # unlike a rename it never replaces the key of another process
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    except OSError:
        return None
    return _read_key(path)


# -- names and arguments in a tree ---


def named_objects(tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return all names in a tree with their paths, and the arguments that are handed to what they name."""
    return list(_entries(tree, ""))


def _entries(tree: object, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            yield from _entries(part, f"{path}[{index}]")
    if not isinstance(tree, Mapping):
        return
    has_own_module = any(tree.get(key) is not None for key in ("module_class", "rl_module_spec"))
    for key in sorted(tree, key=str):
        value, where = tree[key], f"{path}.{key}"
        option = str(key).rpartition(".")[2]
        is_argument = option in ARGUMENT_KEYS or (option == "model_config" and has_own_module)
        if (is_argument and value) or (option in NAME_KEYS and isinstance(value, str)):
            yield where, value
        if key != SIGNATURE:
            yield from _entries(value, where)


def names_module(name: str) -> bool:
    """Return whether a name may say which module to import. An id that stands alone does not."""
    return any(mark in name for mark in ":/.")


def _need_signature(entries: Sequence[tuple[str, Any]]) -> bool:
    """Return whether there is a name that a file may hold only for a user who has signed it.

    Lockstep's own classes of modules, learners and sections, which every checkpoint names, need no signature, nor do
    environments of packages that Lockstep knows.
    """
    for path, value in entries:
        if not isinstance(value, str) or not names_module(value):
            continue
        is_own_class = is_of_lockstep(value) and path.rpartition(".")[2] in CLASS_KEYS
        is_known_env = ":" not in value and value.startswith(KNOWN_ENVIRONMENTS)
        if not is_own_class and not is_known_env:
            return True
    return False


def signed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with the user's signature over its names, where it has some that need one.

    A tree with a name that came from a stranger's file, and that the user has not trusted, is not signed.
    """
    plain = without_signature(tree)
    entries = named_objects(plain)
    if any(isinstance(value, NameInFile) and not value.names.is_trusted for _, value in entries):
        return {key: _as_text(value) for key, value in plain.items()}
    plain = {key: _as_text(value) for key, value in plain.items()}
    if not _need_signature(entries):
        return plain
    signature = signature_of(entries)
    return plain if signature is None else {**plain, SIGNATURE: signature}


def _as_text(tree: object) -> Any:
    """Return the tree with plain text in the place of names that remember their file."""
    if isinstance(tree, Mapping):
        return {key: _as_text(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_as_text(part) for part in tree)
    return str(tree) if isinstance(tree, NameInFile) else tree


def without_signature(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree without its signature and the sources of a script, to be compared or shown."""
    return {key: value for key, value in tree.items() if key not in (SIGNATURE, SCRIPT)}


# -- objects of the running script ---

_HANDED_IN: ContextVar[Mapping[str, Any]] = ContextVar("handed_in", default=MappingProxyType({}))


@contextmanager
def handed_in(*objects: Callable[..., Any]) -> Iterator[None]:
    """Let files that are read in this block name these classes and functions of the running script.

    A file names an object of a script as `__main__:Class`. Without this it is never looked up, because another script
    has other objects of that name. Further checks are those for other objects.
    """
    names = {script_name(each): each for each in objects if is_of_script(each)}
    token = _HANDED_IN.set({**_HANDED_IN.get(), **names})
    try:
        yield
    finally:
        _HANDED_IN.reset(token)


# -- from names to objects ---


@dataclass(frozen=True)
class Kind:
    """The classes that an option may name in a file without the user's word."""

    words: str
    """The kind in an error message, e.g. "a subclass of torch.nn.Module"."""
    bases: tuple[type, ...] = ()
    foreign_bases: tuple[str, ...] = ()
    """Further base classes by name, of packages that need not be installed, or of folders above that of the option."""
    takes_others: bool = True
    """Whether the option takes other objects too, such as functions, which need the word."""

    def fits(self, found: object) -> bool:
        """Return whether an object is such a class. Its bases are looked at, no method of it is called."""
        if not isinstance(found, type):
            return False
        bases = type.__getattribute__(found, "__mro__")
        return any(base in self.bases or name_of(base) in self.foreign_bases for base in bases)


class FileNames:
    """Finds the objects that one file names.

    Args:
        file: the file or folder, for messages and for the signatures that lie beside it.
        tree: the names and arguments of the file as a dict; its key "signature" may hold the user's signature.
        trust: the user's word.
    """

    def __init__(self, file: str | Path, tree: Mapping[str, Any], trust: bool = False) -> None:
        self.file = file
        self.is_trusted = trusts_files(trust) or _is_signed_tree(tree, file)
        self.sources: Mapping[str, Any] = tree.get(SCRIPT) or {}
        self._handed_in = dict(_HANDED_IN.get())
        if self.is_trusted:
            _add_current_folder()

    def of_part(self, tree: Mapping[str, Any]) -> FileNames:
        """Return the names of a part of the file, which may have a signature of its own."""
        if self.is_trusted:
            return self
        part = FileNames(self.file, tree)
        part.sources = part.sources or self.sources
        return part

    def find(self, option: str, name: object, kind: Kind | None) -> Any:
        """Return the object `module:Class` that the file names for an option.

        `kind`: the classes that need no word; None where every object needs it.

        Raises:
            UntrustedError: it needs the word.
            NotHandedInError: it was defined in the script that wrote the file, and is not handed in.
            WrongKindError: the option never takes such an object.
            ImportError, AttributeError, ValueError: there is no such object.
        """
        if not isinstance(name, str):
            raise ValueError(f"{option} in {self.file} must be the name of an object, 'module:Class', not {name!r}")
        if names_script(name):
            return self._find_handed_in(option, name, kind)
        name = current_name(name)
        if self.is_trusted:
            return import_object(name)
        module_name, _, qualified = name.partition(":")
        if kind is None:  # nothing is imported for an object that may not be used
            self._check_module_exists(module_name)
            raise self.refusal(option, name)
        try:
            module = import_installed(module_name)
        except ModuleNotFoundError as error:
            if is_in_current_folder(str(error.name)):
                raise self.refusal(option, name, f"whose module {error.name!r} is in the current folder") from None
            raise
        return self._checked(option, name, _member(module, qualified), kind)

    def _find_handed_in(self, option: str, name: str, kind: Kind | None) -> Any:
        """Return the object of the running script that the user has handed in under this name."""
        name = name.replace(SCRIPT_MODULES[1], SCRIPT_MODULES[0], 1)
        if name not in self._handed_in:
            raise self._not_handed_in(option, name)
        found = self._handed_in[name]
        if self.is_trusted:
            return found
        if kind is None:
            raise self.refusal(option, name)
        return self._checked(option, name, found, kind)

    def _not_handed_in(self, option: str, name: str) -> NotHandedInError:
        source = self.sources.get(name)
        file = source.get("file") if isinstance(source, Mapping) else None
        qualified = name.partition(":")[2]
        return NotHandedInError(
            f"{option} in {self.file} is {qualified}, which was defined in the script or notebook that wrote it"
            f"{f' ({file})' if file else ''}; from there it cannot be imported. Hand it in: "
            f"lockstep.resume(path, config=...) with the run's configuration, and to read other files `with "
            f"lockstep.state.trust.handed_in({qualified}):`. For commands, move it to a file of its own, import it "
            "from there, and train a new run"
        )

    def _checked(self, option: str, name: str, found: object, kind: Kind) -> Any:
        """Return an object that a file names if the kind fits."""
        if kind.fits(found):
            return found
        if kind.takes_others:
            raise self.refusal(option, name, f"which is {_a_kind(found)}, not {kind.words}")
        raise WrongKindError(
            f"{option} in {self.file} names {_a_kind(found)}: {name} is not {kind.words}; the file is foreign, or its "
            "class has changed"
        )

    def text(self, option: str, name: object) -> Any:
        """Return a text that may name an object, to be looked up later with the checks for this file."""
        if not isinstance(name, str) or not names_module(name):
            return name
        if self.is_trusted and not names_script(name):
            return name
        return NameInFile(name, self, option)

    def refusal(
        self, option: str, name: str, why: str = "which is not a class of the kind that is expected"
    ) -> Exception:
        """Return the error about an object that needs the user's word."""
        return UntrustedError(
            f"{option} in {self.file} names the object {str(name)!r}, {why}. A file may name it only if you trust the "
            f"file, since what it names is run: {HOW_TO_TRUST}. Runs of your own are recognised by your signature; "
            "lockstep trust RUN signs one that has none"
        )

    def _check_module_exists(self, module_name: str) -> None:
        top = module_name.partition(".")[0]
        if top in sys.modules or is_in_current_folder(top):
            return
        try:
            exists = bool(top) and importlib.util.find_spec(top) is not None
        except (ImportError, ValueError):
            exists = False
        if not exists:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)


class NameInFile(str):
    """A name that a file gives and that is looked up later, with the checks for that file."""

    names: FileNames
    option: str
    is_object: bool
    """whether the file names an object in the form `{"__import__": name}`"""

    def __new__(cls, name: str, names: FileNames, option: str, is_object: bool = False) -> NameInFile:
        made = super().__new__(cls, name)
        made.names, made.option, made.is_object = names, option, is_object
        return made

    def __copy__(self) -> NameInFile:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NameInFile:
        return self

    def __reduce__(self) -> Any:
        return NameInFile, (str(self), self.names, self.option, self.is_object)


def find_named(option: str, name: str, kind: Kind) -> Any:
    """Return the object `module:Class`: freely where the user has typed the name, checked where a file gives it."""
    return name.names.find(name.option, name, kind) if isinstance(name, NameInFile) else import_object(name)


def find_class(option: str, name: str, kind: Kind, otherwise: str) -> Any:
    """Return the class of a kind that the user has typed or a file gives.

    Args:
        option: the option in error messages; a name in a file has its own.
        name: `module:Class`.
        kind: the classes that the option takes, and nothing else.
        otherwise: the end of each error message: what the user can do instead.

    Raises:
        UntrustedError: a file may not name it.
        ValueError: it cannot be imported, or is not such a class.
    """
    try:
        found = find_named(option, name, kind)
    except UntrustedError as error:
        raise type(error)(f"{error}; {otherwise}") from None
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the class {name} cannot be imported ({error}); {otherwise}") from error
    if not kind.fits(found):  # only a name that is typed or trusted gets here
        raise ValueError(
            f"{name} is not {kind.words}; {otherwise} (a file that names it is foreign, or its class has changed)"
        )
    return found


def module_named(module_name: str, name: str) -> Any:
    """Return the module that `name` is about, imported from where the name allows it."""
    if isinstance(name, NameInFile):
        return import_installed(module_name)  # never the running script
    _add_current_folder()
    return importlib.import_module(module_name)


def import_object(name: str) -> Any:
    """Return the object at `module:Class`, without any check: for names that the user has typed, trusted or signed."""
    module, _, qualified = current_name(str(name)).partition(":")
    _add_current_folder()
    return functools.reduce(getattr, qualified.split("."), importlib.import_module(module))


def _is_signed_tree(tree: Mapping[str, Any], file: str | Path) -> bool:
    entries = named_objects(without_signature(tree))
    return _need_signature(entries) and is_signature(entries, tree.get(SIGNATURE), file)


def _member(module: ModuleType, qualified: str) -> Any:
    """Return an object of a module, or one inside of a class, of which no property or descriptor is asked.

    What is inside of anything else, such as another module, is not looked up: then the answer is None.
    """
    first, *others = qualified.split(".")
    found: Any = getattr(module, first)
    for part in others:
        if not isinstance(found, type):
            return None
        found = inspect.getattr_static(found, part)
    return found


def _a_kind(found: object) -> str:
    if isinstance(found, type):
        return "a class"
    return "a module" if isinstance(found, ModuleType) else "a function" if callable(found) else "an object"


# -- where modules come from ---

_searches_current_folder = False


def search_current_folder() -> None:
    """Look for modules in the current folder too, for names that are typed, trusted or signed: `lockstep` does so."""
    global _searches_current_folder
    _searches_current_folder = True


def _add_current_folder() -> None:
    if _searches_current_folder and (folder := _current_folder()) and folder not in sys.path:
        sys.path.append(folder)


def import_installed(name: str) -> Any:
    """Import a module that is installed or lies on `sys.path`; the current folder does not count.

    Neither does it for what the module imports itself. Modules that are there already are returned as they are.
    """
    if not name or not all(map(str.isidentifier, name.split("."))) or names_script(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if name in sys.modules and sys.modules[name] is not None:
        return sys.modules[name]
    with _outside_current_folder():
        return importlib.import_module(name)


def is_in_current_folder(module_name: str) -> bool:
    """Return whether the current folder has a module of this name; it is not imported."""
    top, folder = module_name.partition(".")[0], _current_folder()
    return bool(top and folder) and importlib.machinery.PathFinder.find_spec(top, [folder]) is not None  # type: ignore[list-item]


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _is_same_folder(path: str, folder: str) -> bool:
    return os.path.realpath(path or os.curdir) == os.path.realpath(folder)


class _OutsideCurrentFolder:
    """Import hook that finds modules for one thread as Python does, but for those in the current folder."""

    def __init__(self, folder: str) -> None:
        self.folder, self.thread = folder, threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if threading.get_ident() != self.thread or name.partition(".")[0] == "lockstep":
            return None
        allowed = [entry for entry in (sys.path if path is None else path) if not self._is_below(entry, name)]
        for finder in sys.meta_path:
            if isinstance(finder, _OutsideCurrentFolder):
                continue
            is_path_finder = finder is importlib.machinery.PathFinder
            spec = finder.find_spec(name, allowed if is_path_finder else path, target)
            if spec is not None:
                return spec
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def _is_below(self, entry: str, name: str) -> bool:
        """Return whether the package's outermost folder, found through `entry`, is in the current folder."""
        for _ in range(name.count(".")):
            entry = os.path.dirname(entry)
        return _is_same_folder(entry, self.folder)


@contextmanager
def _outside_current_folder() -> Iterator[None]:
    folder = _current_folder()
    if folder is None:
        yield
        return
    hook: Any = _OutsideCurrentFolder(folder)
    sys.meta_path = [hook, *sys.meta_path]  # a new list: other threads may be walking the old one
    try:
        yield
    finally:
        sys.meta_path = [finder for finder in sys.meta_path if finder is not hook]


class _NamesInMemory(FileNames):
    """Finds the objects that a state of this process names, those of its own script too."""

    def find(self, option: str, name: object, kind: Kind | None) -> Any:
        return import_object(str(name))

    def text(self, option: str, name: object) -> Any:
        return name


IN_MEMORY = _NamesInMemory("this process", {}, trust=True)
"""Finds the objects that a state names which no file has held."""
