"""Counts that show the shape of the code: circles of files, accesses to the private parts of other objects, `Any`.

`test_architecture_house.py` holds their limits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from architecture_checks import Found, Sources, imports_of, module_name, parsed

WRAPPERS = ("classmethod", "staticmethod", "property")


# -- circles ---


def file_graph(sources: Sources) -> dict[str, set[str]]:
    """`{path: paths of the files it imports}`; lazy imports and those for type checking count."""
    by_name = {module_name(path): path for path in sources}
    graph: dict[str, set[str]] = {path: set() for path in sources}
    for path, text in sources.items():
        for _, name in imports_of(path, text):
            target = by_name.get(name) or by_name.get(name.rpartition(".")[0])
            if target and target != path and not _is_own_package(path, target):
                graph[path].add(target)
    return graph


def _is_own_package(path: str, target: str) -> bool:
    """Does a file name the package it lies in? `from package import file` is an import of the file only."""
    return target.endswith("/__init__.py") and path.startswith(target.removesuffix("__init__.py"))


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of two or more nodes that reach each other, the largest first (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for following in sorted(graph.get(node, ())):
            if following not in number:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], number[following])
        if low[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(found, key=lambda group: (-len(group), group))


# -- reaches into other objects ---


def private_accesses(sources: Sources) -> list[Found]:
    """Uses of `x._name` where `x` is not `self` or `cls`, and `_name` no method of a named tuple or a module."""
    return [
        Found(path, node.lineno, ast.unparse(node))
        for path, text in sources.items()
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in ("_replace", "_asdict", "_fields")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and not (isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super")
    ]


def classes_of(sources: Sources) -> set[str]:
    """Names of the classes that the package defines, but for values: dataclasses, tuples, typed dicts, protocols."""
    names = set()
    for text in sources.values():
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.ClassDef) and not _is_value(node):
                names.add(node.name)
    return names


def _is_value(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
    return any("frozen=True" in m or m in ("NamedTuple", "TypedDict", "Enum", "StrEnum", "Protocol") for m in marks)


def owner_first(sources: Sources) -> list[Found]:
    """Functions outside of classes whose first parameter is an object of a class of ours: methods that left home."""
    classes = classes_of(sources)
    return [
        Found(path, node.lineno, f"{node.name}({first.arg}: {ast.unparse(first.annotation)})")
        for path, text in sources.items()
        for node in parsed(text).body
        if isinstance(node, ast.FunctionDef) and (first := _first_parameter(node)) is not None
        if first.annotation is not None and _names_in(first.annotation) & classes
    ]


def _first_parameter(node: ast.FunctionDef) -> ast.arg | None:
    parameters = [*node.args.posonlyargs, *node.args.args]
    return parameters[0] if parameters else None


def _names_in(annotation: ast.expr) -> set[str]:
    """The annotation's own class or, of `X | None` and `"X"`, those in it; not what is inside `list[X]`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):
        return _names_in(annotation.left) | _names_in(annotation.right)
    if isinstance(annotation, ast.Attribute):
        return {annotation.attr}
    return {annotation.id} if isinstance(annotation, ast.Name) else set()


def assigned_methods(sources: Sources) -> list[Found]:
    """`name = module.function` (also within `classmethod(...)`) in the body of a class."""
    found = []
    for path, text in sources.items():
        modules = {name.rpartition(".")[2] for _, name in imports_of(path, text) if name.startswith("lockstep.")}
        for node in ast.walk(parsed(text)):
            for line in node.body if isinstance(node, ast.ClassDef) else ():
                value = line.value if isinstance(line, ast.Assign) else None
                if isinstance(value, ast.Call) and ast.unparse(value.func) in WRAPPERS:
                    value = value.args[0]
                owner = value.value if isinstance(value, ast.Attribute) else None
                if isinstance(owner, ast.Name) and owner.id in modules and owner.id.islower():
                    found.append(Found(path, line.lineno, ast.unparse(line)))
    return found


# -- types ---


def any_parameters(sources: Sources) -> int:
    """How many parameters are annotated with nothing but `Any`."""
    return sum(
        isinstance(node, ast.arg) and node.annotation is not None and ast.unparse(node.annotation) == "Any"
        for text in sources.values()
        for node in ast.walk(parsed(text))
    )
