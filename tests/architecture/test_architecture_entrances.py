"""The functions that a reader is sent to first are where the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## Where to begin\n")[2].partition("\n## ")[0]
NAMED = re.findall(r"`([\w.]+)` in `(lockstep/[\w/]+\.py)`", SECTION)
PATHS = sorted(set(re.findall(r"`(lockstep/[\w/.]+)`", SECTION)))


def defined(path: Path) -> set[str]:
    """Return the functions, classes, methods (as `Class.method`) and tables of a file."""
    names = set[str]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


def test_the_page_sends_to_functions() -> None:
    assert len(NAMED) >= 12
    assert SECTION.count("\n| ") >= 10


@pytest.mark.parametrize("name, path", NAMED)
def test_the_function_is_in_the_file(name: str, path: str) -> None:
    assert name in defined(ROOT / path)


@pytest.mark.parametrize("path", PATHS)
def test_the_file_is_there(path: str) -> None:
    assert (ROOT / path).exists()
