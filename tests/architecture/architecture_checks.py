"""What the architecture tests look with: functions from source texts to what is wrong in them.

A source tree is a `Sources`: `{path relative to the package's parent: text}`, e.g. `{"lockstep/ops/a.py": "..."}`, so
that every function here is itself tested on small bad examples (`test_architecture_checks.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Sources = Mapping[str, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """Something in a source, and where."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


STANDALONE = tuple(f"lockstep/eject/files/{name}.py" for name in ("ppo", "dqn", "sac"))
"""Files that `lockstep eject` copies. They run without Lockstep, so each has its own loss, loop and `backward`, and
class names that the library has too. The rules about the library's architecture do not apply to them."""


def read_sources(root: Path, folder: str) -> dict[str, str]:
    """Return the Python files below `root / folder`, but for `STANDALONE`, by their path relative to `root`."""
    paths = {path.relative_to(root).as_posix(): path for path in sorted((root / folder).rglob("*.py"))}
    return {name: path.read_text() for name, path in paths.items() if name not in STANDALONE}


def read_standalone(root: Path) -> dict[str, str]:
    """Return the files of `STANDALONE` by their path relative to `root`."""
    return {name: (root / name).read_text() for name in STANDALONE}


@cache
def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a source text."""
    return ast.parse(text)


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a source text; walking the tree anew for each check takes longer than most checks."""
    return tuple(ast.walk(parsed(text)))


# -- imports ---


def module_name(path: str) -> str:
    """Return `"lockstep/ops/__init__.py"` -> `"lockstep.ops"`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_of(path: str, text: str) -> list[tuple[int, str]]:
    """Return `(line, absolute name)` of all that is imported anywhere in a file.

    At the top, in functions, for type checking only, relatively, and by `import_module("...")` with a written-out name.
    `from a import b` gives `a.b`.
    """
    package = module_name(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    names: list[tuple[int, str]] = []
    for node in nodes(text):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            names += [(node.lineno, base if alias.name == "*" else f"{base}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and _called_name(node) in ("import_module", "__import__") and node.args:
            given = node.args[0]
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                names.append((node.lineno, given.value))
    return names


def folder_of(name: str) -> str | None:
    """Return the folder of a dotted name; `""` for the package itself, None for another package."""
    parts = name.split(".")
    if parts[0] != "lockstep":
        return None
    return parts[1] if len(parts) > 1 else ""


def upward_imports(sources: Sources, floors: Mapping[str, int], free: Iterable[str] = ()) -> list[Found]:
    """Find imports that do not go down. `free`: modules outside the floors that all may import (`_version`)."""
    found = []
    for path, text in sources.items():
        own = folder_of(module_name(path))
        if not own:
            continue  # the package's own __init__ stands above all floors
        if own not in floors:
            if own not in free:
                found.append(Found(path, 1, f"{own!r} has no floor"))
            continue
        for line, name in imports_of(path, text):
            target = folder_of(name)
            if target is None or target == own or target in free:
                continue
            if target not in floors:
                found.append(Found(path, line, f"imports {name}, which is on no floor"))
            elif floors[target] >= floors[own]:
                found.append(Found(path, line, f"{own} (floor {floors[own]}) imports {name} (floor {floors[target]})"))
    return found


def imports_matching(sources: Sources, prefixes: Iterable[str], *, within: str = "") -> list[Found]:
    """Find imports of a module at or below one of `prefixes`, in files whose path begins with `within`."""
    wanted = tuple(prefixes)
    return [
        Found(path, line, f"imports {name}")
        for path, text in sources.items()
        if path.startswith(within)
        for line, name in imports_of(path, text)
        if any(name == prefix or name.startswith(prefix + ".") for prefix in wanted)
    ]


def uses_of(sources: Sources, names: Iterable[str], *, within: str = "") -> list[Found]:
    """Find uses of dotted or plain names (`"torch.optim"`, `"PPOConfig"`) in the code of files below `within`."""
    wanted = set(names)
    return [
        Found(path, node.lineno, f"uses {ast.unparse(node)}")
        for path, text in sources.items()
        if path.startswith(within)
        for node in nodes(text)
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in wanted
    ]


# -- calls ---


def _called_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def calls_of(sources: Sources, name: str) -> list[Found]:
    """Find calls of a function or method of this name, `name(...)` or `x.name(...)`; the call as it is written."""
    return [
        Found(path, node.lineno, ast.unparse(node))
        for path, text in sources.items()
        for node in nodes(text)
        if isinstance(node, ast.Call) and _called_name(node) == name
    ]


def optimizer_steps(sources: Sources) -> list[Found]:
    """Find calls `x.step()` that step an optimizer: without arguments (environments take actions), or on something
    whose name says so.
    """
    found = []
    for call in calls_of(sources, "step"):
        node = ast.parse(call.what, mode="eval").body
        assert isinstance(node, ast.Call)
        receiver = ast.unparse(node.func).removesuffix("step").lower()
        if receiver and ("optim" in receiver or not (node.args or node.keywords)):
            found.append(call)
    return found


# -- sizes ---


def functions_in(text: str) -> Iterator[tuple[str, Function]]:
    """Return `(qualified name, function)` of all functions and methods, nested ones too."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
                yield from visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield from visit(child, prefix)

    yield from visit(parsed(text), "")


# -- names and words ---


def declared_names(text: str) -> list[str] | None:
    """Return what `__all__` lists, or None where there is none."""
    for node in parsed(text).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def undocumented(sources: Sources) -> list[Found]:
    """Find modules, public classes, functions and methods without a docstring.

    A method that overrides a documented one of a base class in the tree, or implements one of a Protocol in the same
    file, has that one's docstring; `forward` of a network has its class's.
    """
    trees = {path: parsed(text) for path, text in sources.items()}
    in_file = {
        path: {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for path, tree in trees.items()
    }
    in_all = {name: node for classes in in_file.values() for name, node in classes.items()}
    found = [Found(path, 1, "module") for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    for path, tree in trees.items():
        classes = {
            **in_all,
            **in_file[path],
        }  # names of the package for Stable-Baselines3 may exist in Lockstep as well
        protocols = [node for node in tree.body if isinstance(node, ast.ClassDef) and "Protocol" in _base_names(node)]
        for node in tree.body:
            if isinstance(node, Function) and _needs_docstring(node):
                found.append(Found(path, node.lineno, f"function {node.name}"))
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found += [Found(path, line, what) for line, what in _undocumented_in_class(node, classes, protocols)]
    return found


def _needs_docstring(node: Function) -> bool:
    overloads = any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)
    setters = any(ast.unparse(decorator).endswith(".setter") for decorator in node.decorator_list)
    return not (node.name.startswith("_") or overloads or setters or ast.get_docstring(node))


def _base_names(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def _undocumented_in_class(
    node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], protocols: list[ast.ClassDef]
) -> Iterator[tuple[int, str]]:
    if not ast.get_docstring(node):
        yield node.lineno, f"class {node.name}"
    for child in node.body:
        if not isinstance(child, Function) or not _needs_docstring(child) or child.name == "forward":
            continue
        if not (any(_documents(p, child.name) for p in protocols) or _inherits(node, child.name, classes, frozenset())):
            yield child.lineno, f"method {node.name}.{child.name}"


def _documents(node: ast.ClassDef, method: str) -> bool:
    return any(isinstance(c, Function) and c.name == method and ast.get_docstring(c) for c in node.body)


def _inherits(node: ast.ClassDef, method: str, classes: Mapping[str, ast.ClassDef], seen: frozenset[str]) -> bool:
    return any(
        _documents(classes[name], method) or _inherits(classes[name], method, classes, seen | {name})
        for name in _base_names(node)
        if name in classes and name not in seen
    )


UNSAFE_MODULES = ("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal")
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error")


def unfinished_marks(sources: Sources) -> list[Found]:
    """Find lines with a mark of unfinished work."""
    return [
        Found(path, number, mark)
        for path, text in sources.items()
        for number, line in enumerate(text.splitlines(), start=1)
        for mark in UNFINISHED
        if mark in line and mark in _words(line)
    ]


def _words(line: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in line).split())


def unsafe_loading(sources: Sources) -> list[Found]:
    """Find imports of pickle and its kin, `torch.load`/`torch.save`, and `numpy.load` that allows objects."""
    found = imports_matching(sources, UNSAFE_MODULES)
    for name in ("load", "save"):
        found += [call for call in calls_of(sources, name) if call.what.startswith(f"torch.{name}(")]
    return found + [
        call for name in ("load", "loads") for call in calls_of(sources, name) if "allow_pickle=True" in call.what
    ]


def unasserted_tests(sources: Sources) -> list[Found]:
    """Return the test functions that can only fail by an unexpected exception.

    What counts: `assert` of something that is no constant, `pytest.raises/warns/fail`, a call of a function of the same
    file that contains one of these, a call `x(..., check=True)`, or of a helper named `assert...` or `check...`.
    """
    found = []
    for path, text in sources.items():
        tree = parsed(text)
        functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        helpers = {node.name for node in functions if _contains_assertion(node, set())}
        bodies = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
        found += [
            Found(path, node.lineno, node.name)
            for body in bodies
            for node in body.body
            if isinstance(node, Function) and node.name.startswith("test_") and not _contains_assertion(node, helpers)
        ]
    return found


def _contains_assertion(function: Function, helpers: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call):
            name = _called_name(node)
            if name in ("raises", "warns", "fail") or name in helpers or name.startswith(("assert", "check")):
                return True
            if any(k.arg == "check" and isinstance(k.value, ast.Constant) and k.value.value for k in node.keywords):
                return True
    return False


def constant_asserts(sources: Sources) -> list[Found]:
    """Find `assert True` and the like."""
    return [
        Found(path, node.lineno, ast.unparse(node))
        for path, text in sources.items()
        for node in nodes(text)
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and node.test.value
    ]
