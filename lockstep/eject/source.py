"""The text of an ejected file: templates, and source of the library's own functions without what is switched off."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

Edit = tuple[int, int, bytes]
"""bytes from, up to, and what takes their place"""
PLAIN_NAMES = {"npt.ArrayLike": "np.ndarray", "FloatNoise": "np.ndarray", "Layer": "nn.Linear"}
"""types that the library has names for"""


def render(template: str, facts: Mapping[str, Any], constants: Mapping[str, str]) -> str:
    """Return the text of a template.

    Lines that begin with `#:` say what is done:

        #: if CONDITION, #: else, #: end     by the names in `facts`
        #: settings                          those of the constants that the text needs, by name
        #: include NAME                      another template
        #: source module:name WORDS          the library's own (`class.method` too): of a class the methods WORDS, of
                                             a function for the values that the parameters WORDS have in `facts`

    An object whose name is private in the library is public in the file. `{name}` in a template's text stands for a
    fact, as far as there is one of that name.
    """
    lines: list[str] = []
    private, place = set(), 0
    for line in _chosen(_template(template, template), facts):
        line = re.sub(r"\{(\w+)\}", lambda name: str(facts.get(name[1], name[0])), line)
        directive, _, words = line.strip().removeprefix("#: ").partition(" ")
        if not line.strip().startswith("#: "):
            lines.append(line)
        elif directive == "settings":
            place = len(lines)
        else:
            path, *options = words.split()
            module, _, name = path.partition(":")
            lines.append(source_of(module, name, {word: facts[word] for word in options if word in facts}, options))
            private |= {name} if name.startswith("_") else set()
    text = "\n".join(lines)
    lines[place:place] = [line for name, line in constants.items() if re.search(rf"\b{name}\b", text)]
    text = "\n".join(lines) + "\n"
    for name in private:
        text = re.sub(rf"(?<![\w.]){name}\b", name.lstrip("_"), text)
    return _tidy(text)


def _template(name: str, algorithm: str, indent: str = "") -> list[str]:
    """Return the lines of a template, with those that it includes; `{algorithm}` in their names stands for that."""
    found = []
    name = name.replace("{algorithm}", algorithm)
    for line in (files("lockstep.eject") / f"{name}.py.txt").read_text(encoding="utf-8").splitlines():
        place, is_included, other = line.partition("#: include ")
        found += _template(other, algorithm, indent + place) if is_included else [indent + line if line else line]
    return found


def _chosen(lines: Sequence[str], facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines whose conditions hold."""
    holds: list[bool] = []
    for line in lines:
        directive, _, condition = line.strip().removeprefix("#: ").partition(" ")
        is_directive = line.strip().startswith("#: ")
        if is_directive and directive == "if":
            holds.append(bool(eval(condition, {"__builtins__": {}}, dict(facts))))
        elif is_directive and directive == "else":
            holds[-1] = not holds[-1]
        elif is_directive and directive == "end":
            holds.pop()
        elif all(holds):
            yield line


def _tidy(text: str) -> str:
    """Leave out imports that nothing needs, blank lines too many, and names of what is returned at once."""
    kept, imports = [], re.compile(r"(?:import [\w.]+(?: as (\w+))?|from [\w.]+ import ([\w, ]+))$")
    for line in text.splitlines():
        found = imports.match(line)
        if found:
            names = (found[2] or found[1] or line.split()[1]).split(", ")
            used = [name for name in names if len(re.findall(rf"(?<![\w.]){re.escape(name)}\b", text)) > 1]
            if not used:
                continue
            if found[2]:
                line = line.replace(found[2], ", ".join(used))
        kept.append(line.rstrip())
    text = "\n".join(kept).strip() + "\n"
    text = re.sub(r"(?m)^( +)(\w+) = (.+)\n\1return \2$", r"\1return \3", text)
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    return re.sub(r"\n{3,}(?=[ ])", "\n\n", text)


# -- the library's own functions ---


@cache
def _module(name: str) -> tuple[bytes, ast.Module]:
    text = inspect.getsource(importlib.import_module(name))
    return text.encode(), ast.parse(text)


def source_of(module: str, name: str, known: Mapping[str, Any], only: Sequence[str] = ()) -> str:
    """Return the source of a function, class or constant for options whose values are `known`.

    Branches that these do not take are gone, and parameters that are None; so are decorators, base classes, checks that
    only raise, and all of a docstring but its first paragraph. `only`: the methods of a class that stay.
    """
    text, tree = _module(module)
    node: Any = tree
    for part in name.split("."):
        node = next(each for each in node.body if part in _names_of(each))
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits: list[Edit] = []
    _Specialiser(known, only, starts, lines, edits).visit(node)
    first, last = starts[node.lineno - 1], starts[node.end_lineno or 0]
    end, pieces = first, []
    for start, stop, by in sorted(edits):
        if start >= end:
            pieces += [text[end:start], by]
            end = stop
    source = b"".join([*pieces, text[end:last]]).decode()
    for long, plain in PLAIN_NAMES.items():
        source = re.sub(rf"\b{re.escape(long)}\b", plain, source)
    return _SIGNATURE.sub(_on_one_line, source.rstrip())


_SIGNATURE = re.compile(r"^( *def \w+)\(\n((?: +.+,\n)+) *\)(.*):$", re.MULTILINE)
WIDTH = 120


def _on_one_line(signature: re.Match[str]) -> str:
    """Return a signature on one line where that is short enough."""
    parameters = " ".join(line.strip() for line in signature[2].splitlines()).rstrip(",")
    line = f"{signature[1]}({parameters}){signature[3]}:"
    return line if len(line) <= WIDTH else signature[0]


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]


class _Specialiser(ast.NodeVisitor):
    """Notes what is to be replaced in the text of one object."""

    def __init__(
        self,
        known: Mapping[str, Any],
        only: Sequence[str],
        starts: Sequence[int],
        lines: Sequence[bytes],
        edits: list[Edit],
    ) -> None:
        self.known, self.only, self.starts, self.lines, self.edits = known, only, starts, lines, edits

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        first = node.body[0]
        for base in node.bases:
            self._replace_span(self._at(node) + len(f"class {node.name}"), self._end(base) + 1, b"")
        self._shorten_docstring(node)
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and self.only and method.name not in self.only:
                start = min([method.lineno, *(each.lineno for each in method.decorator_list)])
                self._drop_lines(start, method.end_lineno or 0)
            elif method is not first:
                self.visit(method)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            if ast.unparse(decorator) not in ("property", "classmethod", "staticmethod"):
                self._drop_lines(decorator.lineno, decorator.lineno)
        self._drop_parameters(node)
        self._shorten_docstring(node)
        self._visit_block(node.body)

    def _drop_parameters(self, node: ast.FunctionDef) -> None:
        """Leave out parameters that are None, and the mark `*` where none follows it; others cannot be None."""
        unset = [name for name, value in self.known.items() if value is None]
        defaults = [None] * (len(node.args.args) - len(node.args.defaults)) + [*node.args.defaults]
        arguments = zip((*node.args.args, *node.args.kwonlyargs), (*defaults, *node.args.kw_defaults))
        for arg, default in arguments:
            hint = arg.annotation
            if arg.arg in unset:
                self._drop_lines(arg.lineno, arg.lineno)
            elif arg.arg in self.known and isinstance(hint, ast.BinOp) and ast.unparse(hint.right) == "None":
                self._replace_span(self._end(hint.left), self._end(default or hint), b"")
        if node.args.kwonlyargs and all(arg.arg in unset for arg in node.args.kwonlyargs):
            mark = node.args.kwonlyargs[0].lineno - 1
            self._drop_lines(mark, mark)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        held = self._decided(node.test)
        if held is None:
            self.generic_visit(node)
            return
        chosen = node.body if held else node.orelse
        self._replace_span(self._at(node), self._end(node), self._text(self._at(chosen), self._end(chosen)))

    def _visit_block(self, statements: Sequence[ast.stmt]) -> None:
        for number, statement in enumerate(statements):
            if not isinstance(statement, ast.If):
                self.visit(statement)
                continue
            held = self._decided(statement.test)
            if held is None and isinstance(statement.body[0], ast.Raise) and not statement.orelse:
                self._drop_lines(statement.lineno, statement.end_lineno or 0)
            elif held is None:
                self._visit_block(statement.body)
                self._visit_block(statement.orelse)
            else:
                taken = statement.body if held else statement.orelse
                kept = ""
                if taken:
                    first, last = taken[0].lineno, taken[-1].end_lineno or 0
                    kept = textwrap.indent(
                        textwrap.dedent(b"".join(self.lines[first - 1 : last]).decode()), " " * statement.col_offset
                    )
                self._replace_lines(statement.lineno, statement.end_lineno or 0, kept.encode())
                if taken and isinstance(taken[-1], ast.Return):
                    rest = statements[number + 1 :]
                    if rest:
                        self._drop_lines(rest[0].lineno, rest[-1].end_lineno or 0)
                    return

    def _decided(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds by what is known; None where that does not say."""
        try:
            return bool(eval(compile(ast.Expression(test), "", "eval"), {"__builtins__": {}}, dict(self.known)))
        except (NameError, TypeError, AttributeError):
            return None

    def _shorten_docstring(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        """Leave the first paragraph of a docstring."""
        if ast.get_docstring(node):
            doc = node.body[0]
            first, *rest = self._text(self._at(doc), self._end(doc)).split(b"\n\n")
            if rest:
                self._replace_span(self._at(doc), self._end(doc), first + b'"""')

    def _at(self, node: Any) -> int:
        return int(self.starts[node.lineno - 1] + node.col_offset)

    def _end(self, node: Any) -> int:
        return int(self.starts[node.end_lineno - 1] + node.end_col_offset)

    def _text(self, start: int, stop: int) -> bytes:
        return b"".join(self.lines)[start:stop]

    def _replace_span(self, start: int, stop: int, by: bytes) -> None:
        self.edits.append((start, stop, by))

    def _replace_lines(self, first: int, last: int, by: bytes) -> None:
        self._replace_span(self.starts[first - 1], self.starts[last], by)

    def _drop_lines(self, first: int, last: int) -> None:
        self._replace_lines(first, last, b"")
