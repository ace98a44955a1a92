"""TQC: truncated quantile critics (Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of
Continuous Distributional Quantile Critics").

https://arxiv.org/abs/2005.04269. TQC is SAC with N critics, each of which has M quantiles of the return as outputs. The
targets are all N M quantiles at the next observation except the d N largest:

    y_i = r + gamma (z_i(s', a') - alpha log pi(a' | s')),  i = 1, ..., (M - d) N, z in rising order
    critics:  minimise the quantile Huber loss of all quantiles of Q_k(s, a) for the y_i      (algorithm 1)
    policy:   minimise  E[alpha log pi(a | s) - mean of all N M quantiles of Q(s, a)],  a ~ pi

In this way overestimation is controlled in small steps, whereas SAC can only take the smaller of two critics. The
quantiles are those of QR-DQN (Dabney et al. 2018). Actions are in a Box.

Defaults: those of the paper (its table of hyperparameters): 5 critics of three layers of 512 units with ReLU, 25
quantiles, 2 dropped for each critic. The rest is as in SAC. (The paper drops 5 on Hopper, where values diverge, and
none on HalfCheetah.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.transitions import (
    NEXT_NOISE,
    RECTIFIED,
    SoftActorCriticLearner,
    TargetSoftActorCriticTraining,
    discounts_of,
    next_inputs,
    weighted_critic_loss,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultTQCModule, ModelConfig
from lockstep.ops import mixture_huber_loss
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import TQCOptions


@dataclass
class TQCTraining(TargetSoftActorCriticTraining[ConfigT]):
    """Options of `TQCConfig.training(...)`."""

    num_quantiles: int = option(25, ge=2)
    """Number of quantiles of the return that each critic estimates (M)."""
    quantiles_to_drop: int = option(2, ge=0)
    """Number of largest quantiles per critic that targets leave out (d). Increase it if values are too high."""

    def validate(self) -> None:
        """Raise `ValueError` if all quantiles would be dropped."""
        super().validate()
        if self.quantiles_to_drop >= self.num_quantiles:
            raise ValueError(
                f"training.quantiles_to_drop={self.quantiles_to_drop} is not allowed; it must be below "
                f"num_quantiles={self.num_quantiles}"
            )

    def __call__(self, **options: Unpack[TQCOptions]) -> ConfigT:
        return self.change(options)


class TQCLearner(SoftActorCriticLearner[TQCTraining]):
    """The update of TQC."""

    def compute_loss_for_module(
        self, *, module_id: str, config: TQCTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the sum of the losses of critics (algorithm 1), policy and temperature."""
        alpha = self.registered[f"{module_id}/log_alpha"].detach().exp()
        with self.mixed_precision():
            next_quantiles = self.truncated_mixture(module_id, batch, alpha)
            policy_losses, neg_entropy = self.policy_terms(module_id, batch, fwd_out, alpha)

        quantiles = fwd_out["q_values"]
        discounts = discounts_of(batch, config.gamma, quantiles.dtype)
        targets = batch[Columns.REWARDS].unsqueeze(-1) + discounts.unsqueeze(-1) * next_quantiles
        row_losses = mixture_huber_loss(quantiles, targets).sum(0) / config.num_quantiles
        # For log and priorities the value of a critic is the mean of its quantiles.
        values = quantiles.detach().mean(-1)
        errors = values - targets.mean(-1)
        loss = weighted_critic_loss(batch, row_losses, values, errors, module_id=module_id, learner=self)

        actor_loss = self.masked_mean(policy_losses, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss + self.temperature_loss(module_id, batch, neg_entropy)

    @torch.no_grad()
    def truncated_mixture(self, module_id: str, batch: TensorColumns, alpha: Tensor) -> Tensor:
        """Return the smallest quantiles `[N, (M - d) K]` of all target critics at the next observations.

        They are in rising order, and include the entropy term.
        """
        module: Any = self.module[module_id]
        config = self.config_of(module_id)
        target_critics = self.registered[f"{module_id}/target"].module
        target_obs = next_inputs(batch, of_target=True)[Columns.OBS]
        actions, logp = module.sample(next_inputs(batch), batch[NEXT_NOISE])
        quantiles = self.to_tensor(target_critics(target_obs, actions))
        # From [K, N, M] to one row of K * M quantiles for each transition, the smallest first.
        mixture = quantiles.transpose(0, 1).flatten(1).sort(-1).values
        num_critics = len(quantiles)
        num_remaining = num_critics * (config.num_quantiles - config.quantiles_to_drop)
        return mixture[:, :num_remaining] - (alpha * logp).unsqueeze(-1)

    def combine_critics(self, values: Tensor) -> Tensor:
        """Return the mean `[N]` of all critics' quantiles `[K, N, M]`."""
        return values.mean((0, -1))


class TQCConfig(AlgorithmConfig):
    """`TQCConfig().environment("Pendulum-v1").build_trainer().run()`."""

    algorithm = "tqc"
    explorations = ("normal", "ou", "gsde")
    learner_class = TQCLearner
    # A checkpoint contains the temperature, which begins with one of the first two options, and the network, whose
    # shape depends on the third one. So a resumed run refuses other values of these options.
    first_values = ("alpha", "initial_alpha", "num_quantiles")
    training_class = TQCTraining
    module_class = DefaultTQCModule
    is_off_policy = True
    learns_from_tensors = True
    squashes_actions = True
    training: TQCTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.replay(capacity=1_000_000, update_per_step=1.0)
        networks = {"num_critics": 5, "critic_hiddens": (512, 512, 512), "free_log_std": False, "squash_actions": True}
        self.rl_module(model_config={**RECTIFIED, **networks})

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """Add the number of quantiles to the configuration of the network."""
        completed = super().complete_model_config(model_config)
        return replace(completed, num_value_outputs=self.training.num_quantiles)
