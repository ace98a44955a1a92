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

from lockstep.algorithms.families.atoms import AtomLearner, AtomTraining
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.modules import DistributionalQModule, ModelConfig


class C51Learner(AtomLearner[AtomTraining[Any]]):
    """The update of C51: `AtomLearner` has the loss."""


class C51Config(AlgorithmConfig):
    """`C51Config().environment("CartPole-v1").training(v_min=0, v_max=100).build_trainer().run()`."""

    algorithm = "c51"
    explorations = ("epsilon", "noisy")
    learner_class = C51Learner
    first_values = ("num_atoms", "v_min", "v_max")
    training_class = AtomTraining
    module_class = DistributionalQModule
    is_off_policy = True
    learns_from_tensors = True
    training: AtomTraining[Self]

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """The atoms."""
        return self.training.with_atoms(super().complete_model_config(model_config))
