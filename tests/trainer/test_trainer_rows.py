"""The table of the contract's rows names tests that exist, for each section."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_every_test_that_the_table_of_rows_names_exists():
    text = (HERE / "ROWS.md").read_text(encoding="utf-8")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in HERE.parent.rglob("test_*.py")]
    existing = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    named = set(re.findall(r"`(test_\w+)`", text)) - {"test_fn", "test_collector", "test_in_train"}
    assert len(named) > 100
    assert sorted(named - existing) == []
    assert set(re.findall(r"^\| (\d) \|", text, re.MULTILINE)) == set("12345678")
