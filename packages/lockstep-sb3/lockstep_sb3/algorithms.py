"""Algorithms with the option names and defaults of Stable-Baselines3, and their translation to Lockstep's options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lockstep.data import DEFAULT_MODULE_ID
from lockstep_sb3.common.base_class import Rate, option
from lockstep_sb3.common.live_options import set_live_option
from lockstep_sb3.common.log_names import TRPO_METRICS, MetricNames
from lockstep_sb3.common.moved import moved_name
from lockstep_sb3.common.off_policy_algorithm import OffPolicyAlgorithm
from lockstep_sb3.common.on_policy_algorithm import OnPolicyAlgorithm
from lockstep_sb3.common.type_aliases import Schedule
from lockstep_sb3.common.utils import ChangingSchedule, ConstantSchedule, LinearSchedule

SMALLEST_CLIP_RANGE = 1e-9
"""Clip range in place of 0, which Lockstep refuses."""
BATCH_NORM = {"batch_norm_momentum": 0.01, "batch_norm_eps": 0.001, "renorm_warmup_steps": 100_000}
"""Settings of CrossQ's batch renormalisation, which are constants in Lockstep."""

# -- on-policy ---


@dataclass(eq=False, repr=False)
class _ActorCritic(OnPolicyAlgorithm):
    """Algorithm whose loss sums the losses of policy, value function and entropy."""

    ent_coef: float = option(0.0, "training.entropy_coeff")
    vf_coef: float = 0.5
    max_grad_norm: float = option(0.5, "training.grad_clip")
    normalize_advantage: bool = True

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(vf_loss_coeff=2.0 * self.vf_coef)  # Lockstep's value loss is half the squared error


@dataclass(eq=False, repr=False)
class PPO(_ActorCritic):
    """Proximal policy optimization.

    With `clip_range_vf` the value loss is the larger one of the clipped and the unclipped error, as at OpenAI.
    """

    algorithm = "ppo"

    batch_size: int = 64
    n_epochs: int = option(10, "training.num_epochs")
    clip_range: Rate = option(0.2, "training.clip_param")
    clip_range_vf: Rate | None = None
    target_kl: float | None = option(None, "training.target_kl")

    def __post_init__(self) -> None:
        # Programs load a model with a clip range of 0 only to act with it.
        if self.clip_range == 0:
            self.clip_range = SMALLEST_CLIP_RANGE
        super().__post_init__()

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(minibatch_size=min(self.batch_size, self.n_steps * self.n_envs))
        config.training(normalize_advantages="minibatch" if self.normalize_advantage else None)
        config.training(vf_clip_param=self._present_clip_range_vf)

    @property
    def _present_clip_range_vf(self) -> float | None:
        """Present value of `clip_range_vf`."""
        value = self.clip_range_vf
        return float(value(self._current_progress_remaining)) if callable(value) else value

    def before_update(self) -> None:
        super().before_update()
        if callable(self.clip_range_vf):
            set_live_option(self.config, self.learner, "training.vf_clip_param", self._present_clip_range_vf)

    def scheduled_values(self) -> dict[str, float]:
        training: Any = self.config.training
        values = {**super().scheduled_values(), "train/clip_range": self.at_present(training.clip_param)}
        if self._present_clip_range_vf is not None:
            values["train/clip_range_vf"] = self._present_clip_range_vf
        return values


@dataclass(eq=False, repr=False)
class A2C(_ActorCritic):
    """Synchronous advantage actor-critic."""

    algorithm = "a2c"
    log_interval = 100

    learning_rate: Rate = option(7e-4, "training.lr")
    n_steps: int = 5
    gae_lambda: float = option(1.0, "training.lambda_")
    normalize_advantage: bool = option(False, "training.normalize_advantages")
    rms_prop_eps: float = 1e-5
    use_rms_prop: bool = True

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        if self.use_rms_prop and "optimizer_class" not in (self.policy_kwargs or {}):
            config.training(optimizer="rmsprop", optimizer_kwargs={"alpha": 0.99, "eps": self.rms_prop_eps})

    @property
    def metric_names(self) -> MetricNames:
        names = {**super().metric_names, "policy_loss": ("policy_loss", 1.0)}
        del names["total_loss"]
        return names


@dataclass(eq=False, repr=False)
class TRPO(OnPolicyAlgorithm):
    """Trust region policy optimization of sb3-contrib.

    The value function makes as many steps as there, each on the whole rollout and not on `batch_size` of its rows.
    """

    algorithm = "trpo"
    shares_layers = False

    learning_rate: Rate = option(1e-3, "training.lr")
    batch_size: int = 128
    cg_max_steps: int = option(15, "training.cg_iterations")
    cg_damping: float = option(0.1, "training.cg_damping")
    line_search_shrinking_factor: float = option(0.8, None)
    line_search_max_iter: int = option(10, None)
    n_critic_updates: int = 10
    normalize_advantage: bool = option(True, None)
    target_kl: float = option(0.01, "training.max_kl")
    sub_sampling_factor: int = option(1, None)

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        steps_per_update = math.ceil(self.n_steps * self.n_envs / self.batch_size)
        config.training(num_epochs=self.n_critic_updates * steps_per_update)

    @property
    def metric_names(self) -> MetricNames:
        return TRPO_METRICS


# -- off-policy ---


@dataclass(eq=False, repr=False)
class _EpsilonGreedy(OffPolicyAlgorithm):
    """Algorithm that learns values of discrete actions, and explores epsilon-greedily."""

    widths = (64, 64)
    critic_name = None

    learning_rate: Rate = option(1e-4, "training.lr")
    batch_size: int = option(32, "training.train_batch_size")
    tau: float = option(1.0, "training.tau")
    train_freq: int | tuple[int, str] = 4
    target_update_interval: int = 10_000
    exploration_fraction: float = 0.1
    exploration_initial_eps: float = 1.0
    exploration_final_eps: float = 0.05
    max_grad_norm: float | None = option(10, "training.grad_clip")

    def __post_init__(self) -> None:
        self._linear: LinearSchedule | None = None
        """Schedule that the options of exploration describe."""
        self._epsilon = ChangingSchedule(ConstantSchedule(self.exploration_initial_eps))
        """Present schedule."""
        super().__post_init__()

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        # Stable-Baselines3 counts the interval in environment steps, Lockstep in gradient steps. Between two updates
        # nothing is trained, so the interval is rounded to whole rounds of `train_freq` steps.
        steps_per_round = self.train_freq * self.n_envs if isinstance(self.train_freq, int) else 1
        rounds = max(1, round(self.target_update_interval / steps_per_round))
        interval = max(1, round(rounds * steps_per_round * self.updates_per_step))
        config.training(double_q=False, target_update_interval=interval)
        linear = LinearSchedule(self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction)
        if linear != self._linear:
            self._linear = linear
            self._epsilon.function = linear
        config.training(epsilon=self.over_steps(self._epsilon))

    @property
    def exploration_schedule(self) -> Schedule:
        """Probability of a random action as a function of the remaining progress. It may be set at any time."""
        return self._epsilon.function

    @exploration_schedule.setter
    def exploration_schedule(self, schedule: Schedule) -> None:
        self._epsilon.function = schedule

    @property
    def exploration_rate(self) -> float:
        """Present probability of a random action."""
        return self.exploration_schedule(self._current_progress_remaining)

    def scheduled_values(self) -> dict[str, float]:
        return {"rollout/exploration_rate": self.exploration_rate}


@dataclass(eq=False, repr=False)
class DQN(_EpsilonGreedy):
    """Deep Q-learning with the Huber loss, and without double Q-learning."""

    algorithm = "dqn"

    @property
    def q_net(self) -> nn.Module:
        """Live network of the action values."""
        network: nn.Module = self.policy.q_net
        return network

    @property
    def q_net_target(self) -> nn.Module:
        """Live target network of the action values."""
        network: nn.Module = self.policy.q_net_target
        return network

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(huber_delta=1.0)


@dataclass(eq=False, repr=False)
class QRDQN(_EpsilonGreedy):
    """Quantile regression DQN of sb3-contrib, without double Q-learning."""

    algorithm = "qrdqn"

    @property
    def quantile_net(self) -> nn.Module:
        """Live network of the quantiles."""
        network: nn.Module = self.policy.quantile_net
        return network

    @property
    def quantile_net_target(self) -> nn.Module:
        """Live target network of the quantiles."""
        network: nn.Module = self.policy.quantile_net_target
        return network

    learning_rate: Rate = option(5e-5, "training.lr")
    exploration_fraction: float = 0.005
    exploration_final_eps: float = 0.01
    max_grad_norm: float | None = option(None, "training.grad_clip")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(num_quantiles=kwargs.pop("n_quantiles", 200))
        if "optimizer_class" not in (self.policy_kwargs or {}):
            config.training(adam_epsilon=0.01 / self.batch_size)  # 0.01 / 32 in the paper, whose batches have 32 rows


@dataclass(eq=False, repr=False)
class _OffPolicyActorCritic(OffPolicyAlgorithm):
    """Algorithm with an actor and critics Q(s, a)."""

    @property
    def actor(self) -> nn.Module:
        """Live network of the policy. A program may set it to the same network."""
        network: nn.Module = self.policy.actor
        return network

    @actor.setter
    def actor(self, network: nn.Module) -> None:
        if network is not self.policy.actor:
            raise ValueError("model.actor is the network of the policy; load other weights by model.set_parameters")

    @property
    def critic(self) -> nn.Module:
        """Live critics."""
        network: nn.Module = self.policy.critic
        return network

    @property
    def critic_target(self) -> nn.Module | None:
        """Live target networks of the critics; None for CrossQ, which has none."""
        network: nn.Module | None = self.policy.critic_target
        return network


@dataclass(eq=False, repr=False)
class _SoftActorCritic(_OffPolicyActorCritic):
    """Actor-critic that also maximises the entropy of its policy."""

    @property
    def log_ent_coef(self) -> Tensor | None:
        """Logarithm of the temperature, a live parameter; None if the temperature is a constant."""
        is_learned = str(self.ent_coef).startswith("auto")
        value: Tensor = self.learner.registered[f"{DEFAULT_MODULE_ID}/log_alpha"]
        return value if is_learned else None

    @property
    def ent_coef_tensor(self) -> Tensor:
        """Present temperature, 0-d."""
        value: Tensor = self.learner.registered[f"{DEFAULT_MODULE_ID}/log_alpha"].detach().exp()
        return value

    ent_coef: str | float = "auto"
    target_entropy: str | float = option("auto", "training.target_entropy")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        # "auto_0.1" learns the coefficient from the initial value 0.1.
        word, _, initial = str(self.ent_coef).partition("_")
        alpha = "auto" if word == "auto" else float(self.ent_coef)
        config.training(alpha=alpha, initial_alpha=float(initial or 1.0))


@dataclass(eq=False, repr=False)
class SAC(_SoftActorCritic):
    """Soft actor-critic."""

    algorithm = "sac"

    tau: float = option(0.005, "training.tau")
    target_update_interval: int = option(1, "training.target_update_interval")


@dataclass(eq=False, repr=False)
class TQC(_SoftActorCritic):
    """Truncated quantile critics of sb3-contrib."""

    algorithm = "tqc"

    tau: float = option(0.005, "training.tau")
    target_update_interval: int = option(1, "training.target_update_interval")
    top_quantiles_to_drop_per_net: int = option(2, "training.quantiles_to_drop")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(num_quantiles=kwargs.pop("n_quantiles", 25))

    @property
    def metric_names(self) -> MetricNames:
        # The mean over the critics, where Lockstep has their sum.
        num_critics = self.config.rl_module.model_config.num_critics
        return {**super().metric_names, "critic_loss": ("critic_loss", 1.0 / num_critics)}


@dataclass(eq=False, repr=False)
class CrossQ(_SoftActorCritic):
    """CrossQ of sb3-contrib: soft actor-critic without target networks, whose critics normalise over the batch.

    The features of the policy are not normalised.
    """

    algorithm = "crossq"

    learning_rate: Rate = option(1e-3, "training.lr")
    policy_delay: int = option(3, "training.policy_delay")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        kwargs.setdefault("net_arch", {"pi": [256, 256], "qf": [1024, 1024]})
        for name, constant in BATCH_NORM.items():
            value = kwargs.pop(name, constant)
            if value != constant:
                self.refuse(f"policy_kwargs {name}={value!r}", f"it is always {constant}")


@dataclass(eq=False, repr=False)
class TD3(_OffPolicyActorCritic):
    """Twin delayed deterministic policy gradient. Without `action_noise` it does not explore."""

    algorithm = "td3"
    widths = (400, 300)

    learning_rate: Rate = option(1e-3, "training.lr")
    tau: float = option(0.005, "training.tau")
    policy_delay: int = option(2, "training.policy_delay")
    target_policy_noise: float = option(0.2, "training.target_noise")
    target_noise_clip: float = option(0.5, "training.noise_clip")

    @property
    def actor_target(self) -> nn.Module:
        """Live target network of the policy."""
        network: nn.Module = self.policy.actor_target
        return network

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(exploration_noise=0.0)

    @property
    def metric_names(self) -> MetricNames:
        # The squared error, where Lockstep has half of it.
        return {**super().metric_names, "critic_loss": ("critic_loss", 2.0)}


@dataclass(eq=False, repr=False)
class DDPG(TD3):
    """Deep deterministic policy gradient: TD3 with one critic, no delay of the policy, and no noise in targets."""

    num_critics = 1

    policy_delay: int = option(1, "training.policy_delay")
    target_policy_noise: float = option(0.0, "training.target_noise")
    target_noise_clip: float = option(0.0, "training.noise_clip")


_MOVED = {
    "BaseAlgorithm": "lockstep_sb3.common.base_class:BaseAlgorithm",
    "NormalActionNoise": "lockstep_sb3.common.noise:NormalActionNoise",
    "OrnsteinUhlenbeckActionNoise": "lockstep_sb3.common.noise:OrnsteinUhlenbeckActionNoise",
    "ReplayView": "lockstep_sb3.common.buffers:ReplayBuffer",
}
"""Places of names that have changed."""


def __getattr__(name: str) -> Any:
    """Return an object by its old name."""
    return moved_name(__name__, name, _MOVED)
