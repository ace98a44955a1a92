"""MAPPO and IPPO on `simple_spread_v3`: three agents are to cover three landmarks without running into each other.

    pip install 'lockstep-rl[multiagent]'
    python benchmarks/learning/simple_spread.py mappo ippo --seeds 5  # 500,000 environment steps each
    python benchmarks/learning/simple_spread.py mappo --seeds 1 --steps 50000 --set training.lr=1e-3 --name trial
    python benchmarks/learning/simple_spread.py mappo ippo --normalize-values --name simple_spread_values
    python benchmarks/learning/simple_spread.py mappo ippo --picture  # docs/images/learning_simple_spread.png

The two differ in what the value function sees alone; with ``--normalize-values`` it learns targets of mean 0 and
deviation 1, as in the paper (Yu et al. 2022, section 5.1), in place of scaled rewards. Prints one JSON line for each
evaluation (the most likely actions in new episodes), and appends it to ``results/<name>.jsonl``. A return is the sum
over the three agents, 25 steps each. The picture needs matplotlib (``lockstep-rl[plot]``).

`SimpleSpread` is mpe2's game of three agents in one compiled function, as mpe2's own takes most of a run's time. It
begins, moves and rewards alike (`tests/docs/test_docs_benchmarks.py`); ``--mpe2`` plays mpe2's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numba
import numpy as np
import report
from gymnasium import spaces

from lockstep.algorithms.ppo import PPOLearner
from lockstep.ops import RunningMoments

AGENTS, STEPS = 3, 25
NAMES = tuple(f"agent_{i}" for i in range(AGENTS))
PUBLISHED = -22.5
"""MAPPO's own code after 20,000,000 steps: users' runs of train_mpe_spread.sh end at about -120 (GitHub,
marlbenchmark/on-policy, issues 49 and 112). These are units of the game's first release, where the return is twice ours
less 75: an agent's reward is the team's plus its own, and each agent also runs into itself in every step."""


@numba.njit(cache=True)
def move(places, speeds, landmarks, actions, observations):
    """Move agents [3, 2] by their actions; write what they see [3, 18], and return the reward of each."""
    forces = np.zeros((AGENTS, 2))
    for i in range(AGENTS):
        if actions[i] > 0:
            forces[i, (actions[i] - 1) // 2] = 5.0 if actions[i] % 2 == 0 else -5.0
    for i in range(AGENTS):
        for j in range(i + 1, AGENTS):
            apart = places[i] - places[j]
            distance = np.sqrt(apart[0] ** 2 + apart[1] ** 2)
            touching = (0.3 - distance) / 1e-3
            pushed = 1e-3 * (max(touching, 0.0) + np.log1p(np.exp(-abs(touching))))
            forces[i] += 100.0 * apart / distance * pushed
            forces[j] -= 100.0 * apart / distance * pushed
    for i in range(AGENTS):
        places[i] += speeds[i] * 0.1
        speeds[i] = speeds[i] * 0.75 + forces[i] * 0.1
    rewards = np.zeros(AGENTS)
    for landmark in landmarks:
        nearest = np.inf
        for i in range(AGENTS):
            nearest = min(nearest, np.sqrt(np.sum((places[i] - landmark) ** 2)))
        rewards -= 0.5 * nearest
    for i in range(AGENTS):
        for j in range(AGENTS):
            if i != j and np.sqrt(np.sum((places[i] - places[j]) ** 2)) < 0.3:
                rewards[i] -= 0.5
    look(places, speeds, landmarks, observations)
    return rewards


@numba.njit(cache=True)
def look(places, speeds, landmarks, observations):
    """Write what the agents see: speed, place, and where landmarks and others are."""
    for i in range(AGENTS):
        observations[i, 0:2], observations[i, 2:4] = speeds[i], places[i]
        for k in range(AGENTS):
            observations[i, 4 + 2 * k : 6 + 2 * k] = landmarks[k] - places[i]
        at = 10
        for j in range(AGENTS):
            if j != i:
                observations[i, at : at + 2] = places[j] - places[i]
                at += 2


class SimpleSpread:
    """The game as a PettingZoo `ParallelEnv`; half of an agent's reward is its own, half the team's."""

    possible_agents = NAMES

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.rng = np.random.default_rng()
        self.seen = np.zeros((AGENTS, 18), np.float32)  # the last four: what silent agents say

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (18,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(5)

    def state(self) -> np.ndarray:
        return self.seen.reshape(-1).copy()

    def observations(self) -> dict[str, np.ndarray]:
        return {name: self.seen[i].copy() for i, name in enumerate(NAMES)}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.places, self.landmarks = self.rng.uniform(-1, 1, (2, AGENTS, 2))
        self.speeds, self.time, self.agents = np.zeros((AGENTS, 2)), 0, list(NAMES)
        look(self.places, self.speeds, self.landmarks, self.seen)
        return self.observations(), {name: {} for name in NAMES}

    def step(self, actions: Mapping[str, int]) -> tuple[dict[str, Any], ...]:
        taken = np.array([actions[name] for name in NAMES])
        rewards = dict(zip(NAMES, move(self.places, self.speeds, self.landmarks, taken, self.seen).tolist()))
        self.time += 1
        over = self.time == STEPS
        self.agents = [] if over else self.agents
        ends, no, infos = dict.fromkeys(NAMES, over), dict.fromkeys(NAMES, False), {name: {} for name in NAMES}
        return self.observations(), rewards, no, ends, infos


def mpe2_game() -> Any:
    """Make mpe2's own game."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=AGENTS, local_ratio=0.5, max_cycles=STEPS)


def to_team(agent: str, episode: Any) -> str:
    """Let all agents share one module."""
    return "team"


def in_older_units(total: float) -> float:
    """Return the return of the first release of the game, which Yu et al. and Papoudakis et al. report.

    There an agent's reward is the team's plus its own, and each agent also runs into itself in every step. (The games
    are not quite the same: landmarks lay nearer to the middle, and an agent moved in the step in which it was pushed.)
    """
    return 2 * total - AGENTS * STEPS


def make_config(algorithm: str, steps: int = 500_000, seed: int = 0, game: Any = SimpleSpread) -> Any:
    """Return the configuration of a run."""
    from lockstep import PPOConfig

    return (
        PPOConfig()
        .environment(game, normalize_rewards=True)
        .multi_agent(
            policies=["team"],
            policy_mapping_fn=to_team,
            centralized_critic="state" if algorithm == "mappo" else False,
            agent_id_in_obs=True,
        )
        .env_runners(num_envs_per_env_runner=16)
        .training(
            lr=[[0, 1.5e-3], [steps, 1e-4]],
            gamma=0.9,
            lambda_=0.9,
            train_batch_size=1_600,
            minibatch_size=600,
            num_epochs=10,
            entropy_coeff=0.01,
        )
        .evaluation(evaluation_duration=50, evaluation_num_envs=10)
        .reporting(total_steps=steps, steps_per_epoch=20_000)
        .debugging(seed=seed)
    )


class NormalizedValues(PPOLearner):
    """Learns values in units of the running mean and deviation of their targets."""

    def setup_module(self, module_id: str) -> None:
        super().setup_module(module_id)
        self.register_state(f"{module_id}/targets", RunningMoments())

    def generalized_advantages(self, module_id: str, trajectories: Any, rollout: Any) -> tuple[Any, Any]:
        seen = self.registered[f"{module_id}/targets"]
        mean, deviation = (float(seen.mean), float(seen.var) ** 0.5) if seen.count else (0.0, 1.0)
        values, following = (deviation * part + mean for part in (rollout.values, rollout.next_values))
        rollout = dataclasses.replace(rollout, values=values, next_values=following)
        advantages, targets = super().generalized_advantages(module_id, trajectories, rollout)
        seen.update(targets.numpy())
        return advantages, (targets - float(seen.mean)) / (float(seen.var) ** 0.5 + 1e-8)


def train(
    algorithm: str, seed: int, steps: int, game: Any, settings: Mapping[str, Any], normalize_values: bool
) -> None:
    """Train in this process, and print a line for each evaluation."""
    config = make_config(algorithm, steps, seed, game)
    if normalize_values:
        config.environment(normalize_rewards=False).training(learner_class=NormalizedValues)
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
            "explained_variance": round(epoch.training_stat.get_loss_stats_dict()["team/vf_explained_var"], 3),
            "seconds": round(time.perf_counter() - started, 1),
            "steps_per_second": round(timing.update_speed),
        }
        print(json.dumps(line), flush=True)


def draw(name: str, algorithms: list[str]) -> None:
    """Draw each seed's evaluations as a thin line, their median as a thick one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in (report.RESULTS / f"{name}.jsonl").read_text().splitlines()]
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for algorithm, colour in zip(algorithms, ("#0072B2", "#D55E00")):
        curves: dict[int, list[float]] = {}
        for line in (line for line in lines if line["algorithm"] == algorithm):
            curves.setdefault(line["seed"], []).append(line["return"])
        steps = sorted({line["env_steps"] for line in lines})
        for curve in curves.values():
            axes.plot(steps, curve, color=colour, lw=0.7, alpha=0.45)
        label = f"{algorithm.upper()}, median of {len(curves)} seeds"
        axes.plot(steps, np.median(list(curves.values()), axis=0), color=colour, lw=2.2, label=label)
    axes.axhline(PUBLISHED, color="#009E73", lw=1.4, ls="--", label="MAPPO's own code, after 20,000,000 steps")
    axes.set(xlabel="environment steps", ylabel="return of all agents together")
    axes.set_title("simple_spread, three agents", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    figure.tight_layout()
    image = report.ROOT / "docs/images/learning_simple_spread.png"
    figure.savefig(image, dpi=110, metadata={"Software": None})


def main() -> None:
    """Train each seed in a process of its own, or draw what is there."""
    parser = report.parser_of(__doc__)
    parser.add_argument("algorithms", nargs="+", choices=("mappo", "ippo"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500_000, help="environment steps")
    parser.add_argument("--set", action="append", default=[], help="section.option=JSON value")
    parser.add_argument("--normalize-values", action="store_true", help="learn targets of mean 0 and deviation 1")
    parser.add_argument("--name", default="simple_spread", help="of the file of results")
    parser.add_argument("--mpe2", action="store_true", help="play mpe2's own game, which takes longer")
    parser.add_argument("--picture", action="store_true", help="draw the results that are there")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.picture:
        draw(options.name, options.algorithms)
        return
    if options.one:
        settings = {path: json.loads(value) for path, _, value in (each.partition("=") for each in options.set)}
        game = mpe2_game if options.mpe2 else SimpleSpread
        train(options.algorithms[0], options.first_seed, options.steps, game, settings, options.normalize_values)
        return
    with (report.RESULTS / f"{options.name}.jsonl").open("a") as file:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for algorithm in options.algorithms:
                command = [report.lockstep_python(), __file__, algorithm, "--one", "--first-seed", str(seed)]
                command += ["--steps", str(options.steps), *(["--mpe2"] if options.mpe2 else [])]
                command += ["--normalize-values"] if options.normalize_values else []
                command += [word for each in options.set for word in ("--set", each)]
                environment = report.thread_environment(1)
                with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
                    for line in process.stdout or ():
                        print(line, end="", flush=True)
                        file.write(line)
                        file.flush()


if __name__ == "__main__":
    main()
