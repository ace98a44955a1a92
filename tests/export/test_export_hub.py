"""Policies as the Hugging Face Hub has them: written to a local folder, read again, and what would be uploaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from exported_policies import ACTIONS, OBSERVATIONS, make_policy, move

from lockstep import Policy, PPOConfig
from lockstep.cli import main
from lockstep.trainer.run import load_policy

BOX, CHOICES = OBSERVATIONS["Box"], ACTIONS["Discrete"]


@pytest.fixture
def policy() -> Policy:
    """A policy with statistics, whose actions differ from one observation to the next."""
    return make_policy("ppo", BOX, CHOICES, normalize_observations=True)


def actions_of(policy: Policy) -> list[int]:
    rng = np.random.default_rng(0)
    return [int(policy.compute_single_action(obs)) for obs in rng.normal(size=(50, 4)).astype(np.float32)]


def test_what_is_saved_is_read_again(policy, tmp_path):
    folder = policy.save_pretrained(tmp_path / "saved")
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "checkpoint"}
    assert json.loads((folder / "config.json").read_text())["algorithm"] == "ppo"
    assert "Policy.from_pretrained(" in (folder / "README.md").read_text()
    expected = actions_of(policy)
    assert len(set(expected)) > 1
    assert actions_of(Policy.from_pretrained(folder)) == expected
    assert actions_of(load_policy(folder / "checkpoint")) == actions_of(load_policy(folder)) == expected
    policy.save_pretrained(folder)  # once more
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_the_hub_gets_the_folder_and_gives_it_back(policy, tmp_path, monkeypatch):
    uploaded: dict[str, Any] = {}

    class Api:
        """Stands for the Hub."""

        def __init__(self, token: str | None = None) -> None:
            uploaded["token"] = token

        def create_repo(self, repo_id: str, **options: Any) -> str:
            uploaded["options"] = options
            return f"https://huggingface.co/{repo_id}"

        def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
            uploaded["files"] = sorted(path.name for path in Path(folder_path).iterdir())
            policy.save_pretrained(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo_id, revision: str(tmp_path / "hub"))
    assert policy.push_to_hub("me/cartpole", private=True, token="t") == "https://huggingface.co/me/cartpole"
    assert uploaded == {
        "token": "t",
        "options": {"exist_ok": True, "private": True},
        "files": ["README.md", "checkpoint", "config.json"],
    }
    assert actions_of(Policy.from_pretrained("me/cartpole", revision="main")) == actions_of(policy)


def test_what_is_no_saved_policy_is_refused(policy, tmp_path):
    (tmp_path / "other.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else"):
        policy.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no folder checkpoint/"):
        Policy.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        Policy.from_pretrained(tmp_path / "nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_the_commands_read_a_saved_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    saved = PPOConfig().environment("CartPole-v1", normalize_observations=True).build_policy()
    move(saved)
    saved.save_pretrained("saved")
    assert main(["eval", "saved", "--episodes", "2"]) == 0
    assert "saved/checkpoint (ppo on CartPole-v1)" in capsys.readouterr().out
    words = ["--set", "environment.normalize_observations=true", "--total-steps", "64"]
    words += ["--set", "training.train_batch_size=64", "--set", "training.lr=1e-12", "--no-recipe"]
    assert main(["train", "ppo", "CartPole-v1", "--from", "saved", *words]) == 0
    trained = load_policy(next((tmp_path / "runs").iterdir())).module.get_state()
    for name, value in saved.module.get_state().items():
        np.testing.assert_allclose(trained[name], value, atol=1e-6, err_msg=name)
