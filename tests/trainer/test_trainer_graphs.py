"""Runs on a device capture the collect once and the update once, whatever the number of updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, NAMES, class_of, has_option, takes
from parts import one_in
from stand_in_graph import use_stand_ins

from lockstep import get_config
from lockstep.connectors import ClipRewards
from lockstep.replay import TensorReplay

B, T, UPDATES = 4, 5, 10
ON_DEVICE = [name for name in NAMES if class_of(name).learns_from_tensors]
OPTIONS: dict[str, Any] = {
    "normalised observations": lambda config: config.environment(normalize_observations=True, normalize_rewards=True),
    "by priority, three steps": lambda config: config.replay(prioritized=True, n_step=3),
    "scheduled rates": lambda config: config.training(lr=[[0, 1e-2], [10**4, 1e-3]]),
    "correlated noise": lambda config: config.env_runners(exploration="ou"),
    "gSDE": lambda config: config.env_runners(exploration="gsde"),
    "stacks of frames": lambda config: config.environment(frame_stack=3),
    "memory": lambda config: config.rl_module(model_config={"hiddens": (4,), "recurrent": "lstm"}),
    "clipped rewards": lambda config: config.training(learner_connector=lambda *_: ClipRewards()),
}
CASES = [
    *((name, None) for name in ON_DEVICE),
    *(("ppo", option) for option in ("normalised observations", "scheduled rates")),
    *(("dqn", option) for option in ("by priority, three steps", "scheduled rates")),
    ("sac", "correlated noise"),
    ("sac", "normalised observations"),
    *(("ppo", option) for option in ("gSDE", "clipped rewards", "memory")),
    ("a2c", "memory"),
    *((name, "stacks of frames") for name in ("ppo", "sac")),
]


def trainer_of(name: str, option: str | None) -> Any:
    """Return a trainer whose updates all take the same steps: two of a replay buffer, or four of a rollout."""
    config = get_config(name).environment("tensor/Pendulum-v1" if takes(name, "box") else "tensor/CartPole-v1")
    config.env_runners(num_envs_per_env_runner=B, rollout_fragment_length=T)
    config.rl_module(model_config={"hiddens": (4,)}).reporting(total_steps=10**6, steps_per_epoch=B * T)
    config.evaluation(evaluation_interval=0).debugging(seed=3).framework(compile=False)
    config.training(**ALGORITHM_CASES[name].on_device)
    if config.is_off_policy:
        config.training(train_batch_size=8).replay(capacity=30 * B * T, learning_starts=B * T)
        config.replay(update_per_step=2 / (B * T))
    else:
        config.training(train_batch_size=B * T, minibatch_size=B * T // 2)
    for interval in ("target_update_interval", "policy_delay"):
        if has_option(name, interval):
            config.training(**{interval: 2})  # so that each update has the same steps
    if option is not None:
        OPTIONS[option](config)
    if option == "memory":
        config.training(minibatch_size=B // 2)  # sequences
    return config.build_trainer()


@pytest.mark.parametrize(("name", "option"), one_in(3, CASES))
def test_ten_updates_are_captured_once(name, option, monkeypatch):
    graphs = use_stand_ins(monkeypatch)
    trainer = trainer_of(name, option)
    monkeypatch.setattr("stand_in_graph.StandInGraph.learner", trainer.policy.learner_group.learner)
    for _ in range(UPDATES + 1):  # in the first one of a replay buffer random actions are taken, and nothing is learned
        next(trainer)
    captured = [graph.name for graph in graphs if graph.is_graph]
    update = "_steps" if trainer.policy.config.is_off_policy else "_passes"
    assert sorted(captured) == sorted(["_rollout", update])
    assert max(graph.num_calls for graph in graphs if graph.name == update) >= UPDATES
    assert len(graphs) == 2 + trainer.policy.config.is_off_policy  # the collect of random actions, called once


def test_a_buffer_that_is_rebuilt_is_captured_again(monkeypatch):
    """So the test above sees an object that does not stay what it is between two updates."""
    graphs = use_stand_ins(monkeypatch)
    trainer = trainer_of("dqn", None)
    for _ in range(4):
        next(trainer)
    old = trainer.buffer
    names = ("obs", "actions")
    new = TensorReplay(old.maxsize, *(old.columns[name][0] for name in names), share=old.share)
    new.set_state(old.get_state())
    trainer.train_collector._buffer = new
    trainer.buffer = new
    for _ in range(4):
        next(trainer)
    assert sum(graph.name == "_steps" for graph in graphs) == 2
    assert torch.equal(new.columns["obs"][:2], old.columns["obs"][:2])
