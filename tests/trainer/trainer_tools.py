"""What the trainer's tests share: small configurations, one maker of trainers by hand, recorders of events, hashes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from algorithm_cases import ALGORITHM_CASES, takes

from lockstep import Collector, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer, SampleBatch, get_config
from lockstep.tracking import LazyLogger
from lockstep.tracking.records import read_metrics
from lockstep.trainer import Callback
from lockstep.trainer.build import RunLength


def config_for(
    algorithm: str = "ppo",
    env: Any = None,
    *,
    num_envs: int = 4,
    seed: int = 3,
    total_steps: int = 512,
    **sections: Any,
) -> Any:
    """Networks of 8 units, 64 steps an update, 128 an epoch; both normalisers on. Off-policy: prioritised, three steps.

    `env`: by default the first small task whose actions the algorithm takes. Offline: transitions of it at random.
    """
    config = get_config(algorithm)
    env = env or ("CartPole-v1" if takes(algorithm, "discrete") else "Pendulum-v1")
    on = not config.is_off_policy
    config.environment(env, normalize_observations=on, normalize_rewards=on and not config.is_offline)
    config.env_runners(num_envs_per_env_runner=num_envs)
    config.training(train_batch_size=64 if on else 16)
    if config.is_off_policy:
        config.env_runners(rollout_fragment_length=8 // num_envs)
        config.replay(capacity=200, learning_starts=64, update_per_step=0.3, prioritized=True)
        config.replay(n_step=3 if config.can_sum_rewards else 1)
    if config.is_offline:
        config.offline_data(input_=random_transitions(env))
    config.training(**ALGORITHM_CASES[algorithm].small)
    config.evaluation(evaluation_duration=3, evaluation_num_envs=2)
    config.rl_module(model_config={"hiddens": (8,), "critic_hiddens": (8,)})
    config.reporting(total_steps=total_steps, steps_per_epoch=128)
    config.debugging(seed=seed)
    for name, given in sections.items():
        getattr(config, name)(**given)
    return config


def smallest_config(algorithm: str, **more: Any) -> Any:
    """Any algorithm of the list: two epochs of a few updates."""
    config = config_for(algorithm, **more).evaluation(evaluation_duration=1, evaluation_num_envs=1)
    config.reporting(total_steps=64, steps_per_epoch=32).training(train_batch_size=16)
    if algorithm == "ppo":
        config.training(minibatch_size=8)
    return config.replay(learning_starts=16, update_per_step=0.5) if config.is_off_policy else config


def by_hand(
    config: Any,
    *,
    evaluate: bool = True,
    policy: Any = None,
    replay: Any = None,
    methods: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A trainer of the kind that the algorithm needs, made by hand: `options`, and for the others the sizes of the
    configuration.

    `replay`: what is collected into, from as many environments as it has sub-buffers. `methods`: of a class of its own.
    """
    policy, length, training = policy or config.build_policy(), RunLength.of(config), config.training
    given: dict[str, Any] = {"max_epoch": length.num_epochs, "step_per_epoch": length.per_epoch}
    given["batch_size"] = training.train_batch_size
    if config.is_offline:
        kind: Any = OfflineTrainer
        if "buffer" not in options:
            given["buffer"] = config.build_offline_data()
    else:
        kind = OffpolicyTrainer if config.is_off_policy else OnpolicyTrainer
        given |= {"train_collector": config.build_collector, "step_per_collect": length.per_update}
    if kind is OffpolicyTrainer:
        given |= {"update_per_step": config.replay.update_per_step, "learning_starts": config.replay.learning_starts}
    if kind is OnpolicyTrainer:
        given |= {"batch_size": training.minibatch_size, "repeat_per_collect": training.num_epochs}
    if replay is not None:
        envs = config.make_envs(replay.buffer_num)
        given["train_collector"] = Collector(policy, envs, replay)
    if evaluate:
        episodes = config.evaluation.evaluation_duration
        given |= {"test_collector": config.build_test_collector, "episode_per_test": episodes}
    given |= options
    if given.get("episode_per_collect"):
        given["step_per_collect"] = None
    for name in ("train_collector", "test_collector"):
        if callable(given.get(name)):
            given[name] = given[name](policy)
    return type("Own", (kind,), methods)(policy, **given) if methods else kind(policy, **given)


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


def build(env: Any = "CartPole-v1", **options: Any) -> Any:
    """By hand, PPO: two epochs of two updates of one pass."""
    return by_hand(config_for(env=env), **{"max_epoch": 2, "repeat_per_collect": 1, **options})
