"""PPO on Pendulum-v1 without its mirror, with mirrored rows, with the symmetry loss, and with a symmetric network.

    python benchmarks/learning/symmetry.py            # 51,200 steps, three seeds each
    python benchmarks/learning/symmetry.py --picture  # docs/images/learning_symmetry.png

One JSON line for each run, in ``results/symmetry.jsonl``: after each tenth of the run the mean return of 20 episodes,
and the mean difference between the torques at mirrored observations and the mirrored torques (torques are up to 2 Nm).
The picture needs matplotlib (``lockstep-rl[plot]``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import report
import torch
from torch import Tensor

from lockstep import Policy, PPOConfig

FILE = report.RESULTS / "symmetry.jsonl"
PICTURE = report.ROOT / "docs/images/learning_symmetry.png"
EVALUATIONS = 10


def swing(observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mirror images of Pendulum-v1: sine, speed and torque change their signs, the cosine does not."""
    cosine, sine, speed = observations.unbind(-1)
    return torch.stack([cosine, -sine, -speed], -1), -actions


VARIANTS: dict[str, dict[str, Any]] = {
    "without the mirror": {},
    "mirrored rows": {"training.symmetry": swing},
    "symmetry loss": {
        "training.symmetry": swing,
        "training.symmetry_augmentation": False,
        "training.symmetry_loss_coeff": 1.0,
    },
    "symmetric network": {"training.symmetry": swing, "rl_module.model_config": {"symmetric": True}},
}


def difference(policy: Policy) -> float:
    """Return the mean difference between the torques at mirrored observations and the mirrored torques."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(-np.pi, np.pi, 2_000)
    observations = np.stack([np.cos(angles), np.sin(angles), rng.uniform(-8, 8, 2_000)], -1).astype(np.float32)
    mirrored = observations * np.array([1, -1, -1], np.float32)
    return float(np.abs(policy.compute_actions(mirrored) + policy.compute_actions(observations)).mean())


def run(variant: str, seed: int, steps: int) -> dict[str, Any]:
    """Return the returns and the differences of one run, after each tenth of it."""
    config = PPOConfig().environment("Pendulum-v1", normalize_observations=True).debugging(seed=seed)
    config.training(lr=1e-3, gamma=0.9, train_batch_size=1024, minibatch_size=128).framework(num_threads=1)
    config.env_runners(num_envs_per_env_runner=4).evaluation(evaluation_duration=20)
    config.reporting(total_steps=steps, steps_per_epoch=steps // EVALUATIONS)
    for path, value in VARIANTS[variant].items():
        config.set_path(path, value)
    trainer = config.build_trainer()
    returns = []
    differences = []
    for epoch in trainer:
        returns.append(round(float(epoch.test_collect_stat.returns_stat.mean), 1))
        differences.append(round(difference(trainer.policy), 6))
    return {"returns": returns, "differences": differences}


def draw(lines: list[dict[str, Any]]) -> None:
    """Draw the differences and the returns of all runs, each with the mean over the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6))
    for number, variant in enumerate(VARIANTS):
        runs = [line for line in lines if line["variant"] == variant]
        steps = np.linspace(0, runs[0]["steps"], EVALUATIONS + 1)[1:]
        for axis, name in zip(axes, ("differences", "returns")):
            values = np.array([line[name] for line in runs])
            axis.plot(steps, values.T, color=f"C{number}", alpha=0.25, linewidth=0.8)
            axis.plot(steps, values.mean(0), color=f"C{number}", linewidth=2, label=variant)
    axes[0].set_ylabel("difference from the mirror image (Nm)")
    axes[1].set_ylabel("return")
    for axis in axes:
        axis.set_xlabel("environment steps")
    axes[1].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    parser = report.parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=51_200)
    parser.add_argument("--picture", action="store_true", help="draw the committed results")
    given = parser.parse_args()
    if given.picture:
        draw([json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()])
        sys.exit()
    for seed in range(given.seeds):
        for variant in VARIANTS:
            facts = {"variant": variant, "seed": seed, "steps": given.steps, "revision": report.revision()}
            line = json.dumps({**facts, **run(variant, seed, given.steps)})
            print(line, flush=True)
            with FILE.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
