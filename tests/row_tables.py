"""What the tables of the contracts' rows (`ROWS.md` beside the tests) are checked for."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def existing_tests():
    """The files that define each test, by the test's name, those in classes included."""
    files = {}
    for path in sorted(TESTS.glob("*/test_*.py")):
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            files.setdefault(name, set()).add(path.name)
    return files


def rows_of(table):
    """`(section, row, its tests)` of each row of a table `section | row | tests`; a test is `name` or `file::name`."""
    body = table.read_text(encoding="utf-8").partition("|---|")[2]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[1:] if "|" in line]
    return [(cell[0], cell[1], re.findall(r"`((?:test_\w+\.py::)?test_\w+)`", cell[-1])) for cell in cells]


def faults_of(tests, existing):
    """What is wrong with each of `tests`: it does not exist, or several files have it and no file is named."""
    for test in tests:
        file, _, name = test.rpartition("::")
        files = existing.get(name, set())
        if not files or (file and file not in files):
            yield f"{test}: no such test"
        elif not file and len(files) > 1:
            yield f"{test}: several files have it, name one as file::test: {', '.join(sorted(files))}"


def check_rows(table, sections, at_least):
    """Each section is there, each row names tests, each is one that exists; `at_least` so many tests in all."""
    rows = rows_of(table)
    named = {name for *_, names in rows for name in names}
    assert {section for section, *_ in rows} == set(sections)
    assert [(section, row) for section, row, names in rows if not names] == []
    assert list(faults_of(sorted(named), existing_tests())) == []
    assert len(named) >= at_least
