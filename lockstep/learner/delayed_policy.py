"""What TD3 and TD3+BC share: target actions smoothed by noise, a policy that learns in every n-th step only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.learner.critics import ACTOR
from lockstep.learner.optimizers import RegisteredOptimizer
from lockstep.learner.targets import follow, modules_with_loss

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns

NOISE = "target_noise"
"""column: what smooths the target policy's action"""


def noise_columns(learner: Learner, module_id: str) -> dict[str, int]:
    """The random numbers that smooth the target action; none where there is no noise."""
    config: Any = learner.config_of(module_id)
    return {NOISE: learner.module[module_id].action_dist_cls.noise_size} if config.target_noise > 0 else {}


def policy_learns(learner: Learner, module_id: str) -> bool:
    """Is the present gradient step one of those in which the policy learns, and the target networks follow?"""
    config: Any = learner.config_of(module_id)
    return bool((learner.registered[f"{module_id}/target"].num_steps + 1) % config.policy_delay == 0)


def taken_values(learner: Learner, batch: dict[str, TensorColumns]) -> dict[str, Any]:
    """By module: values `[K, N]` of the actions that were taken."""
    modules: Any = learner.module
    with learner.mixed_precision():
        return {
            mid: learner.to_tensor(modules[mid].critics(part[Columns.OBS], part[Columns.ACTIONS]))
            for mid, part in batch.items()
        }


@torch.no_grad()
def smoothed_next_values(learner: Learner, module_id: str, batch: TensorColumns) -> Tensor:
    """`[N]`: what the smallest target critic says of the target policy's next action, smoothed by noise (Fujimoto et
    al. 2018, algorithm 1).
    """
    config: Any = learner.config_of(module_id)
    target: Any = learner.registered[f"{module_id}/target"].module
    with learner.mixed_precision():
        actions = learner.to_tensor(target.compute_actions({Columns.OBS: batch[Columns.NEXT_OBS]}))
        if NOISE in batch:
            noise = (batch[NOISE] * config.target_noise).clamp(-config.noise_clip, config.noise_clip)
            actions = (actions + noise).clamp(-1.0, 1.0)
        return learner.to_tensor(target.critics(batch[Columns.NEXT_OBS], actions).amin(0))


def takes_part(learner: Learner, entry: RegisteredOptimizer) -> bool:
    """Is the optimizer stepped now? That of the policy when it is due."""
    return entry.name != ACTOR or policy_learns(learner, entry.module_id)


def follow_targets(learner: Learner) -> None:
    """After a gradient step: the target networks follow where the policy has learned."""
    for module_id in modules_with_loss(learner):
        config: Any = learner.config_of(module_id)
        follow(learner, module_id, config.policy_delay, config.tau)
