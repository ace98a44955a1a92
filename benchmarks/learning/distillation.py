"""Students of a teacher that sees a hidden load, on lockstep/HistoryProbe-v0, with and without memory, and PPO alone.

    python benchmarks/learning/distillation.py            # 10,240 steps, three seeds each
    python benchmarks/learning/distillation.py --picture  # docs/images/learning_distillation.png

The environment is ``lockstep/envs/toys/privileged.py: HistoryProbe``. The teacher learns by PPO from the load alone.
Its students see the angle of the wheel, so that they have to infer the load from a history. One JSON line for each run,
in ``results/distillation.jsonl``: after each 640 steps the mean return of 100 episodes, and the mean return of the
teacher. The picture needs matplotlib (``lockstep-rl[plot]``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import report

from lockstep import AlgorithmConfig, DistillationConfig, Policy, PPOConfig

FILE = report.RESULTS / "distillation.jsonl"
PICTURE = report.ROOT / "docs/images/learning_distillation.png"
ENV = "lockstep/HistoryProbe-v0"
EVALUATIONS = 16
GRU = {"hiddens": (32,), "recurrent": "gru", "recurrent_size": 32}
VARIANTS: dict[str, dict[str, Any]] = {
    "GRU, nll": {"loss": "nll"},
    "GRU, kl": {"loss": "kl"},
    "GRU, mse": {"loss": "mse"},
    "without memory, nll": {"loss": "nll"},
    "PPO with a GRU, no teacher": {},
}


def evaluated(config: AlgorithmConfig, seed: int, steps: int) -> AlgorithmConfig:
    """Return a configuration with the environment, the seed and the evaluations that all runs share."""
    config.environment(ENV).debugging(seed=seed).framework(num_threads=1)
    config.env_runners(num_envs_per_env_runner=8).evaluation(evaluation_duration=100, evaluation_num_envs=8)
    return config.reporting(total_steps=steps, steps_per_epoch=steps // EVALUATIONS)


def trained_teacher(seed: int) -> tuple[Policy, float]:
    """Return a policy that has learned by PPO from the load, and its mean return."""
    config = PPOConfig().training(lr=1e-2, gamma=0.5, train_batch_size=512, minibatch_size=128)
    groups = {"policy": ["load"], "critic": ["load"]}
    config.rl_module(model_config={"hiddens": (32,)}, observation_groups=groups)
    trainer = evaluated(config, seed, 16_384).build_trainer()
    info = trainer.run()
    stats = info.history[-1].test_collect_stat
    assert stats is not None
    return trainer.policy, float(np.mean(stats.returns))


def configured(variant: str, teacher: Policy, seed: int, steps: int) -> AlgorithmConfig:
    """Return the configuration of one run."""
    if variant.startswith("PPO"):
        config: AlgorithmConfig = PPOConfig().training(lr=3e-3, gamma=0.5, train_batch_size=640, num_epochs=8)
    else:
        config = DistillationConfig().training(lr=1e-2, train_batch_size=640, teacher=teacher, **VARIANTS[variant])
    network = {"hiddens": (32,)} if "without memory" in variant else GRU
    config.rl_module(model_config=network, observation_groups={"policy": ["proprio"]})
    return evaluated(config, seed, steps)


def run(variant: str, teacher: Policy, seed: int, steps: int) -> list[float]:
    """Return the mean returns of one run, after each 640 steps."""
    trainer = configured(variant, teacher, seed, steps).build_trainer()
    return [round(float(epoch.test_collect_stat.returns_stat.mean), 2) for epoch in trainer]


def draw(lines: list[dict[str, Any]]) -> None:
    """Draw the returns of all runs, the mean over the seeds of each variant, and the mean return of the teachers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4))
    teachers = [line["teacher"] for line in lines]
    axis.axhline(np.mean(teachers), color="black", linewidth=1, linestyle="--", label="teacher")
    for number, variant in enumerate(VARIANTS):
        runs = [line for line in lines if line["variant"] == variant]
        steps = np.linspace(0, runs[0]["steps"], EVALUATIONS + 1)[1:]
        returns = np.array([line["returns"] for line in runs])
        axis.plot(steps, returns.T, color=f"C{number}", alpha=0.25, linewidth=0.8)
        axis.plot(steps, returns.mean(0), color=f"C{number}", linewidth=2, label=variant)
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    parser = report.parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10_240)
    parser.add_argument("--picture", action="store_true", help="draw the committed results")
    given = parser.parse_args()
    if given.picture:
        draw([json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()])
        sys.exit()
    for seed in range(given.seeds):
        teacher, mean_return = trained_teacher(seed)
        for variant in VARIANTS:
            facts = {"variant": variant, "seed": seed, "steps": given.steps, "teacher": round(mean_return, 2)}
            returns = run(variant, teacher, seed, given.steps)
            line = json.dumps({**facts, "returns": returns, "revision": report.revision()})
            print(line, flush=True)
            with FILE.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
