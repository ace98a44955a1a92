"""What the tables of the contracts' rows (`ROWS.md` beside the tests) are checked for."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def existing_tests():
    """Names of all tests of all folders, those in classes included."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.glob("*/test_*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {node.name for node in nodes if node.name.startswith("test_")}


def rows_of(table):
    """`(section, row, names of its tests)` of each row of a table `section | row | tests`."""
    body = table.read_text(encoding="utf-8").partition("|---|")[2]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[1:] if "|" in line]
    return [(cell[0], cell[1], re.findall(r"`(test_\w+)`", cell[-1])) for cell in cells]


def check_rows(table, sections, at_least):
    """Each section is there, each row names tests, each of them exists; `at_least` so many tests in all."""
    rows = rows_of(table)
    named = {name for *_, names in rows for name in names}
    assert {section for section, *_ in rows} == set(sections)
    assert [(section, row) for section, row, names in rows if not names] == []
    assert sorted(named - existing_tests()) == []
    assert len(named) >= at_least
