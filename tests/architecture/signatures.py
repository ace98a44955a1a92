"""Signatures of all public names and defaults of all options, compared with those of the last version.

`released_signatures.json` has the signatures of the last version. It is written once a version, when the next one
begins, with the code that was released:

    PYTHONPATH=CHECKOUT_OF_THE_RELEASE python tests/architecture/signatures.py --write

What is gone or has changed since then must be named in the newest section of `CHANGELOG.md`. New names need no line.
`python tests/architecture/signatures.py` prints each change that is not named yet.

Form of the file: `{"version": "0.2.0", "signatures": {path: text}}`. A path is that of a public name
(`lockstep.Policy`), of a method or property of a public class (`lockstep.Policy.save_to_path`), or of an option
(`ppo: training.lr`). Types are left out, because they may become more precise while the behaviour stays.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from architecture_checks import declared_names, module_name, read_sources
from public_names import RENAMED, ROOT, find, new_path

import lockstep

FILE = Path(__file__).with_name("released_signatures.json")
CHANGELOG = ROOT / "CHANGELOG.md"
PACKAGES = {"lockstep": ".", "lockstep_sb3": "packages/lockstep-sb3"}
"""Where the packages are in a checkout. 0.2.0 had only the first one."""
EVERY = "every algorithm"
GONE = "gone"
VARIABLE: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "args", inspect.Parameter.VAR_KEYWORD: "kwargs"}
"""Names of parameters that no caller writes: another name is not a change."""

Signatures = dict[str, str]


@dataclass(frozen=True)
class Change:
    """A public name or an option that is not as it was in the last version."""

    path: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.path}\n    was {self.before}\n    is  {self.now}"


# -- one signature ---


class Text(str):
    """A text whose `repr` is the text."""

    def __repr__(self) -> str:
        return str(self)


def default_text(value: Any) -> str:
    """Return a default as text that is the same in every process and version of Python."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__qualname__
    if isinstance(value, set | frozenset):  # in an order of their own in each process
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    if isinstance(value, tuple | list | dict | str | int | float | None):
        return repr(value)
    return f"<{type(value).__name__}>"


def parameters(function: Any) -> str:
    """Return the parameters of a function or class with their defaults, without types."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C, whose signature Python does not know
        return "(...)"
    found = []
    for each in signature.parameters.values():
        name = VARIABLE.get(each.kind, each.name)
        default = each.default
        if default is not inspect.Parameter.empty:
            default = Text(default_text(default))
        found.append(each.replace(name=name, annotation=inspect.Parameter.empty, default=default))
    return str(inspect.Signature(found))


def signature_text(value: Any) -> str:
    """Return the signature of a public object."""
    if inspect.isclass(value):
        if issubclass(value, enum.Enum):
            return f"enum {', '.join(value.__members__)}"
        if value in section_classes():
            return "section of options"
        if "options_class" in dir(value):
            return f"class with {trainer_keywords(value)}"
        return f"class {parameters(value)}"
    if isinstance(value, property | functools.cached_property):
        return "property"
    if callable(value):
        return parameters(value)
    return f"object of {type(value).__name__}"


def trainer_keywords(trainer: type) -> str:
    """Return the keywords of a trainer, which its signature does not name."""
    words = []
    for option in fields(trainer.options_class):  # type: ignore[attr-defined]
        word = option.name
        if option.default is not MISSING:
            word += f"={default_text(option.default)}"
        words.append(word)
    return f"({', '.join(sorted(words))})"


@functools.cache
def section_classes() -> set[type]:
    """Return the classes of all sections of all configurations, whose options are listed one by one."""
    return {type(section) for config in lockstep.ALGORITHMS for section in config().sections.values()}


# -- all signatures ---


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yield `(path, object)` for every name in an `__all__` of the packages, each object once.

    An object with several public names has the one in the highest folder, from which pages import it.
    """
    checkout = Path(lockstep.__file__).parents[1]
    pairs = []
    for package, place in PACKAGES.items():
        for path, text in read_sources(checkout / place, package).items():
            pairs += [(module_name(path), name) for name in declared_names(text) or ()]
    yielded = set()
    for module, name in sorted(pairs, key=lambda pair: (pair[0].count("."), pair)):
        value = find(module, name)
        if id(value) not in yielded:
            yielded.add(id(value))
            yield f"{module}.{name}", value


def is_own(owner: type) -> bool:
    """Return whether a class is defined in one of the packages."""
    return owner.__module__.partition(".")[0] in PACKAGES


def public_members(owner: type) -> set[str]:
    """Return the names of the public methods and properties that the packages define for a class."""
    kinds = property | functools.cached_property | staticmethod | classmethod
    found = set()
    for base in filter(is_own, owner.__mro__):
        for name, value in vars(base).items():
            is_member = isinstance(value, kinds) or inspect.isroutine(value)
            if is_member and (name == "__call__" or not name.startswith("_")):
                found.add(name)
    return found


def signatures_of_today() -> Signatures:
    """Return the signatures of all public names, of the members of their classes, and of all options."""
    objects = dict(public_objects())
    classes = [value for value in objects.values() if inspect.isclass(value) and is_own(value)]
    found = {}
    for path, value in objects.items():
        found[path] = signature_text(value)
        if not inspect.isclass(value) or not is_own(value) or value in section_classes():
            continue
        bases = [base for base in value.__mro__[1:] if base in classes]
        for name in public_members(value):
            text = signature_text(getattr(value, name))
            if not any(signature_text(getattr(base, name, None)) == text for base in bases):
                found[f"{path}.{name}"] = text
    return dict(sorted(found.items())) | options_of_today()


def options_of_today() -> Signatures:
    """Return the default of each option: `every algorithm: environment.env_config`, `ppo: training.lr`."""
    defaults = {}
    for config_class in lockstep.ALGORITHMS:
        defaults[config_class.algorithm] = {
            f"{name}.{option}": default_text(getattr(section, option))
            for name, section in config_class().sections.items()
            for option in section.options()
        }
    shared = set.intersection(*(set(options.items()) for options in defaults.values()))
    found = {f"{EVERY}: {path}": default for path, default in sorted(shared)}
    for algorithm in sorted(defaults):
        own = set(defaults[algorithm].items()) - shared
        found |= {f"{algorithm}: {path}": default for path, default in sorted(own)}
    return found


def by_algorithm(signatures: Mapping[str, str]) -> dict[str, Signatures]:
    """Return `{algorithm: {option: default}}`. Those of every algorithm are among the options of each."""
    shared: Signatures = {}
    found: dict[str, Signatures] = {}
    for path, default in signatures.items():
        owner, is_option, name = path.partition(": ")
        if is_option and owner == EVERY:
            shared[name] = default
        elif is_option:
            found.setdefault(owner, {})[name] = default
    return {algorithm: shared | options for algorithm, options in found.items()}


# -- changes since the last version ---


def changes(released: Mapping[str, str]) -> Iterator[Change]:
    """Yield what is gone or has changed since the last version. An old name that still works is not gone."""
    for path, before in released.items():
        if ": " not in path:
            now = signature_now(path)
            if now != before:
                yield Change(path, before, now)

    today = by_algorithm(options_of_today())
    for algorithm, options in by_algorithm(released).items():
        for name, before in options.items():
            now = today.get(algorithm, {}).get(name, GONE)
            if now != before:
                yield Change(f"{algorithm}: {name}", before, now)


def signature_now(path: str) -> str:
    """Return today's signature of a public name or member of the last version."""
    try:
        return signature_text(object_at(new_path(path, RENAMED)))
    except AttributeError:
        return GONE


def object_at(path: str) -> Any:
    """Return the object with a dotted path through packages, modules and classes.

    Raises:
        AttributeError: There is none.
    """
    first, *rest = path.split(".")
    value: Any = importlib.import_module(first)
    for word in rest:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            if inspect.ismodule(value) and not hasattr(value, word):
                try:
                    importlib.import_module(f"{value.__name__}.{word}")
                except ModuleNotFoundError as error:
                    raise AttributeError(f"{value.__name__} has no {word}") from error
            value = getattr(value, word)
    return value


# -- the changelog ---


def newest_section(changelog: str) -> str:
    """Return the text of a changelog from its first version to its second."""
    return re.split(r"^## ", changelog, maxsplit=2, flags=re.MULTILINE)[1]


def versions(changelog: str) -> list[str]:
    """Return the versions that a changelog has sections for, the newest first."""
    return re.findall(r"^## (\S+)", changelog, re.MULTILINE)


def is_named(change: Change, section: str) -> bool:
    """Return whether a section names what has changed, in code: between backticks.

    A function or class is named by its name. A member of a class is named as `Class.member`, where the class may be
    any of its bases. An option is named as `section.option`, or as the call `section(option=...)`.
    """
    code = re.findall(r"`([^`]+)`", section)
    return any(re.search(words, text) for words in words_for(change) for text in code)


def words_for(change: Change) -> list[str]:
    """Return regular expressions of which one must be found in code of the changelog."""
    _, is_option, option = change.path.partition(": ")
    if is_option:
        group, _, name = option.partition(".")
        return [rf"\b{group}\.{name}\b", rf"\b{group}\([^)]*\b{name}="]
    owner, _, name = change.path.rpartition(".")
    try:
        value = object_at(new_path(owner, RENAMED))
    except AttributeError:
        value = None
    names = {name}
    if inspect.isclass(value):
        classes = {owner.rpartition(".")[2], *(base.__name__ for base in value.__mro__)}
        names = {f"{each}.{name}" for each in classes}
    return [rf"\b{re.escape(each)}\b" for each in names]


def unnamed(found: Iterable[Change], section: str) -> list[Change]:
    """Return the changes that a section of the changelog does not name."""
    return [change for change in found if not is_named(change, section)]


def released_signatures() -> tuple[str, Signatures]:
    """Return the last version and its signatures."""
    stored = json.loads(FILE.read_text())
    return stored["version"], stored["signatures"]


def main() -> None:
    """Print the changes that the changelog does not name, or write the signatures of the code that is imported."""
    if sys.argv[1:] == ["--write"]:
        stored = {"version": lockstep.__version__, "signatures": signatures_of_today()}
        FILE.write_text(json.dumps(stored, indent=1) + "\n")
        return
    for change in unnamed(changes(released_signatures()[1]), newest_section(CHANGELOG.read_text())):
        print(change)


if __name__ == "__main__":
    main()
