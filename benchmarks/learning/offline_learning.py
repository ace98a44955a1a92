"""What offline algorithms make of data sets that our own agents left (`make_offline_data.py` writes them).

    python benchmarks/learning/make_offline_data.py
    python benchmarks/learning/offline_learning.py               # CartPole-v1 and Pendulum-v1, 5 seeds
    python benchmarks/learning/offline_learning.py --only iql --envs Pendulum-v1 --seeds 2 --name trial
    python benchmarks/learning/offline_learning.py --render      # results/offline_learning.md, from the raw results
    python benchmarks/learning/make_offline_data.py HalfCheetah-v5 --name offline_data_half_cheetah
    python benchmarks/learning/offline_learning.py --envs HalfCheetah-v5 --seeds 3 --name offline_half_cheetah

The protocol. Every algorithm runs with its recipe (`lockstep/recipes/offline.py`), the same settings for all seeds, on
`medium-replay`, where what is asked is to do better than who left the data; behaviour cloning must not, and must do as
well as who left `expert`. (HalfCheetah has four data sets, as in the papers, and its page their scale.) After the last
gradient step 50 new episodes (20 of HalfCheetah) are played twice, with the most likely actions and with actions drawn
from the policy. Compared with the data is what acts as those did who left them: drawn on `medium-replay` (an agent that
explored), most likely on `expert`: a policy that imitates noisy actions and leaves the noise out is better than what it
imitates, and has learned nothing but that. TD3+BC has one action to take. `behaviour` is the mean return of the
episodes in the data, each as often as it has transitions, since it is transitions that are drawn: cloning imitates long
episodes more than short ones. (Pendulum's all have 200.)

Writes ``results/offline_learning.json`` after each run, one seed of all cases after another; a case that is run again
replaces what was there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gymnasium as gym
import numpy as np
import report
from make_offline_data import QUICK, dataset_id, returns_of

from lockstep import Collector, SampleBatch
from lockstep.data import read_minari_batch
from lockstep.recipes import find_recipe
from lockstep.state.streams import RandomStreams

FINAL_EPISODES = {"HalfCheetah-v5": 20}
"""by environment; 50 elsewhere"""
D4RL_RANDOM, D4RL_EXPERT = -280.178953, 12135.0
"""returns on HalfCheetah that D4RL counts as 0 and 100 (Fu et al. 2020, https://arxiv.org/abs/2004.07219)"""
CASES: dict[tuple[str, str], tuple[str, ...]] = {
    ("CartPole-v1", "medium-replay"): ("bc", "marwil", "cql", "iql"),
    ("CartPole-v1", "expert"): ("bc",),
    ("Pendulum-v1", "medium-replay"): ("bc", "marwil", "cql", "iql", "td3_bc"),
    ("Pendulum-v1", "expert"): ("bc",),
    **{("HalfCheetah-v5", name): ("bc", "td3_bc", "iql", "cql") for name in ("random", "medium", "replay", "expert")},
}


def config_of(algorithm: str, env: str, data: Any, seed: int) -> Any:
    """Return the recipe, on given data."""
    recipe = find_recipe(algorithm, env)
    if recipe is None:
        raise SystemExit(f"there is no recipe of {algorithm!r} for {env!r}")
    return recipe.config().offline_data(input_=data).debugging(seed=seed).evaluation(evaluation_duration=10)


def learn(env: str, data: SampleBatch, algorithm: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """Make one run in this process, of other gradient `steps` than the recipe's where they are given."""
    config = config_of(algorithm, env, data, seed)
    trainer = config.reporting(total_steps=steps or config.reporting.total_steps).build_trainer()
    started, curve = time.process_time(), []
    for epoch in trainer:
        curve += [[trainer.gradient_step, round(statistics.fmean(epoch.test_collect_stat.returns), 2)]]
    seconds = time.process_time() - started
    trainer.test_collector.close()
    likely, drawn = (played(trainer.policy, env, seed, explore=explore) for explore in (False, True))
    return {
        "seed": seed,
        "steps": trainer.gradient_step,
        "final_episodes": len(likely),
        "final_return": round(statistics.fmean(likely), 3),
        "final_return_std": round(statistics.pstdev(likely), 3),
        "drawn_return": round(statistics.fmean(drawn), 3),
        "dataset_passes": round(trainer.dataset_passes, 2),
        "seconds": round(seconds, 2),
        "curve": curve,
    }


def scaled(data: SampleBatch) -> SampleBatch:
    """Return the data with returns that span 10,000.

    IQL's paper lets them span 1,000, with beta 3; with 0.3, as in the recipe, actions have the same weights.
    """
    returns = returns_of(data)
    rewards = data["rewards"] * (10_000.0 / (max(returns) - min(returns)))
    return SampleBatch({**dict(data.items()), "rewards": rewards.astype(np.float32)})


def played(policy: Any, env: str, seed: int, *, explore: bool) -> list[float]:
    """Play new episodes and return their returns."""
    streams = RandomStreams(seed).child("final")
    collector = Collector(policy, gym.make_vec(env, 10, "sync"), exploration_noise=explore, streams=streams)
    with policy.within_training_step(explore):
        returns = collector.collect(n_episode=FINAL_EPISODES.get(env, 50)).returns
    collector.close()
    return list(returns)


def behaviour_of(data: SampleBatch) -> dict[str, float]:
    """Return the mean of the episodes that ended, each as often as it has transitions, and once; the best of them."""
    ends = data["eps_id"][data["terminateds"] | data["truncateds"]]
    lengths = np.bincount(data["eps_id"])[np.unique(ends)]
    returns = returns_of(data)
    return {
        "behaviour": round(float(np.average(returns, weights=lengths)), 3),
        "behaviour_mean": round(statistics.fmean(returns), 3),
        "behaviour_best": round(max(returns), 3),
    }


def result_of(env: str, name: str, data: SampleBatch, algorithm: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the case of one algorithm on one data set."""
    finals, drawn = ([run[key] for run in runs] for key in ("final_return", "drawn_return"))
    config = config_of(algorithm, env, dataset_id(env, name), 0).to_dict()
    return {
        "environment": env,
        "data": name,
        "rows": len(data),
        **behaviour_of(data),
        "algorithm": algorithm,
        "as_the_data_acted": statistics.median(finals if name == "expert" else drawn),
        "median": statistics.median(finals),
        "worst": min(finals),
        "best": max(finals),
        "median_drawn": statistics.median(drawn),
        "worst_drawn": min(drawn),
        "median_seconds": statistics.median(run["seconds"] for run in runs),
        "runs": runs,
        "config": {part: config[part] for part in ("environment", "env_runners", "training", "rl_module")},
    }


def key_of(case: dict[str, Any]) -> tuple[str, str, str]:
    """Return environment, data and algorithm of a case."""
    return case["environment"], case["data"], case["algorithm"]


def verdicts(cases: list[dict[str, Any]]) -> list[str]:
    """Return whether cloning does no better than the data, and everything else better; of HalfCheetah the order."""
    lines = []
    for env, name in CASES:
        found = {case["algorithm"]: case for case in cases if (case["environment"], case["data"]) == (env, name)}
        if "bc" not in found:
            continue
        if env == "HalfCheetah-v5":
            order = sorted((case["median"], key) for key, case in found.items())
            scores = ", ".join(f"{key} {d4rl_score(value):.1f}" for value, key in order)
            lines.append(f"{env} {name}: {scores}; the data {d4rl_score(found['bc']['behaviour']):.1f} (D4RL's scale)")
            continue
        behaviour, cloned = found["bc"]["behaviour"], found["bc"]["as_the_data_acted"]
        if name == "expert":
            close = abs(cloned - behaviour) <= 0.2 * abs(behaviour)
            lines.append(f"{env} {name}: BC {cloned:.1f} ~ who left it {behaviour:.1f}: {'yes' if close else 'NO'}")
            continue
        others = sorted((case["as_the_data_acted"], key) for key, case in found.items() if key != "bc")
        order = ", ".join(f"{key} {value:.1f}" for value, key in others)
        right = cloned <= behaviour + 0.05 * abs(behaviour) and all(value > behaviour for value, _ in others)
        lines.append(
            f"{env} {name}: BC {cloned:.1f} <= behaviour {behaviour:.1f} (within 5 %) < {order}: "
            f"{'yes' if right else 'NO'}"
        )
    return lines


def d4rl_score(value: float) -> float:
    """Return a return on HalfCheetah as D4RL's papers write it."""
    return 100.0 * (value - D4RL_RANDOM) / (D4RL_EXPERT - D4RL_RANDOM)


def render(record: dict[str, Any]) -> str:
    """Return the page of a result."""
    header = ["environment", "data", "behaviour (mean episode, best)", "algorithm", "as the data acted"]
    header += ["drawn (worst seed)", "most likely (worst seed)", "seeds", "gradient steps", "seconds"]
    rows = [
        [
            case["environment"],
            case["data"],
            f"{case['behaviour']:.1f} ({case['behaviour_mean']:.1f}, {case['behaviour_best']:.1f})",
            case["algorithm"],
            f"{case['as_the_data_acted']:.1f}",
            f"{case['median_drawn']:.1f} ({case['worst_drawn']:.1f})",
            f"{case['median']:.1f} ({case['worst']:.1f})",
            str(len(case["runs"])),
            f"{case['runs'][0]['steps']:,}",
            f"{case['median_seconds']:.0f}",
        ]
        for case in record["cases"]
    ]
    lines = [
        f"# Offline learning: {max(len(case['runs']) for case in record['cases'])} seeds",
        "",
        f"Written by `python benchmarks/learning/offline_learning.py` on {record['machine']['date']}; its first lines "
        f"say what is compared with what. Medians over seeds of the mean return of "
        f"{record['cases'][0]['runs'][0]['final_episodes']} new episodes.",
        "",
        *(f"- {line}" for line in verdicts(record["cases"])),
        "",
        report.table(header, rows),
    ]
    return "\n".join(lines)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train what the command line names; the raw record, which keeps what was there, is written after each case."""
    file = report.RESULTS / f"{options.name}.json"
    record: dict[str, Any] = {"seeds": options.seeds, "threads": 1, "machine": report.machine(), "cases": []}
    if file.exists():
        earlier = json.loads(file.read_text())
        record["cases"] = [{"revision": earlier["machine"]["revision"], **case} for case in earlier["cases"]]
    runs: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        for (env, name), algorithms in CASES.items():
            if env not in options.envs or (options.data and name not in options.data):
                continue
            data = read_minari_batch(dataset_id(env, name))
            for algorithm in algorithms:
                if options.only and algorithm not in options.only:
                    continue
                key = (env, name, algorithm)
                is_scaled = (env, algorithm) == ("HalfCheetah-v5", "iql")
                learned_from = scaled(data) if is_scaled else data
                runs.setdefault(key, []).append(learn(env, learned_from, algorithm, seed, options.steps))
                case = result_of(env, name, data, algorithm, runs[key])
                case["revision"] = record["machine"]["revision"]
                kept = [old for old in record["cases"] if key_of(old) != key]
                record["cases"] = sorted([*kept, case], key=key_of)
                report.write(options.name, record)
                print(f"{env} {name}: {algorithm} seed {seed} {runs[key][-1]['final_return']:.1f}", flush=True)
    return record


if __name__ == "__main__":
    command = report.parser_of(__doc__)
    command.add_argument("--seeds", type=int, default=5)
    command.add_argument("--only", nargs="*", help="algorithms")
    command.add_argument("--steps", type=int, help="gradient steps of a run; those of the recipe without")
    command.add_argument("--data", nargs="*", help="data sets, e.g. medium")
    command.add_argument("--envs", nargs="*", default=QUICK, help=f"environments; {' and '.join(QUICK)} without")
    raise SystemExit(report.command(command, "offline_learning", measure, render))
