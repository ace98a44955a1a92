"""Lockstep's DQN through its public path: configuration, trainer, collector, replay buffer, learner."""

from __future__ import annotations

import dqn_setting as s
import protocol as p

OPTIONS = p.parse("Lockstep's DQN", ("--compile", "compile the gradient step"), s.UPDATES)

import lockstep  # noqa: E402
from lockstep.trainer import Callback  # noqa: E402
from lockstep.trainer.events import CollectEnd, UpdateEnd  # noqa: E402


class Marks(Callback):
    """Marks the clock after each update."""

    def __init__(self, clock: p.Clock) -> None:
        self.clock = clock

    def on_collect_end(self, event: CollectEnd) -> None:
        for episode_return in event.stats.returns:
            self.clock.episode(episode_return)

    def on_update_end(self, event: UpdateEnd) -> None:
        self.clock.mark(event.env_step)


def main() -> None:
    """Train and report."""
    config = (
        lockstep.DQNConfig()
        .environment(p.ENVIRONMENT)
        .env_runners(num_envs_per_env_runner=p.NUM_ENVS, rollout_fragment_length=s.VECTOR_STEPS)
        .training(
            lr=s.LEARNING_RATE,
            gamma=p.GAMMA,
            train_batch_size=s.BATCH,
            epsilon=[[0, 1.0], [OPTIONS.steps // 2, s.LAST_EPSILON]],
            double_q=False,
            huber_delta=None,
            target_update_interval=s.ROUNDS_PER_TARGET * OPTIONS.updates,
            grad_clip=s.MAX_GRAD_NORM,
        )
        .replay(capacity=s.CAPACITY, learning_starts=s.STARTS, update_per_step=OPTIONS.updates / s.ROUND)
        .rl_module(model_config={"hiddens": s.HIDDENS, "activation": "relu", "orthogonal_init": False})
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=OPTIONS.steps)
        .debugging(seed=OPTIONS.seed)
        .framework(compile=OPTIONS.compile, num_threads=OPTIONS.threads)
    )
    clock = p.Clock()
    trainer = config.build_trainer(callbacks=[Marks(clock)])
    clock.start()
    trainer.run()
    name = "lockstep-compiled" if OPTIONS.compile else "lockstep"
    clock.report(name, lockstep.__version__, OPTIONS.threads, gradient_steps=trainer.gradient_step)


if __name__ == "__main__":
    main()
