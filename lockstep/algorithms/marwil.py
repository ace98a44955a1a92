"""MARWIL: monotonic advantage re-weighted imitation learning (Wang et al. 2018, "Exponentially weighted imitation
learning for batched historical data", NeurIPS).

With the return R of the rest of the episode, A = R - V(s) and c^2 a moving average of A^2:

    minimise  -E_data[exp(beta A / c) log pi(a | s)] + vf_coeff E_data[A^2 / 2]        (algorithm 1)

`beta=0` is behaviour cloning. An episode that was cut off goes on with V(last observation). The returns are made from
whole episodes, so the data must be a replay buffer, or have them as `rewards` (with `discounts`). With memory those of
a replay buffer reach to the end of the sequence that is learned from, and go on with the value there.
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
    """how much better actions count more than worse ones; 0: all alike, which is behaviour cloning"""
    vf_coeff: float = option(1.0, ge=0)
    """how much the value error counts"""
    moving_average_sqd_adv_norm_start: float = option(100.0, gt=0)
    """c^2 before the first gradient step"""
    moving_average_sqd_adv_norm_update_rate: float = option(1e-2, ge=0, le=1)
    """how far c^2 goes towards the mean of A^2 in each gradient step (the paper: 1e-8, which leaves it as it is)"""
    max_weight: float | None = option(100.0, gt=0)
    """no action counts more than this; None: the paper, without a limit"""
    bc_logstd_coeff: float = option(0.0, ge=0)
    """how much large deviations of a Gaussian are rewarded, so that it does not collapse onto few data"""

    def __call__(self, **options: Unpack[MARWILOptions]) -> ConfigT:
        return self.change(options)


class MARWILLearner(TransitionLearner[MARWILTraining]):
    """The update of MARWIL."""

    def setup_module(self, module_id: str) -> None:
        """Make the moving average of squared advantages a part of the state."""
        super().setup_module(module_id)
        config = self.config_of(module_id)
        start = torch.tensor(config.moving_average_sqd_adv_norm_start, dtype=self.dtype, device=self.device)
        self.register_state(f"{module_id}/squared_advantages", start)

    def prepare_batch(self, trajectories: Trajectories, *, module_id: str) -> TensorColumns:
        """Turn rewards into returns to the end of the episode, or to where it was cut, whose value is bootstrapped: in
        the loss or, with memory, here, where the whole episode is there to be remembered.
        """
        gamma = self.config_of(module_id).gamma
        columns = recorded_columns(self.to_tensor, self.connectors[module_id], trajectories)
        terminateds, ends = trajectories.terminateds, trajectories.terminateds | trajectories.cuts
        steps, width = trajectories.shape
        rewards = columns[Columns.REWARDS].cpu().numpy().astype(trajectories.rewards.dtype).reshape(steps, width)
        if self.module[module_id].is_stateful():
            last_values = self._last_values(module_id, columns, trajectories)
            rewards.reshape(-1)[trajectories.bootstrap_index] += gamma * last_values
            returns = monte_carlo_returns(rewards, terminateds, trajectories.cuts, gamma=gamma)
            columns |= {
                Columns.REWARDS: self.to_tensor(returns.reshape(-1)),
                Columns.TERMINATEDS: torch.ones_like(columns[Columns.TERMINATEDS]),
            }
            return self.train_columns(module_id, columns, trajectories)
        at = np.arange(steps)[:, None]
        last = np.minimum.accumulate(np.where(ends, at, steps - 1)[::-1])[::-1]
        returns = monte_carlo_returns(rewards, terminateds, trajectories.cuts, gamma=gamma)
        rows = torch.from_numpy((last * width + np.arange(width)).reshape(-1)).to(self.device)
        following = take_rows({name: columns[name] for name in (Columns.NEXT_OBS, Columns.TERMINATEDS)}, rows)
        columns |= {
            **following,
            Columns.REWARDS: self.to_tensor(returns.reshape(-1)),
            Columns.DISCOUNTS: self.to_tensor((gamma ** (last - at + 1.0)).reshape(-1)),
        }
        return self.train_columns(module_id, columns, trajectories)

    def _last_values(self, module_id: str, columns: TensorColumns, trajectories: Trajectories) -> np.ndarray:
        """Return the values `[K]` that a network with memory gives where episodes were cut."""
        index = torch.from_numpy(trajectories.bootstrap_index).to(self.device)
        if not len(index):
            return np.zeros(0)
        last = take_rows({Columns.OBS: columns[Columns.NEXT_OBS]}, index)[Columns.OBS]
        module, obs = self.module[module_id], columns[Columns.OBS]
        values: Any = evaluate_sequences(self.to_tensor, module, trajectories, obs, last)[1]
        return np.asarray(values.cpu().numpy())

    def compute_loss_for_module(
        self, *, module_id: str, config: MARWILTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return weighted imitation and the value error."""
        module = self.module[module_id]
        dist = module.action_dist_cls.from_inputs(fwd_out[Columns.ACTION_DIST_INPUTS])
        values = fwd_out[Columns.VF_PREDS]
        with torch.no_grad():
            with self.mixed_precision():
                following = self.to_tensor(module.compute_values({Columns.OBS: batch[Columns.NEXT_OBS]}))
            returns = td_targets(batch, following, config.gamma)
        advantages = returns - values
        vf_loss = self.masked_mean(0.5 * advantages.square(), batch)
        average = self.registered[f"{module_id}/squared_advantages"]
        with torch.no_grad():
            new = average.lerp(2.0 * vf_loss.detach(), config.moving_average_sqd_adv_norm_update_rate)
            average.copy_(torch.where(new.isfinite(), new, average))  # a step that is left out leaves no trace
            scaled = advantages.detach() / (average.sqrt() + 1e-8)
            weights = exponential_weights(scaled, config.beta, config.max_weight)
        policy_loss = -self.masked_mean(weights * dist.log_prob(batch[Columns.ACTIONS]), batch)
        self.log(module_id, policy_loss=policy_loss, vf_loss=vf_loss, entropy=self.masked_mean(dist.entropy(), batch))
        self.log(module_id, weight_mean=self.masked_mean(weights, batch), squared_advantages=average.clone())
        loss = policy_loss + config.vf_coeff * vf_loss
        if config.bc_logstd_coeff and module.action_dist_cls.num_log_stds:
            log_std = fwd_out[Columns.ACTION_DIST_INPUTS][..., -module.action_dist_cls.num_log_stds :]
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
        """Rewards become returns of the rest of the episode. `MalformedBufferError` for rows without their episodes."""
        if isinstance(buffer, ReplayBuffer):
            return buffer.with_whole_returns(self.training.gamma)
        if Columns.DISCOUNTS not in buffer[[0]]:
            raise MalformedBufferError(
                "marwil needs the returns of whole episodes; give the data as a replay buffer, or with returns as "
                "'rewards' and gamma ** (number of steps) as 'discounts'"
            )
        return buffer
