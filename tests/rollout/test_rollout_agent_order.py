"""Agents act in the order of `possible_agents`, in whatever order an environment's dicts have them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_games import ParallelSetGame, SetGame, game_config

from lockstep import MultiAgentCollector
from lockstep.data.rollout import EpisodeStore
from lockstep.envs.multi_agent import record_episode
from lockstep.tracking.logger import torch_param_hash

RUN = """
from test_rollout_agent_order import *
print(trained_hash(SetGame, 0), trained_hash(ParallelSetGame, 0), trained_hash(SetGame, 2))
"""


def by_name(agent, episode):
    return "first" if agent in ("wolf", "owl") else "others"


def trained_hash(game, num_runners):
    """Return what a run with evaluation comes to: its weights and all of its returns."""
    config = game_config(game, multi_agent={"policy_mapping_fn": by_name})
    config.env_runners(num_env_runners=num_runners, num_envs_per_env_runner=2)
    trainer = config.build_trainer()
    stats = [epoch for _, epoch, _ in trainer]
    returns = [(epoch.train_collect_stat.agent_returns, epoch.test_collect_stat.agent_returns) for epoch in stats]
    weights = [torch_param_hash(part.module) for part in trainer.policy.acting.values()]
    trainer.close()
    return f"{returns} {weights}"


@pytest.mark.parametrize(
    ("game", "form", "names"),
    [
        (SetGame, "list", SetGame.names),
        (SetGame, "spaces", SetGame.names),
        (SetGame, "set", tuple(sorted(SetGame.names))),
        (ParallelSetGame, "list", SetGame.names),
        (ParallelSetGame, "set", tuple(sorted(SetGame.names))),
    ],
)
def test_agents_act_and_are_stored_in_the_order_of_possible_agents(game, form, names):
    env = game(form)
    policy = game_config(SetGame, multi_agent={"policy_mapping_fn": by_name}).build_policy()
    collector = MultiAgentCollector(policy, env, EpisodeStore(), seed=5)
    collector.collect(n_step=7)
    assert collector.env.agents == names
    assert [tuple(order) for order in env.orders] == [names] * 7
    for piece in collector.buffer.episodes():
        assert tuple(piece.agent_episodes) == names
    env.orders.clear()
    recorded = record_episode(env, lambda observations: dict.fromkeys(observations, 0), seed=1)
    assert [tuple(order) for order in env.orders] == [names] * 5
    assert tuple(recorded.agent_episodes) == names


@pytest.mark.long
def test_processes_with_other_hash_seeds_train_the_same_bits():
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RUN],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    one, other = (process.communicate()[0] for process in started)
    assert [process.returncode for process in started] == [0, 0]
    assert one == other
