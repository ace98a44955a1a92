"""TRPO: trust region policy optimisation (Schulman et al. 2015, https://arxiv.org/abs/1502.05477).

In an update the policy takes one step, on the whole batch:

    maximise  L(theta) = E[pi(a | s) / pi_old(a | s) A]  subject to  E[KL(pi_old || pi)] <= delta       (equation 14)

The step goes along s = F^-1 g: g is the gradient of L, F that of the mean KL's gradient (the Fisher matrix). Conjugate
gradient needs products F v only (appendix C). It is as long as the constraint allows in its quadratic form,
sqrt(2 delta / s F s), and is shortened until L has grown and the true mean KL is at most delta.

The gradient g comes from `Learner.compute_gradients`, as any other does. The line search puts minus the step that it
found in its place, and an optimizer with learning rate 1 (SGD) takes that step. So the learner's one `backward` and one
`step` serve here, too. All learners add up F v, L and KL of their rows. The value function learns in every pass.

Defaults: delta 0.01 as in the paper; GAE in place of its Monte Carlo estimates; all else as in Spinning Up
(https://spinningup.openai.com, TRPO): damping 0.1, shorter by 0.8 up to 10 times, lambda 0.97, 80 passes
of the value function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

import torch
from torch import Tensor

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

NUM_LENGTHS, SHRINK = 10, 0.8
"""of the steps that the line search tries; where none is good, the policy stays as it is"""


@dataclass
class TRPOTraining(TrainingSection[ConfigT]):
    """Options of `TRPOConfig.training(...)`. `lr`, `num_epochs`, `grad_clip`, `optimizer`: of the value function."""

    lr: ScheduleLike = 1e-3
    num_epochs: int = option(80, ge=1)
    """passes of the value function over the batch; the policy learns in the first"""
    lambda_: float = option(0.97, ge=0, le=1)
    """lambda of GAE"""
    max_kl: float = option(0.01, gt=0)
    """delta: how far an update may take the policy, in the mean KL divergence over the batch"""
    cg_iterations: int = option(10, ge=1)
    """iterations of conjugate gradient"""
    cg_damping: float = option(0.1, ge=0)
    """is added to the diagonal of the Fisher matrix"""

    def __call__(self, **options: Unpack[TRPOOptions]) -> ConfigT:
        return self.change(options)

    def validate(self) -> None:
        """Refuse minibatches: the step of the policy is one of the whole batch."""
        super().validate()
        if self.minibatch_size is not None:
            raise ValueError(
                f"training.minibatch_size={self.minibatch_size!r} is not allowed for trpo; it must be None"
            )


class TRPOLearner(OnPolicyLearner[TRPOTraining]):
    """The update of TRPO."""

    policy_learns = True
    """whether the present gradient step is the first one of an update"""
    searched: dict[str, TensorColumns]
    """by module: the rows that the line search looks at"""

    def configure_optimizers_for_module(self, module_id: str, config: TRPOTraining) -> None:
        """Register "policy", which takes the step that the line search found, and "critic"."""
        self.check_parts(module_id, "value_encoder", "value_head")
        named = [pair for pair in self.module[module_id].named_parameters() if pair[1].requires_grad]
        policy, critic = ([p for name, p in named if name.startswith("value_") == of_values] for of_values in (0, 1))
        self.optimizers.register(module_id, "policy", lambda flat: torch.optim.SGD([flat], lr=1.0), policy, None)
        self.register_configured(module_id, "critic", critic, config.lr, config)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        return (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return advantages, normalised over the batch, and value targets of a rollout, and what acted."""
        rollout = self.evaluate(module_id, trajectories)
        advantages, targets = self.generalized_advantages(module_id, trajectories, rollout)
        columns = {
            Columns.OBS: rollout.obs,
            Columns.ACTIONS: rollout.actions,
            Columns.ACTION_LOGP: rollout.old_logp,
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: targets,
        }
        columns = self.rows_to_train(columns, rollout, trajectories)
        columns[Columns.ADVANTAGES] = self.normalized(columns[Columns.ADVANTAGES], columns)
        return columns

    def compute_loss_for_module(
        self, *, module_id: str, config: TRPOTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the value error and, in the first pass, minus L of equation 14; they share no parameter."""
        vf_loss = self.masked_mean(0.5 * (fwd_out[Columns.VF_PREDS] - batch[Columns.VALUE_TARGETS]).square(), batch)
        self.log(module_id, vf_loss=vf_loss)
        if not self.policy_learns:
            return vf_loss
        self.searched[module_id] = batch
        losses, dist = self.policy_losses(module_id, batch, fwd_out)
        self.log(module_id, entropy=self.masked_mean(dist.entropy(), batch))
        return vf_loss + self.masked_mean(losses, batch)

    def policy_losses(self, module_id: str, batch: TensorColumns, fwd_out: Outputs) -> tuple[Tensor, Distribution]:
        """Return minus the importance-weighted advantage of each row, and the distributions of actions."""
        dist = self.module[module_id].action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        ratios = (dist.log_prob(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]).exp()
        return -ratios * batch[Columns.ADVANTAGES], dist

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: TRPOTraining, module_gradients_dict: Gradients
    ) -> Gradients:
        """Clip the critic's gradient; put minus the step in the place of the policy's."""
        entry = self.optimizers.get(module_id, "policy")
        g = -entry.flat.grad
        gradients = super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )
        if self.policy_learns and entry.has_loss and bool(g.isfinite().all()):  # else `nan_policy` decides
            batch = self.searched.pop(module_id)
            with self.in_step(self._weight_of(module_id, batch)):
                entry.flat.grad.copy_(-self.step_of_policy(module_id, config, entry.flat, g, batch))
        return gradients

    def step_of_policy(
        self, module_id: str, config: TRPOTraining, flat: FlatParameters, g: Tensor, batch: TensorColumns
    ) -> Tensor:
        """Return the step `[n]` of the policy's parameters, zeros where no length is good."""
        fwd_out, start = self.forward_train({module_id: batch})[module_id], flat.data.clone()
        losses, dist = self.policy_losses(module_id, batch, fwd_out)
        old = self.module[module_id].action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS].detach())
        product = hessian_product(self.masked_mean(old.kl(dist), batch), flat.params)

        def fisher_product(vector: Tensor) -> Tensor:
            return self.reducer.sum_(product(vector)) + config.cg_damping * vector

        def try_out(step: Tensor) -> tuple[Tensor, Tensor]:
            flat.data.copy_(start + step)
            losses, dist = self.policy_losses(module_id, batch, self.forward_train({module_id: batch})[module_id])
            flat.data.copy_(start)
            return self.masked_mean(losses, batch), self.masked_mean(old.kl(dist), batch)

        before = self.masked_mean(losses.detach(), batch)
        step = natural_step(fisher_product, g, config.max_kl, config.cg_iterations)
        found = line_search(step, try_out, before, config.max_kl, NUM_LENGTHS, SHRINK)
        self.log(module_id, policy_loss=found.loss, mean_kl_loss=found.distance, line_search_share=found.share)
        return found.step

    def before_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Let the policy learn in the first gradient step."""
        super().before_gradient_based_update(timesteps=timesteps)
        self.policy_learns, self.searched = True, {}

    def after_gradient_step(self) -> None:
        """Let only the value function learn in the steps that follow."""
        self.policy_learns = False


class TRPOConfig(AlgorithmConfig):
    """`TRPOConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "trpo"
    learner_class = TRPOLearner
    training_class = TRPOTraining
    training: TRPOTraining[Self]
    rules = (
        # The line search evaluates the policy alone, and not in compiled code.
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
