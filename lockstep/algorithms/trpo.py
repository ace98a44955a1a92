"""TRPO: trust region policy optimisation (Schulman et al. 2015, https://arxiv.org/abs/1502.05477).

An update makes one step of the policy, on the whole batch:

    maximise  L(theta) = E[pi(a | s) / pi_old(a | s) A]  subject to  E[KL(pi_old || pi)] <= delta       (equation 14)

The direction of the step is s = F^-1 g, where g is the gradient of L, and F is the Hessian matrix of the mean KL (the
Fisher matrix). Conjugate gradient needs only products F v (appendix C). The length is the largest that the quadratic
approximation of the constraint allows, sqrt(2 delta / s F s). A line search shortens it until L has grown and the true
mean KL is at most delta.

The gradient g comes from `Learner.compute_gradients`, like that of any other loss. It is then replaced by the negative
step, which an optimizer with learning rate 1 (SGD) takes. In this way the learner's only calls of `backward` and `step`
also serve here. F v, L and KL are summed over the rows of all learners. The value function learns in every pass.

Defaults: delta 0.01 as in the paper; GAE in place of the paper's Monte Carlo estimates; the rest as in Spinning Up
(https://spinningup.openai.com, TRPO): damping 0.1, up to 10 lengths, each 0.8 times the last one, lambda 0.97, and 80
passes of the value function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import torch
from torch import Tensor, nn

from lockstep.algorithms.families.on_policy import OnPolicyLearner
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.config.rules import Rule
from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import TrainingSection
from lockstep.learner.learner import Gradients, Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.optimizers import FlatParameters
from lockstep.ops import Distribution
from lockstep.ops.trust_region import hessian_product, line_search, natural_step
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import TRPOOptions

NUM_LENGTHS = 10
"""Number of lengths that the line search tries. If none is accepted, the policy does not change."""
SHRINK = 0.8
"""Ratio of each length to the one before it."""


@dataclass
class TRPOTraining(TrainingSection[ConfigT]):
    """Options of `TRPOConfig.training(...)`.

    `lr`, `num_epochs`, `grad_clip` and `optimizer` belong to the value function.
    """

    lr: ScheduleLike = 1e-3
    num_epochs: int = option(80, ge=1)
    """Number of passes of the value function over the batch. The policy learns in the first pass only."""
    lambda_: float = option(0.97, ge=0, le=1)
    """Lambda of GAE."""
    max_kl: float = option(0.01, gt=0)
    """Maximum mean KL divergence of the policy after an update from the policy before it (the paper's delta)."""
    cg_iterations: int = option(10, ge=1)
    """Number of iterations of conjugate gradient."""
    cg_damping: float = option(0.1, ge=0)
    """Number that is added to the diagonal of the Fisher matrix."""

    def __call__(self, **options: Unpack[TRPOOptions]) -> ConfigT:
        return self.change(options)

    def validate(self) -> None:
        """Raise `ValueError` for minibatches: the policy makes one step on the whole batch."""
        super().validate()
        if self.minibatch_size is not None:
            raise ValueError(
                f"training.minibatch_size={self.minibatch_size!r} is not allowed for trpo; it must be None"
            )


class TRPOLearner(OnPolicyLearner[TRPOTraining]):
    """The update of TRPO."""

    policy_learns = True
    """Whether this gradient step is the first one of an update, in which the policy learns."""
    line_search_batches: dict[str, TensorColumns]
    """Batch of the line search, by module. It is set by the loss and taken by the step."""

    def configure_optimizers_for_module(self, module_id: str, config: TRPOTraining) -> None:
        """Register "policy", an SGD that makes the step of the line search, and "critic"."""
        self.check_parts(module_id, "value_encoder", "value_head")
        policy: list[nn.Parameter] = []
        critic: list[nn.Parameter] = []
        for name, param in self.module[module_id].named_parameters():
            if param.requires_grad:
                (critic if name.startswith("value_") else policy).append(param)
        # With learning rate 1, SGD subtracts the gradient, which is replaced by the negative step.
        self.optimizers.register(module_id, "policy", lambda flat: torch.optim.SGD([flat], lr=1.0), policy, None)
        self.register_configured(module_id, "critic", critic, config.lr, config)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        return (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the columns of a rollout with value targets and with advantages that are normalised over the batch."""
        evaluated = self.evaluate(module_id, trajectories)
        advantages, targets = self.generalized_advantages(module_id, trajectories, evaluated)
        columns = {
            Columns.OBS: evaluated.obs,
            Columns.ACTIONS: evaluated.actions,
            Columns.ACTION_LOGP: evaluated.old_logp,
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: targets,
        }
        columns = self.rows_to_train(columns, evaluated, trajectories)
        columns[Columns.ADVANTAGES] = self.normalized(columns[Columns.ADVANTAGES], columns)
        return columns

    def compute_loss_for_module(
        self, *, module_id: str, config: TRPOTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the value error plus, in the first pass, the negative L of equation 14.

        The two share no parameters, so one backward pass gives the gradients of both.
        """
        vf_loss = self.masked_mean(0.5 * (fwd_out[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]).square(), batch)
        self.log(module_id, vf_loss=vf_loss)
        if not self.policy_learns:
            return vf_loss
        self.line_search_batches[module_id] = batch
        losses, dist = self.policy_losses(module_id, batch, fwd_out)
        self.log(module_id, entropy=self.masked_mean(dist.entropy(), batch))
        return vf_loss + self.masked_mean(losses, batch)

    def policy_losses(self, module_id: str, batch: TensorColumns, fwd_out: Outputs) -> tuple[Tensor, Distribution]:
        """Return the negative importance-weighted advantage `[N]` of each row, and the distribution of actions."""
        dist = self.module[module_id].action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        ratios = (dist.log_prob(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]).exp()
        return -ratios * batch[Columns.ADVANTAGES], dist

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: TRPOTraining, module_gradients_dict: Gradients
    ) -> Gradients:
        """Clip the critic's gradient, and replace the policy's gradient by the negative step."""
        entry = self.optimizers.get(module_id, "policy")
        # Copied before the clipping, which changes the gradient in place.
        gradient_of_l = -entry.flat.grad
        gradients = super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )
        # The step of the line search takes the place of the gradient. If the gradient is not finite there is no step to
        # compute: it stays in place, so that the optimizer finds it and does what `nan_policy` says.
        if self.policy_learns and entry.has_loss and bool(gradient_of_l.isfinite().all()):
            batch = self.line_search_batches.pop(module_id)
            with self.in_step(self._weight_of(module_id, batch)):
                entry.flat.grad.copy_(-self.policy_step(module_id, config, entry.flat, gradient_of_l, batch))
        return gradients

    def policy_step(
        self, module_id: str, config: TRPOTraining, flat: FlatParameters, gradient_of_l: Tensor, batch: TensorColumns
    ) -> Tensor:
        """Return the step `[n]` of the policy's parameters, or zeros if the line search accepts no length.

        The direction is the natural gradient, F^-1 g. F is the Hessian of the mean KL divergence at the present
        parameters (the Fisher matrix). It is never stored: conjugate gradient needs its products with vectors only. The
        lengths that are tried are the one with a divergence of about `max_kl`, and shorter ones.
        """
        initial = flat.data.clone()
        fwd_out = self.forward_train({module_id: batch})[module_id]
        losses, dist = self.policy_losses(module_id, batch, fwd_out)
        old_dist = self.module[module_id].action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS].detach())
        kl_hessian_product = hessian_product(self.masked_mean(old_dist.kl(dist), batch), flat.params)

        def fisher_product(vector: Tensor) -> Tensor:
            return self.reducer.sum_(kl_hessian_product(vector)) + config.cg_damping * vector

        def evaluate_step(step: Tensor) -> tuple[Tensor, Tensor]:
            """Return the policy's loss and the mean KL after a step."""
            # The parameters are views of `flat`, so the network computes with the step.
            flat.data.copy_(initial + step)
            new_losses, new_dist = self.policy_losses(
                module_id, batch, self.forward_train({module_id: batch})[module_id]
            )
            flat.data.copy_(initial)
            return self.masked_mean(new_losses, batch), self.masked_mean(old_dist.kl(new_dist), batch)

        initial_loss = self.masked_mean(losses.detach(), batch)
        full_step = natural_step(fisher_product, gradient_of_l, config.max_kl, config.cg_iterations)
        result = line_search(full_step, evaluate_step, initial_loss, config.max_kl, NUM_LENGTHS, SHRINK)
        self.log(module_id, policy_loss=result.loss, mean_kl_loss=result.distance, line_search_share=result.share)
        return result.step

    def before_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Let the policy learn in the first gradient step."""
        super().before_gradient_based_update(timesteps=timesteps)
        self.policy_learns = True
        self.line_search_batches = {}

    def after_gradient_step(self) -> None:
        """Let only the value function learn in the following steps."""
        self.policy_learns = False


class TRPOConfig(AlgorithmConfig):
    """`TRPOConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "trpo"
    learner_class = TRPOLearner
    training_class = TRPOTraining
    training: TRPOTraining[Self]
    rules = (
        # The policy's step must not move the value function, and the line search does not run in compiled code.
        Rule(
            "rl_module.model_config.vf_share_layers",
            lambda config: getattr(config.rl_module.model_config, "vf_share_layers", False),
            "is not allowed for trpo; set it to False",
        ),
        Rule(
            "framework.compile",
            lambda config: config.framework.compile is True,
            "is not allowed for trpo; set it to False",
        ),
    )
