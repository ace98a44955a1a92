"""Lockstep's PPO on gymnasium's native CartPole vector, and how fast that environment steps by itself.

Two rates without learning come first: gymnasium's vector alone, and the same through Lockstep's boundary. The
last line tells them, the training's rate and where the training's time went.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import protocol as p

OPTIONS = p.parse(
    "Lockstep's PPO on native vector environments",
    ("--num-envs", "environments in the vector", 64),
    ("--fragment", "steps of each environment for one update", p.STEPS_PER_ENV),
    ("--minibatch", "rows of a minibatch", p.MINIBATCH),
    ("--compile", "compile the gradient step"),
)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402

import lockstep  # noqa: E402
from lockstep.envs.make import make_vector  # noqa: E402
from lockstep.trainer import Callback  # noqa: E402
from lockstep.trainer.events import CollectEnd, UpdateEnd  # noqa: E402


class Marks(Callback):
    """Marks the clock after each update; sums the seconds of each stage."""

    def __init__(self, clock: p.Clock) -> None:
        self.clock = clock
        self.seconds = {"environment": 0.0, "acting": 0.0, "other_collecting": 0.0, "update": 0.0}

    def on_collect_end(self, event: CollectEnd) -> None:
        stats = event.stats
        self.seconds["environment"] += stats.env_time
        self.seconds["acting"] += stats.act_time
        self.seconds["other_collecting"] += stats.collect_time - stats.env_time - stats.act_time
        for episode_return in stats.returns:
            self.clock.episode(episode_return)

    def on_update_end(self, event: UpdateEnd) -> None:
        self.seconds["update"] += event.stats.train_time
        self.clock.mark(event.env_step)


def rate(step: Callable[[Any], Any], num_steps: int = 2000) -> float:
    """Environment steps per second of ``step`` with random actions drawn beforehand."""
    actions = np.random.default_rng(OPTIONS.seed).integers(0, 2, (num_steps, OPTIONS.num_envs))
    for action in actions[:100]:
        step(action)
    began = time.perf_counter()
    for action in actions:
        step(action)
    return round(num_steps * OPTIONS.num_envs / (time.perf_counter() - began), 1)


def environment_rates() -> dict[str, float]:
    """Gymnasium's native vector alone, and behind the boundary."""
    vector = gym.make_vec(p.ENVIRONMENT, num_envs=OPTIONS.num_envs, vectorization_mode="vector_entry_point")
    vector.reset(seed=OPTIONS.seed)
    alone = rate(vector.step)
    vector.close()
    boundary = make_vector(p.ENVIRONMENT, num_envs=OPTIONS.num_envs, mode="vector")
    boundary.reset([OPTIONS.seed + row for row in range(OPTIONS.num_envs)])
    behind = rate(boundary.step)
    boundary.close()
    return {"environment_steps_per_s": alone, "boundary_steps_per_s": behind}


def build_config() -> lockstep.PPOConfig:
    """The common setting in Lockstep's words."""
    per_update = OPTIONS.num_envs * OPTIONS.fragment
    total = -(-OPTIONS.steps // per_update) * per_update
    return (
        lockstep.PPOConfig()
        .environment(p.ENVIRONMENT)
        .env_runners(
            num_envs_per_env_runner=OPTIONS.num_envs,
            vectorize_mode="vector",
            rollout_fragment_length=OPTIONS.fragment,
        )
        .training(
            lr=p.LEARNING_RATE,
            gamma=p.GAMMA,
            lambda_=p.LAMBDA,
            clip_param=p.CLIP,
            entropy_coeff=p.ENTROPY_COEFFICIENT,
            vf_loss_coeff=p.VALUE_COEFFICIENT,
            grad_clip=p.MAX_GRAD_NORM,
            adam_epsilon=p.ADAM_EPSILON,
            train_batch_size=per_update,
            minibatch_size=OPTIONS.minibatch,
            num_epochs=p.NUM_EPOCHS,
        )
        .framework(compile=OPTIONS.compile, num_threads=OPTIONS.threads)
        .rl_module(model_config={"hiddens": p.HIDDENS, "activation": "tanh"})
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=total, steps_per_epoch=total)
        .debugging(seed=OPTIONS.seed)
    )


def main() -> None:
    rates = environment_rates()
    clock = p.Clock()
    marks = Marks(clock)
    trainer = build_config().build_trainer(callbacks=[marks])
    clock.start()
    trainer.run()
    seconds = {stage: round(spent, 4) for stage, spent in marks.seconds.items()}
    seconds["rest"] = round(clock.marks[-1][1] - clock.marks[0][1] - sum(marks.seconds.values()), 4)
    clock.report(
        "lockstep, native vector" + (", compiled" if OPTIONS.compile else ""),
        lockstep.__version__,
        OPTIONS.threads,
        num_envs=OPTIONS.num_envs,
        fragment=OPTIONS.fragment,
        minibatch=OPTIONS.minibatch,
        seconds=seconds,
        **rates,
    )


main()
