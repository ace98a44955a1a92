"""What the trainer's tests share: a small configuration, a recorder of events, hashes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from lockstep import SampleBatch, get_config
from lockstep.tracking import LazyLogger
from lockstep.tracking.records import read_metrics
from lockstep.trainer import Callback, OnpolicyTrainer


def config_for(algorithm="ppo", env="CartPole-v1", *, num_envs=4, seed=3, total_steps=512, **sections):
    """Networks of 8 units, 64 steps an update, 128 an epoch; both normalisers on. DQN: prioritised, three steps."""
    config = get_config(algorithm)
    on = not config.is_off_policy
    if algorithm == "td3" and env == "CartPole-v1":  # which has no continuous actions
        env = "Pendulum-v1"
    config.environment(env, normalize_observations=on, normalize_rewards=on and not config.is_offline)
    config.env_runners(num_envs_per_env_runner=num_envs)
    config.training(train_batch_size=64 if on else 16)
    if config.is_off_policy:
        config.env_runners(rollout_fragment_length=2)
        config.replay(capacity=200, learning_starts=64, update_per_step=0.3, n_step=3, prioritized=True)
    if algorithm in ("dqn", "c51", "qrdqn"):
        config.training(target_update_interval=7)
    if algorithm == "c51":
        config.training(num_atoms=5, v_min=0.0, v_max=40.0)
    if algorithm == "qrdqn":
        config.training(num_quantiles=5)
    if algorithm == "ppo":
        config.training(minibatch_size=32, num_epochs=2)
    config.evaluation(evaluation_episodes=3, evaluation_num_envs=2)
    config.rl_module(model_config={"hiddens": (8,)})
    config.reporting(total_steps=total_steps, steps_per_epoch=128)
    config.debugging(seed=seed)
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config


def smallest_config(algorithm: str, *, num_envs: int = 4, seed: int = 3, **sections: Any) -> Any:
    """Any algorithm of the list, on the first small task whose spaces it takes; two epochs of a few updates."""
    config = get_config(algorithm)
    config.environment("CartPole-v1")
    try:
        config.copy().build_learner()
    except ValueError:
        config.environment("Pendulum-v1")
    config.env_runners(num_envs_per_env_runner=num_envs)
    config.rl_module(model_config={"hiddens": (8,)})
    config.training(train_batch_size=16)
    if config.is_off_policy:
        config.env_runners(rollout_fragment_length=8 // num_envs)
        config.replay(capacity=200, learning_starts=16, update_per_step=0.5)
    elif config.is_offline:
        config.offline_data(input_=random_transitions(config.env))
    elif hasattr(config.sections["training"], "minibatch_size") and algorithm == "ppo":
        config.training(minibatch_size=8, num_epochs=2)
    config.evaluation(evaluation_episodes=1, evaluation_num_envs=1)
    config.reporting(total_steps=64, steps_per_epoch=32)
    config.debugging(seed=seed)
    for name, options in sections.items():
        getattr(config, name)(**options)
    return config


def random_transitions(env_id: str, rows: int = 60) -> SampleBatch:
    """Transitions of an environment whose actions are drawn from its space."""
    env, columns = gym.make(env_id), {name: [] for name in ("obs", "actions", "rewards", "new_obs")}
    ends = {name: [] for name in ("terminateds", "truncateds")}
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(rows):
        action = env.action_space.sample()
        new_obs, reward, *done = env.step(action)[:4]
        for name, value in zip(columns, (obs, action, reward, new_obs)):
            columns[name].append(value)
        for name, value in zip(ends, done):
            ends[name].append(value)
        obs = env.reset()[0] if any(done) else new_obs
    return SampleBatch({name: np.array(column) for name, column in {**columns, **ends}.items()})


class Recorder(Callback):
    """Names of the events in order, into a list that others write into too."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def on_event(self, event: Any) -> str | None:
        self.log.append(type(event).__name__)
        return None


class RecordingLogger(LazyLogger):
    """Notes what the trainer hands over, in order."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.record = log

    def log(self, name: str, data: Any, step: int) -> None:
        self.record.append(f"log {name} {step}")

    def finalize(self) -> None:
        self.record.append("finalize")


class Stops(Callback):
    """Asks to stop at the given event."""

    def __init__(self, event_name: str, reason: str = "enough", at: int = 1) -> None:
        self.event_name, self.reason, self.left = event_name, reason, at

    def on_event(self, event: Any) -> str | None:
        if type(event).__name__ == self.event_name:
            self.left -= 1
            return self.reason if self.left == 0 else None
        return None


class At(Callback):
    """Raises an error, calls a function or answers with a reason to stop, once: at an event of a name and an
    environment step (None: at the first of that name).
    """

    def __init__(self, name: str, env_step: int | None, action: Any) -> None:
        self.name, self.env_step, self.left = name, env_step, [action]

    def on_event(self, event: Any) -> str | None:
        if type(event).__name__ == self.name and self.env_step in (None, event.env_step) and self.left:
            action = self.left.pop()
            if isinstance(action, BaseException):
                raise action
            return action() if callable(action) else action
        return None


def noting(log: list[str]) -> dict[str, Any]:
    """Options of a trainer all of whose hooks note that they were called; each score is better than those before."""
    return {
        "logger": RecordingLogger(log),
        "callbacks": [Recorder(log)],
        "train_fn": lambda epoch, step: log.append(f"train_fn {epoch} {step}"),
        "test_fn": lambda epoch, step: log.append(f"test_fn {epoch} {step}"),
        "stop_fn": lambda score: log.append("stop_fn"),
        "save_best_fn": lambda policy: log.append("save_best"),
        "save_checkpoint_fn": lambda *where: log.append(f"checkpoint {where}"),
        "compute_score_fn": lambda stats: log.append("score") or float(len(log)),
    }


def digest(tree: Any) -> str:
    """SHA-256 over names, types, shapes and bytes of everything in a tree."""
    sha = hashlib.sha256()
    _feed(sha, tree)
    return sha.hexdigest()


def _feed(sha: Any, tree: Any) -> None:
    sha.update(type(tree).__name__.encode())
    if isinstance(tree, dict):
        for key in sorted(tree, key=str):
            sha.update(repr(key).encode())
            _feed(sha, tree[key])
    elif isinstance(tree, list | tuple):
        for part in tree:
            _feed(sha, part)
    elif isinstance(tree, torch.Tensor):
        _feed(sha, tree.detach().cpu().numpy())
    elif isinstance(tree, np.ndarray):
        sha.update(f"{tree.dtype}{tree.shape}".encode())
        sha.update(np.ascontiguousarray(tree).tobytes())
    else:
        sha.update(repr(tree).encode())


def learned(trainer: Any) -> str:
    """Hash of weights, optimizer, normalisers, schedules, counters and random streams of the learner."""
    return digest(trainer.policy.get_state())


def collected(trainer: Any) -> str:
    """Hash of environments, running episodes and random streams of both collectors, wall time left out."""
    states = [c.get_state() for c in (trainer.train_collector, trainer.test_collector) if c is not None]
    for state in states:
        state["counters"] = state["counters"][:2]
    return digest(states)


def records_of(path: str | Path) -> list[str]:
    """The records of a run without its wall times and its own paths, as text."""
    return [json.dumps(without_wall_time(record), sort_keys=True) for record in read_metrics(path)]


def without_wall_time(value: Any) -> Any:
    """Without wall_s, times, speeds, and paths."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not re.search(r"^wall_s$|time|speed|path$", str(k))}
        return {key: without_wall_time(part) for key, part in kept.items()}
    return value


def hashes(trainer: Any) -> tuple[str, str]:
    """All that must be equal but the records."""
    return learned(trainer), collected(trainer)


def build(env="CartPole-v1", *, evaluate=True, step_per_collect=64, **options):
    """A trainer by hand, so that every parameter can be given."""
    config = config_for(env=env)
    if not evaluate:
        config.evaluation(evaluation_interval=0)
    template = config.build_trainer()
    given = {
        "max_epoch": 2,
        "batch_size": 32,
        "step_per_epoch": 128,
        "repeat_per_collect": 1,
        "step_per_collect": step_per_collect,
        "test_collector": template.test_collector,
        "episode_per_test": 3 if evaluate else None,
        **options,
    }
    if "episode_per_collect" in options:
        given["step_per_collect"] = None
    return OnpolicyTrainer(template.policy, train_collector=template.train_collector, **given)
