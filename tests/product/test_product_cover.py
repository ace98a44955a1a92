"""Whatever is not refused works: cells of the product of all options learn what is best, exactly.

`cells.FACTORS` declares the product. Of each algorithm the cells of `cover.json` have every pair of levels that it does
not refuse: `make test-product` runs them all. CI runs those in which every pair of levels occurs, the algorithm being a
level as well, the cheap ones first, over a round of the parts of the long tests; the fast suite runs the cheapest of
each algorithm.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from algorithm_cases import ALGORITHM_CASES
from cells import FACTORS, epochs_to_the_optimum
from cover import COVER, PAGE, all_refused, allowed_pairs, page, pairs_in, refused_levels
from parts import fast_if

CELLS = [dict(zip(FACTORS, levels)) for levels in json.loads(COVER.read_text())]
BY_ALGORITHM = {name: [cell for cell in CELLS if cell["algorithm"] == name] for name in FACTORS["algorithm"]}
COSTS = {
    ("observations", "image"): 2,
    ("actions", "Box"): 2,
    ("memory", "lstm"): 2,
    ("memory", "gru"): 2,
    ("memory", "attention"): 3,
    ("learners", "2 learners"): 2,
    ("compile", "compile"): 2,
}
"""by how much about a level makes a cell take longer"""
NUM_IN_CI = 150


def cost(cell: dict[str, str]) -> int:
    """Return how long a cell takes, beside others of its algorithm."""
    slow_box = cell["actions"] == "Box" and cell["memory"] != "no memory"
    return math.prod(COSTS.get(level, 1) for level in cell.items()) * (4 if slow_box else 1)


QUICK = {name: sorted(cells, key=cost)[:2] for name, cells in BY_ALGORITHM.items()}
"""The two cheapest cells of each algorithm: the fast suite runs the first, and the second is a long test."""
PROBED = {
    name for name, case in ALGORITHM_CASES.items() if any(probes.fast != set() for probes in case.probes.values())
}
"""Algorithms that learn a probe in the fast suite (`test_probes_learning.py`): all their cells are long tests."""


def in_ci() -> list[dict[str, str]]:
    """Return the quick cells, those with most missing pairs for their cost, and cheap ones to make up the number."""
    chosen = [cell for cells in QUICK.values() for cell in cells]
    missing = set().union(*map(pairs_in, CELLS)).difference(*map(pairs_in, chosen))
    others = [(cell, pairs_in(cell)) for cell in CELLS if cell not in chosen]
    while missing:
        best = max(others, key=lambda other: len(other[1] & missing) / cost(other[0]))
        chosen.append(best[0])
        missing -= best[1]
        others.remove(best)
    left = sorted((cell for cell, _ in others), key=cost)
    return chosen + left[: NUM_IN_CI - len(chosen)]


IN_CI = in_ci()


def mark_of(cell: dict[str, str]) -> Any:
    """Return when a cell is run."""
    if cell == QUICK[cell["algorithm"]][0] and cell["algorithm"] not in PROBED:
        return ()
    return pytest.mark.long if cell in IN_CI else pytest.mark.exhaustive


NAMES: dict[str, tuple[str, ...]] = {
    "MultiDiscrete": ("MultiDiscrete",),
    "MultiBinary": ("MultiBinary",),
    "Discrete": ("Discrete",),
    "Box": ("Box",),
    "Dict": ("Dict(",),
    "Tuple": ("Tuple(",),
    "mask": ("mask",),
    "lstm": ("recurrent='lstm'",),
    "gru": ("recurrent='gru'",),
    "attention": ("attention=",),
    "prioritized": ("replay",),
    "3 steps": ("replay",),
    "rewards": ("normalize_rewards",),
    "both": ("normalize_rewards",),
    "compile": ("compile=True",),
}
"""how a message calls a level that is refused"""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """Small networks: learners in two threads are enough for two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, id="-".join(cell.values()), marks=mark_of(cell)) for cell in CELLS],
)
@pytest.mark.filterwarnings("ignore:compile=True. this gradient step runs eagerly")
def test_a_cell_that_is_not_refused_learns_the_best_actions(cell):
    assert epochs_to_the_optimum(cell) is not None


def test_there_are_cells_enough():
    assert len(IN_CI) >= 150
    assert set().union(*map(pairs_in, IN_CI)) == set().union(*map(pairs_in, CELLS))
    assert {name: len(cells) for name, cells in QUICK.items()} == dict.fromkeys(FACTORS["algorithm"], 2)


@pytest.mark.parametrize("algorithm", fast_if(FACTORS["algorithm"][::5].__contains__, FACTORS["algorithm"]))
def test_a_level_is_refused_before_anything_runs_by_the_names_of_both(algorithm):
    """And every pair of those that are not is in the cover, but for pairs that the page says are refused together."""
    alone = refused_levels(algorithm)
    for refused, message in alone.items():
        ((_, level),) = refused
        assert algorithm in message
        assert [word for word in NAMES[level] if word not in message] == [], message
    covered = set().union(*map(pairs_in, BY_ALGORITHM[algorithm]))
    missing = allowed_pairs(alone) - covered
    together = [sorted(f"{factor}: {level}" for factor, level in pair) for pair in missing]
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("- ") and algorithm in line]
    assert [pair for pair in together if not any(line.startswith("- " + " with ".join(pair)) for line in lines)] == []


@pytest.mark.long
def test_the_page_and_the_cover_are_what_the_command_writes():
    refused = all_refused()
    assert page(refused) == PAGE.read_text(), "what is refused has changed: make pages"
    for algorithm, found in refused.items():
        for pair, message in found.items():
            if len(pair) == 2:
                assert all(word in message for _, level in pair for word in NAMES[level]), message
        covered = set().union(*map(pairs_in, BY_ALGORITHM[algorithm]))
        assert allowed_pairs(found) <= covered, "make pages"
