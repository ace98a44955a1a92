"""FlashSAC: SAC with normalised networks and a categorical critic (Kim et al. 2026, "FlashSAC: Fast and Stable
Off-Policy Reinforcement Learning for High-Dimensional Robot Control").

https://arxiv.org/abs/2604.04539. With a' ~ pi(. | s'), the atoms z of the critics' distributions, and their target
networks Z' with probabilities p':

    r = reward / max(deviation of the discounted return, largest discounted return / v_max)
    m = projection of  r + gamma (z - alpha log pi(a' | s')),  p' of the critic with the smaller mean
    critics:      minimise  sum_k KL(m || Z_k(s, a))
    policy:       minimise  E[alpha log pi(a | s) - min_k E[Z_k(s, a)]],  a ~ pi       in every second step
    temperature:  minimise  E[-alpha (log pi(a | s) + target entropy)]                 in every second step

Networks have residual blocks with batch normalisation. (s, a) and (s', a') are rows of the same batch, in the critics
and in the target critics. After each step the weights of each unit are scaled to the norm 1. Acting keeps the random
numbers of an action for n steps, where the probability of n is proportional to n^-2.

Each part has an option: `categorical_critic`, `unit_norm_weights`, `batch_norm`, `bounded_rewards` and `noise_repeat`.
With all of them off it is SAC with residual networks.

Defaults: as in the published code for MuJoCo (github.com/Holiday-Robot/FlashSAC): two critics of two residual blocks
of 256 units (1,024 inside a block), a policy of two blocks of 128 units, 101 atoms in [-5, 5], batch 512, Adam with lr
3e-4, tau 0.01, initial temperature 0.01, the target entropy of a Gaussian with deviation 0.15, 10,000 random steps, and
one gradient step for each environment step. (There the learning rate falls to the half over a run.)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor

from lockstep.algorithms.families.transitions import (
    NEXT_NOISE,
    NOISE,
    POLICY_DELAY,
    TARGET_UPDATE_INTERVAL,
    SoftActorCriticLearner,
    TargetSoftActorCriticTraining,
    critic_loss,
    discounts_of,
    next_inputs,
    td_targets,
    update_target_networks,
    weighted_critic_loss,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.metrics import Results
from lockstep.learner.minibatches import TensorColumns
from lockstep.learner.optimizers import RegisteredOptimizer
from lockstep.modules import DefaultFlashSACModule, ModelConfig
from lockstep.modules.defaults.normalized_critics import MeanOfRows
from lockstep.ops import project_on_atoms
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import FlashSACOptions

OUTSIDE = 0.05
"""Share of rows whose mean target is outside of the atoms, in an update, from which the learner warns."""


@dataclass
class FlashSACTraining(TargetSoftActorCriticTraining[ConfigT]):
    """Options of `FlashSACConfig.training(...)`."""

    train_batch_size: int = 512
    tau: float = option(0.01, gt=0, le=1)
    initial_alpha: float = option(0.01, gt=0)
    target_std: float = option(0.15, gt=0, finite=True)
    """Standard deviation of the Gaussian whose entropy is the target of `target_entropy="auto"`."""
    policy_delay: int = option(2, ge=1)
    """Number of gradient steps of the critics for each step of the policy and the temperature."""
    categorical_critic: bool = True
    """Critics estimate the distribution of returns on `num_atoms` atoms. False: critics estimate the mean, and learn
    with the squared error."""
    num_atoms: int = option(101, ge=2)
    """Number of atoms: the returns that have a probability."""
    v_min: float = option(-5.0, finite=True)
    """Lowest atom. Lower returns count as this one."""
    v_max: float = option(5.0, finite=True)
    """Highest atom. Higher returns count as this one."""
    unit_norm_weights: bool = True
    """Scale the weights of each unit to the norm 1 after each gradient step."""
    batch_norm: bool = True
    """Batch normalisation in policy and critics."""
    joint_batch: bool = True
    """Take the statistics of the critics over (s, a) and (s', a') together, for critics and target critics. False: over
    (s, a) only, and target critics use the running statistics, which saves a third of the time."""
    bounded_rewards: bool = True
    """Divide rewards by the running standard deviation of discounted returns, or by more if a return so far would
    otherwise be outside of the atoms."""
    noise_repeat: int = option(16, ge=1)
    """Largest number of steps for which acting keeps its random numbers. The number n of steps is drawn with a
    probability proportional to n^-2. 1: new numbers in each step."""

    @property
    def return_bound(self) -> float | None:
        """Bound of the discounted returns: the atom that is farthest from 0. None without `bounded_rewards`."""
        return max(-self.v_min, self.v_max) if self.bounded_rewards else None

    def validate(self) -> None:
        """Raise `ValueError` if the highest atom is not above the lowest."""
        super().validate()
        if self.v_max <= self.v_min:
            raise ValueError(
                f"training.v_max={self.v_max} is not allowed; it must be a finite number above v_min={self.v_min}"
            )

    def __call__(self, **options: Unpack[FlashSACOptions]) -> ConfigT:
        return self.change(options)


class FlashSACLearner(SoftActorCriticLearner[FlashSACTraining]):
    """The update of FlashSAC."""

    interval_options = (POLICY_DELAY, TARGET_UPDATE_INTERVAL)

    def setup_module(self, module_id: str) -> None:
        """Scale the initial weights, then make target critics and temperature."""
        self.check_memories(module_id)
        if self.config_of(module_id).unit_norm_weights:
            self.check_parts(module_id, "normalize_weights", "normalize_policy_weights")
            module: Any = self.module[module_id]
            module.normalize_weights()
        super().setup_module(module_id)
        self.check_parts(module_id, "policy_outputs", "mean_values")

    def compute_loss_for_module(
        self, *, module_id: str, config: FlashSACTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the critics' loss, plus those of policy and temperature in the steps where they learn."""
        alpha = self.registered[f"{module_id}/log_alpha"].detach().exp()
        with self.mixed_precision():
            outputs, next_outputs, next_logp = self.critic_outputs(module_id, batch)
        module: Any = self.module[module_id]
        if config.categorical_critic:
            loss = self.categorical_loss(module_id, batch, outputs, next_outputs, alpha * next_logp)
        else:
            next_values = module.mean_values(next_outputs).amin(0) - alpha * next_logp
            targets = td_targets(batch, next_values, config.gamma)
            loss = critic_loss(batch, module.mean_values(outputs), targets, module_id=module_id, learner=self)
        if not self.policy_learns(module_id):
            return loss

        with self.mixed_precision():
            policy_terms, neg_entropy = self.policy_terms(module_id, batch, fwd_out, alpha)
        actor_loss = self.masked_mean(policy_terms, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss + self.temperature_loss(module_id, batch, neg_entropy)

    def critic_outputs(self, module_id: str, batch: TensorColumns) -> tuple[Tensor, Tensor, Tensor]:
        """Return the critics' outputs `[K, N, M]` of the batch's actions, and those of the target critics at the next.

        The third is the log density `[N]` of the next actions. With `joint_batch`, (s, a) and (s', a') are rows of one
        batch in both networks. Its statistics are those of the real rows of all learners.
        """
        module: Any = self.module[module_id]
        critics = module.critics
        target_critics = self.registered[f"{module_id}/target"].module
        next_batch = next_inputs(batch)
        with torch.no_grad():
            next_actions, next_logp = module.sample(next_batch, batch[NEXT_NOISE])
            next_inputs_of_target = target_critics.inputs_of(
                next_inputs(batch, of_target=True)[Columns.OBS], next_actions
            )
        inputs = critics.inputs_of(batch[Columns.OBS], batch[Columns.ACTIONS])
        num_rows = len(inputs)

        if not self.config_of(module_id).joint_batch:
            with torch.no_grad():
                next_outputs = target_critics.mlp(next_inputs_of_target)
            outputs = critics.mlp(inputs, mean_of_rows=self.mean_of_batch(batch))
            return self.to_tensor(outputs), self.to_tensor(next_outputs), next_logp

        mean_of_rows = self.mean_of_batch(batch, halves=2)
        with torch.no_grad():
            inputs_of_target = target_critics.inputs_of(batch[Columns.OBS], batch[Columns.ACTIONS])
            joint_inputs = torch.cat([inputs_of_target, next_inputs_of_target])
            next_outputs = target_critics.mlp(
                joint_inputs, mean_of_rows=mean_of_rows, keeps=False, rows=slice(num_rows, None)
            )
        joint_inputs = torch.cat([inputs, critics.inputs_of(next_batch[Columns.OBS], next_actions)])
        outputs = critics.mlp(joint_inputs, mean_of_rows=mean_of_rows, rows=slice(num_rows))
        return self.to_tensor(outputs), self.to_tensor(next_outputs), next_logp

    def mean_of_batch(self, batch: TensorColumns, halves: int = 1) -> MeanOfRows:
        """Return the function from features `[K, halves * N, F]` to their means over the real rows of all learners.

        Args:
            batch: The batch, whose mask marks the real rows.
            halves: Number of times that the features have each row of the batch.
        """
        mask = batch.get(Columns.LOSS_MASK)
        if mask is not None:
            mask = mask.repeat(halves)
        return partial(self.reducer.mean_of_rows, mask=mask, counts=self.rows_in_step > 0)

    def categorical_loss(
        self, module_id: str, batch: TensorColumns, outputs: Tensor, next_outputs: Tensor, entropy_cost: Tensor
    ) -> Tensor:
        """Return the divergence of the target distribution from the critics' distributions, summed over critics.

        Args:
            module_id: Id of the module.
            batch: The batch.
            outputs: Logits `[K, N, M]` of the batch's actions.
            next_outputs: Logits `[K, N, M]` of the next actions by the target critics.
            entropy_cost: `[N]`, the temperature times the log density of the next actions.
        """
        config = self.config_of(module_id)
        module: Any = self.module[module_id]
        low, high = module.value_range
        with torch.no_grad():
            next_values, best = module.mean_values(next_outputs).min(0)
            next_probs = next_outputs.softmax(-1).take_along_dim(best[None, :, None], 0)[0]
            discounts = discounts_of(batch, config.gamma, next_probs.dtype)
            rewards = batch[Columns.REWARDS] - discounts * entropy_cost
            targets = project_on_atoms(next_probs, rewards, discounts, v_min=low, v_max=high)
            # A return that the atoms cannot represent piles up at the last atom, from where the reward moves the mean
            # of the targets out of their range.
            means = rewards + discounts * next_values
            outside = ((means < low) | (means > high)).to(means.dtype)
        self.log(module_id, targets_outside=self.masked_mean(outside, batch))

        log_probs = outputs.log_softmax(-1)
        row_losses = F.kl_div(log_probs, targets.expand_as(log_probs), reduction="none").sum(-1)
        values = module.mean_values(outputs.detach())
        return weighted_critic_loss(
            batch, row_losses.sum(0), values, row_losses.detach(), module_id=module_id, learner=self
        )

    def policy_terms(
        self, module_id: str, batch: TensorColumns, fwd_out: Outputs, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the policy's loss `[N]` of each row, and the negative entropy `[N]` of its policy.

        Critics normalise by their running statistics.
        """
        module: Any = self.module[module_id]
        dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        actions, logp = dist.sample_with_log_prob(batch[NOISE])
        inputs = module.critics.inputs_of(batch[Columns.OBS], actions, frozen=True)
        values = module.mean_values(self.to_tensor(module.critics.mlp(inputs, frozen=True)))
        return alpha * logp - self.combine_critics(values), logp

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Outputs]:
        """Return the policy's outputs by module. They are empty in the steps in which the policy does not learn."""
        outputs: dict[str, Outputs] = {}
        with self.mixed_precision():
            for module_id, columns in batch.items():
                outputs[module_id] = {}
                if self.policy_learns(module_id):
                    module: Any = self.module[module_id]
                    inputs = module.policy_outputs(columns, self.mean_of_batch(columns))
                    outputs[module_id] = {Columns.ACTION_DIST_INPUTS: self.to_tensor(inputs)}
        return outputs

    def target_entropy(self, module_id: str, batch: TensorColumns) -> Tensor | float:
        """Return the target entropy in nats. "auto" is the entropy of a Gaussian with the deviation `target_std`."""
        config = self.config_of(module_id)
        space = self.module[module_id].action_space
        if config.target_entropy != "auto" or not isinstance(space, spaces.Box):
            return super().target_entropy(module_id, batch)
        return 0.5 * math.prod(space.shape) * math.log(2.0 * math.pi * math.e * config.target_std**2)

    def summarize(self, trained: Mapping[str, int], counts: dict[str, int], seconds: float) -> Results:
        """Return the results of an update. Warn once if returns have left the range of the atoms."""
        results = super().summarize(trained, counts, seconds)
        for module_id in trained:
            share = results[module_id].get("targets_outside", 0.0)
            if self._count_and_should_warn(f"{module_id}/updates_outside", int(share > OUTSIDE)):
                config = self.config_of(module_id)
                warnings.warn(
                    f"module {module_id!r}: {share:.0%} of the targets are returns outside of the atoms "
                    f"[{config.v_min:g}, {config.v_max:g}], which count as the nearest atom, so values are wrong; "
                    "choose another training.v_min and v_max, or scale rewards (bounded_rewards=True)",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return results

    def constrain_weights(self, stepped: Sequence[RegisteredOptimizer]) -> None:
        """Scale the weights of the networks that have learned."""
        for entry in stepped:
            if entry.name != "alpha" and self.config_of(entry.module_id).unit_norm_weights:
                module: Any = self.module[entry.module_id]
                if entry.name == "critic":
                    module.critics.mlp.normalize_weights()
                else:
                    module.normalize_policy_weights()

    def after_gradient_step(self) -> None:
        """Update the target critics."""
        update_target_networks(self, TARGET_UPDATE_INTERVAL)


class FlashSACConfig(AlgorithmConfig):
    """`FlashSACConfig().environment("Pendulum-v1").build_trainer().run()`."""

    algorithm = "flashsac"
    learner_class = FlashSACLearner
    # A checkpoint contains the temperature, which begins with one of the first two options, and the network, whose
    # shape depends on the others. So a resumed run refuses other values of these options.
    first_values = ("alpha", "initial_alpha", "categorical_critic", "num_atoms", "v_min", "v_max", "batch_norm")
    training_class = FlashSACTraining
    module_class = DefaultFlashSACModule
    is_off_policy = True
    learns_from_tensors = True
    squashes_actions = True
    training: FlashSACTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.replay(capacity=1_000_000, learning_starts=10_000, update_per_step=1.0)
        networks = {"hiddens": (128, 128), "critic_hiddens": (256, 256), "activation": "relu", "policy_gain": 1.0}
        options = {"log_std_bounds": (-10.0, 2.0), "free_log_std": False, "squash_actions": True}
        self.rl_module(model_config={**networks, **options})

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """Add normalisation and atoms to the configuration of the network."""
        completed = super().complete_model_config(model_config)
        training = self.training
        completed = replace(completed, batch_norm=training.batch_norm)
        if not training.categorical_critic:
            return completed
        return replace(completed, num_value_outputs=training.num_atoms, value_range=(training.v_min, training.v_max))
