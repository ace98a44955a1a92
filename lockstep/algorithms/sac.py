"""SAC: soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications").

https://arxiv.org/abs/1812.05905, with the temperature learned (equation 18); for discrete actions as in Christodoulou
2019, https://arxiv.org/abs/1910.07207. Twin critics are one batched product, their target network follows after every
gradient step. All three losses are taken at the same parameters and meet in one backward pass; the policy's sends no
gradient into the critics.

Defaults: those of the paper (table 1): batch 256, two layers of 256 rectified units, Adam with lr 3e-4, tau 0.005,
gamma 0.99, a memory of a million, one gradient step for each environment step, entropy of minus the number of action
dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, Unpack

from torch import Tensor

from lockstep.algorithms.config import AlgorithmConfig
from lockstep.learner import soft
from lockstep.learner.action_values import COLUMNS
from lockstep.learner.config import SampledTraining, TrainingOptions
from lockstep.learner.critics import critic_loss, critics_of_actions, td_targets
from lockstep.learner.learner import Learner, TensorColumns
from lockstep.learner.targets import follow_targets
from lockstep.modules import DefaultSACModule
from lockstep.state.options import ConfigT, option
from lockstep.state.schedules import ScheduleLike


class SACOptions(TrainingOptions, total=False):
    """Options of `SACTraining`."""

    actor_lr: ScheduleLike | None
    critic_lr: ScheduleLike | None
    alpha_lr: ScheduleLike | None
    tau: float
    target_update_interval: int
    alpha: float | Literal["auto"]
    initial_alpha: float
    target_entropy: float | Literal["auto"]


@dataclass
class SACTraining(SampledTraining[ConfigT]):
    """Options of `SACConfig.training(...)`."""

    lr: ScheduleLike = 3e-4
    """learning rate of all three optimizers that have none of their own"""
    actor_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the policy; `None`: `lr`"""
    critic_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the critics; `None`: `lr`"""
    alpha_lr: ScheduleLike | None = option(None, ge=0, finite=True)
    """of the temperature; `None`: `lr`"""
    train_batch_size: int = 256
    tau: float = option(0.005, gt=0, le=1)
    """how far the target critics go towards those that learn, in each update of them"""
    target_update_interval: int = option(1, ge=1)
    """gradient steps between two updates of the target critics"""
    alpha: float | Literal["auto"] = option("auto", ge=0)
    """temperature, the weight of the entropy: a number, or "auto": learned, so that the entropy is `target_entropy`"""
    initial_alpha: float = option(1.0, gt=0)
    """where a learned temperature begins"""
    target_entropy: float | Literal["auto"] = option("auto", finite=True)
    """in nats; "auto": minus the number of action dimensions, or 0.98 of the highest for discrete actions"""

    def __call__(self, **options: Unpack[SACOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


class SACLearner(Learner):
    """The update of SAC."""

    def setup_module(self, module_id: str) -> None:
        """Target critics and temperature are part of the learner's state."""
        soft.set_up(self, module_id)

    def configure_optimizers_for_module(self, module_id: str, config: Any) -> None:
        """Three: "actor", "critic" and, where the temperature is learned, "alpha"."""
        soft.register_optimizers(self, module_id, config)

    def required_columns(self, module_id: str) -> tuple[str, ...]:
        """What the loss reads (`discounts` and `weights` only where they are there)."""
        return COLUMNS

    def noise_columns(self, module_id: str) -> dict[str, int]:
        """For a Box: the random numbers of two actions for each row."""
        return soft.noise_columns(self, module_id)

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: TensorColumns, fwd_out: Any) -> Tensor:
        """Critics (equations 5 and 6), policy (equation 9, the smallest critic), temperature (equation 18)."""
        alpha = self.registered[f"{module_id}/log_alpha"].detach().exp()
        with self.mixed_precision():
            following = soft.next_values(self, module_id, batch, alpha)
            policy_terms, neg_entropy = soft.policy_terms(self, module_id, batch, fwd_out, alpha)
        values = critics_of_actions(self.module[module_id], fwd_out["q_values"], batch)
        loss = critic_loss(self, module_id, batch, values, td_targets(batch, following, config.gamma))
        actor_loss = self.masked_mean(policy_terms, batch)
        self.log(module_id, actor_loss=actor_loss)
        return loss + actor_loss + soft.temperature_loss(self, module_id, batch, neg_entropy)

    def after_gradient_step(self) -> None:
        """The target critics follow."""
        follow_targets(self)


class SACConfig(AlgorithmConfig):
    """`SACConfig().environment("Pendulum-v1").build_trainer().run()`."""

    algorithm = "sac"
    learner_class = SACLearner
    first_values = ("alpha", "initial_alpha")
    training_class = SACTraining
    is_off_policy = True
    squashes_actions = True

    @property
    def training(self) -> SACTraining[Self]:
        """The update."""
        return self._section("training")

    def __init__(self) -> None:
        super().__init__()
        self.replay(capacity=1_000_000, update_per_step=1.0)
        own = {
            "hiddens": (256, 256),
            "activation": "relu",
            "orthogonal_init": False,
            "free_log_std": False,
            "squash_actions": True,
        }
        self.rl_module(model_config=own)

    def default_module_class(self, model_config: Any) -> Any:
        """Policy and critics."""
        return DefaultSACModule


__all__ = ["SACConfig", "SACLearner", "SACTraining"]
