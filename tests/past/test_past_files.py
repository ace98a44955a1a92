"""Files that earlier revisions wrote continue with the code of today, to the numbers that they had then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from past_cases import CASES, GUESTS, guests_observations
from write_past import HASHES, JAR, continued, hash_of, processor, unpack

from lockstep import Policy
from lockstep.cli import main
from lockstep.export import load_export

NOTES = json.loads(HASHES.read_text())
FAST = {
    "best_policy",
    "buffers",
    "data",
    "door_2dd00802",
    "learners",
    "learners_several",
    "policies",
    "policy_central",
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


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_an_old_central_critics_policy_is_exported_and_acts_equally(tmp_path, monkeypatch):
    """It chooses the actions that its revision chose, and has no input for the central state."""
    monkeypatch.setenv("LOCKSTEP_TRUST", "1")
    unpack("policy_central", tmp_path)
    Policy.from_checkpoint(tmp_path / "policy").export(tmp_path / "export")
    exported = load_export(tmp_path / "export" / "main")
    assert [entry["name"] for entry in exported.card["observation"]] == ["obs"]
    observations = guests_observations(np.random.default_rng(4))
    found = [exported.compute_actions(np.stack([obs[agent] for agent in GUESTS])) for obs in observations]
    with np.load(JAR / "policy_central.npz") as stored:
        assert np.array_equal(found, stored["actions"])


# -- what a user does with a run of 0.2 (docs/from-0.2.md) ---


@pytest.fixture
def old_run(request, tmp_path, monkeypatch):
    """A run of 0.2 in an empty directory, for a user who has signed nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("LOCKSTEP_TRUST", raising=False)
    monkeypatch.chdir(tmp_path)
    unpack(request.param, tmp_path)
    run = tmp_path / "run"
    assert json.loads((run / "config.json").read_text())["versions"]["lockstep"] == "0.2.0"
    return run


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("old_run", ["run_ppo_remembering"], indirect=True)
def test_a_run_of_0_2_that_names_a_function_is_signed_once_and_resumed(old_run, capfd):
    before = files_of(old_run)
    assert main(["resume", str(old_run)]) == 2
    assert "lockstep trust RUN" in capfd.readouterr().err
    assert files_of(old_run) == before

    assert main(["trust", str(old_run)]) == 0
    assert "past_parts:remembering" in capfd.readouterr().out
    assert {path.name for path in set(files_of(old_run)) - set(before)} == {"signatures.json"}
    assert main(["resume", str(old_run)]) == 0
    summary = json.loads((old_run / "summary.json").read_text())
    assert (summary["train_step"], summary["stop_reason"]) == (192, "max_epoch")


@pytest.mark.long
@pytest.mark.parametrize("old_run", ["run_dqn_priorities"], indirect=True)
def test_a_run_of_0_2_is_evaluated_extended_and_exported_without_permission(old_run, capfd):
    assert main(["resume", str(old_run), "--total-steps", "256"]) == 0
    assert json.loads((old_run / "summary.json").read_text())["train_step"] == 256
    assert main(["eval", str(old_run), "--episodes", "2"]) == 0
    assert "2 episodes" in capfd.readouterr().out
    assert main(["export", str(old_run), "--output", "exported"]) == 0
    assert Path("exported/act.py").exists()


def test_every_algorithm_of_0_2_has_its_actions_in_the_jar():
    """`policies` compares them, with the weights. 0.2 had 21 algorithms."""
    with np.load(JAR / "policies.npz") as stored:
        names = {key.partition("/")[0] for key in stored}
        assert names == {key.partition("/")[0] for key in stored if key.endswith("/actions")}
    assert len(names) == 21


def test_the_jar_has_every_case_and_nothing_else():
    assert set(CASES) >= FAST
    archives = {path.name.removesuffix(".tar.xz") for path in JAR.glob("*.tar.xz")}
    assert archives == set(CASES) == {path.stem for path in JAR.glob("*.npz")} == set(NOTES["hashes"])
    assert sum(path.stat().st_size for path in JAR.iterdir()) < 2 * 2**20
