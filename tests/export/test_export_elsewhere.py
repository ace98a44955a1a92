"""A trained policy, exported, plays where Lockstep is not: `act.py` gets the returns of `lockstep eval`, one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest

import lockstep
from lockstep import Collector
from lockstep.cli import eval as eval_command
from lockstep.cli import main
from lockstep.state.streams import RandomStreams

EPISODES, ENVIRONMENTS = 100, 8
BLOCKED = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lockstep", "torch"):
            raise ImportError(f"{name} is not here")


sys.meta_path.insert(0, Blocked())
for name in ("lockstep", "torch"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} is here")
"""
"""Beginning of a program that can import neither Lockstep nor torch."""
PLAY = """
import json, sys

sys.path[:0] = sys.argv[1:3]
from act import Actor
from masked_pole import MaskedPole

returns = []
for seed, episodes in json.loads(sys.argv[3]):
    env, actor, found = MaskedPole(), Actor(), []
    obs, _ = env.reset(seed=seed)
    while len(found) < episodes:
        actor.reset()
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(actor.act(obs))
            total, is_over = total + reward, terminated or truncated
        found.append(total)
        obs, _ = env.reset()
    returns.append(found)
print(json.dumps(returns))
"""


def test_the_block_of_the_page_runs_where_lockstep_is_not(tmp_path):
    section = (Path(lockstep.__file__).parents[1] / "docs/export.md").read_text().split("\n## Without Lockstep\n")[1]
    block = section.split("```python\n")[1].split("```")[0]
    lockstep.PPOConfig().environment("CartPole-v1").build_policy().export(tmp_path / "exported")
    done = subprocess.run(
        [sys.executable, "-I", "-c", BLOCKED + block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"0", "1"}
    assert len(done.stdout.split()) == 3


@pytest.mark.long
def test_an_exported_policy_gets_the_returns_of_lockstep_eval(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    result = lockstep.train(
        "ppo",
        "masked_pole:MaskedPole",
        total_steps=1_024,
        root=tmp_path / "runs",
        settings={
            "environment.normalize_observations": True,
            "environment.frame_stack": 3,
            "rl_module.model_config": {"recurrent": "lstm", "recurrent_size": 16, "hiddens": [16]},
            "training.num_epochs": 1,
            "training.train_batch_size": 256,
            "evaluation.evaluation_duration": 2,
        },
    )
    run, returns = str(result.path), defaultdict(list)

    def note(env_index: int, episode_return: float, length: int) -> None:
        returns[env_index].append(episode_return)

    monkeypatch.setattr(eval_command, "Collector", partial(Collector, on_episode_done_hook=note))
    assert main(["eval", run, "--episodes", str(EPISODES)]) == 0
    assert main(["export", run, "--output", str(tmp_path / "exported")]) == 0
    assert "10,000 observations of the environment: the same actions" in capsys.readouterr().out
    card = json.loads((tmp_path / "exported" / "card.json").read_text())
    assert {port["name"] for port in card["state"]} >= {"state_in_frames/seen", "state_in_h", "state_in_c"}
    assert {port["name"] for port in card["observation"]} == {"obs/seen", "obs/action_mask"}

    seeds = RandomStreams(0).child("eval").seeds("env_reset/0", ENVIRONMENTS)
    assert sum(map(len, returns.values())) >= EPISODES
    plan = json.dumps([[int(seed), len(returns[row])] for row, seed in enumerate(seeds)])
    folders = [str(tmp_path / "exported"), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-I", "-c", BLOCKED + PLAY, *folders, plan],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    played = json.loads(done.stdout)
    assert played == [returns[row] for row in range(ENVIRONMENTS)]
    assert len({value for row in played for value in row}) > 50, "returns that tell episodes apart"
