"""The examples run, and each does what it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lockstep

ROOT = Path(__file__).parents[2]


def load(name: str):
    """The module of an example, not run as a script."""
    spec = importlib.util.spec_from_file_location(f"example_{name.replace('/', '_')}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # numba looks its module up by its name
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    # the last: test_docs_scaling.py
    tested = {"train_cartpole", "parts", "own_loop", "custom_loss", "connect_four", "two_nodes"}
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == tested


def test_training_in_one_call_leaves_a_run_folder(tmp_path):
    result = load("train_cartpole").main(total_steps=2_048, root=str(tmp_path))
    assert result.path.parent == tmp_path
    assert {"config.json", "metrics.jsonl", "summary.json"} <= {path.name for path in result.path.iterdir()}
    assert json.loads((result.path / "summary.json").read_text())["train_step"] == result.info.train_step >= 2_048
    assert result.policy.compute_single_action([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_the_parts_train_a_policy_that_is_as_good_when_it_is_loaded_again(capsys):
    returned = load("parts").main(max_epoch=2)
    printed = capsys.readouterr().out
    assert f"loaded again: {returned:.1f}" in printed
    assert returned > 100  # a policy that has learned nothing reaches about 10


def test_the_own_loop_is_under_40_lines_and_learns():
    lines = [line for line in (ROOT / "examples/own_loop.py").read_text().splitlines() if line.strip()]
    assert len(lines) < 40
    torch.manual_seed(0)
    untrained = load("own_loop").main(num_updates=1)
    assert load("own_loop").main(num_updates=12) > 2 * untrained


def test_a_custom_loss_is_ten_lines_and_its_metric_is_reported():
    text = (ROOT / "examples/custom_loss.py").read_text()
    body = text[text.index("class ") : text.index("def main")].strip().splitlines()
    assert len([line for line in body if line.strip()]) <= 10
    module = load("custom_loss")
    penalty = module.main(total_steps=2_048)
    assert 0 < penalty < 1e3


def test_connect_four_knows_the_rules_and_learns_against_its_pool(tmp_path):
    game = load("connect_four")
    board, rng = np.zeros((6, 7, 2), bool), np.random.default_rng(0)
    board[5, :3, 0] = board[4, :3, 1] = True  # both have three in a row: who is to move wins at once
    assert game.minimax_move(board, 4, rng) == 3
    board[5, :3], board[4, :3] = [False, True], False  # the other one threatens to win, and is stopped
    assert game.minimax_move(board, 2, rng) == 3
    self_play = lockstep.trainer.SelfPlay("main", win_rate_threshold=0.0, window=10)
    run = lockstep.trainer.run.prepare_run(game.make_config(8_192, 0), tmp_path, callbacks=[self_play])
    policy = run.finish().policy
    assert set(policy.acting) > {"main"}
    assert sum(game.play_minimax(policy, 2, depth=1)) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_it_is_run(path):
    assert f"python examples/{path.name}" in path.read_text()
