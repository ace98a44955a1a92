"""Names of classes and functions in files.

An object of Lockstep is named after the shortest public folder that lists it in `__all__`, for example
`lockstep.modules:DefaultSACModule`. So its source file may be renamed or moved, and every file that names the object
can still be read. Files of earlier versions name the source file as well; `current_name` translates such a name by the
table in `old_names.py`. All other objects have the name `module:Class`, and objects of the running script
`__main__:Class`.

This file turns objects into names. `state/trust.py` turns names into objects.
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
"""The library, and the packages in `packages/` of its repository, whose objects are named after public folders too."""
SCRIPT_MODULES = ("__main__", "__mp_main__")
"""Module names of the running script: in the first process, and in processes that `multiprocessing` spawns."""


def import_path(option: str, value: object) -> str:
    """Return the name in files of a class or function that is the value of an option.

    Raises:
        ValueError: The value has no name by which it can be imported. The message names the option.
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
    """Return the name of a class or function in files, as the top of this file describes."""
    if is_of_script(value):
        return script_name(value)
    module, qualified = value.__module__, value.__qualname__
    if is_of_lockstep(module):
        module = _public_folder(value) or module
    return f"{module}:{qualified}"


def current_name(name: str) -> str:
    """Return the current name for an old name of an object of Lockstep. Other names are returned unchanged."""
    # A loop, because an object may have moved several times.
    while name in OLD_NAMES:
        name = OLD_NAMES[name]
    return name


def with_current_names(tree: object) -> Any:
    """Return a tree of plain values in which the current name replaces each text that is an old name."""
    if isinstance(tree, Mapping):
        return {key: with_current_names(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(with_current_names(part) for part in tree)
    return current_name(tree) if isinstance(tree, str) else tree


def is_of_lockstep(name: str) -> bool:
    """Return whether a name belongs to one of `OWN_PACKAGES`: the name of a module, or of an object in a module."""
    return name.partition(":")[0].partition(".")[0] in OWN_PACKAGES


def load_library() -> None:
    """Import all folders with objects that a configuration or a file may name.

    `import lockstep` alone imports none of them, and `import lockstep.modules` only the floors below. Code that looks
    through all objects (for names in files, or algorithms by name) calls this first. Otherwise its result would depend
    on the modules that the user happens to have imported.
    """
    # Not an import statement, which would import from a higher floor. Any public name makes the package load itself.
    _ = sys.modules["lockstep"].Policy


def _public_folder(value: Callable[..., Any]) -> str | None:
    """Return the shortest name of a folder of Lockstep whose `__all__` lists an object, or the class around it.

    Folders beyond those that `load_library` imports count only if they are imported already: the search must not import
    more.
    """
    load_library()
    first, *others = value.__qualname__.split(".")
    outermost = getattr(sys.modules.get(value.__module__), first, None)
    if functools.reduce(lambda container, part: getattr(container, part, None), others, outermost) is not value:
        return None  # the module has another object under this name

    return _folder_that_lists(outermost, first)


@functools.cache
def _folder_that_lists(outermost: object, name: str) -> str | None:
    """Return the shortest name of a folder of Lockstep whose `__all__` lists an object, or None if no folder does.

    The result is cached, because each class in a file is searched for among thousands of modules.
    """
    folders = []
    for folder, module in list(sys.modules.items()):
        # The first test leaves out modules of other packages, which are most of them. `__dict__` instead of `getattr`,
        # because a folder may have a `__getattr__` that warns about old names.
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
    """Return whether a name in a file belongs to an object of the script that wrote the file."""
    return isinstance(name, str) and re.split("[:.]", name, maxsplit=1)[0] in SCRIPT_MODULES


def script_name(value: Callable[..., Any]) -> str:
    """Return the name `__main__:Class` of an object of the running script."""
    return f"{SCRIPT_MODULES[0]}:{value.__qualname__}"


def script_source(value: Callable[..., Any]) -> dict[str, Any]:
    """Return the source of an object of the running script as `{"file": .., "text": ..}`; None for an unknown one."""
    try:
        file = inspect.getsourcefile(value)
    except (OSError, TypeError):
        # A class of a notebook or an interactive session has no source file, but its methods name their cell. The class
        # cannot be cut out of the cell, so the text is the whole cell.
        functions = [part for part in vars(value).values() if inspect.isfunction(part)]
        if not functions:
            return {"file": None, "text": None}
        cell = functions[0].__code__.co_filename
        return {"file": cell, "text": "".join(linecache.getlines(cell)) or None}
    try:
        text = inspect.getsource(value)
    except (OSError, TypeError):
        return {"file": file, "text": None}
    return {"file": file, "text": text}
