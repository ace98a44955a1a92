"""The table of the learner contract's rows beside this file names tests that exist, in each row of every section."""

from pathlib import Path

from row_tables import check_rows


def test_each_row_of_the_learner_contract_names_tests_that_exist():
    check_rows(Path(__file__).with_name("ROWS.md"), ("1", "2", "3", "4", "5", "hooks"), 190)
