"""DQN on Acrobot-v1 at its defaults, and at those of earlier versions.

    python benchmarks/learning/dqn_defaults.py                  # three seeds
    python benchmarks/learning/dqn_defaults.py --earlier 0 1

One line for each seed: the mean return of 20 episodes after each eighth of the run, and the mean value of the actions
that were learned from.
"""

from __future__ import annotations

import argparse

from lockstep import DQNConfig


def curves(seed: int, steps: int, earlier: bool) -> tuple[list[float], list[float]]:
    """Return the mean evaluated returns of one run, and its mean values."""
    config = DQNConfig().environment("Acrobot-v1").debugging(seed=seed).framework(num_threads=1)
    if earlier:
        config.training(huber_delta=1.0, target_update_interval=250)
        config.rl_module(model_config={"activation": "tanh", "orthogonal_init": True})
    config.reporting(total_steps=steps, steps_per_epoch=steps // 8).evaluation(evaluation_duration=20)
    epochs = list(config.build_trainer())
    values = [epoch.training_stat.get_loss_stats_dict()["q_mean"] for epoch in epochs]
    return [float(epoch.test_collect_stat.returns_stat.mean) for epoch in epochs], values


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--earlier", action="store_true", help="with the defaults of earlier versions")
    given = parser.parse_args()
    for seed in given.seeds:
        returns, values = curves(seed, given.steps, given.earlier)
        name = "earlier defaults" if given.earlier else "defaults"
        print(f"{name}, seed {seed}: returns", *(f"{each:.0f}" for each in returns), end="; ", flush=True)
        print("q_mean", *(f"{each:.0f}" for each in values), flush=True)
