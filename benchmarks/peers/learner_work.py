"""Define the networks and the data of ``learner_speed.py``, and time an update by stage.

NumPy and the standard library alone: it runs in every peer's environment.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import protocol

NUM_ACTIONS = 2
STAGES = ("pipeline", "gather", "forward", "loss", "backward", "reduce", "clip", "step", "rest")


@dataclass(frozen=True)
class Work:
    """One network, its rollout and its minibatches."""

    hiddens: tuple[int, ...] = (64, 64)
    num_envs: int = 8
    num_steps: int = 500
    minibatch: int = 256
    num_epochs: int = 4
    updates: int = 3
    """timed updates in a row for one round"""

    @property
    def rows(self) -> int:
        """The steps of one update."""
        return self.num_envs * self.num_steps


WORKS = {
    "64x64": Work(),
    "256x256": Work(hiddens=(256, 256), updates=1),
    "1024x1024": Work(hiddens=(1024, 1024), minibatch=2000, updates=1),
}
"""the last is large enough for two learners to pay"""


def make_rollout(work: Work, path: Path) -> dict[str, float]:
    """Write the rollout as a grid `[T, B]` (observations `[T + 1, B]`) and a train batch of its rows to one npz file.

    CartPole with a controller that errs at random. Return how many episodes it has.
    """
    rng = np.random.default_rng(5)
    steps, envs = work.num_steps, work.num_envs
    terminated, truncated = np.zeros((steps, envs), bool), np.zeros((steps, envs), bool)
    obs, actions, finals = _play_cartpole(rng, terminated, truncated)
    inputs = rng.normal(0.0, 0.1, (steps, envs, NUM_ACTIONS)).astype(np.float32)
    all_logp = inputs - np.log(np.exp(inputs).sum(axis=-1, keepdims=True))
    logp = np.take_along_axis(all_logp, actions[..., None], axis=-1)[..., 0].astype(np.float32)
    batch = {
        "obs": obs[:-1],
        "actions": actions,
        "action_dist_inputs": inputs,
        "action_logp": logp,
        "advantages": rng.normal(0.0, 1.0, (steps, envs)).astype(np.float32),
        "value_targets": rng.normal(20.0, 5.0, (steps, envs)).astype(np.float32),
    }
    flat = {f"batch/{name}": value.reshape(work.rows, *value.shape[2:]) for name, value in batch.items()}
    grid = {"obs": obs, "actions": actions, "terminated": terminated, "truncated": truncated, "finals": finals}
    np.savez(path, inputs=inputs, logp=logp, **grid, **flat)
    return {"episodes_ended": int((terminated | truncated).sum()), "pieces": len(pieces_of(np.load(path)))}


def _play_cartpole(
    rng: np.random.Generator, terminated: np.ndarray, truncated: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return observations, actions and true last observations; fill in the flags."""
    import gymnasium as gym

    steps, num_envs = terminated.shape
    envs = [gym.make("CartPole-v1") for _ in range(num_envs)]
    obs = np.zeros((steps + 1, num_envs, 4), np.float32)
    obs[0] = [env.reset(seed=index)[0] for index, env in enumerate(envs)]
    actions, finals = np.zeros((steps, num_envs), np.int64), []
    for t in range(steps):
        lean = obs[t, :, 2] + 0.3 * obs[t, :, 3] + 0.02 * obs[t, :, 0]
        actions[t] = np.where(rng.random(num_envs) < 0.5, lean > 0, rng.integers(0, 2, num_envs))
        for index, env in enumerate(envs):
            obs[t + 1, index], _, terminated[t, index], truncated[t, index], _ = env.step(int(actions[t, index]))
            if terminated[t, index] or truncated[t, index]:
                finals.append(obs[t + 1, index].copy())
                obs[t + 1, index], _ = env.reset()
    return obs, actions, np.array(finals, np.float32).reshape(-1, 4)


@dataclass(frozen=True)
class Piece:
    """An episode, or the part of one that lies in the rollout: `[L + 1, ...]` observations, `[L]` of the rest."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    inputs: np.ndarray
    logp: np.ndarray
    terminated: bool
    truncated: bool


def pieces_of(rollout: Any) -> list[Piece]:
    """Return the rollout as episodes, environment by environment; each reward is 1."""
    obs, actions, terminated, truncated = (rollout[k] for k in ("obs", "actions", "terminated", "truncated"))
    inputs, logp, finals = rollout["inputs"], rollout["logp"], rollout["finals"]
    steps, num_envs = terminated.shape
    final_of = {tuple(where): finals[k] for k, where in enumerate(np.argwhere(terminated | truncated))}
    pieces = []
    for env in range(num_envs):
        start = 0
        for t in range(steps):
            ended = (t, env) in final_of
            if ended or t == steps - 1:
                last = final_of[t, env] if ended else obs[t + 1, env]
                part = slice(start, t + 1)
                pieces.append(
                    Piece(
                        np.concatenate([obs[part, env], last[None]]),
                        actions[part, env],
                        np.ones(t + 1 - start, np.float32),
                        inputs[part, env],
                        logp[part, env],
                        bool(terminated[t, env]),
                        bool(truncated[t, env]),
                    )
                )
                start = t + 1
    return pieces


def stages_of(update: Callable[[], Any], hooks: Sequence[tuple[Any, str, str]]) -> dict[str, float]:
    """Return the milliseconds by stage of one update; `rest` is what no stage covers.

    `hooks` are an owner, its method and the stage that it is; a timed method inside another counts only there.
    """
    seconds = dict.fromkeys(STAGES, 0.0)

    def timed(inner: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            before, began = sum(seconds.values()), time.perf_counter()
            result = inner(*args, **options)
            inside = sum(seconds.values()) - before
            seconds[stage] += time.perf_counter() - began - inside
            return result

        return call

    with ExitStack() as patches:
        for owner, method, stage in hooks:
            patches.enter_context(patch.object(owner, method, timed(getattr(owner, method), stage)))
        began = time.perf_counter()
        update()
        whole = time.perf_counter() - began
    seconds["rest"] = max(0.0, whole - sum(seconds.values()))
    return {stage: 1e3 * value for stage, value in seconds.items()}


def batch_of(rollout: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the columns of the train batch."""
    return {key.removeprefix("batch/"): value for key, value in rollout.items() if key.startswith("batch/")}


def remote_entries(
    side: str,
    sources: Sequence[str],
    build_group: Callable[[int], Any],
    measured: Callable[[Any, int, str], protocol.Measured],
) -> dict[str, Callable[[], protocol.Measured]]:
    """Return updates of groups of 1 and 2 learners in Ray actors, which are built once, and building one."""
    import ray

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    group_of = functools.cache(build_group)
    entries: dict[str, Callable[[], protocol.Measured]] = {
        f"{side}, {number} learner{'s' * (number > 1)}, {source}": lambda number=number, source=source: measured(
            group_of(number), number, source
        )
        for number in (1, 2)
        for source in sources
    }
    built: list[Any] = []

    def end() -> None:  # not timed
        while built:
            built.pop().shutdown()

    entries[f"{side}, building 2"] = lambda: protocol.Measured(lambda _: built.append(build_group(2)), end)
    return entries
