"""What offline algorithms make of data sets that our own agents left (`make_offline_data.py` writes them).

    python benchmarks/make_offline_data.py
    python benchmarks/offline_learning.py                        # everything, 5 seeds
    python benchmarks/offline_learning.py --only iql --envs Pendulum-v1 --seeds 2 --name trial
    python benchmarks/offline_learning.py --render               # results/offline_learning.md, from the raw results

Every algorithm learns from `medium-replay`, where what is asked is to do better than who left the data; behaviour
cloning also from `expert`, where what is asked is to do as well. Networks of 64x64, one thread, gradient steps as
`--steps` says. Writes ``results/offline_learning.json`` (what is run again replaces what was there) with the final
evaluation of each seed: 50 new episodes, most likely actions; and the mean return where actions are drawn, as those in
the data were.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import report
from make_offline_data import collected, dataset_id, returns_of

from lockstep import SampleBatch, get_config
from lockstep.data import read_minari_batch

FINAL_EPISODES = 50
DRAWN_STEPS = 5_000
SMALL: dict[str, Any] = {"hiddens": (64, 64)}
RELU: dict[str, Any] = {**SMALL, "activation": "relu"}
CASES: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("CartPole-v1", "medium-replay"): {
        "bc": {},
        "marwil": {"moving_average_sqd_adv_norm_start": 100.0, "beta": 2.0},
        "cql": {"lr": 1e-3, "actor_lr": 1e-3, "min_q_weight": 1.0, "tau": 0.01, "target_entropy": 0.1},
        "iql": {"lr": 1e-3, "tau": 0.01, "beta": 3.0, "expectile": 0.8},
    },
    ("CartPole-v1", "expert"): {"bc": {}},
    ("Pendulum-v1", "medium-replay"): {
        "bc": {},
        "marwil": {"moving_average_sqd_adv_norm_start": 10_000.0, "beta": 3.0, "gamma": 0.95},
        "cql": {"lr": 1e-3, "actor_lr": 3e-4, "min_q_weight": 1.0, "num_actions": 4, "tau": 0.01},
        "iql": {"lr": 1e-3, "tau": 0.01, "beta": 3.0, "expectile": 0.8},
        "td3_bc": {"lr": 1e-3, "tau": 0.01, "alpha": 20.0},
    },
    ("Pendulum-v1", "expert"): {"bc": {}},
}
"""settings of each algorithm on each data set, the same for all seeds"""


def learn(env: str, data: SampleBatch, algorithm: str, training: dict[str, Any], steps: int, seed: int) -> Any:
    """One run in this process."""
    config = get_config(algorithm).environment(env).offline_data(input_=data).debugging(seed=seed)
    config.training(**training).rl_module(model_config=SMALL if algorithm in ("bc", "marwil") else RELU)
    config.reporting(total_steps=steps, steps_per_epoch=steps // 2)
    trainer = config.evaluation(evaluation_episodes=10).build_trainer()
    started, curve = time.process_time(), []
    for epoch in trainer:
        curve += [[trainer.gradient_step, round(statistics.fmean(epoch.test_collect_stat.returns), 2)]]
    seconds = time.process_time() - started
    final = trainer.test_collector.collect(n_episode=FINAL_EPISODES)
    drawn = collected(trainer.policy, env, DRAWN_STEPS, seed, explore=True)
    trainer.test_collector.close()
    return {
        "seed": seed,
        "final_return": round(statistics.fmean(final.returns), 3),
        "final_return_std": round(statistics.pstdev(final.returns), 3),
        "drawn_return": round(statistics.fmean(returns_of(drawn)), 3),
        "gradient_steps": trainer.gradient_step,
        "dataset_passes": round(trainer.dataset_passes, 2),
        "seconds": round(seconds, 2),
        "curve": curve,
    }


def render(record: dict[str, Any], name: str) -> None:
    """The table of a result, written beside it."""
    lines = [
        f"# Offline learning: {record['seeds']} seeds, {record['steps']:,} gradient steps each",
        "",
        f"Written by `python benchmarks/offline_learning.py` on {record['machine']['date']}. Final evaluation: "
        f"{FINAL_EPISODES} new episodes, most likely actions; drawn: the median with actions "
        "drawn from the policy. Behaviour: mean return of the "
        "episodes in the data, whose actions were drawn too.",
        "",
        "| environment | data | behaviour | algorithm | median | worst | best | drawn | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {case['environment']} | {case['data']} | {case['behaviour_mean']:.1f} (best episode "
        f"{case['behaviour_best']:.1f}) | {case['algorithm']} | {case['median']:.1f} | {case['worst']:.1f} | "
        f"{case['best']:.1f} | {case['median_drawn']:.1f} | {case['median_seconds']:.0f} |"
        for case in record["cases"]
    ]
    (report.RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--only", nargs="*", help="algorithms")
    parser.add_argument("--envs", nargs="*", help="environments")
    parser.add_argument("--name", default="offline_learning")
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    if options.render:
        render(json.loads((report.RESULTS / f"{options.name}.json").read_text()), options.name)
        return
    record = {"seeds": options.seeds, "steps": options.steps, "threads": 1, "machine": report.machine(), "cases": []}
    before = report.RESULTS / f"{options.name}.json"
    if before.exists():
        earlier = json.loads(before.read_text())
        if (earlier["seeds"], earlier["steps"]) == (options.seeds, options.steps):
            record["cases"] = earlier["cases"]
    for (env, name), algorithms in CASES.items():
        if options.envs and env not in options.envs:
            continue
        data = read_minari_batch(dataset_id(env, name))
        behaviour = returns_of(data)
        for algorithm, training in algorithms.items():
            if options.only and algorithm not in options.only:
                continue
            runs = [learn(env, data, algorithm, training, options.steps, seed) for seed in range(options.seeds)]
            finals = [run["final_return"] for run in runs]
            case = {
                "environment": env,
                "data": name,
                "rows": len(data),
                "behaviour_mean": round(statistics.fmean(behaviour), 3),
                "behaviour_best": round(max(behaviour), 3),
                "algorithm": algorithm,
                "training": training,
                "median": statistics.median(finals),
                "worst": min(finals),
                "best": max(finals),
                "median_drawn": statistics.median(run["drawn_return"] for run in runs),
                "median_seconds": statistics.median(run["seconds"] for run in runs),
                "runs": runs,
            }
            keys = ("environment", "data", "algorithm")
            kept = [old for old in record["cases"] if any(old[key] != case[key] for key in keys)]
            record["cases"] = sorted([*kept, case], key=lambda each: [each[key] for key in keys])
            report.write(options.name, record)
            print(
                f"{env} {name} (behaviour {case['behaviour_mean']:.1f}): {algorithm} median {case['median']:.1f}, "
                f"worst {case['worst']:.1f} ({', '.join(f'{value:.1f}' for value in finals)})",
                file=sys.stderr,
                flush=True,
            )
    render(record, options.name)


if __name__ == "__main__":
    main()
