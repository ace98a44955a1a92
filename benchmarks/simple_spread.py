"""MAPPO and IPPO on `simple_spread_v3`: three agents are to cover three landmarks without running into each other.

    pip install 'lockstep-rl[multiagent]'
    python benchmarks/simple_spread.py mappo ippo --seeds 3     # 500,000 environment steps each, one after another
    python benchmarks/simple_spread.py mappo --seeds 1 --steps 50000 --set training.lr=1e-3 --name trial

The two differ in what the value function sees alone. Prints one JSON line for each evaluation (the most likely actions
in new episodes), and appends it to ``results/<name>.jsonl``. A return is the sum over the three agents, 25 steps each.
``learning_curves.py`` draws the picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import report

AGENTS, STEPS = 3, 25


def make_env() -> Any:
    """Make the game; the reward of an agent is half its own (collisions) and half the team's (distances)."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=AGENTS, local_ratio=0.5, max_cycles=STEPS)


def to_team(agent: str, episode: Any) -> str:
    """Let all agents share one module."""
    return "team"


def in_older_units(total: float) -> float:
    """Return the return of the first release of the game, which Yu et al. and Papoudakis et al. report.

    There an agent's reward is the team's plus its own, and each agent also runs into itself in every step.
    """
    return 2 * total - AGENTS * STEPS


def make_config(algorithm: str, steps: int = 500_000, seed: int = 0) -> Any:
    """Return the configuration of a run."""
    from lockstep import PPOConfig

    return (
        PPOConfig()
        .environment(make_env, normalize_rewards=True)
        .multi_agent(
            policies=["team"],
            policy_mapping_fn=to_team,
            centralized_critic="state" if algorithm == "mappo" else False,
            agent_id_in_obs=True,
        )
        .env_runners(num_envs_per_env_runner=16)
        .training(
            lr=7e-4,
            gamma=0.95,
            lambda_=0.95,
            train_batch_size=1_600,
            minibatch_size=600,
            num_epochs=6,
            entropy_coeff=0.01,
        )
        .evaluation(evaluation_duration=50, evaluation_num_envs=10)
        .reporting(total_steps=steps, steps_per_epoch=20_000)
        .debugging(seed=seed)
    )


def train(algorithm: str, seed: int, steps: int, settings: Mapping[str, Any]) -> None:
    """Train in this process, and print a line for each evaluation."""
    config = make_config(algorithm, steps, seed)
    for path, value in settings.items():
        config.set_path(path, value)
    trainer = config.build_trainer()
    started = time.perf_counter()
    for epoch in trainer:
        found = trainer.last_test.returns
        collected, timing = epoch.train_collect_stat.returns_stat, trainer.info().timing
        line = {
            "algorithm": algorithm,
            "seed": seed,
            "env_steps": trainer.position,
            "return": round(statistics.fmean(found), 3),
            "return_in_older_units": round(in_older_units(statistics.fmean(found)), 2),
            "episodes": len(found),
            "training_return": None if collected is None else round(collected.mean, 3),
            "explained_variance": round(epoch.training_stat.get_loss_stats_dict().get("vf_explained_var", 0.0), 3),
            "seconds": round(time.perf_counter() - started, 1),
            "steps_per_second": round(timing.update_speed),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    """Train each seed in a process of its own."""
    parser = report.parser_of(__doc__)
    parser.add_argument("algorithms", nargs="+", choices=("mappo", "ippo"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500_000, help="environment steps")
    parser.add_argument("--set", action="append", default=[], help="section.option=JSON value")
    parser.add_argument("--name", default="simple_spread", help="of the file of results")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        settings = {path: json.loads(value) for path, _, value in (each.partition("=") for each in options.set)}
        train(options.algorithms[0], options.first_seed, options.steps, settings)
        return
    with (report.RESULTS / f"{options.name}.jsonl").open("a") as file:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for algorithm in options.algorithms:
                command = [report.lockstep_python(), __file__, algorithm, "--one", "--first-seed", str(seed)]
                command += ["--steps", str(options.steps), *(word for each in options.set for word in ("--set", each))]
                environment = report.thread_environment(1)
                with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
                    for line in process.stdout or ():
                        print(line, end="", flush=True)
                        file.write(line)
                        file.flush()


if __name__ == "__main__":
    main()
