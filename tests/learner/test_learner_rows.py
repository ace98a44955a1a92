"""The table of the contract's rows beside this file names tests that exist, for every section."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = (HERE / "ROWS.md").read_text(encoding="utf-8")


def existing_tests():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in HERE.parent.glob("*/test_*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_table_of_learner_rows_names_exists():
    named = re.findall(r"`(test_\w+)`", TABLE.partition("|---|")[2])
    assert len(named) > 200
    assert sorted(set(named) - existing_tests()) == []


def test_the_table_of_learner_rows_has_every_section_with_tests_in_each_row():
    rows = [line for line in TABLE.splitlines() if re.match(r"\| (\d|hooks) ", line)]
    assert {row.split("|")[1].strip() for row in rows} == {"1", "2", "3", "4", "5", "hooks"}
    assert [row for row in rows if "`test_" not in row.split("|")[3]] == []
