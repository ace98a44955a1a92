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
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # numba, and what it keeps of an earlier run, looks its module up by its name
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    # the last two: test_docs_scaling.py, test_cluster_tune.py
    tested = {"train_cartpole", "parts", "own_loop", "custom_loss", "connect_four", "two_nodes", "population_based"}
    tested |= {"symmetry", "distillation"}
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


@pytest.mark.long
def test_a_pole_is_swung_up_equally_to_both_sides_with_a_symmetry():
    differences = load("symmetry").main(total_steps=8_192)
    assert differences["symmetric network"] < 1e-5
    assert differences["mirrored rows"] < differences["plain"]


@pytest.mark.long
def test_a_student_with_memory_infers_what_its_teacher_sees():
    returns = load("distillation").main(total_steps=6_400)
    assert returns["student with a GRU"] >= 0.95 * returns["teacher"]
    assert returns["student without memory"] < 0.75 * returns["teacher"]


def test_connect_four_is_pettingzoos_game_step_by_step():
    game, rng = load("connect_four"), np.random.default_rng(0)
    theirs, ours = game.make_env(), game.ConnectFour()
    results = set()
    for _ in range(60):
        theirs.reset()
        seen, _ = ours.reset()
        ended = False
        while not ended:
            agent = theirs.agent_selection
            observation = theirs.observe(agent)
            assert list(seen) == [agent]
            assert_equal(seen[agent], observation)
            move = int(rng.choice(np.flatnonzero(observation["action_mask"])))
            theirs.step(move)
            seen, rewards, terminateds, truncateds, _ = ours.step({agent: move})
            ended = terminateds["__all__"]
            assert rewards == theirs.rewards
            assert not truncateds["__all__"]
            assert ended == all(theirs.terminations.values()) == any(theirs.terminations.values())
        for agent in theirs.possible_agents:
            assert_equal(seen[agent], theirs.observe(agent))
        results.add(rewards["player_0"])
    assert {1.0, -1.0} <= results


def assert_equal(ours, theirs):
    assert set(ours) == set(theirs)
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, strict=True)


def test_connect_four_begins_with_random_moves_that_win_nothing():
    game = load("connect_four").ConnectFour(random_moves=6)
    numbers = {int(next(iter(game.reset(seed=seed)[0].values()))["observation"].sum()) for seed in range(100)}
    assert numbers == set(range(7))
    first, again = (game.reset(seed=3)[0] for _ in range(2))
    for agent, seen in first.items():
        assert_equal(again[agent], seen)


def test_connect_four_sees_open_lines_and_the_squares_that_complete_them():
    module = load("connect_four")
    board = np.zeros((6, 7, 2), np.float32)
    board[5, 1:4, 0] = board[5, 6, 1] = 1  # three of ours in the bottom row, open on the left alone
    board[4:, 4, 1] = 1
    network = module.Lines(None)
    seen = network(torch.from_numpy(board)[None]).numpy().reshape(2, -1)
    stones, lines, completes, now, later = np.split(seen, np.cumsum([42, 69, 42, 7]), 1)
    assert stones.sum(1).tolist() == [3, 3]
    assert np.flatnonzero(completes[0]).tolist() == [35]  # row 5, column 0
    assert np.flatnonzero(now[0]).tolist() == [0]
    assert not later.any()
    assert not completes[1].any()
    assert lines[1].sum() == 1  # theirs: upwards in column 4


def test_connect_four_plays_minimax():
    game = load("connect_four")
    board, rng = np.zeros((6, 7, 2), bool), np.random.default_rng(0)
    board[5, :3, 0] = board[4, :3, 1] = True  # both have three in a row: who is to move wins at once
    assert game.minimax_move(board, 4, rng) == 3
    board[5, :3], board[4, :3] = [False, True], False  # the other one threatens to win, and is stopped
    assert game.minimax_move(board, 2, rng) == 3


@pytest.mark.long
def test_connect_four_goes_on_in_the_middle_with_equal_bits(tmp_path):
    """The pool, with the learner itself and minimax in it, goes on as if nothing had been; games are under way."""
    game = load("connect_four")

    def pool():
        return lockstep.trainer.SelfPlay(
            "main",
            win_rate_threshold=0.0,
            window=10,
            max_pool_size=2,
            draw="prioritized",
            opponents=["main", *game.SCRIPTED],
        )

    def configured(steps):
        config = game.make_config(1_536, 0)  # schedules are those of the whole run
        config.env_runners(num_envs_per_env_runner=16).training(train_batch_size=256, minibatch_size=32)
        return config.rl_module(model_config={"hiddens": (32,)}).reporting(total_steps=steps, steps_per_epoch=256)

    whole, half, rest = pool(), pool(), pool()
    run = lockstep.runs.run.prepare_run(configured(1_536), tmp_path, callbacks=[whole])
    expected = run.finish()
    first = lockstep.runs.run.prepare_run(configured(768), tmp_path, callbacks=[half]).finish()
    assert whole.num_copies > half.num_copies > 1
    result = lockstep.runs.run.resume(first.path, total_steps=1_536, callbacks=[rest])
    assert set(result.policy.acting) == {"main", *game.SCRIPTED, *rest.copies}
    assert rest.get_state() == whole.get_state() != half.get_state()
    weights, same = (
        [part.policy.acting[name].module.get_state() for name in sorted(part.policy.acting)]
        for part in (expected, result)
    )
    np.testing.assert_equal(same, weights)
    found = game.play_minimax(result.policy, 4, depth=1, random_moves=2)
    assert 0 <= found["won"] + found["drawn"] <= 1
    assert found["different_games"] > 1


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_it_is_run(path):
    assert f"python examples/{path.name}" in path.read_text()
