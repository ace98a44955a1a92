"""A short run of PPO in float64, which ranks of torchrun make as one process does."""

from __future__ import annotations

SETTINGS = {
    "framework.dtype": "float64",
    "rl_module.model_config.hiddens": [8],
    "training.train_batch_size": 128,
    "training.num_epochs": 2,
    "training.lr": 0.01,
    "reporting.steps_per_epoch": 256,
    "evaluation.evaluation_duration": 2,
    "checkpointing.num_to_keep": 9,
}
WORDS = ["train", "ppo", "CartPole-v1", "--total-steps", "768", "--num-envs", "4", "--no-recipe", "--no-check"]
WORDS += [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
