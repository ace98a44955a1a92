"""Lockstep's side of ``runner_speed.py``: publishing weights, sampling and whole iterations with two env runners."""

from __future__ import annotations

import runner_work as w

OPTIONS = w.worker_options("Lockstep's side of runner_speed.py")

import torch  # noqa: E402

from lockstep import PPOConfig, __version__  # noqa: E402
from lockstep.rollout import GroupCollector  # noqa: E402


def main() -> None:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=w.NUM_RUNNERS, num_envs_per_env_runner=w.NUM_ENVS)
        .training(train_batch_size=w.BATCH, minibatch_size=w.MINIBATCH, num_epochs=w.NUM_EPOCHS)
        .rl_module(model_config={"hiddens": w.HIDDENS[OPTIONS.work], "activation": "tanh"})
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=10**9, steps_per_epoch=w.BATCH)
    )
    trainer = config.build_trainer()
    collector, policy = trainer.collector, trainer.policy
    assert isinstance(collector, GroupCollector)
    iterator = iter(trainer)

    def sample() -> None:
        collector.store.clear()
        collector.collect(n_step=w.BATCH)
        collector.store.clear()

    entries = {"publish": lambda: collector.group.set_weights(policy.acting_weights(copy=False), wait=True)}
    if OPTIONS.work == "64x64":
        entries |= {"sample": sample, "iteration": lambda: next(iterator)}
    size = policy.acting_weights().num_bytes
    w.serve(entries, name="lockstep", version=__version__, torch=torch.__version__, num_bytes=size)


if __name__ == "__main__":
    main()
