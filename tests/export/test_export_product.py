"""The artefact acts as the policy does: 10,000 observations for each cell of the product that acts, and others."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from algorithm_cases import WITH_ATOMS
from exported_policies import ACTIONS, OBSERVATIONS, cells, make_policy, policy_of
from gymnasium import spaces

from lockstep import ALGORITHMS
from lockstep.connectors import ClipObs, FlattenObs, Grayscale, OneHot, Resize

CELLS = list(cells())
IN_CI = {cell[0]: cell for cell in reversed(CELLS)}.values()
"""the first of each algorithm"""
BOX, PICTURE = OBSERVATIONS["Box"], spaces.Box(0, 255, (40, 44, 3), np.uint8)
WIDE = spaces.Box(np.array([-3.0, -1.0]), np.array([100.0, 2.0]), dtype=np.float64)
MEMORY = {"attention": {"size": 16, "num_heads": 2, "memory": 4, "hidden_size": 16}}


def grey(observation_space: Any, action_space: Any) -> list[Any]:
    return [Grayscale(), Resize(20, 22)]


def flat(observation_space: Any, action_space: Any) -> list[Any]:
    return [ClipObs(-1.0, 1.0), OneHot(), FlattenObs()]


OTHERS: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "gsde": (("ppo", BOX, ACTIONS["Box"]), {"exploration": "gsde"}, {}),
    "gsde, drawn": (("sac", BOX, ACTIONS["Box"]), {"exploration": "gsde"}, {"deterministic": False}),
    "noisy weights": (("dqn", BOX, ACTIONS["Discrete"]), {"exploration": "noisy"}, {}),
    "float64": (("ppo", BOX, ACTIONS["Dict"]), {"dtype": "float64"}, {"deterministic": False}),
    "wide actions of float64": (("sac", BOX, WIDE), {"normalize_observations": True}, {}),
    "bits, drawn": (("ppo", BOX, ACTIONS["MultiBinary"]), {"mask": True}, {"deterministic": False}),
    "a tuple, drawn": (("ppo", BOX, ACTIONS["Tuple"]), {"model": {"recurrent": "gru"}}, {"deterministic": False}),
    "large images": (("ppo", PICTURE, ACTIONS["Discrete"]), {"model": {"conv_filters": None}, "frame_stack": 4}, {}),
    "impala": (("dqn", PICTURE, ACTIONS["Discrete"]), {"model": {"encoder": "impala", "conv_filters": None}}, {}),
    "grey": (("ppo", PICTURE, ACTIONS["Discrete"]), {"env_to_module": grey, "frame_stack": 2}, {}),
    "flat": (
        ("ppo", OBSERVATIONS["Dict"], ACTIONS["Box"]),
        {"env_to_module": flat, "normalize_observations": True},
        {},
    ),
    "gelu": (("ppo", BOX, ACTIONS["Discrete"]), {"model": {"activation": "gelu", "layer_norm": True}}, {}),
    "elu": (("ppo", BOX, ACTIONS["Discrete"]), {"model": {"activation": "elu", "vf_share_layers": True}}, {}),
    "dueling": ((WITH_ATOMS, BOX, ACTIONS["Discrete"]), {"model": {"dueling": True, "activation": "silu"}}, {}),
    "dueling, lstm": (("dqn", BOX, ACTIONS["Discrete"]), {"model": {"dueling": True, "recurrent": "lstm"}}, {}),
    "torch": (
        ("ppo", OBSERVATIONS["Dict"], ACTIONS["Dict"]),
        {"model": MEMORY, "mask": True, "frame_stack": 3, "normalize_observations": True},
        {"format": "torch"},
    ),
}
"""what else changes how a policy acts: spaces and algorithm, options, options of the export"""


def proven(policy: Any, folder: Any, **options: Any) -> dict[str, Any]:
    return json.loads((policy.export(folder, **options) / "card.json").read_text())["parity"]


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id="-".join(cell), marks=pytest.mark.long if cell in IN_CI else pytest.mark.exhaustive)
        for cell in CELLS
    ],
)
def test_an_exported_cell_acts_as_its_policy(cell, tmp_path):
    parity = proven(policy_of(cell), tmp_path / "exported")
    assert parity["observations"] >= 10_000
    assert parity["largest_difference"] <= 1e-6
    assert parity["ties"] == 0


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_so_does_all_else(name, tmp_path):
    made, options, of_export = OTHERS[name]
    policy = make_policy(*made, **options)
    parity = proven(policy, tmp_path / "exported", **of_export)
    assert parity["observations"] >= 10_000
    high = getattr(policy.action_space, "high", np.ones(1))
    assert parity["largest_difference"] <= 1e-6 * float(np.max(high, initial=1.0))
    assert parity["ties"] <= 1


def test_every_algorithm_is_exported():
    assert {cell[0] for cell in CELLS} == {config.algorithm for config in ALGORITHMS}
    assert len(CELLS) >= 60
