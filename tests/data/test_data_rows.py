"""What the pages beside the data layer's tests say of them, and of the comparison with RLlib, is true."""

import json
import re
from pathlib import Path

from row_tables import check_rows

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parent.parent / "benchmarks"


def test_each_row_of_the_data_contract_names_tests_that_exist():
    check_rows(HERE / "ROWS.md", "12345678", 100)


def listed_situations():
    lines = (BENCHMARKS / "numerics" / "data_differences.md").read_text(encoding="utf-8").splitlines()
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


def test_the_list_of_differences_from_rllib_has_exactly_the_tested_cases():
    text = "".join(path.read_text(encoding="utf-8") for path in (BENCHMARKS / "peers").glob("data_*.py"))
    assert set(re.findall(r'play\.mark\(\s*"(\w+)"', text)) == set(listed_situations())


def test_every_listed_difference_says_what_each_does_and_its_contract():
    for name, line in listed_situations().items():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4, name
        assert all(cells), name
        assert re.match(r"[1-6](:|, section 1:)", cells[3]), name


def test_the_published_comparison_with_rllib_has_no_unlisted_difference():
    record = json.loads((BENCHMARKS / "results" / "data_vs_rllib.json").read_text(encoding="utf-8"))
    assert record["unlisted"] == []
    assert record["listed_but_never_different"] == []
    assert sum(record["sequences"].values()) >= 500
    assert {name for name, counts in record["situations"].items() if counts["different"]} == set(listed_situations())
