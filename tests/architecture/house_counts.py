"""Counts of concepts in the code, by syntax trees: how many of each thing a reader has to hold.

Each function takes sources and returns what it counts, with its place. `docs/architecture.md` has the table of the
counts, and `test_architecture_house.py` compares it with the code.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from architecture_checks import Found, Sources, imports_of, module_name, nodes, parsed

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


def files_in_circles(sources: Sources) -> list[Found]:
    """Files that import each other, directly or over others."""
    return [Found(path, 1, f"circle of {len(each)}") for each in circles(file_graph(sources)) for path in each]


# -- reaches into other objects ---


def private_accesses(sources: Sources) -> list[Found]:
    """Uses of `x._name` where `x` is not `self` or `cls`, and `_name` no method of a named tuple or a module."""
    return [
        Found(path, node.lineno, ast.unparse(node))
        for path, text in sources.items()
        for node in nodes(text)
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
        for node in nodes(text):
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
        for node in nodes(text):
            for line in node.body if isinstance(node, ast.ClassDef) else ():
                value = line.value if isinstance(line, ast.Assign) else None
                if isinstance(value, ast.Call) and ast.unparse(value.func) in WRAPPERS:
                    value = value.args[0]
                owner = value.value if isinstance(value, ast.Attribute) else None
                if isinstance(owner, ast.Name) and owner.id in modules and owner.id.islower():
                    found.append(Found(path, line.lineno, ast.unparse(line)))
    return found


# -- types ---


def any_parameters(sources: Sources) -> list[Found]:
    """Parameters that are annotated with nothing but `Any`."""
    return [
        Found(path, node.lineno, node.arg)
        for path, text in sources.items()
        for node in nodes(text)
        if isinstance(node, ast.arg) and node.annotation is not None and ast.unparse(node.annotation) == "Any"
    ]


def own_isinstance(sources: Sources) -> list[Found]:
    """Calls of `isinstance` that ask for a class which the package itself defines; values and protocols count too."""
    own = {node.name for _, node in _classes(sources)}
    return [
        Found(path, node.lineno, ast.unparse(node))
        for path, text in sources.items()
        for node in nodes(text)
        if isinstance(node, ast.Call) and _is_call_of(node, "isinstance") and own & _all_names(node.args[1])
    ]


def is_multi_agent_uses(sources: Sources) -> list[Found]:
    """Places that ask an object whether it `is_multi_agent`: one agent that is not simply a case of many."""
    return [
        Found(path, node.lineno, ast.unparse(node))
        for path, text in sources.items()
        for node in nodes(text)
        if isinstance(node, ast.Attribute) and node.attr == "is_multi_agent"
    ]


# -- concepts that exist in several forms ---

LOOPS = re.compile(r"collect|run|_run|sample|play|_collect\w*|_rollout")
"""Names of the methods in which a collector takes its steps."""
ARRAYS = {"dict", "Mapping", "tuple", "ndarray", "Tensor", "np", "torch"}
"""What a walker of nested arrays asks `isinstance` for. One that asks for more converts to JSON or walks spaces."""


def looping_collectors(sources: Sources) -> list[Found]:
    """Classes named `...Collector` that say themselves how steps are taken: they define a method of `LOOPS`.

    A thin class that only chooses its stepper, its schedule or its purpose defines none, and does not count.
    """
    return [
        Found(path, node.lineno, node.name)
        for path, node in _classes(sources)
        if node.name.endswith("Collector") and any(LOOPS.fullmatch(name) for name in _methods(node))
    ]


def rollout_stores(sources: Sources) -> list[Found]:
    """Classes in `data/` and `rollout/` that keep what is collected, or write it: `...Store`, `...Rollout`,
    `...Writer`."""
    return [
        Found(path, node.lineno, node.name)
        for path, node in _classes(sources)
        if path.startswith(("lockstep/data/", "lockstep/rollout/"))
        and node.name.endswith(("Store", "Rollout", "Writer"))
    ]


def replays(sources: Sources) -> list[Found]:
    """Classes in `replay/` with a `sample` of their own: each is one way out of what is remembered."""
    return [
        Found(path, node.lineno, node.name)
        for path, node in _classes(sources)
        if path.startswith("lockstep/replay/") and "sample" in _methods(node)
    ]


def ways_to_set_options(sources: Sources) -> list[Found]:
    """Ways in which a value reaches an option, the first place of each.

    A section that is called; an attribute that is assigned (`config.lr = ...`, `config.training.lr = ...`); a path; a
    configuration file; keywords of trainers that check their values themselves instead of through a section.
    """
    found: dict[str, Found] = {}
    for path, node in _classes(sources):
        for name in _ways_of(node):
            found.setdefault(name, Found(path, node.lineno, f"{name}: {node.name}"))
    for path, text in sources.items():
        for node in parsed(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == "read_config_file":
                found.setdefault("file", Found(path, node.lineno, f"file: {node.name}"))
    return list(found.values())


def _ways_of(node: ast.ClassDef) -> Iterator[str]:
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    is_section = node.name.endswith("Section") or "Section" in _bases(node)
    if is_section and "__call__" in methods:
        yield "section call"
    if "__setattr__" in methods and (is_section or node.name.endswith("Config")):
        yield "assignment"
    if "set_path" in methods and "Protocol" not in _bases(node):
        yield "path"
    if node.name.endswith("Trainer") and "__init__" in methods:
        calls = [each.func for each in ast.walk(methods["__init__"]) if isinstance(each, ast.Call)]
        if any(re.match(r"check_(whole|wholes|number|flags|choice)$", ast.unparse(function)) for function in calls):
            yield "trainers' keywords"


def written_keyword_types(sources: Sources) -> list[Found]:
    """Typed dicts named `...Options` that repeat fields or parameters by hand.

    Those in files named `typed.py` are written by a command from the fields beside them.
    """
    bases = {node.name: _bases(node) for _, node in _classes(sources)}

    def is_typed_dict(name: str) -> bool:
        return any(base == "TypedDict" or (base != name and is_typed_dict(base)) for base in bases.get(name, ()))

    return [
        Found(path, node.lineno, node.name)
        for path, node in _classes(sources)
        if node.name.endswith("Options") and is_typed_dict(node.name) and not path.endswith("/typed.py")
    ]


def run_pools(sources: Sources) -> list[Found]:
    """Places above the engine that start processes for whole runs: a class of pools, or a process that is made."""
    engine = ("lockstep/envs/", "lockstep/learner/", "lockstep/rollout/", "lockstep/cluster/", "lockstep/data/")
    found = []
    for path, text in sources.items():
        if path.startswith(engine):
            continue
        for node in nodes(text):
            if isinstance(node, ast.ClassDef) and "ProcessPoolExecutor" in _bases(node):
                found.append(Found(path, node.lineno, node.name))
            elif _is_call_of(node, "Process") or _is_call_of(node, "ProcessPoolExecutor"):
                assert isinstance(node, ast.Call)
                found.append(Found(path, node.lineno, ast.unparse(node.func)))
    return found


def array_walkers(sources: Sources) -> list[Found]:
    """Files with a function that walks nested arrays itself: it calls itself, and takes apart dicts and tuples.

    One that calls `map_tree`, `leaves` and the like of another file does not count.
    """
    found = []
    for path, text in sources.items():
        walkers = [node for node in nodes(text) if isinstance(node, ast.FunctionDef) and _walks(node)]
        if walkers:
            found.append(Found(path, walkers[0].lineno, ", ".join(node.name for node in walkers)))
    return found


def _walks(function: ast.FunctionDef) -> bool:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    calls_itself = any(_is_call_of(node, function.name) for node in calls)
    kinds: set[str] = set().union(*(_all_names(node.args[1]) for node in calls if _is_call_of(node, "isinstance")))
    return calls_itself and bool(kinds & {"dict", "Mapping"}) and "tuple" in kinds and kinds <= ARRAYS


def sets_of_statistics(sources: Sources) -> list[Found]:
    """Classes beside `Metrics` that hold numbers of a run: `...Stats`, `...Totals`, `...Counters`.

    Left out: a base of another one, a class that only joins others (it has one as a field), and the summary of one
    number.
    """
    sets = [
        (path, node)
        for path, node in _classes(sources)
        if node.name.endswith(("Stats", "Totals", "Counters")) and node.name != "SequenceSummaryStats"
    ]
    names = {node.name for _, node in sets}
    bases = set().union(*(_bases(node) for _, node in sets))
    return [
        Found(path, node.lineno, node.name)
        for path, node in sets
        if node.name not in bases and not names & set().union(*map(_all_names, _field_types(node)))
    ]


def doubled_class_names(sources: Sources) -> list[Found]:
    """Names that two or more classes of the package have, at their second place."""
    places: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    for path, node in _classes(sources):
        places.setdefault(node.name, []).append((path, node))
    return [
        Found(each[1][0], each[1][1].lineno, f"{name}, as in {each[0][0]}")
        for name, each in places.items()
        if len(each) > 1
    ]


def doubled_aliases_of_any(sources: Sources) -> list[Found]:
    """Names that two files or more give to `Any` at module level, at the second and later places.

    The name of an opaque type says what it is, so it has one home and one docstring. The files of `eject/files` stand
    alone in a folder of the user's.
    """
    homes: dict[str, str] = {}
    found = []
    for path, text in sources.items():
        if path.startswith("lockstep/eject/files/"):
            continue
        for node in parsed(text).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value) == "Any":
                name = ast.unparse(node.targets[0])
                if homes.setdefault(name, path) != path:
                    found.append(Found(path, node.lineno, f"{name}, as in {homes[name]}"))
    return found


def files_that_name_an_algorithm(sources: Sources, tests: Sources) -> list[Found]:
    """Test files that name an algorithm, for the algorithm in the middle of all.

    Some algorithms are the examples of many tests, which they may stay; the median is what one costs that is none. A
    file names `ppo` by a word in a text, or by a name such as `PPOConfig`. Left out is `tests/past`,
    what earlier versions wrote: no algorithm is ever added to it. The tests of the package for programs of
    Stable-Baselines3 count as one file: its classes have the names of algorithms.
    """
    door = "packages/lockstep-sb3/tests/"
    named = Counter[str]()
    files: dict[str, list[Found]] = {name: [] for name in algorithms_of(sources)}
    for path, text in tests.items():
        words = set() if path.startswith("tests/past/") else _words_in(text)
        for name in files:
            if not {name, name.replace("_", "")} & words:  # `TD3BCConfig` is of `td3_bc`
                continue
            if path.startswith(door) and any(found.path.startswith(door) for found in files[name]):
                continue
            named[name] += 1
            files[name].append(Found(path, 1, f"names {name}"))
    ordered = sorted(files, key=lambda name: (named[name], name))
    return files[ordered[len(ordered) // 2]] if ordered else []


def algorithms_of(sources: Sources) -> list[str]:
    """Return the names of the algorithms: `algorithm = "ppo"` in the bodies of their configurations."""
    return sorted(
        {
            line.value.value
            for _, node in _classes(sources)
            for line in node.body
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "algorithm"
            if isinstance(line.value, ast.Constant) and line.value.value
        }
    )


def _words_in(text: str) -> set[str]:
    """Return the words of all texts in a source, and of its names the part before `Config`, `Learner`, `Training`."""
    words: set[str] = set()
    for node in nodes(text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.update(re.findall(r"[a-z]\w*", node.value))
        elif isinstance(node, ast.alias | ast.Name | ast.Attribute | ast.keyword):
            name = getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "attr", None) or node.arg
            for part in (name or "").split("."):
                words.add(re.sub(r"(Config|Learner|Training|Options)$", "", part).lower())
    return words


# -- parts of syntax trees ---


def _classes(sources: Sources) -> Iterator[tuple[str, ast.ClassDef]]:
    for path, text in sources.items():
        for node in nodes(text):
            if isinstance(node, ast.ClassDef):
                yield path, node


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}


def _methods(node: ast.ClassDef) -> set[str]:
    """Names of the methods of a class that do something; none of a protocol."""
    if "Protocol" in _bases(node):
        return set()
    functions = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {part.name for part in functions if not any("abstract" in ast.unparse(d) for d in part.decorator_list)}


def _field_types(node: ast.ClassDef) -> list[ast.expr]:
    return [line.annotation for line in node.body if isinstance(line, ast.AnnAssign)]


def _all_names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
    }


def _is_call_of(node: ast.AST, name: str) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", None) == name or getattr(function, "attr", None) == name
