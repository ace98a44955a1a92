"""Trust in files: which objects a file may name, and how a name becomes an object.

A file from a stranger is data. It may name a class of the kind that an option expects, in an installed module:
importing an installed module runs only code that the user has installed. For everything else (functions, other objects,
modules in the current folder) the user must trust the file, by the argument `trust=True` or by a signature of the
user's own key. Only this file turns names into objects (`state/names.py` turns objects into names):

- `import_object` finds an object that the user has typed, without any check.
- `FileNames` finds an object that a file names, with the checks above.
- `NameInFile` is a name that is looked up later. It remembers its file, and `find_named` then applies the same checks.

The name of an object of the running script (`__main__:Class`) means another object in every other script. So a file
that names one gets it only from `handed_in`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from lockstep.state.names import (
    SCRIPT_MODULES,
    current_name,
    is_of_lockstep,
    is_of_script,
    name_of,
    names_script,
    script_name,
)
from lockstep.state.signatures import HOW_TO_TRUST, is_signature, signature_of, trusts_files

SIGNATURE = "signature"
"""Key of a dict whose value is the signature over the names and arguments in the dict."""

SCRIPT = "script"
"""Key of a configuration that holds the sources of objects which the script defined."""
CLASS_KEYS = ("module_class", "learner_class", "class")
"""Keys whose text names a class and never another object."""
NAME_KEYS = ("__import__", "encoder", "env", "rl_module_spec", *CLASS_KEYS)
"""Keys whose text names an object."""
ARGUMENT_KEYS = ("env_config", "encoder_config", "optimizer_kwargs", "learner_config_dict", "evaluation_config")
"""Keys whose value is an argument of a named object, which may do anything with it."""
PETTINGZOO = ("pettingzoo", "mpe2")
"""Packages of environments whose modules a file may name. Each module has a function `env` or `parallel_env`."""
KNOWN_ENVIRONMENTS = ("ALE/", "MinAtar/", "lockstep/", "tensor/", *(f"{package}." for package in PETTINGZOO))
"""Beginnings of the ids and module names of environments that need no trust: Lockstep knows their packages."""


class UntrustedError(ValueError):
    """A file names an object, or holds a value, that needs the user's trust. The message says what to do."""


class NotHandedInError(UntrustedError):
    """A file names an object of the script that wrote it. Trust does not help: the object must be handed in."""


class WrongKindError(UntrustedError):
    """A file names an object of another kind than its option accepts. Trust does not help."""


# -- names and arguments in a tree ---


def named_objects(tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return all names of objects in a tree with their paths, and the arguments of these objects with theirs.

    This is the payload of a signature: a signed name with other arguments could do anything else.
    """
    return list(_entries(tree, ""))


def _entries(tree: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each name and argument in a tree."""
    if isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            yield from _entries(part, f"{path}[{index}]")
    if not isinstance(tree, Mapping):
        return
    # `model_config` is an argument of the user's module, or else options of Lockstep's own, which are only data.
    has_own_module = any(tree.get(key) is not None for key in ("module_class", "rl_module_spec"))
    for key in sorted(tree, key=str):
        value = tree[key]
        where = f"{path}.{key}"
        option = str(key).rpartition(".")[2]
        is_argument = option in ARGUMENT_KEYS or (option == "model_config" and has_own_module)
        if (is_argument and value) or (option in NAME_KEYS and isinstance(value, str)):
            yield where, value
        if key != SIGNATURE:
            yield from _entries(value, where)


def names_module(name: str) -> bool:
    """Return whether a name contains the name of a module. A plain id of a registered environment does not."""
    return any(mark in name for mark in ":/.")


def _need_signature(entries: Sequence[tuple[str, Any]]) -> bool:
    """Return whether one of the names in a file needs a signature.

    Lockstep's own classes of modules, learners and sections need none, because every checkpoint names them. Neither do
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
    """Return the tree with the user's signature over its names, if one of them needs a signature.

    A tree with a name from a stranger's file that the user has not trusted is returned without a signature: else
    copying a file would be enough to have it signed.
    """
    unsigned = without_signature(tree)
    entries = named_objects(unsigned)
    plain = {key: _as_text(value) for key, value in unsigned.items()}
    if any(isinstance(value, NameInFile) and not value.names.is_trusted for _, value in entries):
        return plain
    if not _need_signature(entries):
        return plain
    signature = signature_of(entries)
    return plain if signature is None else {**plain, SIGNATURE: signature}


def _as_text(tree: object) -> Any:
    """Return the tree with plain text instead of names that remember their file."""
    if isinstance(tree, Mapping):
        return {key: _as_text(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_as_text(part) for part in tree)
    return str(tree) if isinstance(tree, str) else tree


def without_signature(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree without its signature and the sources of a script, to compare or show it."""
    return {key: value for key, value in tree.items() if key not in (SIGNATURE, SCRIPT)}


# -- objects of the running script ---

_HANDED_IN: ContextVar[Mapping[str, Any]] = ContextVar("handed_in", default=MappingProxyType({}))


@contextmanager
def handed_in(*objects: Callable[..., Any]) -> Iterator[None]:
    """Context in which files may name these classes and functions of the running script.

    A file names an object of a script as `__main__:Class`. Outside of this context such a name is never looked up,
    because another script has other objects with that name. The kind of the object and the trust in the file are
    checked as for any other object.
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
    """Kind of classes that a file may name for an option without the user's trust."""

    words: str
    """The kind in an error message, for example `"a subclass of torch.nn.Module"`."""
    bases: tuple[type, ...] = ()
    """Base classes; each subclass of one of them is of this kind."""
    foreign_bases: tuple[str, ...] = ()
    """Names of further base classes, in packages that need not be installed or in folders above that of the option."""
    takes_others: bool = True
    """Whether the option also accepts other objects, such as functions, which need trust."""

    def fits(self, found: object) -> bool:
        """Return whether an object is a class of this kind.

        Only its bases are looked at. No code of the class runs, not even that of a metaclass.
        """
        if not isinstance(found, type):
            return False
        bases = type.__getattribute__(found, "__mro__")
        return any(base in self.bases or name_of(base) in self.foreign_bases for base in bases)


class FileNames:
    """Access to the objects that one file names, with the checks for that file.

    Args:
        file: The file or folder, for messages and for the signatures next to it.
        tree: Names and arguments of the file. Its key `"signature"` may hold the user's signature.
        trust: Whether the user trusts the file.
    """

    def __init__(self, file: str | Path, tree: Mapping[str, Any], trust: bool = False) -> None:
        self.file = file
        self.is_trusted = trusts_files(trust) or _is_signed_tree(tree, file)
        self.sources: Mapping[str, Any] = tree.get(SCRIPT) or {}
        # A copy: names may be looked up after the context of `handed_in` has ended.
        self._handed_in = dict(_HANDED_IN.get())
        if self.is_trusted:
            _add_current_folder()

    def of_part(self, tree: Mapping[str, Any]) -> FileNames:
        """Return the access to the names in a part of the file, which may have its own signature."""
        if self.is_trusted:
            return self
        part = FileNames(self.file, tree)
        part.sources = part.sources or self.sources
        return part

    def find(self, option: str, name: object, kind: Kind | None) -> Any:
        """Return the object that the file names for an option.

        Args:
            option: Name of the option, for messages.
            name: `module:Class`, or anything else that the file has in its place.
            kind: Classes that need no trust. None if every object needs it.

        Raises:
            UntrustedError: The object needs the user's trust.
            NotHandedInError: The object was defined in the script that wrote the file, and is not handed in.
            WrongKindError: The option never accepts such an object.
            ImportError, AttributeError, ValueError: There is no such object.
        """
        if not isinstance(name, str):
            raise ValueError(f"{option} in {self.file} must be the name of an object, 'module:Class', not {name!r}")
        if names_script(name):
            return self._find_handed_in(option, name, kind)
        name = current_name(name)
        if self.is_trusted:
            return import_object(name)
        module_name, _, qualified = name.partition(":")
        if kind is None:
            # Refused without an import, which would run code for an object that may not be used.
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
        """Return the error about an object of the script that wrote the file."""
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
        """Return the object if it is of the kind. Otherwise raise `UntrustedError` or `WrongKindError`."""
        if kind.fits(found):
            return found
        if kind.takes_others:
            raise self.refusal(option, name, f"which is {_a_kind(found)}, not {kind.words}")
        raise WrongKindError(
            f"{option} in {self.file} names {_a_kind(found)}: {name} is not {kind.words}; the file is foreign, or its "
            "class has changed"
        )

    def text(self, option: str, name: object) -> Any:
        """Return a text of the file, as a `NameInFile` if it may name an object: it is checked when it is looked up."""
        if not isinstance(name, str) or not names_module(name):
            return name
        if self.is_trusted and not names_script(name):
            return name
        return NameInFile(name, self, option)

    def refusal(
        self, option: str, name: str, why: str = "which is not a class of the kind that is expected"
    ) -> Exception:
        """Return the error about an object that needs the user's trust."""
        return UntrustedError(
            f"{option} in {self.file} names the object {str(name)!r}, {why}. A file may name it only if you trust the "
            f"file, since what it names is run: {HOW_TO_TRUST}. Runs of your own are recognised by your signature; "
            "lockstep trust RUN signs one that has none"
        )

    def _check_module_exists(self, module_name: str) -> None:
        """Raise `ModuleNotFoundError` if the module's package is not installed, without importing it.

        Then the advice is to install it, and not to trust the file.
        """
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
    """Name of an object in a file that is looked up later, with the checks for that file.

    It is a text, so that it can be an option's value like a name that the user has typed.
    """

    names: FileNames
    """Access to the names of the file."""
    option: str
    """Option that has the name, for messages."""
    is_object: bool
    """Whether the file names the object in the form `{"__import__": name}`."""

    def __new__(cls, name: str, names: FileNames, option: str, is_object: bool = False) -> NameInFile:
        self = super().__new__(cls, name)
        self.names = names
        self.option = option
        self.is_object = is_object
        return self

    def __copy__(self) -> NameInFile:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NameInFile:
        return self

    def __reduce__(self) -> Any:
        return NameInFile, (str(self), self.names, self.option, self.is_object)


def name_in_file(name: str) -> NameInFile | None:
    """Return a name that comes from a file; None for a name that the user has typed."""
    return name if isinstance(name, NameInFile) else None


def find_named(option: str, name: str, kind: Kind) -> Any:
    """Return the object `module:Class`. A name from a file is checked, a name that the user has typed is not."""
    file_name = name_in_file(name)
    if file_name is not None:
        return file_name.names.find(file_name.option, file_name, kind)
    return import_object(name)


def find_class(option: str, name: str, kind: Kind, otherwise: str) -> Any:
    """Return a class of some kind, whose name the user has typed or a file holds.

    Args:
        option: Name of the option, for messages. A name in a file has its own.
        name: `module:Class`.
        kind: Kind of the class. The option accepts nothing else.
        otherwise: End of each error message: what the user can do instead.

    Raises:
        UntrustedError: The file may not name the class.
        ValueError: It cannot be imported, or is not a class of the kind.
    """
    try:
        found = find_named(option, name, kind)
    except UntrustedError as error:
        raise type(error)(f"{error}; {otherwise}") from None
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the class {name} cannot be imported ({error}); {otherwise}") from error
    # `find_named` checks only names from files that are not trusted.
    if not kind.fits(found):
        raise ValueError(
            f"{name} is not {kind.words}; {otherwise} (a file that names it is foreign, or its class has changed)"
        )
    return found


def module_named(module_name: str, name: str) -> Any:
    """Import and return a module that is a part of `name`.

    If the user has typed the name, the module may be in the current folder; if a file holds it, it may not.
    """
    if name_in_file(name) is not None:
        return import_installed(module_name)
    _add_current_folder()
    return importlib.import_module(module_name)


def import_object(name: str) -> Any:
    """Return the object `module:Class` without any check, for names that the user has typed, trusted or signed."""
    module, _, qualified = current_name(str(name)).partition(":")
    _add_current_folder()
    return functools.reduce(getattr, qualified.split("."), importlib.import_module(module))


def _is_signed_tree(tree: Mapping[str, Any], file: str | Path) -> bool:
    """Return whether the tree has names that need a signature, and the user's signature over them."""
    entries = named_objects(without_signature(tree))
    return _need_signature(entries) and is_signature(entries, tree.get(SIGNATURE), file)


def _member(module: ModuleType, qualified: str) -> Any:
    """Return an object of a module, or an attribute of a class in it, without running a property or descriptor.

    The attribute of any other object, such as another module, is not looked up: the result is None. Otherwise
    `module:os.system` would lead into every module that the first one has imported.
    """
    first, *others = qualified.split(".")
    found: Any = getattr(module, first)
    for part in others:
        if not isinstance(found, type):
            return None
        found = inspect.getattr_static(found, part)
    return found


def _a_kind(found: object) -> str:
    """Return the kind of an object in words, for messages."""
    if isinstance(found, type):
        return "a class"
    if isinstance(found, ModuleType):
        return "a module"
    return "a function" if callable(found) else "an object"


# -- modules: installed, or in the current folder ---

_searches_current_folder = False


def search_current_folder() -> None:
    """Search the current folder as well for modules of typed, trusted or signed names. The command line does so."""
    global _searches_current_folder
    _searches_current_folder = True


def _add_current_folder() -> None:
    """Append the current folder to `sys.path`, if `search_current_folder` was called."""
    if _searches_current_folder and (folder := _current_folder()) and folder not in sys.path:
        sys.path.append(folder)


def import_installed(name: str) -> Any:
    """Import and return a module that is installed or on `sys.path`, but not in the current folder.

    The modules that it imports in turn may not be in the current folder either: a file from a stranger may come in a
    folder with a `json.py` next to it. A module that is imported already is returned.
    """
    if not name or not all(map(str.isidentifier, name.split("."))) or names_script(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if name in sys.modules and sys.modules[name] is not None:
        return sys.modules[name]
    with _outside_current_folder():
        return importlib.import_module(name)


def is_in_current_folder(module_name: str) -> bool:
    """Return whether the current folder has a module of this name, without importing it."""
    top = module_name.partition(".")[0]
    folder = _current_folder()
    return bool(top and folder) and importlib.machinery.PathFinder.find_spec(top, [folder]) is not None  # type: ignore[list-item]


def _current_folder() -> str | None:
    """Return the path of the current folder, or None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _is_same_folder(path: str, folder: str) -> bool:
    """Return whether two paths lead to one folder. An empty path in `sys.path` is the current folder."""
    return os.path.realpath(path or os.curdir) == os.path.realpath(folder)


class _OutsideCurrentFolder:
    """Import hook that finds modules as Python does, except for those in the current folder.

    It applies to one thread: other threads may be importing the user's own modules.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return the spec of a module, or None to let Python's own finders search (`importlib.abc.MetaPathFinder`).

        Raises:
            ModuleNotFoundError: The module is nowhere but in the current folder.
        """
        # Lockstep itself may be used from a folder of sources.
        if threading.get_ident() != self.thread or name.partition(".")[0] == "lockstep":
            return None
        search_path = sys.path if path is None else path
        allowed = [entry for entry in search_path if not self._is_below(entry, name)]
        # The finders that Python would ask, in their order. Only `PathFinder` searches folders.
        for finder in sys.meta_path:
            if isinstance(finder, _OutsideCurrentFolder):
                continue
            is_path_finder = finder is importlib.machinery.PathFinder
            spec = finder.find_spec(name, allowed if is_path_finder else path, target)
            if spec is not None:
                return spec
        # Not None, with which Python would ask the other finders itself, including the current folder.
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def _is_below(self, entry: str, name: str) -> bool:
        """Return whether the outermost package of module `name`, found through `entry`, is in the current folder."""
        # The path of a package `a.b` is one folder deeper than that of `a`.
        for _ in range(name.count(".")):
            entry = os.path.dirname(entry)
        return _is_same_folder(entry, self.folder)


@contextmanager
def _outside_current_folder() -> Iterator[None]:
    """Context in which this thread imports no module from the current folder."""
    folder = _current_folder()
    if folder is None:
        yield
        return
    hook: Any = _OutsideCurrentFolder(folder)
    sys.meta_path = [hook, *sys.meta_path]  # a new list: other threads may be iterating over the old one
    try:
        yield
    finally:
        sys.meta_path = [finder for finder in sys.meta_path if finder is not hook]


class _NamesInMemory(FileNames):
    """Access to the objects that a state of this process names, without any check. It includes those of the script."""

    def find(self, option: str, name: object, kind: Kind | None) -> Any:
        return import_object(str(name))

    def text(self, option: str, name: object) -> Any:
        return name


IN_MEMORY = _NamesInMemory("this process", {}, trust=True)
"""Access to the objects that a state names which was never in a file."""
