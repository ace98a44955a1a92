"""The table of the rows of use (export, tuning, comparing, documents, release) names tests that exist."""

from pathlib import Path

from row_tables import check_rows


def test_each_row_of_the_contract_of_use_names_tests_that_exist():
    check_rows(Path(__file__).with_name("ROWS.md"), "123456", 80)
