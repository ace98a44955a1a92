"""CQL: conservative Q-learning (Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning").

https://arxiv.org/abs/2006.04779. SAC whose critics are pressed down where the data have nothing to say:

    minimise  min_q_weight E_data[log sum_a exp Q(s, a) - Q(s, a)] + E_data[(Q(s, a) - target)^2]    (equation 4)

The target is SAC's. The squared error counts whole, as in the paper's code; equation 4 itself has half of it.

For discrete actions the sum is exact; for a Box it is estimated from `num_actions` uniform actions and as many of the
policy at the observation and at the next one, each divided by its density (appendix F).

Defaults: those of the paper's code: weight 5, 10 actions, Adam with lr 1e-4 for the policy and 3e-4 for the critics,
targets without entropy, batch 256, two layers of 256 rectified units.
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
    FollowedSoftActorCriticTraining,
    SoftActorCriticLearner,
    log_critic_loss,
    td_targets,
    values_of_actions,
)
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.trees import Tree, map_tree
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultSACModule, Remembered
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import CQLOptions

CQL_NOISE = "cql_noise"
"""column: what draws the actions of the estimated sum"""
LARGEST_MULTIPLIER = 1e6


@dataclass
class CQLTraining(FollowedSoftActorCriticTraining[ConfigT]):
    """Options of `CQLConfig.training(...)`."""

    actor_lr: ScheduleLike | None = option(1e-4, ge=0, finite=True)
    """of the policy; `None`: `lr`"""
    min_q_weight: float = option(5.0, ge=0)
    """how much the conservative term counts; 0: SAC on the data"""
    num_actions: int = option(10, ge=1)
    """of a Box: actions of each of the three kinds in the estimated sum"""
    temperature: float = option(1.0, gt=0)
    """of the sum of exponentials: near 0 it is the largest value"""
    deterministic_backup: bool = True
    """targets without the entropy of the next action"""
    bc_iters: int = option(0, ge=0)
    """gradient steps at the beginning in which the policy imitates the data (the paper's code: up to 20,000)"""
    lagrangian: bool = False
    """learn the weight of the conservative term, so that it becomes `lagrangian_thresh` (appendix F)"""
    lagrangian_thresh: float = 5.0
    """what the conservative term is to become with `lagrangian=True`"""

    def __call__(self, **options: Unpack[CQLOptions]) -> ConfigT:
        return self.change(options)


class CQLLearner(SoftActorCriticLearner[CQLTraining]):
    """The update of CQL."""

    def setup_module(self, module_id: str) -> None:
        """Make the learned weight a part of the state, too."""
        super().setup_module(module_id)
        if self.config_of(module_id).lagrangian:
            first = torch.zeros((), dtype=self.dtype, device=self.device)
            self.register_state(f"{module_id}/log_multiplier", nn.Parameter(first))

    def configure_optimizers_for_module(self, module_id: str, config: CQLTraining) -> None:
        """Register, beside those of SAC, "multiplier" where the weight of the conservative term is learned."""
        super().configure_optimizers_for_module(module_id, config)
        if config.lagrangian:
            params = [self.registered[f"{module_id}/log_multiplier"]]
            self.register_configured(module_id, "multiplier", params, config.lr_of("critic"), config)

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """Return, for a Box, the random numbers of the policy's and of the estimated sum's actions."""
        columns = super().noise_columns(module_id)
        if columns:
            columns[CQL_NOISE] = 3 * self.config_of(module_id).num_actions * columns[NOISE]
        return columns

    def compute_loss_for_module(
        self, *, module_id: str, config: CQLTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return SAC's losses, and the conservative term (equation 4)."""
        module: Any = self.module[module_id]
        alpha = self.registered[f"{module_id}/log_alpha"].detach().exp()
        with self.mixed_precision():
            following = self.soft_next_values(module_id, batch, 0.0 if config.deterministic_backup else alpha)
            terms, neg_entropy = self.policy_terms(module_id, batch, fwd_out, alpha)
        taken = values_of_actions(batch, fwd_out["q_values"])
        errors = taken - td_targets(batch, following, config.gamma)
        # The whole squared error, not SAC's half of it: `min_q_weight` means what it does in the paper's code.
        squared = errors.square().sum(0)
        loss = log_critic_loss(batch, squared, taken.detach(), errors.detach(), module_id=module_id, learner=self)
        loss = loss + self.conservative_term(module_id, config, batch, fwd_out["q_values"], taken)
        if self.registered[f"{module_id}/target"].num_steps < config.bc_iters:
            dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
            terms = alpha * neg_entropy - dist.log_prob(batch[Columns.ACTIONS])
        actor_loss = self.masked_mean(terms, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss + self.temperature_loss(module_id, batch, neg_entropy)

    def conservative_term(
        self, module_id: str, config: CQLTraining, batch: TensorColumns, values: Tensor, taken: Tensor
    ) -> Tensor:
        """Return, weighted, how much more critics promise of any action than of those in the data, `taken` `[K, N]`."""
        everywhere = values
        if not self.is_discrete(module_id):
            with self.mixed_precision():
                everywhere = self.sampled_values(module_id, config, batch)
        soft_maximum = config.temperature * torch.logsumexp(everywhere / config.temperature, -1)
        gap = self.masked_mean((soft_maximum - taken).sum(0), batch)
        self.log(module_id, cql_gap=gap)
        weight = config.min_q_weight
        if not config.lagrangian:
            return weight * gap
        multiplier = self.registered[f"{module_id}/log_multiplier"].exp().clamp(max=LARGEST_MULTIPLIER)
        missing = weight * gap - len(taken) * config.lagrangian_thresh
        multiplier_loss = self.once(-multiplier * missing.detach())
        self.log(module_id, multiplier=multiplier, multiplier_loss=multiplier_loss)
        return multiplier.detach() * missing + multiplier_loss

    def sampled_values(self, module_id: str, config: CQLTraining, batch: TensorColumns) -> Tensor:
        """Return `[K, N, 3 * num_actions]`, values of sampled actions minus the logarithms of their densities."""
        module: Any = self.module[module_id]
        size, rows = config.num_actions, len(batch[CQL_NOISE])
        noise = batch[CQL_NOISE].reshape(rows, 3, size, -1)
        uniform = torch.erf(noise[:, 0] / math.sqrt(2.0))  # in [-1, 1]
        actions, densities = [uniform], [torch.full_like(uniform[..., 0], -math.log(2.0) * uniform.shape[-1])]
        with torch.no_grad():
            for kind, name in ((1, Columns.OBS), (2, Columns.NEXT_OBS)):
                obs = _repeated(batch[name], size)
                drawn, logp = module.sample({Columns.OBS: obs}, noise[:, kind].reshape(rows * size, -1))
                actions.append(drawn.reshape(rows, size, -1))
                densities.append(logp.reshape(rows, size))
        every = torch.cat(actions, 1)
        obs = _repeated(batch[Columns.OBS], 3 * size)
        values = self.to_tensor(module.critics(obs, every.reshape(rows * 3 * size, -1)))
        return values.reshape(-1, rows, 3 * size) - torch.cat(densities, 1)


def _repeated(obs: Tree, times: int) -> Any:
    """Return observations `[N, ...]`, or what is remembered there, as `[N * times, ...]`."""
    if isinstance(obs, Remembered):
        return obs.map(lambda leaf: leaf.repeat_interleave(times, 0))
    return map_tree(lambda leaf: leaf.repeat_interleave(times, 0), obs)


class CQLConfig(AlgorithmConfig):
    """`CQLConfig().environment("Pendulum-v1").offline_data(input_="my/data-v0").build_trainer().run()`."""

    algorithm = "cql"
    learner_class = CQLLearner
    first_values = ("alpha", "initial_alpha")
    training_class = CQLTraining
    module_class = DefaultSACModule
    is_offline = True
    squashes_actions = True
    training: CQLTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.rl_module(model_config={**RECTIFIED, "free_log_std": False, "squash_actions": True})
