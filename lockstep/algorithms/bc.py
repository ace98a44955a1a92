"""BC: behaviour cloning, which imitates recorded actions (Pomerleau 1991, "Efficient training of artificial neural
networks for autonomous navigation"; Bain & Sammut 1995).

    minimise  -E_data[log pi(a | s)]

It works for every action space. For a Box, `loss="mse"` minimises the squared distance between the policy's most likely
action and the recorded one instead. Of the data in `offline_data(input_=...)` only observations and actions are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, Unpack

from torch import Tensor

from lockstep.algorithms.families.transitions import TransitionLearner
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.config import SampledTraining
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultPolicyModule
from lockstep.ops.losses import imitation_loss
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import BCOptions


@dataclass
class BCTraining(SampledTraining[ConfigT]):
    """Options of `BCConfig.training(...)`."""

    lr: ScheduleLike = 1e-3
    loss: Literal["log_prob", "mse"] = "log_prob"
    """Loss: the negative log-probability of the recorded actions, or for a Box their squared distance from the policy's
    most likely actions ("mse")."""
    entropy_coeff: ScheduleLike = 0.0
    """Weight of the entropy bonus, which keeps the policy from being more certain than the data."""

    def __call__(self, **options: Unpack[BCOptions]) -> ConfigT:
        return self.change(options)


class BCLearner(TransitionLearner[BCTraining]):
    """The update of BC."""

    scheduled = ("entropy_coeff",)

    def setup_module(self, module_id: str) -> None:
        """Raise `ValueError` for `loss="mse"` with discrete actions, which have no distance."""
        super().setup_module(module_id)
        config = self.config_of(module_id)
        space = self.module[module_id].action_space
        if config.loss == "mse" and self.module[module_id].action_dist_cls.num_choices:
            raise ValueError(f"training.loss='mse' needs a Box of actions, not {space}; set it to 'log_prob'")

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        return (Columns.OBS, Columns.ACTIONS)

    def compute_loss_for_module(
        self, *, module_id: str, config: BCTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the mean loss of imitation minus the weighted entropy."""
        dist = self.module[module_id].action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        actions = batch[Columns.ACTIONS]
        policy_loss = self.masked_mean(imitation_loss(dist, actions, kind=config.loss), batch)
        entropy = self.masked_mean(dist.entropy(), batch)
        self.log(module_id, policy_loss=policy_loss, entropy=entropy)
        return policy_loss - self.coefficient(module_id, "entropy_coeff") * entropy


class BCConfig(AlgorithmConfig):
    """`BCConfig().environment("CartPole-v1").offline_data(input_="my/data-v0").build_trainer().run()`."""

    algorithm = "bc"
    learner_class = BCLearner
    training_class = BCTraining
    module_class = DefaultPolicyModule
    is_offline = True
    can_prioritize = False
    training: BCTraining[Self]
