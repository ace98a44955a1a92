"""Check which names of Stable-Baselines3 the files of a folder use, and whether a library has them.

A file is only read, not run: its imports, and the attributes of the modules that it imports.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import types
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from sb3_programs import IMPORT, find_files, notebook_code

PACKAGES = ("stable_baselines3", "sb3_contrib")


def names_of_files(folders: list[Path]) -> dict[str, set[str]]:
    """Return the names that each Python file and notebook uses; files that do not import the library are left out."""
    found: dict[str, set[str]] = {}
    for name, path in find_files(folders, (".py", ".ipynb")).items():
        try:
            text = notebook_code(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
            names = names_of(text) if IMPORT.search(text) else set()
        except (ValueError, SyntaxError):  # Python 2, or a template with gaps
            continue
        if names:
            found[name] = names
    return found


def names_of(text: str) -> set[str]:
    """Return the dotted names of Stable-Baselines3 that a program uses, such as `stable_baselines3.common.utils`.

    Raises `SyntaxError` if the text is not Python.
    """
    tree = ast.parse(text)
    names: set[str] = set()
    bound: dict[str, str] = {}  # variable -> the dotted name that was imported under it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not is_peer(alias.name):
                    continue
                names.add(alias.name)
                root = alias.name.split(".")[0]
                bound[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and is_peer(node.module or ""):
            for alias in node.names:
                name = f"{node.module}.{alias.name}" if alias.name != "*" else str(node.module)
                names.add(name)
                bound[alias.asname or alias.name] = name

    names.update(attribute_chains(tree, bound))
    return names


def is_peer(module: str) -> bool:
    """Return whether a module belongs to Stable-Baselines3 or its contrib package."""
    return module.split(".")[0] in PACKAGES


def attribute_chains(tree: ast.AST, bound: dict[str, str]) -> set[str]:
    """Return the dotted names of all attributes that are read from imported names."""
    chains = set()
    for node in ast.walk(tree):
        parts: list[str] = []
        value: ast.AST = node
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            value = value.value
        if parts and isinstance(value, ast.Name) and value.id in bound:
            chains.add(".".join([bound[value.id], *reversed(parts)]))
    return chains


def exists(name: str, library: str) -> bool:
    """Return whether a library has a dotted name.

    Attributes of modules count. Those of classes and functions do not: `PPO.load` is found as `PPO`.
    """
    root, *parts = name.split(".")
    found = importlib.import_module(root if library == "sb3" else "lockstep_sb3")
    path = found.__name__
    for part in parts:
        if not isinstance(found, types.ModuleType):
            return True
        path = f"{path}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(path)
            except ImportError:
                return False
    return True


def missing_names(files: dict[str, set[str]], library: str) -> dict[str, list[str]]:
    """Return for each file the names that the library does not have; of a missing `PPO` and `PPO.load` the first."""
    all_names = set().union(*files.values())
    absent = {name for name in all_names if not exists(name, library)}
    missing = {}
    for file, names in files.items():
        of_file = names & absent
        missing[file] = sorted(name for name in of_file if name.rpartition(".")[0] not in of_file)
    return missing


def count_missing(missing: Iterable[list[str]]) -> Counter[str]:
    """Return in how many files each missing name is used."""
    return Counter(itertools.chain.from_iterable(missing))
