"""Write the keyword types of options, `typed.py` in each folder that declares some, from the fields of its sections.

`python tests/architecture/keyword_types.py` writes the files anew; `make pages` runs it.

A section declares an option once, as a field. Editors and type checkers read a call such as `config.training(lr=1e-3)`
from a `TypedDict` of the same names. Here these are made from the source text alone, so that the command runs when the
files are missing or too old to be imported.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from architecture_checks import Sources, module_name, parsed, read_sources

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python tests/architecture/keyword_types.py"
ROOM_OF: Mapping[str, str] = {"lockstep/algorithms": "lockstep/algorithms/families"}
"""Folders whose keyword types are in another folder: `algorithms/` holds one file for each algorithm, nothing else."""
PARAMETERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ReplayBuffer": {
        "BufferOptions": ("buffer_num", "priorities", "hindsight"),
        "VectorBufferOptions": ("buffer_num",),
        "AnyBufferOptions": (),
    }
}
"""Keyword types of the keyword-only parameters of a constructor: each without those that its callers set themselves.
Each extends the one before it."""

Fields = dict[str, str]


class KeywordTypeError(Exception):
    """A declaration of which no keyword type can be made; says where it is, and what to change."""


@dataclass
class Room:
    """A `typed.py` that is being written."""

    path: str
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Names to import, by module."""
    classes: list[str] = field(default_factory=list)

    def add(self, name: str, base: str | None, fields: Fields, declared_in: str) -> None:
        """Add the keyword type of a class, which extends that of its base."""
        head = f"class {name}({base or 'TypedDict'}, total=False):"
        lines = [head, f'    """Options of `{declared_in}`."""', ""]
        lines += [f"    {option}: {annotation}" for option, annotation in fields.items()]
        self.classes.append("\n".join(lines))

    def text(self) -> str:
        """Return the file as ruff formats it."""
        if any("(TypedDict, total=False)" in text for text in self.classes):
            self.take("typing", "TypedDict")
        declared = "of algorithms" if self.path.startswith("lockstep/algorithms/") else "declared in this folder"
        blocks = [
            f'"""Keyword types of the options {declared}."""',
            f"# Written by `{COMMAND}` from the fields of the sections: do not edit.",
            "from __future__ import annotations",
        ]
        groups = _import_groups(self.imports)
        blocks += ["\n".join(_import_line(module, self.imports[module]) for module in group) for group in groups]
        return "\n\n".join(blocks) + "\n\n\n" + "\n\n\n".join(self.classes) + "\n"

    def take(self, module: str, name: str) -> None:
        """Import a name."""
        self.imports.setdefault(module, set()).add(name)


@dataclass(frozen=True)
class Declaration:
    """A class that declares options, and the file where it is."""

    path: str
    node: ast.ClassDef

    @property
    def bases(self) -> list[str]:
        """Names of the base classes, without their parameters."""
        return [_root_name(base) for base in self.node.bases]

    @property
    def room(self) -> str:
        """The `typed.py` of its keyword type."""
        folder = PurePosixPath(self.path).parent.as_posix()
        return f"{ROOM_OF.get(folder, folder)}/typed.py"

    @property
    def is_constructed(self) -> bool:
        """Whether callers give the options to a constructor, where those without default are required.

        Such classes are named `...Options`. Other sections belong to a configuration, which has made them already.
        """
        return self.node.name.endswith("Options")

    @property
    def keyword_type(self) -> str:
        """The name of its keyword type: `PPOOptions` for `PPOTraining`, `RunKeywords` for `RunOptions`."""
        if self.is_constructed:
            return self.node.name.removesuffix("Options") + "Keywords"
        return self.node.name.removesuffix("Training").removesuffix("Section") + "Options"

    @property
    def where(self) -> str:
        """The place, for messages."""
        return f"{self.path}:{self.node.lineno}: {self.node.name}"


def written(sources: Sources) -> dict[str, str]:
    """Return the text of each `typed.py` by its path, for the sources of the package."""
    classes = {
        node.name: Declaration(path, node)
        for path, text in sources.items()
        if not path.endswith("/typed.py")
        for node in parsed(text).body
        if isinstance(node, ast.ClassDef)
    }
    rooms: dict[str, Room] = {}

    def room_of(declaration: Declaration) -> Room:
        return rooms.setdefault(declaration.room, Room(declaration.room))

    for section in _sections(classes):
        fields = _new_options(section, classes)
        if not fields:
            continue
        room = room_of(section)
        base = _keyword_base(section, classes)
        if base is not None and base.room != room.path:
            room.take(module_name(base.room), base.keyword_type)
        annotations = _resolved(fields, sources[section.path], section, room)
        if section.is_constructed:
            for option in _without_default(section) & annotations.keys():
                room.take("typing", "Required")
                annotations[option] = f"Required[{annotations[option]}]"
        room.add(section.keyword_type, base and base.keyword_type, annotations, section.node.name)

    for name, kinds in PARAMETERS.items():
        if name not in classes:
            continue
        declaration = classes[name]
        room = room_of(declaration)
        left = _keyword_parameters(declaration)
        base_name = None
        for keyword_type, without in kinds.items():
            fields = {option: annotation for option, annotation in left.items() if option not in without}
            left = {option: annotation for option, annotation in left.items() if option in without}
            annotations = _resolved(fields, sources[declaration.path], declaration, room)
            room.add(keyword_type, base_name, annotations, name)
            base_name = keyword_type

    return {path: room.text() for path, room in sorted(rooms.items())}


# -- what sections declare ---


def _sections(classes: Mapping[str, Declaration]) -> Iterator[Declaration]:
    """All subclasses of `Section`, each after its bases."""
    done: set[str] = set()

    def visit(declaration: Declaration) -> Iterator[Declaration]:
        if declaration.node.name in done:
            return
        done.add(declaration.node.name)
        for base in _known_bases(declaration, classes):
            yield from visit(base)
        if _is_section(declaration, classes):
            yield declaration

    # Deep folders first: the families of algorithms come before the algorithms.
    for declaration in sorted(classes.values(), key=lambda each: (-each.path.count("/"), each.path, each.node.lineno)):
        yield from visit(declaration)


def _known_bases(declaration: Declaration, classes: Mapping[str, Declaration]) -> list[Declaration]:
    return [classes[name] for name in declaration.bases if name in classes and name != declaration.node.name]


def _is_section(declaration: Declaration, classes: Mapping[str, Declaration]) -> bool:
    return "Section" in declaration.bases or any(
        _is_section(base, classes) for base in _known_bases(declaration, classes)
    )


def _fields(declaration: Declaration) -> dict[str, ast.AnnAssign]:
    """The annotated names of a class body, but for class variables."""
    return {
        part.target.id: part
        for part in declaration.node.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and not ast.unparse(part.annotation).startswith("ClassVar")
    }


def _without_default(declaration: Declaration) -> set[str]:
    """Names of the fields that have neither a default nor a factory of one."""
    found = set()
    for name, declared in _fields(declaration).items():
        value = declared.value
        if isinstance(value, ast.Call) and _root_name(value.func) == "option":
            if not value.args and not {"default", "factory"} & {each.arg for each in value.keywords}:
                found.add(name)
        elif value is None:
            found.add(name)
    return found


def _inherited_fields(declaration: Declaration, classes: Mapping[str, Declaration]) -> dict[str, ast.AnnAssign]:
    inherited: dict[str, ast.AnnAssign] = {}
    for base in _known_bases(declaration, classes):
        inherited |= _inherited_fields(base, classes) | _fields(base)
    return inherited


def _new_options(section: Declaration, classes: Mapping[str, Declaration]) -> dict[str, ast.expr]:
    """Options that a section declares and its bases do not have, without those that its `__call__` names itself.

    A field that a base has too is another default; its type may not change.
    """
    inherited = _inherited_fields(section, classes)
    call = _method(section.node, "__call__")
    named = set() if call is None else {each.arg for each in (*call.args.args, *call.args.kwonlyargs)}
    options = {}
    for name, declared in _fields(section).items():
        if name not in inherited:
            if name not in named:
                options[name] = declared.annotation
        elif ast.unparse(declared.annotation) != ast.unparse(inherited[name].annotation):
            raise KeywordTypeError(
                f"{section.where}.{name} has another type than in the section that it extends; give it the same"
            )
    return options


def _keyword_base(section: Declaration, classes: Mapping[str, Declaration]) -> Declaration | None:
    """The nearest section above this one that has a keyword type."""
    for base in _known_bases(section, classes):
        if _is_section(base, classes):
            return base if _new_options(base, classes) else _keyword_base(base, classes)
    return None


def _keyword_parameters(declaration: Declaration) -> dict[str, ast.expr]:
    """The keyword-only parameters of a constructor, and their types."""
    constructor = _method(declaration.node, "__init__")
    if constructor is None:
        raise KeywordTypeError(f"{declaration.where} has no __init__")
    return {each.arg: each.annotation for each in constructor.args.kwonlyargs if each.annotation is not None}


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == name), None)


def _root_name(node: ast.expr) -> str:
    """`Section` of `Section[ConfigT]` and of `section.Section`."""
    if isinstance(node, ast.Subscript):
        return _root_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# -- what their annotations mean ---


def _resolved(fields: Mapping[str, ast.expr], text: str, declaration: Declaration, room: Room) -> Fields:
    """Return annotations as text, and let the room import what they name.

    A name that the declaring file itself gives to a type is written out: the room may not import that file, which
    imports the room.
    """
    tree = parsed(text)
    imported = _imported_names(tree)
    aliases = {
        part.targets[0].id: part.value
        for part in tree.body
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name)
    }

    def spelled(annotation: ast.expr) -> str:
        written_out = ast.get_source_segment(text, annotation) or ""
        names = {node.id: node for node in ast.walk(annotation) if isinstance(node, ast.Name)}
        for name in sorted(names):
            if name in imported:
                module, original = imported[name]
                if not original:
                    raise KeywordTypeError(f"{declaration.where} names {name}.(...) in a type; import the type by name")
                room.take(module, original if original == name else f"{original} as {name}")
            elif name in aliases:
                written_out = _replaced(written_out, name, spelled(aliases[name]))
            elif not hasattr(builtins, name):
                raise KeywordTypeError(
                    f"{declaration.where} names {name!r} in the type of an option, which {declaration.path} defines; "
                    "move it to a file that this one imports"
                )
        return written_out

    return {name: spelled(annotation) for name, annotation in fields.items()}


def _imported_names(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """By name the module it comes from and its name there; an empty name for a module."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
    return found


def _replaced(text: str, name: str, value: str) -> str:
    """Replace a whole word."""
    tree = ast.parse(text, mode="eval")
    places = [node.col_offset for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    for start in sorted(places, reverse=True):
        text = text[:start] + value + text[start + len(name) :]
    return text


# -- how imports are written ---


def _import_groups(modules: Iterable[str]) -> list[list[str]]:
    """Modules sorted: the standard library, other packages, this one."""
    standard: list[str] = []
    others: list[str] = []
    own: list[str] = []
    for module in sorted(modules):
        package = module.partition(".")[0]
        if package == "lockstep":
            own.append(module)
        elif package in sys.stdlib_module_names:
            standard.append(module)
        else:
            others.append(module)
    return [group for group in (standard, others, own) if group]


def _import_line(module: str, names: Iterable[str]) -> str:
    """Constants first, then classes, then the rest, as ruff sorts them."""

    def rank(name: str) -> tuple[int, str]:
        kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
        return kind, name

    ordered = sorted(names, key=rank)
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= 120:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in ordered) + ")"


if __name__ == "__main__":
    for path, text in written(read_sources(ROOT, "lockstep")).items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(f"wrote {path}")
