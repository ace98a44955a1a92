"""CrossQ: SAC without target networks (Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning
for Greater Sample Efficiency and Simplicity").

https://openreview.net/forum?id=PczQtTsTIX. Critics normalise their features over the batch, (s, a) and (s', a') being
rows of one batch, so that both have the same statistics; targets then come from the critics that learn. The policy and
the temperature learn in every third step, by critics with their running statistics. For actions in a Box.

It is an algorithm of its own rather than an option of SAC: SAC's targets and their two options would have to go, and
network, policy delay and five defaults to change with the option.

Defaults: those of the paper and its published code (github.com/adityab/CrossQ): two critics of two layers of 2048
rectified units, batch renormalisation (momentum 0.99, the running statistics used after 100,000 batches), policy delay
3, Adam with lr 1e-3 and betas (0.5, 0.999), 5,000 random steps first; all else as SAC. Three differences: that code
normalises the policy's features, too, trains the policy by critics that have made their step, and leaves the betas of
the temperature at (0.9, 0.999); here policy and temperature are those of SAC, in the same gradient step.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.transitions import (
    NEXT_NOISE,
    RECTIFIED,
    SoftActorCriticLearner,
    SoftActorCriticTraining,
    critic_loss,
    next_inputs,
    pattern_of,
    td_targets,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trees import map_tree
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.optimizers import RegisteredOptimizer
from lockstep.modules import DefaultCrossQModule
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import CrossQOptions


@dataclass
class CrossQTraining(SoftActorCriticTraining[ConfigT]):
    """Options of `CrossQConfig.training(...)`."""

    lr: ScheduleLike = 1e-3
    """learning rate of all optimizers that have none of their own"""
    optimizer_kwargs: dict[str, Any] = option(factory=lambda: {"betas": (0.5, 0.999)})
    policy_delay: int = option(3, ge=1)
    """gradient steps of the critics for one of the policy and the temperature"""

    def __call__(self, **options: Unpack[CrossQOptions]) -> ConfigT:
        return self.change(options)


class CrossQLearner(SoftActorCriticLearner[CrossQTraining]):
    """The update of CrossQ."""

    has_target_critics = False

    def compute_loss_for_module(
        self, *, module_id: str, config: CrossQTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the critics' loss (equation 1); when they are due, those of policy and temperature, too."""
        alpha = self.registered[f"{module_id}/log_alpha"].detach().exp()
        with self.mixed_precision():
            values, following = self.joint_values(module_id, batch, alpha)
        targets = td_targets(batch, following, config.gamma)
        loss = critic_loss(batch, values, targets, module_id=module_id, learner=self)
        if not self.policy_learns(module_id):
            return loss
        with self.mixed_precision():
            policy_terms, neg_entropy = self.policy_terms(module_id, batch, fwd_out, alpha)
        actor_loss = self.masked_mean(policy_terms, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss + self.temperature_loss(module_id, batch, neg_entropy)

    def joint_values(self, module_id: str, batch: TensorColumns, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return values `[K, N]` of the batch's actions, and the soft value `[N]` of the next observation.

        Both are rows of one batch, whose statistics are those of all learners' real rows.
        """
        module: Any = self.module[module_id]
        mask, counts = batch.get(Columns.LOSS_MASK), self.rows_in_step > 0
        mask = None if mask is None else torch.cat([mask, mask])
        after = next_inputs(batch)
        with torch.no_grad():
            actions, logp = module.sample(after, batch[NEXT_NOISE])
        values, following = module.critics.joint_values(
            (batch[Columns.OBS], batch[Columns.ACTIONS]),
            (after[Columns.OBS], actions),
            lambda features: self.reducer.mean_of_rows(features, mask, counts),
        )
        return self.to_tensor(values), self.to_tensor(following.detach().amin(0)) - alpha * logp

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Outputs]:
        """Return what the policy's loss needs, by module; nothing where it is not due."""
        with self.mixed_precision():
            outputs: dict[str, Outputs] = {
                mid: self.module[mid].forward_inference(part) if self.policy_learns(mid) else {}
                for mid, part in batch.items()
            }
        return map_tree(self.to_tensor, outputs)

    # -- every n-th step ---

    def policy_learns(self, module_id: str) -> bool:
        """Return whether policy and temperature learn in the present gradient step."""
        steps = self.lifetime.get(f"{module_id}/critic_steps", 0)
        return (steps + 1) % self.config_of(module_id).policy_delay == 0

    def takes_part(self, entry: RegisteredOptimizer) -> bool:
        """Return whether the optimizer is stepped now: those of policy and temperature when they are due."""
        return entry.name == "critic" or self.policy_learns(entry.module_id)

    def compiled_variant(self) -> tuple[bool, ...]:
        """Return which policies learn now."""
        return tuple(self.policy_learns(module_id) for module_id in self.learning_modules())

    def pattern(self, num_steps: int) -> Hashable:
        counts = {mid: self.lifetime.get(f"{mid}/critic_steps", 0) for mid in self.learning_modules()}
        return pattern_of(counts, {mid: self.config_of(mid).policy_delay for mid in counts}, num_steps)

    def after_gradient_step(self) -> None:
        """Count the steps of the critics that learned."""
        for entry in self.optimizers:
            if entry.name == "critic" and entry.has_loss:
                self.count(f"{entry.module_id}/critic_steps", 1)


class CrossQConfig(AlgorithmConfig):
    """`CrossQConfig().environment("Pendulum-v1").build_trainer().run()`."""

    algorithm = "crossq"
    explorations = ("normal", "ou", "gsde")
    learner_class = CrossQLearner
    first_values = ("alpha", "initial_alpha")
    training_class = CrossQTraining
    module_class = DefaultCrossQModule
    is_off_policy = True
    learns_from_tensors = True
    squashes_actions = True
    training: CrossQTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.replay(capacity=1_000_000, learning_starts=5_000, update_per_step=1.0)
        networks = {"critic_hiddens": (2048, 2048), "free_log_std": False, "squash_actions": True}
        self.rl_module(model_config={**RECTIFIED, **networks})
