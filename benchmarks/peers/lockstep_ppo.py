"""Lockstep's PPO through its public path: configuration, trainer, collector, learner."""

from __future__ import annotations

import protocol as p

OPTIONS = p.parse("Lockstep's PPO", ("--compile", "compile the gradient step"))

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
        lockstep.PPOConfig()
        .environment(p.ENVIRONMENT)
        .env_runners(num_envs_per_env_runner=p.NUM_ENVS)
        .training(
            lr=p.LEARNING_RATE,
            gamma=p.GAMMA,
            lambda_=p.LAMBDA,
            clip_param=p.CLIP,
            entropy_coeff=p.ENTROPY_COEFFICIENT,
            vf_loss_coeff=p.VALUE_COEFFICIENT,
            grad_clip=p.MAX_GRAD_NORM,
            adam_epsilon=p.ADAM_EPSILON,
            train_batch_size=p.BATCH,
            minibatch_size=p.MINIBATCH,
            num_epochs=p.NUM_EPOCHS,
        )
        .rl_module(model_config={"hiddens": p.HIDDENS, "activation": "tanh"})
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=OPTIONS.steps)
        .debugging(seed=OPTIONS.seed)
        .framework(compile=OPTIONS.compile, num_threads=OPTIONS.threads)
    )
    clock = p.Clock()
    trainer = config.build_trainer(callbacks=[Marks(clock)])
    clock.start()
    trainer.run()
    clock.report("lockstep-compiled" if OPTIONS.compile else "lockstep", lockstep.__version__, OPTIONS.threads)


if __name__ == "__main__":
    main()
