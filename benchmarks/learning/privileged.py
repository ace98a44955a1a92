"""Measure what a critic gains from an entry that the policy does not see: `python benchmarks/learning/privileged.py`.

PPO trains on `lockstep/PrivilegedProbe-v0` (`lockstep/envs/toys/privileged.py`) with and without the entry `load` in
the critic's group, three seeds each. The raw output is `benchmarks/results/privileged.json`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import PPOConfig

STEPS = 8192
SEEDS = (1, 2, 3)
CRITICS = {"sees the load": ["proprio", "load"], "does not": ["proprio"]}
OUTPUT = Path(__file__).resolve().parents[1] / "results" / "privileged.json"


def train(critic: list[str], seed: int) -> dict[str, Any]:
    """Train, and return the explained variance of the last update and the mean evaluation return."""
    config = PPOConfig().environment("lockstep/PrivilegedProbe-v0").env_runners(num_envs_per_env_runner=8)
    config.rl_module(observation_groups={"policy": ["proprio"], "critic": critic}).debugging(seed=seed)
    config.training(train_batch_size=512, minibatch_size=128, num_epochs=8, lr=3e-3)
    config.evaluation(evaluation_duration=200, evaluation_num_envs=8)
    config.reporting(total_steps=STEPS, steps_per_epoch=STEPS)
    trainer = config.build_trainer()
    info = trainer.run()
    explained = trainer.policy.last_results["default_policy"]["vf_explained_var"]
    stats = info.history[-1].test_collect_stat
    assert stats is not None
    # The load alone gives a return of 10 times itself, whatever the policy does. What is left is up to the policy.
    return {"explained_variance": float(explained), "mean_return": float(np.mean(stats.returns))}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a critic gains from a privileged entry.")
    parser.add_argument("--output", "-o", type=Path, default=OUTPUT, help="JSON file to write")
    output = parser.parse_args().output
    found = {}
    for name, critic in CRITICS.items():
        found[name] = [train(critic, seed) for seed in SEEDS]
        print(name, [round(run["explained_variance"], 3) for run in found[name]], flush=True)
    output.write_text(json.dumps({"steps": STEPS, "seeds": SEEDS, "found": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
