"""Algorithms with the option names and defaults of Stable-Baselines3, and their translation to Lockstep's options."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from lockstep.data import DEFAULT_MODULE_ID
from lockstep.replay import ReplayBuffer
from lockstep.trainer import OffpolicyTrainer, OnpolicyTrainer
from lockstep_sb3.common.base_class import BaseAlgorithm, Rate, option
from lockstep_sb3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from lockstep_sb3.common.utils import LinearSchedule

# -- on-policy ---


@dataclass(eq=False, repr=False)
class _OnPolicy(BaseAlgorithm):
    """Algorithm that trains on each rollout once."""

    activation = nn.Tanh
    has_q = False
    adam_epsilon = 1e-5
    sde_log_std = 0.0
    log_interval = 1

    n_steps: int = 2048
    gae_lambda: float = option(0.95, "training.lambda_")
    ent_coef: float = option(0.0, "training.entropy_coeff")
    vf_coef: float = 0.5
    max_grad_norm: float = option(0.5, "training.grad_clip")
    normalize_advantage: bool = True
    rollout_buffer_class: Any = option(None, None)
    rollout_buffer_kwargs: Any = option(None, None)

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        # Policy and value function of Stable-Baselines3 share the convolutions, and have no layers after them by
        # default.
        shares_layers = self.is_cnn and not kwargs.get("net_arch")
        model = {"orthogonal_init": kwargs.pop("ortho_init", True), "vf_share_layers": shares_layers}
        config.rl_module(model_config={**model, "log_std_init": float(kwargs.pop("log_std_init", 0.0))})
        config.training(train_batch_size=self.n_steps * self.n_envs)
        config.training(vf_loss_coeff=2.0 * self.vf_coef)  # Lockstep's value loss is half the squared error

    def make_buffer(self) -> None:
        return None

    def make_trainer(self, **options: Any) -> OnpolicyTrainer:
        options["step_per_collect"] = self.n_steps * self.n_envs
        options["batch_size"] = self.config.training.minibatch_size
        return OnpolicyTrainer(repeat_per_collect=self.config.training.num_epochs, **options)

    def log_unit(self) -> int:
        return (self.num_timesteps - self._steps_before) // (self.n_steps * self.n_envs)


@dataclass(eq=False, repr=False)
class PPO(_OnPolicy):
    """Proximal policy optimization.

    With `clip_range_vf` the value loss is the larger one of the clipped and the unclipped error, as at OpenAI.
    """

    algorithm = "ppo"

    batch_size: int = 64
    n_epochs: int = option(10, "training.num_epochs")
    clip_range: Rate = option(0.2, "training.clip_param")
    clip_range_vf: float | None = option(None, "training.vf_clip_param")
    target_kl: float | None = option(None, "training.target_kl")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(minibatch_size=min(self.batch_size, self.n_steps * self.n_envs))
        config.training(normalize_advantages="minibatch" if self.normalize_advantage else None)


@dataclass(eq=False, repr=False)
class A2C(_OnPolicy):
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


# -- off-policy ---


class ReplayView:
    """Replay buffer with the method names of Stable-Baselines3."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.lockstep = buffer

    def size(self) -> int:
        """Return the number of transitions."""
        return len(self.lockstep)


@dataclass(eq=False, repr=False)
class _OffPolicy(BaseAlgorithm):
    """Algorithm that trains on samples of a replay buffer."""

    widths = (256, 256)

    buffer_size: int = option(1_000_000, "replay.capacity")
    learning_starts: int = option(100, "replay.learning_starts")
    batch_size: int = option(256, "training.train_batch_size")
    tau: float = option(0.005, "training.tau")
    train_freq: int | tuple[int, str] = 1
    gradient_steps: int = 1
    action_noise: NormalActionNoise | None = None
    replay_buffer_class: Any = option(None, None)
    replay_buffer_kwargs: Any = option(None, None)
    optimize_memory_usage: bool = option(False, "replay.ignore_obs_next")
    n_steps: int = option(1, "replay.n_step")
    use_sde_at_warmup: bool = option(False, None)

    @property
    def train_frequency(self) -> tuple[int, str]:
        """Number and unit of the steps between two updates: steps of all environments ("step"), or "episode"s."""
        frequency: Any = self.train_freq
        return (frequency, "step") if isinstance(frequency, int) else (int(frequency[0]), str(frequency[1]))

    @property
    def updates_per_step(self) -> float:
        """Number of gradient steps for each environment step. `gradient_steps=-1` is one for each."""
        frequency, unit = self.train_frequency
        if self.gradient_steps == 0 or (unit == "episode" and self.gradient_steps > 0):
            self.refuse(f"gradient_steps={self.gradient_steps} with train_freq={self.train_freq}", "give -1")
        return 1.0 if self.gradient_steps < 0 else self.gradient_steps / (frequency * self.n_envs)

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        config.replay(update_per_step=self.updates_per_step)
        if self.get_vec_normalize_env() is not None:
            warnings.warn(
                "what is remembered is normalised as it was when seen; Stable-Baselines3 does it anew for each "
                "sample, as Lockstep does with environment(normalize_observations=True)",
                stacklevel=7,
            )
        if self.action_noise is not None:
            self._set_noise(config, self.action_noise)
        if self.algorithm != "dqn":
            config.rl_module(model_config={"num_critics": kwargs.pop("n_critics", 2)})

    def _set_noise(self, config: Any, noise: NormalActionNoise) -> None:
        """Set the exploration that `action_noise` describes."""
        sigmas = np.unique(np.asarray(noise.sigma, float)).tolist()
        if np.any(np.asarray(noise.mean)) or len(sigmas) != 1:
            self.refuse(f"action_noise={noise}", "its mean is 0, and sigma the same in all directions")
        if isinstance(noise, OrnsteinUhlenbeckActionNoise):
            options = {"sigma": sigmas[0], "theta": noise.theta, "dt": noise.dt}
            config.env_runners(exploration="ou", exploration_config=options)
        else:
            config.env_runners(exploration="normal", exploration_config={"scale": sigmas[0]})

    def make_buffer(self) -> ReplayBuffer:
        connectors = self.lockstep.acting[DEFAULT_MODULE_ID].connectors
        return self.config.build_replay_buffer(self.n_envs, connectors=connectors)

    def make_trainer(self, **options: Any) -> OffpolicyTrainer:
        frequency, unit = self.train_frequency
        options |= {f"{unit}_per_collect": frequency * (self.n_envs if unit == "step" else 1)}
        options |= {"update_per_step": self.updates_per_step, "learning_starts": self.learning_starts}
        return OffpolicyTrainer(batch_size=self.batch_size, **options)

    @property
    def replay_buffer(self) -> ReplayView:
        """Replay buffer."""
        return ReplayView(self.buffer)

    def save_replay_buffer(self, path: Any) -> None:
        """Save the replay buffer to a folder."""
        self.buffer.save(path)

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:
        """Restore the replay buffer from a folder of `save_replay_buffer`."""
        self.buffer.set_state(ReplayBuffer.load(path).get_state())

    def log_unit(self) -> int:
        return int(self.trainer.env_episode)


@dataclass(eq=False, repr=False)
class DQN(_OffPolicy):
    """Deep Q-learning with the Huber loss, and without double Q-learning."""

    algorithm = "dqn"
    widths = (64, 64)
    has_q = False

    learning_rate: Rate = option(1e-4, "training.lr")
    batch_size: int = option(32, "training.train_batch_size")
    tau: float = option(1.0, "training.tau")
    train_freq: int | tuple[int, str] = 4
    target_update_interval: int = 10_000
    exploration_fraction: float = 0.1
    exploration_initial_eps: float = 1.0
    exploration_final_eps: float = 0.05
    max_grad_norm: float = option(10, "training.grad_clip")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        # Stable-Baselines3 counts the interval in environment steps, Lockstep in gradient steps. Between two updates
        # nothing is trained, so the interval is rounded to whole rounds of `train_freq` steps.
        steps_per_round = self.train_freq * self.n_envs if isinstance(self.train_freq, int) else 1
        rounds = max(1, round(self.target_update_interval / steps_per_round))
        interval = max(1, round(rounds * steps_per_round * self.updates_per_step))
        config.training(double_q=False, huber_delta=1.0, target_update_interval=interval)
        epsilon = LinearSchedule(self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction)
        config.training(epsilon=self.over_steps(epsilon))


@dataclass(eq=False, repr=False)
class SAC(_OffPolicy):
    """Soft actor-critic."""

    algorithm = "sac"

    ent_coef: str | float = "auto"
    target_update_interval: int = option(1, "training.target_update_interval")
    target_entropy: str | float = option("auto", "training.target_entropy")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        # "auto_0.1" learns the coefficient from the initial value 0.1.
        word, _, initial = str(self.ent_coef).partition("_")
        alpha = "auto" if word == "auto" else float(self.ent_coef)
        config.training(alpha=alpha, initial_alpha=float(initial or 1.0))


@dataclass(eq=False, repr=False)
class TQC(SAC):
    """Truncated quantile critics."""

    algorithm = "tqc"

    top_quantiles_to_drop_per_net: int = option(2, "training.quantiles_to_drop")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(num_quantiles=kwargs.pop("n_quantiles", 25))


@dataclass(eq=False, repr=False)
class TD3(_OffPolicy):
    """Twin delayed deterministic policy gradient. Without `action_noise` it does not explore."""

    algorithm = "td3"
    widths = (400, 300)

    learning_rate: Rate = option(1e-3, "training.lr")
    policy_delay: int = option(2, "training.policy_delay")
    target_policy_noise: float = option(0.2, "training.target_noise")
    target_noise_clip: float = option(0.5, "training.noise_clip")

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        super().set_options(config, kwargs)
        config.training(exploration_noise=0.0)
