"""Tools of the trainer's scenarios: a task of known returns, small trainers on it, and the outcome of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from trainer_tools import Recorder, RecordingLogger, by_hand

from lockstep import A2CConfig, BCConfig, DQNConfig, SampleBatch
from lockstep.trainer import Callback

NUM_ENVS, LENGTH = 2, 4
KINDS = ("on", "off")
TRAINERS = (*KINDS, "offline")


class Paying(gym.Env):
    """Episodes of four steps; each step pays -1. It tells its state."""

    observation_space, action_space = spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(2)

    def __init__(self, pays: float = -1.0) -> None:
        self.pays, self.count = pays, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._obs(), self.pays, self.count == LENGTH, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.count / LENGTH, self.np_random.random()], np.float32)

    def get_env_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_env_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def config_of(kind: str, env: Any = Paying, seed: int = 0, config_class: Any = None) -> Any:
    """The smallest configuration: 2 environments; three epochs of two collects of 8 steps, one gradient step each.

    Offline: three epochs of 70 gradient steps on samples of 4 of 20 transitions.
    """
    config = (config_class or {"on": A2CConfig, "off": DQNConfig, "offline": BCConfig}[kind])()
    config.environment(env).debugging(seed=seed).rl_module(model_config={"hiddens": (4,)})
    config.env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=4)
    config.training(train_batch_size=8 if kind == "on" else 4)
    if kind == "off":
        config.replay(capacity=64, learning_starts=0, update_per_step=0.125)
    config.evaluation(evaluation_duration=2, evaluation_num_envs=2)
    if kind != "offline":
        return config.reporting(total_steps=48, steps_per_epoch=16)
    rng, ends = np.random.default_rng(0), np.arange(20) % LENGTH == LENGTH - 1
    obs, rewards = rng.random((20, 2), np.float32), np.full(20, -1.0, np.float32)
    data = SampleBatch(obs=obs, new_obs=obs, actions=rng.integers(0, 2, 20), rewards=rewards)
    config.offline_data(input_=SampleBatch({**data, "terminateds": ends, "truncateds": np.zeros(20, bool)}))
    return config.reporting(total_steps=210, steps_per_epoch=70)


def trainer_of(kind: str, *, env: Any = Paying, **options: Any) -> Any:
    """A trainer by hand: on-policy, off-policy or offline."""
    return by_hand(config_of(kind, env), **options)


@dataclass
class Outcome:
    """What a run left behind."""

    reason: str | None
    error: BaseException | None
    epochs: int
    steps: list[int | None]
    env_step: int
    gradient_step: int
    evaluations: int
    best: float | None
    best_epoch: int | None
    best_saves: int
    saves: list[tuple[int, int, int]]
    updates: int
    log: list[str] = field(repr=False)
    trainer: Any = field(repr=False)
    gradient_steps_by_update: list[int] = field(default_factory=list)
    """Gradient steps of the run so far, after the update of each collect."""

    @property
    def steps_in_all(self) -> int:
        """The steps that the trainer announces."""
        return self.trainer.steps_in_all

    @property
    def last_epoch_is_evaluated(self) -> bool:
        """Whether the last evaluation is that of the last epoch."""
        return self.trainer.last_test is self.trainer.history[-1].test_collect_stat


class GradientSteps(Callback):
    """Notes the gradient steps of the run before each update, and at its end. An update may make none."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_collect_end(self, event: Any) -> None:
        self.counts.append(event.gradient_step)

    def on_run_end(self, event: Any) -> None:
        self.counts.append(event.gradient_step)


def play(
    kind: str,
    *,
    scores: Any = None,
    stop_at: float | None = None,
    configured: dict[str, Any] | None = None,
    **options: Any,
) -> Outcome:
    """Runs a trainer (on, off or offline) and returns the outcome.

    `scores`: the scores of the evaluations. `stop_at`: the score that ends the run. `configured`: options of
    `reporting(...)` for a trainer that a configuration builds; without it the trainer is made by hand. `options`: those
    of the trainer; one that a configuration builds takes `evaluate` and `callbacks` only.
    """
    log: list[str] = []
    saves: list[tuple[int, int, int]] = []
    best: list[Any] = []
    counting = GradientSteps()
    evaluate = options.get("evaluate", True)
    callbacks = [*options.pop("callbacks", ()), counting, Recorder(log)]
    if configured is not None:
        config = config_of(kind).reporting(**configured)
        if not evaluate:
            config.evaluation(evaluation_interval=0)
        trainer = config.build_trainer(callbacks=callbacks)
        trainer.logger = RecordingLogger(log)
    else:
        if scores is not None:
            left = iter(scores)
            options["compute_score_fn"] = lambda stats: next(left)
        if stop_at is not None:
            options["stop_fn"] = lambda score: score >= stop_at
        if evaluate:
            options.setdefault("save_best_fn", best.append)
        options.setdefault("save_checkpoint_fn", lambda *where: saves.append(where))
        trainer = trainer_of(kind, callbacks=callbacks, logger=RecordingLogger(log), **options)
    error = None
    try:
        trainer.run()
    except Exception as raised:
        error = raised
    outcome = outcome_of(trainer, error, best, saves, log)
    outcome.gradient_steps_by_update = counting.counts[1:]
    return outcome


def outcome_of(trainer: Any, error: Any = None, best: Any = (), saves: Any = (), log: Sequence[str] = ()) -> Outcome:
    info = trainer.info()
    collects = [stats.train_collect_stat for stats in info.history]
    steps = [None if collect is None else collect.n_collected_steps for collect in collects]
    counted = (len(info.history), steps, info.train_step, info.gradient_step, info.test_episode // 2)
    saved = (len(best), list(saves), log.count("UpdateEnd"), list(log))
    return Outcome(info.stop_reason, error, *counted, info.best_score, info.best_epoch, *saved, trainer)


def position(kind: str, updates: int) -> tuple[int, int]:
    """The environment steps and gradient steps after a number of updates."""
    return (0, updates // 2 * 70 + updates % 2 * 64) if kind == "offline" else (8 * updates, updates)
