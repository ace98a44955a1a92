"""MAPPO and IPPO on `simple_spread_v3`: three agents are to cover three landmarks, and share the reward.

    python examples/simple_spread.py mappo --steps 500000       # again with --resume runs/<run> to go on
    python examples/simple_spread.py ippo --steps 500000

Needs `pip install mpe2`.
"""

from __future__ import annotations

import argparse
from typing import Any

import lockstep


def make_env() -> Any:
    """Make the game: 25 steps, the reward of an agent is half its own and half the team's."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=3, local_ratio=0.5, max_cycles=25)


def to_team(agent: str, episode: Any) -> str:
    """Let all agents share one module."""
    return "team"


def make_config(algorithm: str, steps: int, seed: int) -> Any:
    """Return the configuration of a run; they differ in what the value function sees alone."""
    config = lockstep.PPOConfig().environment(make_env)
    config.multi_agent(
        policies=["team"],
        policy_mapping_fn=to_team,
        centralized_critic="state" if algorithm == "mappo" else False,
        agent_id_in_obs=True,
    )
    config.env_runners(num_envs_per_env_runner=32)
    config.training(
        lr=7e-4, gamma=0.99, lambda_=0.95, train_batch_size=3200, minibatch_size=2400, num_epochs=10, entropy_coeff=0.01
    )
    config.reporting(total_steps=steps)
    return config.debugging(seed=seed)


def main() -> None:
    """Train, or go on with a run, and print the returns of its evaluations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=("mappo", "ippo"))
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", default="runs")
    parser.add_argument("--resume")
    given = parser.parse_args()
    if given.resume:
        result = lockstep.resume(given.resume)
    else:
        config = make_config(given.algorithm, given.steps, given.seed)
        result = lockstep.trainer.run.prepare_run(config, given.root).finish()
    for epoch in result.history:
        evaluated = epoch.test_collect_stat
        if evaluated is not None and evaluated.returns_stat is not None:
            print(f"{epoch.info_stat.train_step:>8} steps: mean return of the team {evaluated.returns_stat.mean:.1f}")


if __name__ == "__main__":
    main()
