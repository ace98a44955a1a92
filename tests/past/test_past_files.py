"""Files that earlier revisions wrote continue with the code of today, to the numbers that they had then."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from past_cases import CASES
from write_past import HASHES, JAR, continued, hash_of, processor

NOTES = json.loads(HASHES.read_text())
FAST = {
    "best_policy",
    "buffers",
    "data",
    "door_2dd00802",
    "learners",
    "learners_several",
    "policies",
    "run_agents_ppo",
    "run_agents_dqn_2dd00802",
    "run_bc",
    "run_counters",
    "run_dqn_priorities",
    "run_ppo_lstm_2dd00802",
    "run_ppo_own_parts",
    "run_ppo_remembering",
    "run_sac",
    "run_self_play",
    "run_tensor_dqn",
    "run_tensor_ppo_2dd00802",
}
"""One of each kind of file and of each revision. The others run with every part of the long tests."""


def marks_of(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return when a case is run."""
    if CASES[name].starts_ray:
        return (pytest.mark.faults,)
    return () if name in FAST else (pytest.mark.long,)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are in the order of one thread, as when the files were written."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in CASES])
@pytest.mark.filterwarnings("ignore")
def test_files_of_the_past_continue_to_the_same_numbers(name, tmp_path, monkeypatch):
    case = CASES[name]
    if case.trusts:
        monkeypatch.setenv("LOCKSTEP_TRUST", "1")
    found = continued(name, tmp_path)
    with np.load(JAR / f"{name}.npz") as stored:
        assert sorted(found) == sorted(stored)
        for key in stored:
            assert found[key].dtype == stored[key].dtype, key
            np.testing.assert_allclose(
                found[key], stored[key], rtol=case.tolerance, atol=case.tolerance, err_msg=f"{name}: {key}"
            )
    hashed = NOTES["hashes"][name]
    if hashed is not None and (NOTES["processor"], NOTES["torch"]) == (processor(), torch.__version__):
        assert hash_of(found) == hashed, "within the tolerance, but not to the bit"


def test_the_jar_has_every_case_and_nothing_else():
    assert set(CASES) >= FAST
    archives = {path.name.removesuffix(".tar.xz") for path in JAR.glob("*.tar.xz")}
    assert archives == set(CASES) == {path.stem for path in JAR.glob("*.npz")} == set(NOTES["hashes"])
    assert sum(path.stat().st_size for path in JAR.iterdir()) < 2 * 2**20
