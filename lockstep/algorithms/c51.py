"""C51: the distribution of returns on fixed atoms (Bellemare et al. 2017, "A Distributional Perspective on
Reinforcement Learning", https://arxiv.org/abs/1707.06887).

For each action the outputs of the network are the probabilities of `num_atoms` returns between `v_min` and `v_max`.
The best action has the highest mean. The options are those of DQN: double, dueling, n-step returns, prioritised replay
and noisy weights. With all of them it is Rainbow.

Defaults: 51 atoms as in the paper. Their range covers returns of up to 100, whereas the paper's range from -10 to 10 is
for games with clipped rewards. Returns outside the range count as its ends, so set it to the returns of your task.
"""

from __future__ import annotations

from typing import Any, Self

from lockstep.algorithms.families.atoms import AtomLearner, AtomTraining
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.modules import DistributionalQModule, ModelConfig


class C51Learner(AtomLearner[AtomTraining[Any]]):
    """The update of C51. The loss is in `AtomLearner`."""


class C51Config(AlgorithmConfig):
    """`C51Config().environment("CartPole-v1").training(v_min=0, v_max=100).build_trainer().run()`."""

    algorithm = "c51"
    explorations = ("epsilon", "noisy")
    learner_class = C51Learner
    # The number of the atoms is the shape of the network's outputs, and their range is the meaning of the outputs. A
    # checkpoint contains the network, so a resumed run refuses other values of these options.
    first_values = ("num_atoms", "v_min", "v_max")
    training_class = AtomTraining
    module_class = DistributionalQModule
    is_off_policy = True
    learns_from_tensors = True
    training: AtomTraining[Self]

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """Add the atoms to the configuration of the network."""
        return self.training.with_atoms(super().complete_model_config(model_config))
