"""Lockstep's IMPALA or APPO with env runners in Ray actors, through its public path."""

from __future__ import annotations

import async_work as w

OPTIONS = w.parse("Lockstep's asynchronous algorithms")

import lockstep  # noqa: E402
from lockstep.trainer import Callback  # noqa: E402


class Marks(Callback):
    """Marks the clock after each update; ends the run in time."""

    def __init__(self, clock: w.Clock) -> None:
        self.clock = clock
        self.stats: dict[str, int] = {}

    def on_run_start(self, event):
        self.trainer = event.trainer

    def on_update_end(self, event):
        self.stats = self.trainer.train_collector.get_stats()
        return "time" if self.clock.mark(self.stats["num_steps_sampled"], event.env_step) else None


def main() -> None:
    """Train and report."""
    config = (
        lockstep.get_config(OPTIONS.algorithm)
        .environment(w.ENVIRONMENT)
        .env_runners(
            num_env_runners=OPTIONS.runners,
            num_envs_per_env_runner=OPTIONS.envs,
            rollout_fragment_length=OPTIONS.fragment,
        )
        .training(lr=w.LEARNING_RATE, train_batch_size=OPTIONS.batch)
        .rl_module(model_config={"hiddens": w.HIDDENS, "activation": "tanh"})
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=10**9, steps_per_epoch=10**8)
        .debugging(seed=OPTIONS.seed)
    )
    clock = w.Clock(OPTIONS.seconds)
    marks = Marks(clock)
    trainer = config.build_trainer(callbacks=[marks])
    trainer.run()
    trainer.train_collector.close()
    clock.report(
        "lockstep",
        lockstep.__version__,
        dropped=marks.stats["num_steps_dropped"],
        lag=trainer.policy.last_results["default_policy"]["diff_num_grad_updates_vs_sampler_policy"],
    )


if __name__ == "__main__":
    main()
