"""Rainbow: six extensions of DQN together (Hessel et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement
Learning", https://arxiv.org/abs/1710.02298).

The extensions are double Q-learning (van Hasselt et al. 2016), prioritised replay (Schaul et al. 2016), dueling
networks (Wang et al. 2016), n-step returns, distributions of returns on atoms (Bellemare et al. 2017) and exploration
by noisy weights (Fortunato et al. 2018). All but the distributions can be switched off: `double_q=False`,
`replay(prioritized=False, n_step=1)`, `model_config={"dueling": False}`, `env_runners(exploration="epsilon")`. Without
distributions the algorithm is DQN.

Defaults: n of 3, priorities to the power of 0.5, sigma of 0.5, 51 atoms, gamma 0.99, batch 32 and one gradient step for
every 4 steps as in the paper (table 1). Atoms reach from -100 to 100 as in C51, in place of the paper's -10 to 10 for
clipped rewards; set them to the returns of your task. The sizes that the paper counts in millions of frames are
smaller, for tasks without images, and the learning rate is that of the DQN family.
"""

from __future__ import annotations

from typing import Any, Self

from lockstep.algorithms.families.atoms import AtomLearner, AtomTraining
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.modules import DistributionalQModule, ModelConfig


class RainbowLearner(AtomLearner[AtomTraining[Any]]):
    """The update of Rainbow. The loss is in `AtomLearner`.

    The learning network selects the next action with other noise than that of the target network, which evaluates it.
    """


class RainbowConfig(AlgorithmConfig):
    """`RainbowConfig().environment("CartPole-v1").training(v_min=0, v_max=100).build_trainer().run()`."""

    algorithm = "rainbow"
    explorations = ("noisy", "epsilon")
    learns_from_tensors = True
    learner_class = RainbowLearner
    # The number of the atoms is the shape of the network's outputs, and their range is the meaning of the outputs. A
    # checkpoint contains the network, so a resumed run refuses other values of these options.
    first_values = ("num_atoms", "v_min", "v_max")
    training_class = AtomTraining
    module_class = DistributionalQModule
    is_off_policy = True
    training: AtomTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.env_runners(exploration="noisy")
        self.replay(n_step=3, prioritized=True, alpha=0.5)
        self.rl_module(model_config={"dueling": True})

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """Add the atoms to the configuration of the network."""
        return self.training.with_atoms(super().complete_model_config(model_config))
