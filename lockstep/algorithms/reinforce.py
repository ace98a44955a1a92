"""REINFORCE: policy gradient from the returns of whole episodes (Williams 1992, "Simple statistical gradient-following
algorithms for connectionist reinforcement learning", Machine Learning 8; equations from Sutton & Barto 2018,
"Reinforcement Learning: An Introduction").

This is the simplest algorithm of the package, and a good first file to read. It plays whole episodes, and then makes
each action more likely in proportion to the return that followed it:

    G_t = r_t + gamma G_t+1                                       return of the rest of the episode (equation 3.9)
    maximise  E[(G_t - b) log pi(a_t | s_t)]                      b: a baseline (equations 13.8 and 13.11)

There is no critic. The baseline is the mean return of the batch, and returns are divided by their standard deviation,
so that one learning rate fits rewards of any scale. `normalize_returns=False` is the plain algorithm with b = 0. The
factor gamma^t of equation 13.8 is left out, as is usual. A truncated episode counts as if it had ended there.

Defaults: one step of Adam (lr 3e-3) on 1,000 environment steps, in place of plain gradient ascent after each episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, Unpack

from torch import Tensor

from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.config.rules import Rule
from lockstep.data.columns import Columns
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import TrainingSection
from lockstep.learner.inputs import recorded_columns
from lockstep.learner.learner import Learner, Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultPolicyModule
from lockstep.ops import monte_carlo_returns
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import REINFORCEOptions


@dataclass
class REINFORCETraining(TrainingSection[ConfigT]):
    """Options of `REINFORCEConfig.training(...)`."""

    lr: ScheduleLike = 3e-3
    train_batch_size: int = 1000
    """Number of environment steps in one update, over all learners. The last episodes add the steps to their end."""
    normalize_returns: bool = True
    """Normalise the returns of a batch to mean 0 and standard deviation 1, so that their mean is the baseline."""

    def __call__(self, **options: Unpack[REINFORCEOptions]) -> ConfigT:
        return self.change(options)


class REINFORCELearner(Learner[REINFORCETraining]):
    """The update of REINFORCE."""

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        return (Columns.OBS, Columns.ACTIONS, Columns.RETURNS_TO_GO)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return observations, actions and, as `returns_to_go`, the return that followed each action."""
        columns = recorded_columns(self.to_tensor, self.connectors[module_id], trajectories)
        rewards = columns[Columns.REWARDS].cpu().numpy().reshape(trajectories.shape)
        returns = monte_carlo_returns(
            rewards, trajectories.terminateds, trajectories.cuts, gamma=self.config_of(module_id).gamma
        )
        train_columns = {
            Columns.OBS: columns[Columns.OBS],
            Columns.ACTIONS: columns[Columns.ACTIONS],
            Columns.RETURNS_TO_GO: self.to_tensor(returns.reshape(-1)),
        }
        return self.train_columns(module_id, train_columns, trajectories)

    def compute_loss_for_module(
        self, *, module_id: str, config: REINFORCETraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the negative mean of each action's log-probability times the return that followed it."""
        dist = self.module[module_id].action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        returns = batch[Columns.RETURNS_TO_GO]
        if config.normalize_returns:
            returns = self.normalized(returns, batch)
        loss = -self.masked_mean(returns * dist.log_prob(batch[Columns.ACTIONS]), batch)
        self.log(module_id, policy_loss=loss, entropy=self.masked_mean(dist.entropy(), batch))
        return loss


class REINFORCEConfig(AlgorithmConfig):
    """`REINFORCEConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "reinforce"
    learner_class = REINFORCELearner
    training_class = REINFORCETraining
    module_class = DefaultPolicyModule
    training: REINFORCETraining[Self]
    rules = (
        # Without a critic nothing estimates the rewards after the end of a cut piece.
        Rule(
            "env_runners.batch_mode",
            lambda config: not config.env_runners.collects_whole_episodes,
            "is not allowed for reinforce, which learns from returns of whole episodes; use 'complete_episodes', or an "
            "algorithm with a critic, such as a2c",
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.env_runners(batch_mode="complete_episodes")
