"""PPO: proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

With the ratio r(theta) = pi(a | s) / pi_old(a | s) and advantages A from GAE (generalised advantage estimation):

    L_CLIP = E[min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)]                   (equation 7)
    maximise  L_CLIP - c1 E[(V(s) - V_target)^2] + c2 E[entropy of pi(. | s)]   (equation 9)

Defaults: the paper's for continuous control (table 3: 2048 steps, minibatches of 64, 10 epochs, lr 3e-4, gamma 0.99,
lambda 0.95, clip 0.2); gradient norm 0.5 and Adam epsilon 1e-5 as in the reference code ("The 37 implementation
details of PPO", Huang et al. 2022, details 3 and 11); advantages normalised per minibatch (detail 7). With
`minibatch_size="auto"` a minibatch has 64 rows, or 8 sequences for networks with a memory. `docs/glossary.md` explains
words such as advantage and rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.on_policy import OnPolicyLearner
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import TrainingSection
from lockstep.learner.images import of_originals
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.ops import approximate_kl, clipped_ratios, clipped_surrogate_loss, clipped_value_loss
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import PPOOptions


@dataclass
class PPOTraining(TrainingSection[ConfigT]):
    """Options of `PPOConfig.training(...)`."""

    minibatch_size: int | Literal["auto"] | None = "auto"
    num_epochs: int = 10
    grad_clip: float | None = 0.5
    adam_epsilon: float = 1e-5
    lambda_: float = option(0.95, ge=0, le=1)
    """Lambda of GAE (Schulman et al. 2016)."""
    clip_param: ScheduleLike = option(0.2, gt=0)
    """Epsilon of the clipped surrogate (equation 7)."""
    vf_clip_param: float | None = option(None, gt=0)
    """Maximum distance of the new value from the old one in the value loss. `None` does not clip values."""
    vf_loss_coeff: float = option(0.5, ge=0)
    """Weight of the value loss."""
    entropy_coeff: ScheduleLike = 0.0
    """Weight of the entropy bonus. 0 gives no bonus."""
    normalize_advantages: Literal["minibatch", "batch"] | None = "minibatch"
    """Rows over which advantages are normalised to mean 0 and standard deviation 1: those of a minibatch or of the
    whole batch. `None` does not normalise."""
    dual_clip: float | None = option(None, gt=1)
    """Factor of dual clipping (Ye et al. 2020, equation 5): for a negative advantage A the objective is not below
    `dual_clip * A`, however large the ratio is. `None` sets no bound."""
    target_kl: float | None = option(None, gt=0)
    """Limit of the mean KL divergence of the new policy from the old one. After a pass over the rollout in which it was
    exceeded, the update makes no further passes. `None` makes all passes."""
    kl_coeff: float = option(0.0, ge=0)
    """Initial coefficient of the adaptive KL penalty (equation 8). 0 uses no penalty."""
    kl_target: float = option(0.01, gt=0)
    """KL divergence that the adaptive penalty aims at."""

    def __call__(self, **options: Unpack[PPOOptions]) -> ConfigT:
        return self.change(options)


class PPOLearner(OnPolicyLearner[PPOTraining]):
    """The update of PPO."""

    scheduled = ("clip_param", "entropy_coeff")
    learns_symmetry = True  # rows may be followed by their mirror images, see `learner/images.py`
    loss_has_kernel = True  # on the CPU, `fused_loss` computes the loss below in one call

    def setup_module(self, module_id: str) -> None:
        """Make the coefficient of the KL penalty, which is part of the learner's state."""
        super().setup_module(module_id)
        initial = torch.tensor(self.config_of(module_id).kl_coeff, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/kl_coeff", initial)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """Return the names of the columns that the loss reads. A batch without one of them is refused.

        Batches do not only come from `prepare_batch` below: a program may also hand finished columns to
        `update_from_batch`. The learner checks both against these names.
        """
        config = self.config_of(module_id)
        names = [Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS]
        if config.vf_clip_param is not None:
            names.append(Columns.VF_PREDS)
        if config.kl_coeff > 0:
            names.append(Columns.ACTION_DIST_INPUTS)
        return tuple(names)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the train batch of a rollout, which all passes use.

        It has observations, actions, advantages, value targets and the recorded outputs of the old policy.
        """
        config = self.config_of(module_id)
        # One forward pass over the whole rollout, before the first gradient step.
        evaluated = self.evaluate(module_id, trajectories)
        advantages, targets = self.generalized_advantages(module_id, trajectories, evaluated)
        columns = {
            Columns.OBS: evaluated.obs,
            Columns.ACTIONS: evaluated.actions,
            Columns.ACTION_LOGP: evaluated.old_logp,
            Columns.ADVANTAGES: advantages,
            Columns.VALUE_TARGETS: targets,
        }
        if config.vf_clip_param is not None:
            columns[Columns.VF_PREDS] = evaluated.old_values
        if config.kl_coeff > 0:
            columns[Columns.ACTION_DIST_INPUTS] = evaluated.old_dist_inputs
        columns = self.rows_to_train(columns, evaluated, trajectories)
        if config.normalize_advantages == "batch":
            columns[Columns.ADVANTAGES] = self.normalized(columns[Columns.ADVANTAGES], columns)
        return columns

    def compute_loss_for_module(
        self, *, module_id: str, config: PPOTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the loss of equation 9: clipped surrogate, value loss and entropy bonus.

        `old_logp` is the log-probability of the action under the policy that acted, `logp` under the present one. A
        mirror image has that of its original, whose probability it has in a symmetric policy (Mittal et al. 2024). So
        its ratio also shows how asymmetric the policy is, and is left out where steps are measured (KL divergence).

        With several learners, `batch` is one learner's part of the minibatch. Means are taken over all parts together.
        """
        # Despite its name `action_dist_cls` is an object: an `ActionDist`, which describes the distribution of actions.
        dist_cls = self.module[module_id].action_dist_cls
        dist = dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp = dist.log_prob(batch[Columns.ACTIONS])
        old_logp = batch[Columns.ACTION_LOGP]
        advantages = batch[Columns.ADVANTAGES]
        if config.normalize_advantages == "minibatch":
            advantages = self.normalized(advantages, batch)

        # `coefficient` returns the present value of any option in `scheduled`: of `entropy_coeff`, which is a factor in
        # the loss, and of `clip_param`, which is a limit of the ratio.
        clip_param = self.coefficient(module_id, "clip_param")
        surrogate = clipped_surrogate_loss(
            logp, old_logp, advantages, clip_param=clip_param, dual_clip=config.dual_clip
        )
        old_values = batch.get(Columns.VF_PREDS)  # None without clipping of values
        value_error = clipped_value_loss(
            fwd_out[Columns.VF_PREDS], batch[Columns.VALUE_TARGETS], old_values, config.vf_clip_param
        )
        kl = of_originals(approximate_kl(logp.detach(), old_logp), batch)
        clipped = of_originals(clipped_ratios(logp.detach(), old_logp, clip_param), batch)
        # One reduction over all learners for all five means.
        row_terms = (surrogate, value_error, dist.entropy(), kl, clipped)
        policy_loss, vf_loss, entropy, mean_kl, clip_fraction = self.masked_means(row_terms, batch)
        loss = policy_loss + config.vf_loss_coeff * vf_loss - self.coefficient(module_id, "entropy_coeff") * entropy

        if config.kl_coeff > 0:
            # The penalty needs a gradient. `approximate_kl` above has none: it was computed from detached
            # log-probabilities, for the metric only. So the divergence is computed exactly here, from the recorded
            # distributions of the old policy. The metric `mean_kl_loss` then logs the exact divergence as well:
            # `after_gradient_based_update` compares this metric with `kl_target`, to raise or lower the coefficient.
            old_dist = dist_cls.from_inputs(batch[Columns.ACTION_DIST_INPUTS])
            mean_kl = self.masked_mean(of_originals(old_dist.kl(dist), batch), batch)
            loss = loss + self.registered[f"{module_id}/kl_coeff"] * mean_kl
        self.log(
            module_id,
            policy_loss=policy_loss,
            vf_loss=vf_loss,
            entropy=entropy,
            mean_kl_loss=mean_kl,
            clip_fraction=clip_fraction,
        )
        return loss

    def should_stop_passes(self) -> bool | Tensor:
        """Return whether the mean KL divergence of the last pass was above `target_kl` for any module.

        `target_kl` ends an update early. The option `kl_target` is another one: it belongs to the KL penalty.
        """
        is_above = []
        for module_id in self.learning_modules():
            target_kl = self.config_of(module_id).target_kl
            if target_kl is not None:
                is_above.append(self.metrics.pass_mean(module_id, "mean_kl_loss") > target_kl)
        # On a device the result stays a tensor: reading it would make the host wait.
        return reduce(torch.logical_or, is_above) if is_above else False

    def after_gradient_based_update(self, *, timesteps: Mapping[str, int] | None = None) -> None:
        """Adapt the coefficients of the KL penalties (section 4), so that the divergence approaches `kl_target`."""
        for module_id in self.learning_modules():
            config = self.config_of(module_id)
            if config.kl_coeff > 0:
                self.adapt_kl_coefficient(module_id, config.kl_target)


class PPOConfig(AlgorithmConfig):
    """Configuration of PPO.

    Example: `PPOConfig().environment("CartPole-v1").training(lr=3e-4).build_trainer().run()`.
    """

    algorithm = "ppo"
    # Allowed values of `env_runners(exploration=...)`. The default is None: actions are samples of the policy's
    # distribution. "gsde" is generalised state-dependent exploration.
    explorations = ("gsde",)
    learns_from_tensors = True  # rollouts may be on a device, from tensor environments
    learner_class = PPOLearner
    # The option is only the first value of the coefficient, which the learner adapts and checkpoints contain. A resumed
    # run continues with the adapted value, so it refuses another value of the option.
    first_values = ("kl_coeff",)
    training_class = PPOTraining
    training: PPOTraining[Self]
