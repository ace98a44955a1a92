"""Data sets for offline algorithms, made by our own agents and stored as Minari datasets.

    python benchmarks/learning/make_offline_data.py                       # CartPole-v1 (DQN) and Pendulum-v1 (SAC)
    python benchmarks/learning/make_offline_data.py Pendulum-v1 --seed 3
    python benchmarks/learning/make_offline_data.py HalfCheetah-v5 --name offline_data_half_cheetah  # SAC, ten minutes

One agent is trained for each environment. (Where `lockstep bench run` has trained it already, `--agent RUN_FOLDER` ends
the training at `medium`, and takes the end of that run for the end.) Of its run come

    medium-replay   all that the agent had remembered when an evaluation first reached `medium`
    medium          what it did with the policy that it had then, exploring
    replay          all that it had remembered at the end (of HalfCheetah: the whole run)
    expert          what it did at the end, most likely actions
    random          actions drawn from the action space

as `lockstep/<environment>/<name>-v0` in the local Minari folder (`MINARI_DATASETS_PATH`), with the environment's own
actions. Says the mean return of the episodes in each, also in ``results/offline_data.md``. Needs the extra `offline`,
and `mujoco` for HalfCheetah.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import report

sys.path.insert(0, str(report.ROOT))

from lockstep import Collector, DQNConfig, SACConfig, SampleBatch
from lockstep.data import write_minari
from lockstep.replay import ReplayBuffer
from lockstep.state.checkpoint import newest_checkpoint
from lockstep.state.streams import RandomStreams


@dataclass(frozen=True)
class Task:
    """How an environment's agent is made."""

    make: Any
    """makes the configuration"""
    medium: float
    """evaluation return of the agent in the middle"""
    rows: int
    """of `random`, `medium` and `expert`"""


def cartpole() -> DQNConfig:
    """Return DQN as its recipe has it, with an evaluation every 1,000 steps."""
    from lockstep.recipes import find_recipe

    return find_recipe("dqn", "CartPole-v1").config().reporting(steps_per_epoch=1_000)


def pendulum() -> SACConfig:
    """Return SAC with two layers of 64 units."""
    config = SACConfig().environment("Pendulum-v1").env_runners(num_envs_per_env_runner=4)
    config.training(lr=1e-3, train_batch_size=128).rl_module(model_config={"hiddens": (64, 64)})
    config.replay(capacity=100_000, learning_starts=500, update_per_step=0.5)
    return config.reporting(total_steps=16_000, steps_per_epoch=500)


def half_cheetah() -> SACConfig:
    """Return SAC as its recipe has it, with an evaluation every 10,000 steps."""
    from lockstep.recipes import find_recipe

    return find_recipe("sac", "HalfCheetah-v5").config().reporting(steps_per_epoch=10_000)


TASKS = {
    "CartPole-v1": Task(cartpole, medium=300.0, rows=10_000),
    "Pendulum-v1": Task(pendulum, medium=-300.0, rows=10_000),
    "HalfCheetah-v5": Task(half_cheetah, medium=4_500.0, rows=300_000),
}
QUICK = ("CartPole-v1", "Pendulum-v1")


def collected(policy: Any, env: str, rows: int, seed: int, *, explore: bool = False, random: bool = False) -> Any:
    """Return what a policy does: a batch with the environment's actions."""
    streams = RandomStreams(seed).child("offline_data")
    collector = Collector(policy, env, ReplayBuffer(2 * rows), exploration_noise=explore, streams=streams)
    with policy.within_training_step(explore):
        collector.collect(n_step=rows, random=random)
    collector.close()
    return collector.buffer.to_batch()


def returns_of(batch: SampleBatch) -> list[float]:
    """Return undiscounted returns of the episodes that ended."""
    ends = batch["terminateds"] | batch["truncateds"]
    totals = np.bincount(batch["eps_id"], batch["rewards"].astype(np.float64))
    return totals[np.unique(batch["eps_id"][ends])].tolist()


def make(env: str, seed: int, agent: str | None = None) -> Iterator[tuple[str, SampleBatch]]:
    """Yield the data sets of one environment with their names."""
    task = TASKS[env]
    config = task.make().debugging(seed=seed).evaluation(evaluation_duration=10)
    trainer = config.build_trainer()
    policy, is_medium = trainer.policy, False
    for _ in trainer:
        score = statistics.fmean(trainer.last_test.returns)
        print(f"{env}: {trainer.env_step:,} steps, return {score:.1f}", file=sys.stderr, flush=True)
        if not is_medium and score >= task.medium:
            is_medium = True
            yield "medium-replay", trainer.buffer.to_batch()
            yield "medium", collected(policy, env, task.rows, seed, explore=True)
            if agent is not None:
                break
    if agent is not None:
        trainer.restore_from_path(newest_checkpoint(Path(agent) / "checkpoints"))
    yield "replay", trainer.buffer.to_batch()
    yield "expert", collected(policy, env, task.rows, seed)
    yield "random", collected(policy, env, task.rows, seed, random=True)


def dataset_id(env: str, name: str) -> str:
    """Return `lockstep/cartpole/medium-v0`."""
    return f"lockstep/{env.partition('-')[0].lower()}/{name}-v0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=[], choices=[*TASKS, []], metavar="ENV")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agent", help="run folder of the same recipe: its end is taken for the end of the agent")
    parser.add_argument("--name", default="offline_data", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    if options.agent and len(options.envs) != 1:
        parser.error("--agent is the run of one environment; name that environment")
    record: dict[str, Any] = {"seed": options.seed, "machine": report.machine(), "data": []}
    record["agent"] = options.agent and Path(options.agent).resolve().name
    for env in options.envs or QUICK:
        config = TASKS[env].make()
        learner = config.build_policy()
        for name, batch in make(env, options.seed, options.agent):
            spaces = {"observation_space": learner.observation_space, "action_space": learner.action_space}
            about = {"algorithm_name": config.algorithm, "description": f"{name} data of {config.algorithm} on {env}"}
            write_minari(dataset_id(env, name), batch, overwrite=True, metadata=about, **spaces)
            returns = returns_of(batch)
            found = {"id": dataset_id(env, name), "rows": len(batch), "episodes": len(returns)}
            record["data"].append(
                {**found, "mean": round(statistics.fmean(returns), 1), "best": round(max(returns), 1)}
            )
            print(*record["data"][-1].values(), flush=True)
    rows = [[f"{one['rows']:,}", *(str(one[key]) for key in ("episodes", "mean", "best"))] for one in record["data"]]
    head = ["data set", "transitions", "episodes that ended", "mean return", "best"]
    text = report.table(head, [[one["id"], *row] for one, row in zip(record["data"], rows)])
    report.write(options.name, record, f"{report.machine_line(record['machine'])}\n\n{text}\n")


if __name__ == "__main__":
    main()
