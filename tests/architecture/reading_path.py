"""What one reads to understand PPO from end to end (house rule 4), and how long it is."""

from __future__ import annotations

from pathlib import Path

from architecture_checks import lines_of

ROOT = Path(__file__).parents[2]

PATH: list[tuple[str, str | None]] = [
    ("examples/train_cartpole.py", None),
    ("lockstep/trainer/onpolicy.py", "OnpolicyTrainer.training_step"),
    ("lockstep/trainer/base.py", "BaseTrainer.run"),
    ("lockstep/trainer/base.py", "BaseTrainer._train_epoch"),
    ("lockstep/rollout/base_collector.py", "BaseCollector.collect"),
    ("lockstep/rollout/collector.py", "Collector._run"),
    ("lockstep/rollout/collector.py", "Collector._after_step"),
    ("lockstep/modules/actor_critic.py", "DefaultActorCriticModule"),
    ("lockstep/algorithms/ppo.py", None),
    ("lockstep/ops/returns.py", "gae"),
    ("lockstep/learner/learner.py", "Learner._train"),
    ("lockstep/learner/learner.py", "Learner._update"),
    ("lockstep/learner/learner.py", "Learner.compute_losses"),
    ("lockstep/learner/learner.py", "Learner.masked_mean"),
    ("lockstep/learner/learner.py", "Learner.normalized"),
    ("lockstep/learner/learner.py", "Learner.compute_gradients"),
    ("lockstep/learner/learner.py", "Learner.postprocess_gradients"),
    ("lockstep/learner/learner.py", "Learner.postprocess_gradients_for_module"),
    ("lockstep/learner/learner.py", "Learner.apply_gradients"),
]
"""The path: files, or functions of files."""

LOSS = ("lockstep/algorithms/ppo.py", "PPOLearner.compute_loss_for_module")


def counted(entries: list[tuple[str, str | None]]) -> list[tuple[str, str, int]]:
    """Return `(file, what of it, lines)`."""
    return [(path, name or "whole file", lines_of((ROOT / path).read_text(), name)) for path, name in entries]
