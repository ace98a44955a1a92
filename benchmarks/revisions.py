"""Times this checkout against another one, work by work, in turn on the same machine.

    git worktree add ../before REVISION
    python benchmarks/revisions.py ../before                       # all works, about six minutes
    python benchmarks/revisions.py ../before --works ppo learner   # those whose names begin so
    python benchmarks/revisions.py ../before --name trial          # also writes results/trial.md and .json

Each checkout has a process of its own for each work; a round asks both in turn, and each round begins with the other
one. Two processes of the same code differ by several percent for as long as they live, so there are several pairs of
them. What is quoted is before / after, so that above 1 this checkout is faster: the ratio of the medians over all
pairs, and the median of the pairs' own ratios (lowest-highest).
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import RESULTS, ROOT
from runner import Resident


def trainer_work(algorithm: str, env: str, steps_per_epoch: int, *, compiled: bool = False, **sections: Any) -> Any:
    """One epoch of a run without evaluation."""
    from lockstep import get_config

    config = get_config(algorithm).environment(env).evaluation(evaluation_interval=0).debugging(seed=1)
    config.framework(compile=compiled, compile_after=0, num_threads=1)
    config.reporting(total_steps=1_000 * steps_per_epoch, steps_per_epoch=steps_per_epoch)
    for name, options in sections.items():
        getattr(config, name)(**options)
    trainer = iter(config.build_trainer())
    return lambda: next(trainer)


def ppo(compiled: bool = False) -> Any:
    """PPO on CartPole-v1: 8 environments of 128 steps, 4 passes in minibatches of 256."""
    training = {"train_batch_size": 1024, "minibatch_size": 256, "num_epochs": 4}
    runners = {"num_envs_per_env_runner": 8}
    return trainer_work("ppo", "CartPole-v1", 4_096, compiled=compiled, training=training, env_runners=runners)


def dqn() -> Any:
    """DQN on CartPole-v1: 8 environments, a gradient step of 128 rows for ten steps."""
    replay = {"learning_starts": 256, "update_per_step": 0.1}
    runners = {"num_envs_per_env_runner": 8}
    training = {"train_batch_size": 128, "huber_delta": 1.0, "target_update_interval": 250}
    model = {"model_config": {"activation": "tanh", "orthogonal_init": True}}  # all as older revisions have them
    work = {"replay": replay, "env_runners": runners, "training": training, "rl_module": model}
    return trainer_work("dqn", "CartPole-v1", 2_400, **work)


def sac() -> Any:
    """SAC on Pendulum-v1 with networks of 64x64: a gradient step of 256 rows for each step."""
    model = {"model_config": {"hiddens": (64, 64)}}
    return trainer_work("sac", "Pendulum-v1", 200, rl_module=model, replay={"learning_starts": 256})


def made_up_batch(rows: int = 2_000) -> Any:
    """A train batch of PPO on CartPole."""
    import numpy as np

    from lockstep import SampleBatch

    rng = np.random.default_rng(0)
    return SampleBatch(
        obs=rng.normal(size=(rows, 4)).astype(np.float32),
        actions=rng.integers(2, size=rows),
        action_logp=np.full(rows, -0.69, np.float32),
        advantages=rng.normal(size=rows).astype(np.float32),
        value_targets=rng.normal(size=rows).astype(np.float32),
    )


def learner_work(source: str) -> Any:
    """PPO updates of 2,000 steps, 4 passes in minibatches of 250, from episodes or from a batch."""
    import numpy as np

    from lockstep import PPOConfig
    from lockstep.data import SingleAgentEpisode

    config = PPOConfig().environment("CartPole-v1").framework(num_threads=1)
    learner = config.training(train_batch_size=2_000, minibatch_size=250).build_learner()
    options = {"num_epochs": 4, "minibatch_size": 250, "shuffle_batch_per_epoch": True}
    if source == "batch":
        batch = made_up_batch()
        return lambda: [learner.update_from_batch(batch, **options) for _ in range(8)]
    rng = np.random.default_rng(0)
    episodes = [
        SingleAgentEpisode(
            observations=rng.normal(size=(201, 4)).astype(np.float32),
            actions=rng.integers(2, size=200),
            rewards=np.ones(200, np.float32),
            terminated=True,
        ).to_numpy()
        for _ in range(10)
    ]
    return lambda: [learner.update_from_episodes(episodes, **options) for _ in range(8)]


def collector() -> Any:
    """10,000 steps of CartPole-v1 by a policy with a 64x64 network, into a replay buffer."""
    from lockstep import Collector, DQNConfig
    from lockstep.envs import make_vector
    from lockstep.replay import VectorReplayBuffer

    policy = DQNConfig().environment("CartPole-v1").framework(num_threads=1).build_policy()
    made = Collector(policy, make_vector("CartPole-v1", num_envs=8), VectorReplayBuffer(50_000, 8))
    return lambda: made.collect(n_step=10_000)


def replay() -> Any:
    """Samples of 256 rows from a prioritised buffer of 20,000, and new priorities."""
    import numpy as np

    from lockstep.replay import PrioritizedVectorReplayBuffer

    rng = np.random.default_rng(0)
    buffer = PrioritizedVectorReplayBuffer(20_000, 8, alpha=0.6, beta=0.4)
    for _ in range(2_500):
        buffer.add(
            {
                "obs": rng.normal(size=(8, 4)).astype(np.float32),
                "actions": rng.integers(2, size=8),
                "rewards": np.ones(8, np.float32),
                "terminateds": rng.random(8) < 0.02,
                "truncateds": np.zeros(8, bool),
                "new_obs": rng.normal(size=(8, 4)).astype(np.float32),
            }
        )

    def work() -> None:
        for _ in range(2_000):
            batch = buffer.sample(256)
            buffer.update_weight(batch["batch_indexes"], np.abs(batch["rewards"]) + 0.1)

    return work


def data() -> Any:
    """Concatenation, slices, splits by episode, and an episode grown step by step."""
    import numpy as np

    from lockstep import SampleBatch
    from lockstep.data import SingleAgentEpisode, concat_samples

    fragments = [
        SampleBatch({f"c{k}": np.zeros((200, 4), np.float32) for k in range(9)} | {"eps_id": np.full(200, i)})
        for i in range(100)
    ]

    def work() -> None:
        for _ in range(10):
            whole = concat_samples(fragments)
            for start in range(0, 20_000, 100):
                whole[start : start + 100]
            whole.split_by_episode()
            episode = SingleAgentEpisode()
            episode.add_env_reset(np.zeros(4, np.float32))
            for _ in range(200):
                episode.add_env_step(np.zeros(4, np.float32), 1, 1.0)
            episode.to_numpy()

    return work


def two_learners() -> Any:
    """PPO updates of 2,000 steps by two learners on Ray."""
    from lockstep import PPOConfig

    config = PPOConfig().environment("CartPole-v1").learners(num_learners=2, num_cpus_per_learner=0)
    group = config.training(train_batch_size=2_000, minibatch_size=500).build_learner_group()
    batch = made_up_batch()
    return lambda: [group.update_from_batch(batch, num_epochs=4, minibatch_size=500) for _ in range(8)]


def importing() -> Any:
    """`import lockstep` in a new process."""
    return lambda: subprocess.run([sys.executable, "-c", "import lockstep"], check=True)


WORKS: dict[str, Callable[[], Any]] = {
    "ppo": ppo,
    "ppo compiled": lambda: ppo(compiled=True),
    "dqn": dqn,
    "sac": sac,
    "learner, episodes": lambda: learner_work("episodes"),
    "learner, batch": lambda: learner_work("batch"),
    "collector": collector,
    "replay": replay,
    "data": data,
    "two learners on Ray": two_learners,
    "import": importing,
}


SAME_HEAP = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""glibc keeps what is freed: whether it hands large arrays back to the system is an accident of the heap's layout, and
moved "data" by 25 % between two runs of the same code"""
BY_THE_CLOCK = ("two learners on Ray", "import")
"""works of several processes; of all others the processor's time is taken, which neighbours disturb less"""


def serve(work: str) -> None:
    """Does the work once for each line of the input, and prints its seconds."""
    run, clock = WORKS[work](), time.perf_counter if work in BY_THE_CLOCK else time.process_time
    for _ in range(3):
        run()
    print(json.dumps({"work": work}), flush=True)
    for _ in sys.stdin:
        started = clock()
        run()
        print(json.dumps({"seconds": clock() - started}), flush=True)


def measure(before: Path, work: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of both, in turn."""
    command, workers = [sys.executable, str(Path(__file__).resolve()), "--serve", work, "."], list[Resident]()
    try:
        for checkout in (before.resolve(), ROOT):
            workers.append(Resident(command, 900.0, checkout))
        found: tuple[list[float], list[float]] = ([], [])
        for round_number in range(rounds):
            for which in (0, 1) if round_number % 2 else (1, 0):
                found[which].append(workers[which].ask()["seconds"])
        return found
    finally:
        for worker in workers:
            worker.close()


def main() -> None:
    """Measures and prints a row for each work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--works", nargs="*", default=[""], help="beginnings of names")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each process")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of processes")
    parser.add_argument("--name", help="write results/NAME.md and .json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    os.environ.update(SAME_HEAP)
    raw: dict[str, Any] = {}
    lines = ["| work | before, ms | after, ms | ratio of medians | pairs |", "|---|---:|---:|---:|---:|"]
    print("\n".join(lines), flush=True)
    for work in WORKS:
        if work.startswith(tuple(options.works)):
            pairs = [measure(options.before, work, options.rounds) for _ in range(options.pairs)]
            raw[work] = [{"before": old, "after": new} for old, new in pairs]
            old, new = ([statistics.median(pair[which]) for pair in pairs] for which in (0, 1))
            ratios = sorted(map(operator.truediv, old, new))
            of_medians = statistics.median(old) / statistics.median(new)
            shown = f"{of_medians:.3f} | {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"
            seconds = " | ".join(f"{1e3 * statistics.median(each):.1f}" for each in (old, new))
            lines.append(f"| {work} | {seconds} | {shown} |")
            print(lines[-1], flush=True)
    if options.name:
        (RESULTS / f"{options.name}.json").write_text(json.dumps(raw) + "\n")
        head = f"# Before and after\n\n`python benchmarks/revisions.py BEFORE --name {options.name}`\n\n"
        (RESULTS / f"{options.name}.md").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
