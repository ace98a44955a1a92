"""`DelayedActorCriticLearner`: target actions smoothed by noise, a policy that learns in every n-th step only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.transitions import COLUMNS, actor_and_critics
from lockstep.data.columns import Columns
from lockstep.learner.config import SampledTraining, TrainingOptions
from lockstep.learner.learner import Learner, Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.optimizers import RegisteredOptimizer
from lockstep.learner.targets import TargetNetwork
from lockstep.state.options import ConfigT, option
from lockstep.state.schedules import ScheduleLike

NOISE = "target_noise"
"""column: what smooths the target policy's action"""


class DelayedActorCriticOptions(TrainingOptions, total=False):
    """Options of `DelayedActorCriticTraining`."""

    actor_lr: ScheduleLike | None
    critic_lr: ScheduleLike | None
    tau: float
    policy_delay: int
    target_noise: float
    noise_clip: float


@dataclass
class DelayedActorCriticTraining(SampledTraining[ConfigT]):
    """Options that TD3 and TD3+BC have in common."""

    lr: ScheduleLike = 3e-4
    """learning rate of both optimizers where they have none of their own"""
    actor_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the policy; `None`: `lr`"""
    critic_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the critics; `None`: `lr`"""
    train_batch_size: int = 256
    tau: float = option(0.005, gt=0, le=1)
    """how far the target networks go towards those that learn, in each update of them"""
    policy_delay: int = option(2, ge=1)
    """gradient steps of the critics for one of the policy and one update of the target networks"""
    target_noise: float = option(0.2, ge=0)
    """deviation of the noise on the target policy's action; 0: none"""
    noise_clip: float = option(0.5, ge=0)
    """limit of that noise"""

    def __call__(self, **options: Unpack[DelayedActorCriticOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


Training = TypeVar("Training", bound=DelayedActorCriticTraining[Any])


class DelayedActorCriticLearner(Learner[Training]):
    """The family of TD3 and TD3+BC. Target policy and critics are part of the learner's state.

    `fwd_out["q_values"]` `[K, N]` are the values of the actions that were taken.
    """

    def setup_module(self, module_id: str) -> None:
        """Make the target policy and critics, `<module id>/target`."""
        self.check_parts(module_id, "critics", "compute_actions")
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))

    def configure_optimizers_for_module(self, module_id: str, config: Training) -> None:
        """Register "actor" and "critic"."""
        actor, critics = actor_and_critics(self.module[module_id])
        for name, params, lr in (("actor", actor, config.actor_lr), ("critic", critics, config.critic_lr)):
            self.register_adam(module_id, name, params, config.lr if lr is None else lr, config.adam_epsilon)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """Return what the loss reads (`discounts` and `weights` only where they are there)."""
        return COLUMNS

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the random numbers that smooth the target action; none where there is no noise."""
        config = self.config_of(module_id)
        return {NOISE: self.module[module_id].action_dist_cls.noise_size} if config.target_noise > 0 else {}

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Outputs]:
        """Return `q_values` `[K, N]` of the actions that were taken, by module."""
        modules: Any = self.module
        with self.mixed_precision():
            return {
                mid: {"q_values": self.to_tensor(modules[mid].critics(part[Columns.OBS], part[Columns.ACTIONS]))}
                for mid, part in batch.items()
            }

    @torch.no_grad()
    def smoothed_next_values(self, module_id: str, batch: TensorColumns) -> Tensor:
        """Return `[N]`, what the smallest target critic says of the target policy's next action, smoothed by noise.

        Fujimoto et al. 2018, algorithm 1.
        """
        config = self.config_of(module_id)
        target = self.registered[f"{module_id}/target"].module
        with self.mixed_precision():
            actions = self.to_tensor(target.compute_actions({Columns.OBS: batch[Columns.NEXT_OBS]}))
            if NOISE in batch:
                noise = (batch[NOISE] * config.target_noise).clamp(-config.noise_clip, config.noise_clip)
                actions = (actions + noise).clamp(-1.0, 1.0)
            return self.to_tensor(target.critics(batch[Columns.NEXT_OBS], actions).amin(0))

    # -- every n-th step ---

    def policy_learns(self, module_id: str) -> bool:
        """Return whether, in the present gradient step, the policy learns and the target networks follow."""
        config = self.config_of(module_id)
        return bool((self.registered[f"{module_id}/target"].num_steps + 1) % config.policy_delay == 0)

    def takes_part(self, entry: RegisteredOptimizer) -> bool:
        """Return whether the optimizer is stepped now: that of the policy when it is due."""
        return entry.name != "actor" or self.policy_learns(entry.module_id)

    def compiled_variant(self) -> tuple[bool, ...]:
        """Return which policies learn now."""
        return tuple(self.policy_learns(module_id) for module_id in self.module)

    def after_gradient_step(self) -> None:
        """Let the target networks follow where the policy has learned."""
        for module_id in self.optimizers.module_ids_with_loss():
            config = self.config_of(module_id)
            target: TargetNetwork = self.registered[f"{module_id}/target"]
            target.after_gradient_step(self.optimizers, config.policy_delay, config.tau)
