"""The parts of the long tests: each is in one part, and a round of parts reaches every pair of options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cover import pairs_in
from rotation import NUM_PARTS, chooses_none, chosen_part, part_of, sentence
from test_product_cover import CELLS, IN_CI, QUICK

CELL = "tests/product/test_product_cover.py::test_a_cell_that_is_not_refused_learns_the_best_actions[{}]"


def test_a_round_of_parts_reaches_every_pair_of_options():
    quick = [cells[0] for cells in QUICK.values()]  # the fast suite runs them each time
    reached = {part: set().union(*map(pairs_in, quick)) for part in range(1, NUM_PARTS + 1)}
    for cell in IN_CI:
        part = part_of(CELL.format("-".join(cell.values())))
        assert part is not None
        reached[part] |= pairs_in(cell)
    everything = set().union(*map(pairs_in, CELLS))
    assert set().union(*reached.values()) == everything
    assert all(pairs != everything for pairs in reached.values())


def test_parts_are_of_about_one_size():
    parts = [part_of(CELL.format("-".join(cell.values()))) for cell in IN_CI]
    assert all(len(IN_CI) / NUM_PARTS / 2 < parts.count(part) < len(IN_CI) / NUM_PARTS * 2 for part in set(parts))


@pytest.mark.parametrize(
    "nodeid",
    [
        "tests/past/test_past_files.py::test_a_run_goes_on[ppo]",
        "tests/trainer/test_trainer_hostile_files.py::test_any",
        "tests/trainer/test_trainer_flipped_bytes.py::test_any",
        "tests/trainer/test_trainer_resume.py::test_kills_at_random_moments_change_no_bit_and_no_record[uniform-50]",
    ],
)
def test_old_checkpoints_hostile_files_and_kills_run_with_every_part(nodeid):
    assert part_of(nodeid) is None


def test_a_commit_chooses_one_part_and_the_line_repeats_it():
    parts = [chosen_part("commit", f"{number:040x}") for number in range(NUM_PARTS)]
    assert sorted(parts) == list(range(1, NUM_PARTS + 1))
    assert chosen_part("commit", "") is None
    assert chosen_part("all", "f" * 40) is None
    assert chosen_part("3", "f" * 40) == 3
    assert "part 3 of 4" in sentence(3)
    assert "make test-long PART=3" in sentence(3)
    assert "PART=all" in sentence(3)


MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text()
EXPRESSIONS = sorted({quoted or word for quoted, word in re.findall(r"pytest -m (?:'([^']+)'|(\w+))", MAKEFILE)})


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_files_with_tests_that_a_target_asks_for_are_imported(expression):
    for mark in re.findall(r"\w+", re.sub(r"\bnot \w+|\band\b|\bor\b", "", expression)):
        assert not chooses_none(expression, f"@pytest.mark.{mark}\ndef test_one(): ..."), mark
    assert chooses_none(expression, "def test_one(): ...")


def test_the_long_part_has_the_cases_of_tables_and_the_properties():
    expression = "(long or hypothesis) and not faults"
    assert f"-m '{expression}'" in MAKEFILE
    assert not chooses_none(expression, "from parts import fast_if")
    assert not chooses_none(expression, "from hypothesis import given")
    assert not chooses_none("not long and not faults", "def test_one(): ...")
    assert chooses_none("not long and not faults", "pytestmark = pytest.mark.long")


@pytest.mark.parametrize("word", ["0", "5", "first", ""])
def test_a_part_that_there_is_not_is_refused(word):
    with pytest.raises(ValueError, match=f"--part={word}.*'commit', 'all' or a number from 1 to 4"):
        chosen_part(word, "f" * 40)
