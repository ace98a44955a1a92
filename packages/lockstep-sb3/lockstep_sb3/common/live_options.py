"""Options of a model that a program changes after the model is made, such as `model.ent_coef = 0.01`."""

from __future__ import annotations

from typing import Any

from lockstep.builder import AlgorithmConfig
from lockstep.data import DEFAULT_MODULE_ID
from lockstep.learner import Learner
from lockstep.state import Schedule

LIVE_OPTIONS = {
    "training": (
        *("lr", "gamma", "lambda_", "entropy_coeff", "clip_param", "vf_clip_param", "vf_loss_coeff", "grad_clip"),
        *("target_kl", "num_epochs", "minibatch_size", "normalize_advantages", "train_batch_size"),
        *("tau", "target_update_interval", "policy_delay", "target_noise", "noise_clip"),
        *("max_kl", "cg_iterations", "cg_damping"),
    ),
    "replay": ("learning_starts", "update_per_step"),
}
"""Options that may change, by section. The others are built into networks, optimizers or buffers."""
COMPARED_SECTIONS = ("training", "replay", "env_runners", "rl_module", "framework")
"""Sections that are compared with those of the present configuration."""


def changed_options(old: AlgorithmConfig, new: AlgorithmConfig) -> dict[str, Any]:
    """Return the new values of all options that differ, by their paths such as `training.lr`."""
    changed: dict[str, Any] = {}
    for section in COMPARED_SECTIONS:
        if section not in old.sections:
            continue
        old_options = old.sections[section].options()
        for name, value in new.sections[section].options().items():
            if value != old_options[name]:
                changed[f"{section}.{name}"] = value
    return changed


def is_live(path: str) -> bool:
    """Return whether an option may change while a model learns."""
    section, _, name = path.partition(".")
    return name in LIVE_OPTIONS.get(section, ())


def set_live_option(config: AlgorithmConfig, learner: Learner, path: str, value: Any) -> None:
    """Set an option of a configuration and of its learner, from the next update on."""
    config.set_path(path, value)
    section, _, name = path.partition(".")
    if section != "training":
        return
    setattr(learner.config, name, value)
    if name == "lr":
        for entry in learner.optimizers:
            if entry.schedule is not None:  # TRPO's policy has no learning rate
                entry.schedule = Schedule(value, f"lr of {entry.name}")
                entry.set_lr(entry.schedule(0))
    if (DEFAULT_MODULE_ID, name) in learner.coefficients:
        schedule = Schedule(value, name)
        _, present = learner.coefficients[DEFAULT_MODULE_ID, name]
        present.fill_(schedule(0))
        learner.coefficients[DEFAULT_MODULE_ID, name] = (schedule, present)
