"""FlashSAC on MuJoCo's robots, one run at a time, and the worth of its parts.

    python benchmarks/learning/flashsac.py robots                      # the runs of the results page, in turn
    python benchmarks/learning/flashsac.py robots HalfCheetah-v5 --seeds 5
    python benchmarks/learning/flashsac.py parts                       # one part off, or one size changed, at a time
    python benchmarks/learning/flashsac.py table                       # what has run so far, as Markdown

A run that was stopped continues from its newest checkpoint, and one that has ended is not run again. Each run that has
ended is a line of `benchmarks/results/flashsac.jsonl`: settings, curve, final returns, seconds of collecting, learning
and evaluating, and the processor seconds of the training process if it was never stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import lockstep
from lockstep import FlashSACConfig
from lockstep.recipes.bench import evaluations, processor
from lockstep.recipes.mujoco import flashsac_mujoco
from lockstep.tracking.run_folder import RunFolder

RESULTS = Path(__file__).parents[1] / "results" / "flashsac.jsonl"
ROBOTS = {"HalfCheetah-v5": 5, "Hopper-v5": 5, "Walker2d-v5": 5, "Humanoid-v5": 3}
"""Number of seeds by environment."""
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
"""Options that differ from `config_of`, by the name of the row."""


def config_of(env: str, seed: int, steps: int, settings: dict[str, Any]) -> FlashSACConfig:
    """Return the configuration of a run: the recipe, compiled, on one core."""
    config = flashsac_mujoco(env).debugging(seed=seed)
    config.framework(compile=True, num_threads=1)
    config.evaluation(evaluation_duration=5)
    config.checkpointing(checkpoint_interval=1)
    config.reporting(total_steps=steps, steps_per_epoch=steps // 10)
    for path, value in settings.items():
        section, option = path.split(".")
        getattr(config, section)(**{option: value})
    return config


def rows() -> list[dict[str, Any]]:
    """Return the runs that have ended."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run(env: str, seed: int, steps: int, name: str, root: Path) -> None:
    """Train one seed, or go on with it, and append its line to the results."""
    key = {"env": env, "seed": seed, "steps": steps, "part": name}
    if any(all(row[field] == value for field, value in key.items()) for row in rows()):
        return
    folder = root / f"{env}_{steps}_{name.replace(' ', '-').replace('/', '-')}_{seed}"
    used = time.process_time()
    begun = sorted(folder.glob("*")) if folder.exists() else []
    if begun:
        result = lockstep.resume(begun[-1])
    else:
        result = lockstep.train(config_of(env, seed, steps, PARTS[name]), root=folder)
    timing = result.info.timing
    line = {
        **key,
        "curve": list(evaluations(RunFolder.open(result.path)).items()),
        "final_returns": final_returns(result.policy, env),
        "gradient_steps": int(result.info.gradient_step),
        "seconds": round(timing.train_time_collect + timing.train_time_update + timing.test_time),
        "processor_seconds": None if begun else round(time.process_time() - used),
        "settings": PARTS[name],
        "processor": processor(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/learning/flashsac.py (seed {seed}, {steps} steps, {name})",
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{env} {name} seed {seed}: {np.mean(line['final_returns']):.0f} in {line['seconds']} s", flush=True)


def final_returns(policy: Any, env: str) -> list[float]:
    """Return the returns of deterministic episodes in new environments."""
    result = lockstep.Collector(policy, policy.config.make_envs(8), seed=1000).collect(
        n_episode=FINAL_EPISODES, reset_before_collect=True
    )
    return [float(each) for each in result.returns]


def table() -> str:
    """Return the results as a Markdown table."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows():
        groups.setdefault((row["env"], row["steps"], row["part"]), []).append(row)
    lines = [
        "| environment | steps | part | seeds | mean | worst | processor minutes |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for (env, steps, name), group in groups.items():
        means = [float(np.mean(row["final_returns"])) for row in group]
        used = [row["processor_seconds"] / 60.0 for row in group if row["processor_seconds"] is not None]
        minutes = f"{np.mean(used):.0f}" if used else "stopped in between"
        lines.append(
            f"| {env} | {steps:,} | {name} | {len(group)} | {np.mean(means):,.0f} | {min(means):,.0f} | {minutes} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", nargs="?", default="table", choices=("robots", "parts", "table"))
    parser.add_argument("env", nargs="?", choices=ROBOTS)
    parser.add_argument("--seeds", type=int, help="number of seeds; by default 5, or 3 for Humanoid-v5 and parts")
    parser.add_argument("--steps", type=int, help="environment steps; by default 300,000, or 100,000 for parts")
    parser.add_argument("--root", type=Path, default=Path("runs/flashsac"), help="folder of the runs")
    given = parser.parse_args()
    if given.action == "table":
        print(table())
    elif given.action == "robots":
        for robot in [given.env] if given.env else ROBOTS:
            for seed in range(given.seeds or ROBOTS[robot]):
                run(robot, seed, given.steps or 300_000, "the recipe", given.root)
    else:
        for seed in range(given.seeds or 3):
            for part in PARTS:
                run(given.env or "HalfCheetah-v5", seed, given.steps or 100_000, part, given.root)
