"""The same with its parts in your hands: configuration, policy, collectors, trainer, callbacks, a policy on disk.

`python examples/parts.py`
"""

import tempfile

from lockstep import Collector, Policy, PPOConfig
from lockstep.envs import make_vector
from lockstep.trainer import EarlyStop, OnpolicyTrainer


def main(max_epoch: int = 10) -> float:
    """Trains, saves the policy, loads it again and returns its mean return over 20 episodes."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(lr=1e-3, train_batch_size=1024, minibatch_size=256, num_epochs=10)
        .debugging(seed=1)
    )
    policy = config.build_policy()
    trainer = OnpolicyTrainer(
        policy,
        max_epoch=max_epoch,
        step_per_epoch=5 * 1024,
        step_per_collect=1024,
        repeat_per_collect=config.num_epochs,
        batch_size=config.minibatch_size,
        train_collector=Collector(policy, make_vector("CartPole-v1", num_envs=8), exploration_noise=True),
        test_collector=Collector(policy, make_vector("CartPole-v1", num_envs=8)),
        episode_per_test=20,
        callbacks=[EarlyStop(threshold=475)],
    )
    for epoch in trainer:
        returns = epoch.test_collect_stat.returns_stat
        print(f"epoch {epoch.epoch}: {trainer.env_step} steps, evaluation {returns.mean:.1f} ± {returns.std:.1f}")

    with tempfile.TemporaryDirectory() as folder:
        again = Policy.from_checkpoint(policy.save_to_path(f"{folder}/policy"))
    stats = Collector(again, make_vector("CartPole-v1", num_envs=4)).collect(n_episode=20)
    print(f"loaded again: {stats.returns_stat.mean:.1f}; ended by: {trainer.stop_reason}")
    return stats.returns_stat.mean


if __name__ == "__main__":
    main()
