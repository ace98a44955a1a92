"""The table of the trainer contract's rows beside this file names tests that exist, in each row of every section."""

from pathlib import Path

from row_tables import check_rows


def test_each_row_of_the_trainer_contract_names_tests_that_exist():
    check_rows(Path(__file__).with_name("ROWS.md"), "12345678", 200)
