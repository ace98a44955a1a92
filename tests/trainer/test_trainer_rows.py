"""The table of the trainer contract's rows beside this file names tests that exist, in each row of every section."""

from pathlib import Path

from row_tables import check_rows, faults_of


def test_each_row_of_the_trainer_contract_names_tests_that_exist():
    check_rows(Path(__file__).with_name("ROWS.md"), "12345678", 180)


def test_a_row_naming_a_deleted_or_ambiguous_test_is_refused():
    existing = {"test_one": {"test_a.py"}, "test_both": {"test_a.py", "test_b.py"}}
    assert list(faults_of(["test_one", "test_a.py::test_one", "test_b.py::test_both"], existing)) == []
    gone = [fault for test in ("test_gone", "test_b.py::test_one") for fault in faults_of([test], existing)]
    assert gone == ["test_gone: no such test", "test_b.py::test_one: no such test"]
    (fault,) = faults_of(["test_both"], existing)
    assert fault == "test_both: several files have it, name one as file::test: test_a.py, test_b.py"
