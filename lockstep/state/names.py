"""How classes and functions are named in files.

An object of Lockstep has the name of the shortest public folder that lists it in `__all__`, for example
`lockstep.modules:DefaultSACModule`. So its file may be renamed or moved, and every file that names it can still be
read. Files of earlier versions name the file too; `current_name` translates them by the table in `old_names.py`.
All other objects have the name `module:Class`, and those of the running script `__main__:Class`.

`state/trust.py` turns names into objects.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from lockstep.state.old_names import OLD_NAMES

OWN_PACKAGES = ("lockstep", "lockstep_sb3")
"""The library, and the packages in `packages/` of its repository, of which files name the public folders too."""
SCRIPT_MODULES = ("__main__", "__mp_main__")
"""Names of the running script as a module; the second is the one in processes that `multiprocessing` spawns."""


def import_path(option: str, value: object) -> str:
    """Return the name of a class or function that is the value of an option.

    Raises:
        ValueError: it has no name by which it can be imported. The message names the option.
    """
    name = getattr(value, "__qualname__", "")
    if name and "<" not in name and getattr(value, "__module__", ""):
        return name_of(cast("Callable[..., Any]", value))
    if "<lambda>" in name:
        why = "a lambda has no name; use points [[0, v0], [t1, v1], ...] for a schedule, or a function with a name"
    elif "<locals>" in name:
        why = "it is defined inside of a function; define it at the top of a module"
    else:
        why = "use plain values, or a class or function that can be imported by name"
    raise ValueError(f"{option}={value!r} cannot be written to JSON: {why}")


def name_of(value: Callable[..., Any]) -> str:
    """Return the name of a class or function in files: see the top of this file."""
    if is_of_script(value):
        return script_name(value)
    module, qualified = value.__module__, value.__qualname__
    if is_of_lockstep(module):
        module = _public_folder(value) or module
    return f"{module}:{qualified}"


def current_name(name: str) -> str:
    """Return the name that an object of Lockstep has today; other names are returned as they are."""
    while name in OLD_NAMES:
        name = OLD_NAMES[name]
    return name


def with_current_names(tree: object) -> Any:
    """Return a tree of plain values in which each text that is an old name is replaced by the name of today."""
    if isinstance(tree, Mapping):
        return {key: with_current_names(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(with_current_names(part) for part in tree)
    return current_name(tree) if isinstance(tree, str) else tree


def is_of_lockstep(name: str) -> bool:
    """Return whether a name is that of a module of Lockstep or of a distribution beside it, or of an object in one."""
    return name.partition(":")[0].partition(".")[0] in OWN_PACKAGES


def load_library() -> None:
    """Import all folders that hold what a configuration or a file may name, as any public name of `lockstep` does.

    `import lockstep` alone imports none, and `import lockstep.modules` only the floors below. What depends on all that
    exists (names in files, algorithms by name) calls this first, so that it never depends on what a user has imported.
    """
    # Not an import, which would go up: the package is there before any of its files, and loads itself.
    _ = sys.modules["lockstep"].Policy


def _public_folder(value: Callable[..., Any]) -> str | None:
    """Return the shortest name of a folder of Lockstep whose `__all__` has an object, or the class around it.

    Folders beyond those that `load_library` imports count only if they are imported: looking must not import more.
    """
    load_library()
    parts = value.__qualname__.split(".")
    outermost = getattr(sys.modules.get(value.__module__), parts[0], None)
    if functools.reduce(lambda found, part: getattr(found, part, None), parts[1:], outermost) is not value:
        return None  # another object has this name now

    return _folder_that_lists(outermost, parts[0])


@functools.cache
def _folder_that_lists(outermost: object, name: str) -> str | None:
    """Return the shortest name of a folder of Lockstep whose `__all__` has an object; None where none has it.

    Each class in a file is looked up among thousands of modules, so that what was found is kept.
    """
    folders = []
    for folder, module in list(sys.modules.items()):
        # Modules of other packages are left out first, because they are most.
        # `__dict__`, because a folder may answer old names by a `__getattr__` that warns.
        if not folder.startswith(OWN_PACKAGES) or getattr(module, "__dict__", {}).get(name) is not outermost:
            continue
        if is_of_lockstep(folder) and hasattr(module, "__path__") and name in getattr(module, "__all__", ()):
            folders.append(folder)
    return min(folders, key=lambda folder: (folder.count("."), folder), default=None)


# -- objects of the running script ---


def is_of_script(value: object) -> bool:
    """Return whether a class or function is defined at the top of the running script, or in a class there."""
    name = getattr(value, "__qualname__", "")
    return bool(name) and "<" not in name and getattr(value, "__module__", "") in SCRIPT_MODULES


def names_script(name: object) -> bool:
    """Return whether a name is that of an object in the script that wrote it."""
    return isinstance(name, str) and re.split("[:.]", name, maxsplit=1)[0] in SCRIPT_MODULES


def script_name(value: Callable[..., Any]) -> str:
    """Return the name `__main__:Class` of an object of the running script."""
    return f"{SCRIPT_MODULES[0]}:{value.__qualname__}"


def script_source(value: Callable[..., Any]) -> dict[str, Any]:
    """Return where an object of the running script is defined: `file` and `text`; None what Python cannot tell."""
    try:
        file = inspect.getsourcefile(value)
    except (OSError, TypeError):  # a class of a notebook or of an interactive session, which are no files
        functions = [part for part in vars(value).values() if inspect.isfunction(part)]
        file = functions[0].__code__.co_filename if functions else None
        # The class cannot be cut out of its cell, so the whole cell is noted.
        return {"file": file, "text": "".join(linecache.getlines(file)) or None if file else None}
    try:
        text = inspect.getsource(value)
    except (OSError, TypeError):
        return {"file": file, "text": None}
    return {"file": file, "text": text}
