"""MARWIL: monotonic advantage re-weighted imitation learning (Wang et al. 2018, "Exponentially weighted imitation
learning for batched historical data", NeurIPS).

R is the return of the rest of the episode, A = R - V(s), and c^2 is a moving average of A^2:

    minimise  -E_data[exp(beta A / c) log pi(a | s)] + vf_coeff E_data[A^2 / 2]        (algorithm 1)

`beta=0` is behaviour cloning. The return of an episode that was cut includes V(last observation). Returns need whole
episodes, so the data must be a replay buffer, or contain the returns as `rewards` (with `discounts`). For networks with
a memory the returns from a replay buffer reach to the end of the sequence, and include the value there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import torch
from torch import Tensor

from lockstep.algorithms.families.transitions import TransitionLearner, td_targets
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.groups import CRITIC, POLICY
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import SampledTraining
from lockstep.learner.inputs import recorded_columns
from lockstep.learner.learner import Outputs
from lockstep.learner.minibatches import TensorColumns, take_rows
from lockstep.learner.sequences import evaluate_sequences
from lockstep.modules import TransitionModule
from lockstep.ops import monte_carlo_returns
from lockstep.ops.losses import exponential_weights
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option
from lockstep.replay import ReplayBuffer
from lockstep.rollout.errors import MalformedBufferError

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import MARWILOptions


@dataclass
class MARWILTraining(SampledTraining[ConfigT]):
    """Options of `MARWILConfig.training(...)`."""

    lr: ScheduleLike = 1e-3
    beta: float = option(1.0, ge=0)
    """Factor of the advantage in the exponential weight of an action. With 0 all weights are equal, which is behaviour
    cloning."""
    vf_coeff: float = option(1.0, ge=0)
    """Weight of the value loss."""
    moving_average_sqd_adv_norm_start: float = option(100.0, gt=0)
    """Initial value of c^2."""
    moving_average_sqd_adv_norm_update_rate: float = option(1e-2, ge=0, le=1)
    """Share of the way that each gradient step moves c^2 towards the mean of A^2 (1e-8 in the paper, which leaves it
    almost constant)."""
    max_weight: float | None = option(100.0, gt=0)
    """Upper limit of the weight of an action. `None` sets no limit, as in the paper."""
    bc_logstd_coeff: float = option(0.0, ge=0)
    """Weight of a bonus for the logarithm of a Gaussian's standard deviations, which keeps it from collapsing onto few
    data."""

    def __call__(self, **options: Unpack[MARWILOptions]) -> ConfigT:
        return self.change(options)


class MARWILLearner(TransitionLearner[MARWILTraining]):
    """The update of MARWIL."""

    observed_by = (POLICY, CRITIC)

    def setup_module(self, module_id: str) -> None:
        """Make the moving average of squared advantages, which is part of the learner's state."""
        super().setup_module(module_id)
        config = self.config_of(module_id)
        initial = torch.tensor(config.moving_average_sqd_adv_norm_start, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/squared_advantages", initial)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Return the columns of a rollout with returns in place of rewards.

        A return reaches to the end of the episode, or to the row at which the episode was cut. There the value of the
        next observation must be added: the loss does it, or for networks with a memory this method, because only here
        is the whole episode available to the memory.
        """
        gamma = self.config_of(module_id).gamma
        columns = recorded_columns(self.to_tensor, self.connectors[module_id], trajectories)
        terminateds = trajectories.terminateds
        num_steps, num_envs = trajectories.shape
        rewards = columns[Columns.REWARDS].cpu().numpy().astype(trajectories.rewards.dtype)
        rewards = rewards.reshape(num_steps, num_envs)

        if self.module[module_id].is_stateful():
            last_values = self._last_values(module_id, columns, trajectories)
            rewards.reshape(-1)[trajectories.bootstrap_index] += gamma * last_values
            returns = monte_carlo_returns(rewards, terminateds, trajectories.cuts, gamma=gamma)
            columns |= {
                Columns.REWARDS: self.to_tensor(returns.reshape(-1)),
                Columns.TERMINATEDS: torch.ones_like(columns[Columns.TERMINATEDS]),  # nothing is left to add
            }
            return self.train_columns(module_id, columns, trajectories)

        # `last[t, b]` is the step at which the piece of an episode with step t ends.
        step = np.arange(num_steps)[:, None]
        ends = terminateds | trajectories.cuts
        last = np.minimum.accumulate(np.where(ends, step, num_steps - 1)[::-1])[::-1]
        returns = monte_carlo_returns(rewards, terminateds, trajectories.cuts, gamma=gamma)

        # Each row gets the next observation of its piece's last row, discounted over all steps in between.
        last_rows = torch.from_numpy((last * num_envs + np.arange(num_envs)).reshape(-1)).to(self.device)
        last_columns = {name: columns[name] for name in (Columns.NEXT_OBS, Columns.TERMINATEDS)}
        columns |= {
            **take_rows(last_columns, last_rows),
            Columns.REWARDS: self.to_tensor(returns.reshape(-1)),
            Columns.DISCOUNTS: self.to_tensor((gamma ** (last - step + 1.0)).reshape(-1)),
        }
        return self.train_columns(module_id, columns, trajectories)

    def _last_values(self, module_id: str, columns: TensorColumns, trajectories: Trajectories) -> np.ndarray:
        """Return the values `[K]` of the observations at which pieces of episodes end, for a network with a memory."""
        index = torch.from_numpy(trajectories.bootstrap_index).to(self.device)
        if not len(index):
            return np.zeros(0)
        bootstrap_obs = take_rows({Columns.OBS: columns[Columns.NEXT_OBS]}, index)[Columns.OBS]
        module = self.module[module_id]
        values: Any = evaluate_sequences(self.to_tensor, module, trajectories, columns[Columns.OBS], bootstrap_obs)[1]
        return np.asarray(values.cpu().numpy())

    def compute_loss_for_module(
        self, *, module_id: str, config: MARWILTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return the loss of algorithm 1: weighted imitation plus the value error."""
        module = self.module[module_id]
        dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        with torch.no_grad():
            with self.mixed_precision():
                next_values = self.to_tensor(module.compute_values({Columns.OBS: batch[Columns.NEXT_OBS]}))
            returns = td_targets(batch, next_values, config.gamma)
        advantages = returns - fwd_out[Columns.VF_PREDS]
        vf_loss = self.masked_mean(0.5 * advantages.square(), batch)

        # The weights are constants: the gradient of the imitation flows through log pi only.
        # `average` is c^2, the moving average of A^2. The mean of A^2 in this batch is twice the value loss.
        average = self.registered[f"{module_id}/squared_advantages"]
        with torch.no_grad():
            new_average = average.lerp(2.0 * vf_loss.detach(), config.moving_average_sqd_adv_norm_update_rate)
            # A step that is skipped because of a loss that is not finite must not change the average either.
            average.copy_(torch.where(new_average.isfinite(), new_average, average))
            scaled_advantages = advantages.detach() / (average.sqrt() + 1e-8)
            weights = exponential_weights(scaled_advantages, config.beta, config.max_weight)
        policy_loss = -self.masked_mean(weights * dist.log_prob(batch[Columns.ACTIONS]), batch)

        self.log(module_id, policy_loss=policy_loss, vf_loss=vf_loss, entropy=self.masked_mean(dist.entropy(), batch))
        self.log(module_id, weight_mean=self.masked_mean(weights, batch), squared_advantages=average.clone())
        loss = policy_loss + config.vf_coeff * vf_loss
        num_log_stds = module.action_dist_cls.num_log_stds
        if config.bc_logstd_coeff and num_log_stds:
            log_std = fwd_out[Columns.ACTION_DIST_INPUTS][..., -num_log_stds:]
            loss = loss - config.bc_logstd_coeff * self.masked_mean(log_std.mean(-1), batch)
        return loss


class MARWILConfig(AlgorithmConfig):
    """`MARWILConfig().environment("CartPole-v1").offline_data(input_="my/data-v0").build_trainer().run()`."""

    algorithm = "marwil"
    learner_class = MARWILLearner
    training_class = MARWILTraining
    module_class = TransitionModule
    is_offline = True
    can_prioritize = False
    training: MARWILTraining[Self]

    def process_buffer(self, buffer: Any) -> Any:
        """Return the data with returns of the rest of the episode in place of rewards.

        Raises:
            MalformedBufferError: the data are neither a replay buffer nor contain returns.
        """
        if isinstance(buffer, ReplayBuffer):
            return buffer.with_whole_returns(self.training.gamma)
        if Columns.DISCOUNTS not in buffer[[0]]:
            raise MalformedBufferError(
                "marwil needs the returns of whole episodes; give the data as a replay buffer, or with returns as "
                "'rewards' and gamma ** (number of steps) as 'discounts'"
            )
        return buffer
