"""C51: the distribution of returns on fixed atoms (Bellemare et al. 2017, "A Distributional Perspective on
Reinforcement Learning", https://arxiv.org/abs/1707.06887).

The network gives for each action the probabilities of `num_atoms` returns between `v_min` and `v_max`; actions are
judged by their means. Options as DQN's: double, dueling, n-step returns, prioritised replay and noisy weights; with all
of them it is Rainbow.

Defaults: 51 atoms as in the paper; their range is that of returns of up to 100, which the paper's -10 to 10 (of games
whose rewards are clipped) is not. Returns outside of it are taken for its ends: set it to what your task can give.
"""

from __future__ import annotations

from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.families.atoms import AtomLearner, AtomTraining
from lockstep.algorithms.families.q_learning import of_actions
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DistributionalQModule, ModelConfig


class C51Learner(AtomLearner[AtomTraining[Any]]):
    """The update of C51."""

    def compute_loss_for_module(
        self, *, module_id: str, config: AtomTraining[Any], batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """How far the distribution of `Q(s, a)` is from that of `r + gamma Q'(s', best)` on the same atoms: the
        Kullback-Leibler divergence, whose gradient is that of the paper's cross entropy.
        """
        log_probs = of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS]).log_softmax(-1)
        targets = self.projected_targets(module_id, batch, config.gamma)
        each = F.kl_div(log_probs, targets, reduction="none").sum(-1)
        module: Any = self.module[module_id]
        self.log(module_id, q_mean=self.masked_mean(module.mean_of_probs(log_probs.detach().exp()), batch))
        return self.mean_of_rows(module_id, batch, each, each)


class C51Config(AlgorithmConfig):
    """`C51Config().environment("CartPole-v1").training(v_min=0, v_max=100).build_trainer().run()`."""

    algorithm = "c51"
    explorations = ("epsilon", "noisy")
    learner_class = C51Learner
    first_values = ("num_atoms", "v_min", "v_max")
    training_class = AtomTraining
    module_class = DistributionalQModule
    is_off_policy = True
    training: AtomTraining[Self]

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """The atoms."""
        return self.training.with_atoms(super().complete_model_config(model_config))
