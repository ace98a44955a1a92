"""DQN: deep Q-learning (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

Extensions as options: double (van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461), dueling (Wang et al. 2016,
`model_config={"dueling": True}`), n-step returns and prioritised replay (`replay(n_step=, prioritized=)`, combined as
in Hessel et al. 2018, https://arxiv.org/abs/1710.02298).

Defaults: batch 32, one gradient step for every 4 steps, gamma 0.99, errors clipped at 1 (Huber) and epsilon from 1 as
in the paper (extended data, table 1); double Q-learning on; Adam with lr 5e-4; what there is counted in millions of
frames (memory, epsilon's way, target network) is shortened to what tasks without images need.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner.config import TrainingSection, require
from lockstep.learner.learner import Gradients, Learner, TensorColumns
from lockstep.learner.targets import TargetNetwork, flat_parameters
from lockstep.modules import DefaultQModule, EpsilonGreedy
from lockstep.state.schedules import Schedule, ScheduleLike


@dataclass
class DQNTraining(TrainingSection):
    """Options of `DQNConfig.training(...)`."""

    lr: ScheduleLike = 5e-4
    train_batch_size: int = 32
    """transitions in one gradient step, over all learners"""
    grad_clip: float | None = 10.0
    epsilon: ScheduleLike = field(default_factory=lambda: [[0, 1.0], [10_000, 0.05]])
    """share of actions that are taken by chance while collecting: a number, or a schedule over sampled steps"""
    double_q: bool = True
    """the network that learns picks the next action, the target network says what it is worth"""
    huber_delta: float | None = 1.0
    """errors count by their square up to here, and linearly beyond; `None`: always by their square"""
    target_update_interval: int = 250
    """gradient steps between two updates of the target network (not environment steps; at 10 the values of
    CartPole grow without bound)"""
    tau: float = 1.0
    """how far an update takes the target network towards the one that learns; 1: all the way"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option, its value and what is allowed."""
        super().validate()
        require("minibatch_size", self.minibatch_size, self.minibatch_size is None, "None (use train_batch_size)")
        require("num_epochs", self.num_epochs, self.num_epochs == 1, "1 (use replay.update_per_step)")
        first = Schedule(self.epsilon, "epsilon").value
        require("epsilon", self.epsilon, 0.0 <= first <= 1.0, "between 0 and 1")
        delta = self.huber_delta
        require("huber_delta", delta, delta is None or delta > 0, "above 0, or None")
        require("tau", self.tau, 0.0 < self.tau <= 1.0, "above 0 and at most 1")
        interval = self.target_update_interval
        require("target_update_interval", interval, interval >= 1, "at least 1")


class DQNLearner(Learner):
    """The update of DQN."""

    def setup_module(self, module_id: str) -> None:
        """The target network is part of the learner's state."""
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """What the loss reads (`discounts` and `weights` only where they are there)."""
        return (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.NEXT_OBS)

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Any]:
        """Action values at the observations."""
        return {mid: self.module[mid].forward_train({Columns.OBS: part[Columns.OBS]}) for mid, part in batch.items()}

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor:
        """The error of `Q(s, a)` against `r + gamma max Q'(s', .)`, with n steps for one where the batch says so."""
        values = fwd_out["q_values"]
        taken = values.gather(-1, batch[Columns.ACTIONS].long().unsqueeze(-1)).squeeze(-1)
        following = self.next_values(module_id, config, {Columns.OBS: batch[Columns.NEXT_OBS]})
        discounts = batch.get(Columns.DISCOUNTS, config.gamma)
        going_on = (~batch[Columns.TERMINATEDS].bool()).to(values.dtype)  # truncated ones do go on
        targets = batch[Columns.REWARDS] + discounts * going_on * following
        errors = taken - targets
        if config.huber_delta is None:
            each = 0.5 * errors.square()
        else:
            each = F.huber_loss(taken, targets, reduction="none", delta=config.huber_delta)
        if Columns.WEIGHTS in batch:
            each = each * batch[Columns.WEIGHTS]
        loss = self.masked_mean(each, batch)
        self.row_errors[module_id] = errors.detach()
        q_mean, size = self.masked_mean(taken.detach(), batch), self.masked_mean(errors.detach().abs(), batch)
        self.log(module_id, qf_loss=loss, q_mean=q_mean, td_error_mean=size)
        return loss

    @torch.no_grad()
    def next_values(self, module_id: str, config: Any, batch: TensorColumns) -> Tensor:
        """`[N]`: what the target network says of the best next action, which with `double_q` the learner picks."""
        target: Tensor = self.registered[f"{module_id}/target"].module.forward_train(batch)["q_values"]
        if not config.double_q:
            return target.amax(-1)
        best = self.module[module_id].forward_train(batch)["q_values"].argmax(-1, keepdim=True)
        return target.gather(-1, best).squeeze(-1)

    def apply_gradients(self, gradients: Gradients) -> None:
        """One step of each optimizer; then the target networks follow."""
        super().apply_gradients(gradients)
        for module_id in dict.fromkeys(entry.module_id for entry in self.optimizers if entry.has_loss):
            config: Any = self.config_of(module_id)
            source = flat_parameters(self.optimizers, module_id, self.module[module_id])
            target: TargetNetwork = self.registered[f"{module_id}/target"]
            target.after_gradient_step(source, config.target_update_interval, config.tau)


class DQNConfig(AlgorithmConfig):
    """`DQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "dqn"
    learner_class = DQNLearner
    training_class = DQNTraining
    is_off_policy = True

    def default_module_class(self, model_config: Any) -> Any:
        """Action values."""
        return DefaultQModule

    def exploration(self, action_space: Any) -> EpsilonGreedy | None:
        """Epsilon-greedy."""
        return EpsilonGreedy(self.epsilon, int(action_space.n))


__all__ = ["DQNConfig", "DQNLearner", "DQNTraining"]
