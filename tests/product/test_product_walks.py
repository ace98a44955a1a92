"""Three features or more in one run, drawn at random: it is the run without detours, to the bit.

Each walk is resumed in a process with another `PYTHONHASHSEED`; see `random_walks.py`. The first walks run in CI, the
others before a release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from random_walks import drawn, failures_of

IN_CI = (4, 8, 9, 17, 34)
"""seeds whose walks together have every feature"""
BEFORE_A_RELEASE = [range(first, first + 8) for first in range(0, 64, 8)]
"""groups of seeds that share their other process"""
FEATURES = {"mask", "callbacks", "own_buffer", "threads", "export", "runners", "device"}
FEATURES |= {"agents", "memory", "connectors", "evaluation"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are in the same order in both processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def name_of(seeds: Sequence[int]) -> str:
    """Return the arguments of the command that repeats these walks."""
    return " ".join(map(str, seeds))


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(IN_CI, marks=pytest.mark.long),
        *(pytest.param(seeds, marks=pytest.mark.exhaustive) for seeds in BEFORE_A_RELEASE),
    ],
    ids=name_of,
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(1200)  # a minute where the processor is free
def test_several_features_together_change_nothing(seeds):
    failures = failures_of(seeds)
    assert failures == {}, f"PYTHONPATH=tests python tests/product/random_walks.py {name_of(seeds)} repeats it"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_walks_of_ci_have_every_feature_and_three_at_least():
    features = [[feature.split(":")[0] for feature in drawn(seed).features] for seed in IN_CI]
    assert set().union(*features) >= FEATURES
    assert min(map(len, features)) >= 2  # and the resume in another process, which each has
