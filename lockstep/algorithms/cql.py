"""CQL: conservative Q-learning (Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning").

https://arxiv.org/abs/2006.04779. CQL is SAC with lower values for actions that are not in the data:

    minimise  min_q_weight E_data[log sum_a exp Q(s, a) - Q(s, a)] + E_data[(Q(s, a) - target)^2]    (equation 4)

The target is that of SAC. The squared error has the factor 1 of the paper's code; equation 4 has the factor 1/2.

For discrete actions the sum is exact. For a Box it is estimated from `num_actions` uniform actions, and as many actions
of the policy at the observation and at the next observation, each divided by its density (appendix F).

Defaults: those of the paper's code: weight 5, 10 actions, Adam with lr 1e-4 for the policy and 3e-4 for the critics,
targets without entropy, batch 256, two layers of 256 units with ReLU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
from torch import Tensor, nn

from lockstep.algorithms.families.transitions import (
    NOISE,
    RECTIFIED,
    SoftActorCriticLearner,
    TargetSoftActorCriticTraining,
    td_targets,
    values_of_actions,
    weighted_critic_loss,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trees import Tree, map_tree
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultSACModule, MemoryFeatures
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import CQLOptions

CQL_NOISE = "cql_noise"
"""Column of random numbers for the actions of the estimated sum."""
LARGEST_MULTIPLIER = 1e6
"""Upper limit of the multiplier that `lagrangian=True` learns for the conservative term."""


@dataclass
class CQLTraining(TargetSoftActorCriticTraining[ConfigT]):
    """Options of `CQLConfig.training(...)`."""

    actor_lr: ScheduleLike | None = option(1e-4, ge=0, finite=True)
    """Learning rate of the policy. `None` is `lr`."""
    min_q_weight: float = option(5.0, ge=0)
    """Weight of the conservative term. 0 is SAC on the data."""
    num_actions: int = option(10, ge=1)
    """Number of actions of each of the three kinds in the estimated sum, for a Box."""
    temperature: float = option(1.0, gt=0)
    """Temperature of the sum of exponentials. Near 0 the sum becomes the largest value."""
    deterministic_backup: bool = True
    """Leave the entropy of the next action out of the targets."""
    bc_iters: int = option(0, ge=0)
    """Number of gradient steps at the beginning in which the policy imitates the data (up to 20,000 in the paper's
    code)."""
    lagrangian: bool = False
    """Learn the weight of the conservative term, so that the term becomes `lagrangian_thresh` (appendix F)."""
    lagrangian_thresh: float = 5.0
    """Value of the conservative term that `lagrangian=True` aims at."""

    def __call__(self, **options: Unpack[CQLOptions]) -> ConfigT:
        return self.change(options)


class CQLLearner(SoftActorCriticLearner[CQLTraining]):
    """The update of CQL."""

    def setup_module(self, module_id: str) -> None:
        """Make the state of SAC, and with `lagrangian=True` the logarithm of the conservative term's multiplier."""
        super().setup_module(module_id)
        if self.config_of(module_id).lagrangian:
            initial = torch.zeros((), dtype=self.dtype, device=self.device)
            self.register_state(f"{module_id}/log_multiplier", nn.Parameter(initial))

    def configure_optimizers_for_module(self, module_id: str, config: CQLTraining) -> None:
        """Register the optimizers of SAC, and with `lagrangian=True` "multiplier" for the conservative term."""
        super().configure_optimizers_for_module(module_id, config)
        if config.lagrangian:
            params = [self.registered[f"{module_id}/log_multiplier"]]
            self.register_configured(module_id, "multiplier", params, config.lr_of("critic"), config)

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return the number of random numbers per row for the policy's actions and for the estimated sum, for a Box."""
        columns = super().noise_columns(module_id)
        # `num_actions` actions of each of three kinds: uniform, of the policy here, and of the policy at the next
        # observation. SAC's columns are empty for discrete actions, for which the sum is exact.
        if columns:
            columns[CQL_NOISE] = 3 * self.config_of(module_id).num_actions * columns[NOISE]
        return columns

    def compute_loss_for_module(
        self, *, module_id: str, config: CQLTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the losses of SAC plus the conservative term (equation 4)."""
        module: Any = self.module[module_id]
        # The losses of critics and policy treat the temperature as a constant. Only `temperature_loss` changes it.
        alpha = self.registered[f"{module_id}/log_alpha"].detach().exp()
        with self.mixed_precision():
            next_values = self.soft_next_values(module_id, batch, 0.0 if config.deterministic_backup else alpha)
            policy_losses, neg_entropy = self.policy_terms(module_id, batch, fwd_out, alpha)

        # The squared error without SAC's factor 1/2: `min_q_weight` has the meaning that it has in the paper's code.
        values = values_of_actions(batch, fwd_out["q_values"])
        errors = values - td_targets(batch, next_values, config.gamma)
        row_losses = errors.square().sum(0)
        loss = weighted_critic_loss(
            batch, row_losses, values.detach(), errors.detach(), module_id=module_id, learner=self
        )
        loss = loss + self.conservative_term(module_id, config, batch, fwd_out["q_values"], values)

        # In the first `bc_iters` gradient steps the policy imitates the data: the log-probability of the recorded
        # action takes the place of the critics' value of the policy's own action.
        if self.registered[f"{module_id}/target"].num_steps < config.bc_iters:
            dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
            policy_losses = alpha * neg_entropy - dist.log_prob(batch[Columns.ACTIONS])
        actor_loss = self.masked_mean(policy_losses, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss + self.temperature_loss(module_id, batch, neg_entropy)

    def conservative_term(
        self, module_id: str, config: CQLTraining, batch: TensorColumns, all_values: Tensor, values: Tensor
    ) -> Tensor:
        """Return the weighted difference between a soft maximum over all actions and the values of the data's actions.

        Args:
            module_id: id of the module.
            config: options of the module.
            batch: the transitions.
            all_values: values `[K, N, A]` of all actions, if actions are discrete.
            values: values `[K, N]` of the data's actions.
        """
        if not self.is_discrete(module_id):
            with self.mixed_precision():
                all_values = self.sampled_values(module_id, config, batch)
        # log sum_a exp Q(s, a) is a soft maximum: near the highest of the values if that is much above the others.
        soft_maximum = config.temperature * torch.logsumexp(all_values / config.temperature, -1)
        gap = self.masked_mean((soft_maximum - values).sum(0), batch)
        self.log(module_id, cql_gap=gap)
        weight = config.min_q_weight
        if not config.lagrangian:
            return weight * gap

        # Dual gradient descent (appendix F): the multiplier grows while the weighted gap per critic is above the
        # threshold, and shrinks while it is below. `gap` is a sum over critics, so the threshold counts once for each.
        multiplier = self.registered[f"{module_id}/log_multiplier"].exp().clamp(max=LARGEST_MULTIPLIER)
        num_critics = len(values)
        excess = weight * gap - num_critics * config.lagrangian_thresh
        # This loss is the same on all learners and has no rows of its own, so `once` makes it count once.
        multiplier_loss = self.once(-multiplier * excess.detach())
        self.log(module_id, multiplier=multiplier, multiplier_loss=multiplier_loss)
        return multiplier.detach() * excess + multiplier_loss

    def sampled_values(self, module_id: str, config: CQLTraining, batch: TensorColumns) -> Tensor:
        """Return the values `[K, N, 3 * num_actions]` of sampled actions minus the logarithms of their densities."""
        module: Any = self.module[module_id]
        num_actions = config.num_actions
        num_rows = len(batch[CQL_NOISE])
        noise = batch[CQL_NOISE].reshape(num_rows, 3, num_actions, -1)

        # The distribution function of the normal distribution maps the first part to uniform actions in [-1, 1].
        uniform = torch.erf(noise[:, 0] / math.sqrt(2.0))
        actions = [uniform]
        log_densities = [torch.full_like(uniform[..., 0], -math.log(2.0) * uniform.shape[-1])]
        with torch.no_grad():
            for kind, name in ((1, Columns.OBS), (2, Columns.NEXT_OBS)):
                obs = _repeat_rows(batch[name], num_actions)
                kind_noise = noise[:, kind].reshape(num_rows * num_actions, -1)
                policy_actions, logp = module.sample({Columns.OBS: obs}, kind_noise)
                actions.append(policy_actions.reshape(num_rows, num_actions, -1))
                log_densities.append(logp.reshape(num_rows, num_actions))

        # All actions are evaluated at the observation, also those of the policy at the next observation.
        all_actions = torch.cat(actions, 1)
        obs = _repeat_rows(batch[Columns.OBS], 3 * num_actions)
        values = self.to_tensor(module.critics(obs, all_actions.reshape(num_rows * 3 * num_actions, -1)))
        return values.reshape(-1, num_rows, 3 * num_actions) - torch.cat(log_densities, 1)


def _repeat_rows(obs: Tree, times: int) -> Any:
    """Return observations `[N, ...]`, or outputs of a memory in their place, as `[N * times, ...]`."""
    if isinstance(obs, MemoryFeatures):
        return obs.map(lambda leaf: leaf.repeat_interleave(times, 0))
    return map_tree(lambda leaf: leaf.repeat_interleave(times, 0), obs)


class CQLConfig(AlgorithmConfig):
    """`CQLConfig().environment("Pendulum-v1").offline_data(input_="my/data-v0").build_trainer().run()`."""

    algorithm = "cql"
    learner_class = CQLLearner
    # The temperature begins with one of these options. A checkpoint contains it, so a resumed run continues with that
    # value and refuses other values of both options.
    first_values = ("alpha", "initial_alpha")
    training_class = CQLTraining
    module_class = DefaultSACModule
    is_offline = True
    squashes_actions = True
    training: CQLTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.rl_module(model_config={**RECTIFIED, "free_log_std": False, "squash_actions": True})
