"""Lockstep's SAC and TD3 through the public path: configuration, trainer, collector, replay buffer, learner."""

from __future__ import annotations

import sac_protocol as p

OPTIONS = p.parse("Lockstep's SAC and TD3", ("--half", "products in bfloat16"), ("--compile", "compile the update"))

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
    config = lockstep.get_config(OPTIONS.algorithm).environment(p.ENVIRONMENT)
    config.env_runners(num_envs_per_env_runner=1)
    config.training(lr=p.LEARNING_RATE, gamma=p.GAMMA, tau=p.TAU, train_batch_size=p.BATCH)
    if OPTIONS.algorithm == "td3":
        config.training(
            exploration_noise=p.NOISE,
            target_noise=p.TARGET_NOISE,
            noise_clip=p.NOISE_CLIP,
            policy_delay=p.POLICY_DELAY,
        )
    config.replay(capacity=p.CAPACITY, learning_starts=p.RANDOM_STEPS, update_per_step=1.0)
    config.rl_module(model_config={"hiddens": p.HIDDENS}).evaluation(evaluation_interval=0)
    config.reporting(total_steps=OPTIONS.steps).debugging(seed=OPTIONS.seed)
    config.framework(mixed_precision=OPTIONS.half, compile=OPTIONS.compile, num_threads=OPTIONS.threads)
    clock = p.Clock(OPTIONS.steps)
    trainer = config.build_trainer(callbacks=[Marks(clock)])
    trainer.run()
    clock.report("lockstep", lockstep.__version__, OPTIONS, gradient_steps=trainer.gradient_step)


if __name__ == "__main__":
    main()
