"""C51: the distribution of returns on fixed atoms (Bellemare et al. 2017, "A Distributional Perspective on
Reinforcement Learning", https://arxiv.org/abs/1707.06887).

The network gives for each action the probabilities of `num_atoms` returns between `v_min` and `v_max`; actions are
judged by their means. Options as DQN's: double, dueling, n-step returns and prioritised replay, which with noise in the
weights left out is Hessel et al. 2018 (https://arxiv.org/abs/1710.02298).

Defaults: 51 atoms as in the paper; their range is that of returns of up to 100, which the paper's -10 to 10 (of games
whose rewards are clipped) is not. Returns outside of it are taken for its ends: set it to what your task can give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

import torch.nn.functional as F
from torch import Tensor

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.families.q_learning import ActionValueOptions, ActionValueTraining, QLearner, of_actions
from lockstep.algorithms.families.transitions import discounts_of
from lockstep.data.columns import Columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DistributionalQModule, ModelConfig
from lockstep.ops import project_on_atoms
from lockstep.state.options import ConfigT, option


class C51Options(ActionValueOptions, total=False):
    """Options of `C51Training`."""

    num_atoms: int
    v_min: float
    v_max: float


@dataclass
class C51Training(ActionValueTraining[ConfigT]):
    """Options of `C51Config.training(...)`."""

    num_atoms: int = option(51, ge=2)
    """returns that have a probability"""
    v_min: float = option(-100.0, finite=True)
    """the lowest of them"""
    v_max: float = option(100.0, finite=True)
    """the highest of them"""

    def __call__(self, **options: Unpack[C51Options]) -> ConfigT:
        return self.change(options)

    def validate(self) -> None:
        """Refuse bounds of the returns that are the wrong way round."""
        super().validate()
        if self.v_max <= self.v_min:
            raise ValueError(
                f"training.v_max={self.v_max} is not allowed; it must be a finite number above v_min={self.v_min}"
            )


class C51Learner(QLearner[C51Training]):
    """The update of C51."""

    parts = ("value_outputs", "masked", "mean_values", "mean_of_probs", "value_range")

    def compute_loss_for_module(
        self, *, module_id: str, config: C51Training, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """How far the distribution of `Q(s, a)` is from that of `r + gamma Q'(s', best)` on the same atoms: the
        Kullback-Leibler divergence, whose gradient is that of the paper's cross entropy.
        """
        log_probs = of_actions(fwd_out["value_outputs"], batch[Columns.ACTIONS]).log_softmax(-1)
        following = self.best_next_outputs(module_id, batch).softmax(-1)
        discounts = discounts_of(batch, config.gamma, log_probs.dtype)
        module: Any = self.module[module_id]
        v_min, v_max = module.value_range
        targets = project_on_atoms(following, batch[Columns.REWARDS], discounts, v_min=v_min, v_max=v_max)
        each = F.kl_div(log_probs, targets, reduction="none").sum(-1)
        self.log(module_id, q_mean=self.masked_mean(module.mean_of_probs(log_probs.detach().exp()), batch))
        return self.mean_of_rows(module_id, batch, each, each)


class C51Config(AlgorithmConfig):
    """`C51Config().environment("CartPole-v1").training(v_min=0, v_max=100).build_trainer().run()`."""

    algorithm = "c51"
    explorations = ("epsilon",)
    learner_class = C51Learner
    first_values = ("num_atoms", "v_min", "v_max")
    training_class = C51Training
    module_class = DistributionalQModule
    is_off_policy = True
    training: C51Training[Self]

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """The atoms."""
        return replace(
            model_config,
            num_value_outputs=self.training.num_atoms,
            value_range=(self.training.v_min, self.training.v_max),
        )
