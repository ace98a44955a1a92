"""TD3+BC: TD3 whose policy stays near the data (Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement
Learning").

https://arxiv.org/abs/2106.06860. The critics are those of TD3; the policy, in every second step,

    maximises  E[lambda Q(s, pi(s)) - (pi(s) - a)^2],  lambda = alpha / E|Q(s, pi(s))|     (equations 3 and 5)

and observations are normalised by the statistics of the data (`environment(normalize_observations=True)`).

Defaults: those of the paper: alpha 2.5, batch 256, two layers of 256 rectified units, Adam with lr 3e-4, tau 0.005,
target noise 0.2 (limited to 0.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, Unpack

from torch import Tensor

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.data.columns import Columns
from lockstep.learner import delayed_policy
from lockstep.learner.action_values import COLUMNS
from lockstep.learner.config import SampledTraining, TrainingOptions
from lockstep.learner.critics import critic_loss, register_actor_and_critic, td_targets
from lockstep.learner.learner import Learner, TensorColumns
from lockstep.learner.module_checks import check_parts
from lockstep.learner.optimizers import RegisteredOptimizer
from lockstep.learner.targets import TargetNetwork
from lockstep.modules import DefaultTD3Module
from lockstep.state.options import ConfigT, option
from lockstep.state.schedules import ScheduleLike


class TD3BCOptions(TrainingOptions, total=False):
    """Options of `TD3BCTraining`."""

    actor_lr: ScheduleLike | None
    critic_lr: ScheduleLike | None
    alpha: float
    tau: float
    policy_delay: int
    target_noise: float
    noise_clip: float


@dataclass
class TD3BCTraining(SampledTraining[ConfigT]):
    """Options of `TD3BCConfig.training(...)`."""

    lr: ScheduleLike = 3e-4
    """learning rate of both optimizers where they have none of their own"""
    actor_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the policy; `None`: `lr`"""
    critic_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the critics; `None`: `lr`"""
    train_batch_size: int = 256
    alpha: float = option(2.5, ge=0)
    """how much the critics count beside the distance to the data's actions; 0: imitation of them"""
    tau: float = option(0.005, gt=0, le=1)
    """how far the target networks go towards those that learn, in each update of them"""
    policy_delay: int = option(2, ge=1)
    """gradient steps of the critics for one of the policy and one update of the target networks"""
    target_noise: float = option(0.2, ge=0)
    """deviation of the noise on the target policy's action; 0: none"""
    noise_clip: float = option(0.5, ge=0)
    """limit of that noise"""

    def __call__(self, **options: Unpack[TD3BCOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


class TD3BCLearner(Learner):
    """The update of TD3+BC."""

    def setup_module(self, module_id: str) -> None:
        """The target policy and critics are part of the learner's state."""
        check_parts(self, module_id, "critics", "compute_actions")
        self.register_state(f"{module_id}/target", TargetNetwork(self.module[module_id]))

    def configure_optimizers_for_module(self, module_id: str, config: Any) -> None:
        """Two: "actor" and "critic"."""
        register_actor_and_critic(self, module_id, config)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """What the loss reads (`discounts` and `weights` only where they are there)."""
        return COLUMNS

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """The random numbers that smooth the target action."""
        return delayed_policy.noise_columns(self, module_id)

    def forward_train(self, batch: dict[str, TensorColumns]) -> dict[str, Any]:
        """Values `[K, N]` of the actions that were taken."""
        return delayed_policy.taken_values(self, batch)

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor:
        """The errors of TD3's critics; when it is due, the policy's scaled values and its distance to the data."""
        following = delayed_policy.smoothed_next_values(self, module_id, batch)
        loss = critic_loss(self, module_id, batch, fwd_out, td_targets(batch, following, config.gamma))
        if not delayed_policy.policy_learns(self, module_id):
            return loss
        module: Any = self.module[module_id]
        with self.mixed_precision():
            actions = self.to_tensor(module.compute_actions(batch))
            values = self.to_tensor(module.critics(batch[Columns.OBS], actions, frozen=True, first_only=True)[0])
        size = self.masked_mean(values.detach().abs(), batch)
        distance = self.masked_mean((actions - batch[Columns.ACTIONS]).square().mean(-1), batch)
        actor_loss = distance - config.alpha / size.clamp(min=1e-8) * self.masked_mean(values, batch)
        self.log(module_id, actor_loss=actor_loss, bc_loss=distance)
        return loss + actor_loss

    def takes_part(self, entry: RegisteredOptimizer) -> bool:
        """The policy's optimizer does when it is due."""
        return delayed_policy.takes_part(self, entry)

    def compiled_variant(self) -> tuple[bool, ...]:
        """Which policies learn now."""
        return tuple(delayed_policy.policy_learns(self, module_id) for module_id in self.module)

    def after_gradient_step(self) -> None:
        """The target networks follow."""
        delayed_policy.follow_targets(self)


class TD3BCConfig(AlgorithmConfig):
    """`TD3BCConfig().environment("Pendulum-v1").offline_data(input_="my/data-v0").build_trainer().run()`."""

    algorithm = "td3_bc"
    learner_class = TD3BCLearner
    training_class = TD3BCTraining
    is_offline = True
    squashes_actions = True

    @property
    def training(self) -> TD3BCTraining[Self]:
        """The update."""
        return self._section("training")

    def __init__(self) -> None:
        super().__init__()
        self.environment(normalize_observations=True)
        self.rl_module(model_config={"hiddens": (256, 256), "activation": "relu", "orthogonal_init": False})

    def default_module_class(self, model_config: Any) -> Any:
        """Policy and critics."""
        return DefaultTD3Module


__all__ = ["TD3BCConfig", "TD3BCLearner", "TD3BCTraining"]
