"""PQN: parallelised Q-network (Gallici et al. 2024, "Simplifying deep temporal difference learning",
https://arxiv.org/abs/2407.04811).

Q-learning on the latest rollout of many environments, without replay buffer and target network. Layer normalisation in
the network keeps the values from diverging (the paper's section 3). Targets are computed from the end of a rollout
backwards, with the initial parameters of the update:

    R_t = r_t + gamma (lambda R_t+1 + (1 - lambda) max_a' Q(s_t+1, a'))        Q(lambda) target
    minimise  E[(Q(s_t, a_t) - R_t)^2 / 2]

At the end of an episode R_t = r_t. Where an episode or the rollout was cut, R_t = r_t + gamma max_a' Q(s_t+1, a'). The
network then learns in passes over the rollout, in minibatches. Exploration is epsilon-greedy.

Defaults: those of the authors' code for MinAtar (github.com/mttga/purejaxql, config/alg/pqn_minatar.yaml): lr 5e-4,
lambda 0.65, gradient norm 10, 2 passes in minibatches of 128, 32 steps of each environment; epsilon decays to 0.05
within 20,000 steps. From their configuration for CartPole (pqn_cartpole.yaml): 32 environments, and 2 hidden layers of
256. Adam in place of rectified Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, Unpack

import torch
from torch import Tensor

from lockstep.algorithms.families.q_learning import outputs_of_actions
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.learner.config import TrainingSection
from lockstep.learner.inputs import check_columns, check_outputs, recorded_columns, recorded_columns_on_device
from lockstep.learner.learner import Learner, Outputs
from lockstep.learner.minibatches import TensorColumns
from lockstep.modules import DefaultQModule
from lockstep.ops import lambda_returns
from lockstep.ops.device_returns import tensor_lambda_returns
from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, option

if TYPE_CHECKING:
    from lockstep.algorithms.families.typed import PQNOptions


@dataclass
class PQNTraining(TrainingSection[ConfigT]):
    """Options of `PQNConfig.training(...)`."""

    lr: ScheduleLike = 5e-4
    train_batch_size: int = 1024
    minibatch_size: int | Literal["auto"] | None = option(128, ge=1)
    num_epochs: int = option(2, ge=1)
    grad_clip: float | None = 10.0
    epsilon: ScheduleLike = option(factory=lambda: [[0, 1.0], [20_000, 0.05]], ge=0, le=1)
    """Probability of a random action while collecting: a number, or a schedule over sampled steps."""
    lambda_: float = option(0.65, ge=0, le=1)
    """Lambda of the targets. 0 takes one step of rewards, 1 the rest of the rollout."""

    def __call__(self, **options: Unpack[PQNOptions]) -> ConfigT:
        return self.change(options)


class PQNLearner(Learner[PQNTraining]):
    """The update of PQN."""

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        return (Columns.OBS, Columns.ACTIONS, Columns.VALUE_TARGETS)

    def prepare_batch(self, trajectories: Trajectories | TensorRollout, *, module_id: str) -> TensorColumns:
        """Return the columns of a rollout with its Q(lambda) targets."""
        if trajectories.is_on_device:
            return self._prepare_on_device(module_id, trajectories)
        config = self.config_of(module_id)
        columns = recorded_columns(self.to_tensor, self.connectors[module_id], trajectories)
        targets = lambda_returns(
            columns[Columns.REWARDS].cpu().numpy().reshape(trajectories.shape),
            self.best_next_values(module_id, columns).cpu().numpy().reshape(trajectories.shape),
            trajectories.terminateds,
            trajectories.cuts,
            gamma=config.gamma,
            lambda_=config.lambda_,
        )
        train_columns = {
            Columns.OBS: columns[Columns.OBS],
            Columns.ACTIONS: columns[Columns.ACTIONS],
            Columns.VALUE_TARGETS: self.to_tensor(targets.reshape(-1)),
        }
        return self.train_columns(module_id, train_columns, trajectories)

    def _prepare_on_device(self, module_id: str, rollout: TensorRollout) -> TensorColumns:
        """Return the columns of a rollout on a device with its Q(lambda) targets. The host does not wait."""
        config = self.config_of(module_id)
        columns = recorded_columns_on_device(self.to_tensor, self.connectors[module_id], rollout)
        targets = tensor_lambda_returns(
            columns[Columns.REWARDS].view(rollout.shape),
            self.best_next_values(module_id, columns).view(rollout.shape),
            rollout.terminateds,
            rollout.cuts,
            gamma=config.gamma,
            lambda_=config.lambda_,
        )
        train_columns = {
            Columns.OBS: columns[Columns.OBS],
            Columns.ACTIONS: columns[Columns.ACTIONS],
            Columns.VALUE_TARGETS: targets.flatten(),
        }
        check_columns(
            train_columns, self.required_columns(module_id), self.module[module_id], module_id, type(self).__name__
        )
        return train_columns

    @torch.no_grad()
    def best_next_values(self, module_id: str, columns: TensorColumns) -> Tensor:
        """Return the value `[T * B]` of the best action at each next observation, with the present parameters."""
        module = self.module[module_id]
        with self.mixed_precision():
            out = module.forward_train({Columns.OBS: columns[Columns.NEXT_OBS]})
        check_outputs(out, ("q_values",), type(module).__name__, type(self).__name__)
        values: Tensor = self.to_tensor(out["q_values"]).amax(-1)
        return values

    def compute_loss_for_module(
        self, *, module_id: str, config: PQNTraining, batch: TensorColumns, fwd_out: Outputs
    ) -> Tensor:
        """Return half the mean squared error of `Q(s, a)` from its target."""
        q_values = outputs_of_actions(fwd_out["q_values"], batch[Columns.ACTIONS])
        loss = self.masked_mean(0.5 * (q_values - batch[Columns.VALUE_TARGETS]).square(), batch)
        self.log(module_id, qf_loss=loss, q_mean=self.masked_mean(q_values.detach(), batch))
        return loss


class PQNConfig(AlgorithmConfig):
    """`PQNConfig().environment("CartPole-v1").build_trainer().run()`."""

    algorithm = "pqn"
    explorations = ("epsilon",)
    learns_from_tensors = True
    learner_class = PQNLearner
    training_class = PQNTraining
    module_class = DefaultQModule
    training: PQNTraining[Self]

    def __init__(self) -> None:
        super().__init__()
        self.env_runners(num_envs_per_env_runner=32)
        model = {"hiddens": (256, 256), "activation": "relu", "layer_norm": True, "orthogonal_init": False}
        self.rl_module(model_config=model)

    def validate(self) -> None:
        """Raise `ValueError` for a network with a memory: values of next observations are computed row by row."""
        super().validate()
        if self.has_memory:
            kind = self.kind_of_memory
            path = f"rl_module.model_config.{kind}"
            value = getattr(self.rl_module.model_config, kind, None)
            if value is not None:  # None if the memory is in a module spec of the user
                path = f"{path}={value!r}"
            raise ValueError(f"{path} is not allowed for pqn; leave it out, or take dqn, which may have a memory")
