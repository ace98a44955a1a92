"""What was published can be made again, to the bit on such a processor."""

import shlex

import pytest

from lockstep.cli import main
from lockstep.recipes import RECIPES, bench

ROWS = [(recipe, row) for recipe in RECIPES for row in bench.read_rows(recipe)]


@pytest.mark.learning
@pytest.mark.parametrize(("recipe", "row"), ROWS[::10], ids=lambda value: getattr(value, "algorithm", None))
def test_every_tenth_result_is_made_again_by_its_command(recipe, row, tmp_path):
    words = [*shlex.split(row["command"])[1:], "--draft", "--root", str(tmp_path)]
    assert main(words) == 0
    (again,) = bench.read_rows(recipe, tmp_path / "draft")
    if row["processor"] == bench.processor():
        assert again["weights_sha256"] == row["weights_sha256"]
        assert again["final_returns"] == row["final_returns"]
    if recipe.promise is not None:
        assert sum(again["final_returns"]) / len(again["final_returns"]) >= recipe.promise
