"""`lockstep export`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from cli_tools import Said, Trained

from lockstep import load_policy
from lockstep.export import load_export
from lockstep.tracking import RunFolder

Command = Callable[..., Said]


def test_export_writes_the_best_policy_and_says_how_it_was_proven(
    lockstep: Command, trained: Trained, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained.runs[0], tmp_path / "run"))
    said = lockstep("export", "run")
    assert said.code == 0, said.err
    assert "run/best/policy (ppo on CartPole-v1)" in said.out
    assert "run/export_onnx (README.md, act.py, card.json, checkpoint, policy.onnx)" in said.out
    assert "10,000 observations of the environment: the same actions" in said.out
    assert said.err == ""
    card = json.loads((run / "export_onnx" / "card.json").read_text())
    summary = RunFolder.open(run).read_summary()
    assert card["evaluation"] == {"return_mean": summary["best_reward"], "return_std": summary["best_reward_std"]}
    assert card["steps"] == load_policy(run).timesteps["num_env_steps_sampled_lifetime"]


def test_export_takes_the_last_checkpoint_the_format_and_the_folder(
    lockstep: Command, trained: Trained, tmp_path: Path
) -> None:
    words = ("--checkpoint", "last", "--format", "torch", "--output", "out", "--sample")
    said = lockstep("export", str(trained.runs[0]), *words)
    assert said.code == 0, said.err
    assert "checkpoints/step_" in said.out
    card = load_export(tmp_path / "out").card
    assert card["file"] == "policy.pt2"
    assert not card["deterministic"]
    assert card["evaluation"]["return_mean"] == RunFolder.open(trained.runs[0]).read_summary()["final_return"]
    said = lockstep("export", str(trained.runs[0]), "--output", "out.onnx")
    assert said.code == 2
    assert "give a folder" in said.err
