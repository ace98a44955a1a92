"""The artefact acts as the policy does: 10,000 observations for each cell of the product that acts."""

from __future__ import annotations

import json

import pytest
from exported_policies import cells, policy_of

from lockstep import ALGORITHMS

CELLS = list(cells())


@pytest.mark.product
@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_an_exported_cell_acts_as_its_policy(cell, tmp_path):
    folder = policy_of(cell).export(tmp_path / "exported")
    parity = json.loads((folder / "card.json").read_text())["parity"]
    assert parity["observations"] >= 10_000
    assert parity["largest_difference"] <= 1e-6
    assert parity["ties"] == 0


def test_every_algorithm_is_exported():
    assert {cell[0] for cell in CELLS} == {config.algorithm for config in ALGORITHMS}
    assert len(CELLS) >= 60
