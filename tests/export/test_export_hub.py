"""Policies as the Hugging Face Hub has them: written to a local folder, read again, uploaded and downloaded."""

from __future__ import annotations

import json
import os
import re
import threading
from typing import Any

import numpy as np
import pytest
from exported_policies import ACTIONS, OBSERVATIONS, make_policy, move
from huggingface_hub import ModelCard
from local_hub import LocalHub
from warm import run_python

from lockstep import Policy, PPOConfig
from lockstep.cli import main
from lockstep.export.model_card import model_card, pretrained_card
from lockstep.runs.run import load_policy

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


HANDED_ON = """
import sys
from lockstep import Policy

print(Policy.from_pretrained(sys.argv[1]).push_to_hub("me/cartpole", private=True, token="hf_mine"))
Policy.from_pretrained("me/cartpole", revision="main", cache_dir=sys.argv[2]).save_pretrained(sys.argv[3])
"""


def test_the_hub_gets_the_folder_and_gives_it_back(policy, tmp_path):
    """huggingface_hub itself, which asks a Hub on this machine; so large files, which go elsewhere, are not tested."""
    saved, back = policy.save_pretrained(tmp_path / "saved"), tmp_path / "back"
    with LocalHub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        env = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        done = run_python(["-c", HANDED_ON, saved, tmp_path / "cache", back], env=env)
        hub.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{hub.address}/me/cartpole\n"
    asked = json.loads(hub.posted["/api/repos/create"])
    assert (asked["organization"], asked["name"], asked["visibility"]) == ("me", "cartpole", "private")
    assert hub.tokens == {"Bearer hf_mine"}
    assert set(hub.files) == {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
    assert actions_of(Policy.from_pretrained(back)) == actions_of(policy)


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


def test_a_model_card_shows_every_text_as_text():
    hostile = "x](javascript:alert(1))\n---\n# `Title` <script>|*a*"
    port = {"name": hostile, "shape": [2], "dtype": hostile}
    card: dict[str, Any] = dict.fromkeys(("algorithm", "environment"), hostile)
    card |= {"steps": 1, "versions": {"lockstep": hostile}, "evaluation": {"return_mean": 1.0, "return_std": 0.0}}
    card |= {"format": "onnx", "reads_reward": False, "noise": [], "observation": [port], "state": [port]}
    card |= {"actions": [port]}
    card["parity"] = {"observations": 1, "source": "random", "largest_difference": 0.0, "ties": 0}
    for page in (model_card(card), pretrained_card(card)):
        assert page.splitlines().count("---") == 2, "the front matter ends where it ends"
        body = page.split("\n---\n")[1]
        outside_code = re.sub(r"(?<!\\)`[^`]*`", "", body)
        assert "<script>" not in outside_code
        assert "](" not in outside_code.replace(r"\](", "")
        assert [line for line in body.splitlines() if line.startswith("# ")] == body.splitlines()[1:2]
        front = ModelCard(page).data
        assert front.tags == ["reinforcement-learning", hostile]
