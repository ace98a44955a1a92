"""Publish weights, sample and train with Lockstep and two env runners, for ``runner_speed.py``."""

from __future__ import annotations

import protocol
from runner_work import BATCH, MINIBATCH, NETWORKS, NUM_ENVS, NUM_EPOCHS, NUM_RUNNERS

w = protocol.read(__doc__)


from lockstep import PPOConfig, __version__  # noqa: E402
from lockstep.rollout import GroupCollector  # noqa: E402


def main() -> None:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=NUM_RUNNERS, num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size=BATCH, minibatch_size=MINIBATCH, num_epochs=NUM_EPOCHS)
        .rl_module(model_config={"hiddens": NETWORKS[w.work], "activation": "tanh"})
        .evaluation(evaluation_interval=0)
        .reporting(total_steps=10**9, steps_per_epoch=BATCH)
    )
    trainer = config.build_trainer()
    collector, policy = trainer.collector, trainer.policy
    assert isinstance(collector, GroupCollector)
    iterator = iter(trainer)

    def sample() -> None:
        collector.store.clear()
        collector.collect(n_step=BATCH)
        collector.store.clear()

    def publish() -> None:
        """Publish weights; what comes after in each runner's queue tells that it acts with them."""
        collector.group.set_weights(policy.acting_weights(copy=False))
        collector.group.foreach_env_runner(lambda runner: runner.weights_seq_no)

    entries = {"publish": publish}
    if w.work == "64x64":
        entries |= {"sample": sample, "iteration": lambda: next(iterator)}
    size = policy.acting_weights().num_bytes
    measured = {name: lambda call=call: protocol.Measured(lambda _: call()) for name, call in entries.items()}
    named = {f"lockstep, {name}": make for name, make in measured.items()}
    protocol.serve("lockstep", __version__, named, num_bytes=size)


if __name__ == "__main__":
    main()
