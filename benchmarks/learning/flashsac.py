"""What each part of FlashSAC is worth on HalfCheetah: one part off, or one size changed, at a time.

    python benchmarks/learning/flashsac.py run     # 100,000 steps, three seeds of each row
    python benchmarks/learning/flashsac.py table   # what has run so far, as Markdown

A run that was stopped continues from its newest checkpoint, and one that has ended is not run again. Each run that has
ended is a line of `benchmarks/results/flashsac_parts.jsonl`: settings, curve, final returns, and seconds of collecting,
learning and evaluating. The recipe's own runs are `lockstep bench run flashsac HalfCheetah-v5`.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import lockstep
from lockstep import FlashSACConfig
from lockstep.recipes.bench import evaluations, processor
from lockstep.recipes.mujoco import flashsac_mujoco
from lockstep.tracking.run_folder import RunFolder

RESULTS = Path(__file__).parents[1] / "results" / "flashsac_parts.jsonl"
ENV = "HalfCheetah-v5"
FINAL_EPISODES = 40
PARTS: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "critics of the mean": {"training.categorical_critic": False},
    "weights without a norm": {"training.unit_norm_weights": False},
    "no batch normalisation": {"training.batch_norm": False},
    "rewards as they are, atoms to 1,500": {
        "training.bounded_rewards": False,
        "training.v_min": -1500.0,
        "training.v_max": 1500.0,
    },
    "new noise in each step": {"training.noise_repeat": 1},
    "statistics of (s, a) alone": {"training.joint_batch": False},
    "half the width": {"rl_module.model_config": {"hiddens": (32,), "critic_hiddens": (32, 32)}},
    "twice the width": {"rl_module.model_config": {"hiddens": (128,), "critic_hiddens": (128, 128)}},
    "one block": {"rl_module.model_config": {"hiddens": (64,), "critic_hiddens": (64,)}},
    "101 atoms": {"training.num_atoms": 101},
    "batch 128": {"training.train_batch_size": 128},
    "batch 512": {"training.train_batch_size": 512},
    "half the gradient steps": {"replay.update_per_step": 0.5},
    "twice the gradient steps": {"replay.update_per_step": 2.0},
}
"""Options that differ from the recipe, by the name of the row."""


def config_of(seed: int, steps: int, settings: dict[str, Any]) -> FlashSACConfig:
    """Return the configuration of a run: the recipe with other settings."""
    config = flashsac_mujoco(ENV).debugging(seed=seed)
    config.framework(compile=True)
    config.reporting(total_steps=steps, steps_per_epoch=steps // 10)
    for path, value in settings.items():
        section, option = path.split(".")
        getattr(config, section)(**{option: value})
    return config


def rows() -> list[dict[str, Any]]:
    """Return the runs that have ended."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(seed: int, steps: int, name: str, root: Path) -> None:
    """Train one seed, or go on with it, and append its line to the results."""
    key = {"env": ENV, "seed": seed, "steps": steps, "part": name}
    if any(all(row[field] == value for field, value in key.items()) for row in rows()):
        return
    folder = root / f"{steps}_{name.replace(' ', '-').replace('/', '-')}_{seed}"
    begun = [path for path in sorted(folder.glob("*")) if RunFolder.open(path).newest_checkpoint() is not None]
    if begun:
        result = lockstep.resume(begun[-1])
    else:
        result = lockstep.train(config_of(seed, steps, PARTS[name]), root=folder)
    timing = result.info.timing
    final = lockstep.Collector(result.policy, result.policy.config.make_envs(8), seed=1000).collect(
        n_episode=FINAL_EPISODES, reset_before_collect=True
    )
    line: dict[str, Any] = {
        **key,
        "curve": list(evaluations(RunFolder.open(result.path)).items()),
        "final_returns": [float(each) for each in final.returns],
        "gradient_steps": int(result.info.gradient_step),
        "seconds": round(timing.train_time_collect + timing.train_time_update + timing.test_time),
        "settings": PARTS[name],
        "processor": processor(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/learning/flashsac.py run --steps {steps} (seed {seed}, {name})",
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{name}, seed {seed}: {np.mean(line['final_returns']):.0f} in {line['seconds']} s", flush=True)


def table() -> str:
    """Return the results as a Markdown table."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows():
        groups.setdefault((row["steps"], row["part"]), []).append(row)
    lines = ["| what differs | steps | seeds | mean | worst | minutes |", "|---|---:|---:|---:|---:|---:|"]
    for (steps, name), group in groups.items():
        means = [float(np.mean(row["final_returns"])) for row in group]
        minutes = np.median([row["seconds"] for row in group]) / 60.0
        lines.append(
            f"| {name} | {steps:,} | {len(group)} | {np.mean(means):,.0f} | {min(means):,.0f} | {minutes:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", nargs="?", default="table", choices=("run", "table"))
    parser.add_argument("--part", choices=PARTS, help="the only row to run")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps")
    parser.add_argument("--root", type=Path, default=Path("runs/flashsac"), help="folder of the runs")
    given = parser.parse_args()
    if given.action == "table":
        print(table())
    else:
        for seed in range(given.seeds):
            for part in [given.part] if given.part else PARTS:
                run(seed, given.steps, part, given.root)
