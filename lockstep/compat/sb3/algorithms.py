"""The algorithms: options with the names and defaults of Stable-Baselines3, and what they are called here."""

from __future__ import annotations

import secrets
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from lockstep.algorithms import AlgorithmConfig, get_config
from lockstep.compat.sb3.common.base_class import BaseAlgorithm, Rate
from lockstep.compat.sb3.common.buffers import HerReplayBuffer
from lockstep.compat.sb3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from lockstep.compat.sb3.common.torch_layers import FlattenExtractor, Prepared
from lockstep.compat.sb3.common.utils import LinearSchedule
from lockstep.modules.encoders import is_image, spaces_in
from lockstep.replay import ReplayBuffer
from lockstep.trainer import OffpolicyTrainer, OnpolicyTrainer

ACTIVATIONS = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu", nn.ELU: "elu"}
OPTIMIZERS = {torch.optim.Adam: "adam", torch.optim.AdamW: "adamw", torch.optim.RMSprop: "rmsprop"}
FIXED = {"use_expln": False, "full_std": True, "squash_output": False, "clip_mean": 2.0}
"""policy_kwargs that can only be what they are by default"""


@dataclass(eq=False, repr=False)
class _Algorithm(BaseAlgorithm):
    """What all algorithms have in common on the way to a configuration."""

    widths: ClassVar[tuple[int, ...]] = (64, 64)
    activation: ClassVar[type[nn.Module]] = nn.ReLU
    on_policy: ClassVar[bool] = False
    adam_epsilon: ClassVar[float] = 1e-8
    sde_log_std: ClassVar[float] = -3.0
    n_critics: ClassVar[int] = 2

    def make_config(self) -> AlgorithmConfig:
        kwargs = dict(self.policy_kwargs or {})
        for name, value in FIXED.items():
            if kwargs.pop(name, value) != value:
                self.refuse(f"policy_kwargs[{name!r}]", f"only {value!r} is there")
        config: Any = get_config(self.algorithm).evaluation(evaluation_interval=0)
        config.environment(observation_space=self.observation_space, action_space=self.action_space)
        config.env_runners(num_envs_per_env_runner=self.n_envs)
        config.debugging(seed=secrets.randbits(31) if self.seed is None else self.seed)
        device = ("cuda" if torch.cuda.is_available() else "cpu") if str(self.device) == "auto" else str(self.device)
        config.framework(device=device)
        self._set_exploration(config, kwargs)
        optimizer, options = kwargs.pop("optimizer_class", torch.optim.Adam), dict(kwargs.pop("optimizer_kwargs", {}))
        if optimizer in (torch.optim.Adam, torch.optim.AdamW):
            config.training(adam_epsilon=options.pop("eps", self.adam_epsilon))
        config.training(optimizer=OPTIMIZERS.get(optimizer, optimizer), optimizer_kwargs=options)
        config.training(lr=self.over_steps(self.learning_rate), gamma=self.gamma)
        self.set_training(config)
        config.rl_module(model_config=self._networks(kwargs))
        if kwargs:
            self.refuse(f"policy_kwargs={kwargs}", "these have no counterpart")
        made: AlgorithmConfig = config
        return made

    def set_training(self, config: Any) -> None:
        """Set the options of this algorithm."""

    def refuse(self, what: str, instead: str) -> None:
        """Raise `ValueError` for an option that has no counterpart."""
        raise ValueError(f"{type(self).__name__}: {what} is not allowed here; {instead} (docs/sb3.md)")

    def _set_exploration(self, config: Any, kwargs: dict[str, Any]) -> None:
        if self.use_sde:
            options: dict[str, Any] = {"log_std_init": float(kwargs.pop("log_std_init", self.sde_log_std))}
            options["sample_freq"] = None if self.sde_sample_freq < 0 else self.sde_sample_freq
            config.env_runners(exploration="gsde", exploration_config=options)

    def _networks(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Take out of policy_kwargs what shapes networks, as fields of `ModelConfig`."""
        space, activation = self.observation_space, kwargs.pop("activation_fn", self.activation)
        if activation not in ACTIVATIONS:
            self.refuse(f"activation_fn={activation}", f"there are {[each.__name__ for each in ACTIVATIONS]}")
        model: dict[str, Any] = {"activation": ACTIVATIONS[activation]}
        has_images, is_lone = any(map(is_image, spaces_in(space))), is_image(space)
        is_cnn = self.policy_name == "CnnPolicy"
        widths = kwargs.pop("net_arch", () if is_cnn and (self.on_policy or self.algorithm == "dqn") else self.widths)
        by_part: dict[str, Any] = dict(widths) if isinstance(widths, dict) else {"pi": widths, "vf": widths}
        policy, critic = tuple(by_part.get("pi", ())), tuple(by_part.get("vf", by_part.get("qf", ())))
        if (self.on_policy or self.algorithm == "dqn") and policy != critic:
            self.refuse(f"net_arch={widths}", "policy and value have the same widths")
        extractor = kwargs.pop(
            "features_extractor_class", FlattenExtractor if has_images and not is_cnn and is_lone else None
        )
        options, scales = kwargs.pop("features_extractor_kwargs", {}), kwargs.pop("normalize_images", True)
        if extractor is not None:
            model |= {"encoder": Prepared, "encoder_config": {"extractor": extractor, "scales": scales, **options}}
        elif is_lone:
            model["image_hiddens"] = (options.get("features_dim", 512), *policy)
        elif has_images:
            model["image_hiddens"] = (options.get("cnn_output_dim", 256),)
        if not scales and extractor is None and any(part.dtype == "uint8" for part in spaces_in(space)):
            self.refuse("normalize_images=False", "images of bytes are divided by 255")
        model["hiddens"] = policy
        shares = kwargs.pop("share_features_extractor", self.on_policy)
        if self.on_policy:
            model["vf_share_layers"] = bool(shares and is_cnn and not policy)
            model["orthogonal_init"] = kwargs.pop("ortho_init", True)
            model["log_std_init"] = float(kwargs.pop("log_std_init", 0.0))
        elif self.algorithm != "dqn":
            model |= {"critic_hiddens": critic, "q_share_layers": bool(shares and (is_lone or extractor))}
            model["num_critics"] = kwargs.pop("n_critics", self.n_critics)
            if self.algorithm == "tqc":
                kwargs.pop("n_quantiles", None)
        return model


# -- on-policy ---


@dataclass(eq=False, repr=False)
class _OnPolicy(_Algorithm):
    """Learns from each rollout once."""

    on_policy, activation, adam_epsilon, sde_log_std, log_interval = True, nn.Tanh, 1e-5, 0.0, 1

    n_steps: int = 2048
    gae_lambda: float = 0.95
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True
    rollout_buffer_class: Any = None
    rollout_buffer_kwargs: Any = None

    def set_training(self, config: Any) -> None:
        if self.rollout_buffer_class is not None or self.rollout_buffer_kwargs:
            self.refuse("rollout_buffer_class", "leave it out")
        config.training(lambda_=self.gae_lambda, entropy_coeff=self.ent_coef, grad_clip=self.max_grad_norm)
        config.training(
            train_batch_size=self.n_steps * self.n_envs, vf_loss_coeff=2.0 * self.vf_coef
        )  # of half squares

    def make_trainer(self, **options: Any) -> OnpolicyTrainer:
        training = self.config.training
        batch: dict[str, Any] = {"batch_size": training.minibatch_size, "repeat_per_collect": training.num_epochs}
        return OnpolicyTrainer(step_per_collect=self.n_steps * self.n_envs, **batch, **options)

    def _log(self) -> None:
        self._logged += 1
        if self.log_interval_now and self._logged % self.log_interval_now == 0:
            self.dump_logs()


@dataclass(eq=False, repr=False)
class PPO(_OnPolicy):
    """Proximal policy optimisation. Clipped value errors count where they are larger, which is OpenAI's form."""

    algorithm = "ppo"

    batch_size: int = 64
    n_epochs: int = 10
    clip_range: Rate = 0.2
    clip_range_vf: Rate | None = None
    target_kl: float | None = None

    def set_training(self, config: Any) -> None:
        super().set_training(config)
        if callable(self.clip_range_vf):
            self.refuse("clip_range_vf as a function", "give a number")
        config.training(minibatch_size=min(self.batch_size, self.n_steps * self.n_envs), num_epochs=self.n_epochs)
        config.training(clip_param=self.over_steps(self.clip_range), vf_clip_param=self.clip_range_vf)
        normalize = "minibatch" if self.normalize_advantage else None
        config.training(normalize_advantages=normalize, target_kl=self.target_kl)


@dataclass(eq=False, repr=False)
class A2C(_OnPolicy):
    """Synchronous advantage actor-critic."""

    algorithm, log_interval = "a2c", 100

    learning_rate: Rate = 7e-4
    n_steps: int = 5
    gae_lambda: float = 1.0
    normalize_advantage: bool = False
    rms_prop_eps: float = 1e-5
    use_rms_prop: bool = True

    def set_training(self, config: Any) -> None:
        super().set_training(config)
        config.training(normalize_advantages=self.normalize_advantage)
        if self.use_rms_prop and "optimizer_class" not in (self.policy_kwargs or {}):
            config.training(optimizer="rmsprop", optimizer_kwargs={"alpha": 0.99, "eps": self.rms_prop_eps})


# -- off-policy ---


@dataclass(eq=False, repr=False)
class _OffPolicy(_Algorithm):
    """Learns from what is remembered."""

    widths = (256, 256)

    buffer_size: int = 1_000_000
    learning_starts: int = 100
    batch_size: int = 256
    tau: float = 0.005
    train_freq: int | tuple[int, str] = 1
    gradient_steps: int = 1
    action_noise: NormalActionNoise | None = None
    replay_buffer_class: Any = None
    replay_buffer_kwargs: dict[str, Any] | None = None
    optimize_memory_usage: bool = False
    n_steps: int = 1
    use_sde_at_warmup: bool = False

    @property
    def updates_per_step(self) -> float:
        """Gradient steps for each environment step."""
        frequency, unit = self.train_freq if isinstance(self.train_freq, tuple | list) else (self.train_freq, "step")
        if self.gradient_steps == 0 or (unit == "episode" and self.gradient_steps > 0):
            self.refuse(f"gradient_steps={self.gradient_steps} with train_freq={self.train_freq}", "give -1")
        return 1.0 if self.gradient_steps < 0 else self.gradient_steps / (frequency * self.n_envs)

    def set_training(self, config: Any) -> None:
        if self.get_vec_normalize_env() is not None:
            warnings.warn(
                "what is remembered is normalised as it was when seen; Stable-Baselines3 does it anew for each "
                "sample, as Lockstep does with environment(normalize_observations=True)",
                stacklevel=4,
            )
        if self.use_sde_at_warmup:
            self.refuse("use_sde_at_warmup=True", "the first steps are random; give learning_starts=0")
        her, kwargs = self.replay_buffer_class is HerReplayBuffer, dict(self.replay_buffer_kwargs or {})
        if self.replay_buffer_class not in (None, HerReplayBuffer):
            self.refuse(f"replay_buffer_class={self.replay_buffer_class}", "None and HerReplayBuffer are there")
        if her and self.env is not None:
            if self.get_vec_normalize_env() is not None:
                self.refuse("HerReplayBuffer with VecNormalize", "goals would be compared as normalised")
            config.environment(env=self.env.envs[0])
        config.replay(her=her, her_future_k=kwargs.pop("n_sampled_goal", 4))
        config.replay(her_strategy=str(kwargs.pop("goal_selection_strategy", "future")))
        if [name for name, value in kwargs.items() if (name, value) != ("handle_timeout_termination", True)]:
            self.refuse(f"replay_buffer_kwargs={kwargs}", "leave them out")
        config.replay(capacity=self.buffer_size, learning_starts=self.learning_starts, n_step=self.n_steps)
        config.replay(update_per_step=self.updates_per_step, ignore_obs_next=self.optimize_memory_usage)
        config.training(train_batch_size=self.batch_size, tau=self.tau)

    def _set_exploration(self, config: Any, kwargs: dict[str, Any]) -> None:
        super()._set_exploration(config, kwargs)
        noise, options = self.action_noise, {}
        if noise is not None:
            sigmas = np.unique(np.asarray(noise.sigma, float)).tolist()
            if np.any(np.asarray(noise.mean)) or len(sigmas) != 1:
                self.refuse(f"action_noise={noise}", "its mean is 0, and sigma the same in all directions")
            if isinstance(noise, OrnsteinUhlenbeckActionNoise):
                options = {"sigma": sigmas[0], "theta": noise.theta, "dt": noise.dt}
            config.env_runners(
                exploration="ou" if options else "normal", exploration_config=options or {"scale": sigmas[0]}
            )

    def make_trainer(self, **options: Any) -> OffpolicyTrainer:
        amount: dict[str, Any] = {"step_per_collect": None, "episode_per_collect": None}
        if isinstance(self.train_freq, tuple | list):
            frequency, unit = self.train_freq
            amount[f"{unit}_per_collect"] = frequency * (self.n_envs if unit == "step" else 1)
        else:
            amount["step_per_collect"] = self.train_freq * self.n_envs
        replay: dict[str, Any] = {"update_per_step": self.updates_per_step, "learning_starts": self.learning_starts}
        return OffpolicyTrainer(batch_size=self.batch_size, **replay, **amount, **options)

    @property
    def replay_buffer(self) -> ReplayView:
        """What is remembered."""
        return ReplayView(self.remembered if self.trainer is None else self.trainer.buffer)

    def save_replay_buffer(self, path: Any) -> None:
        """Write what is remembered to a folder of this name."""
        self.trainer.buffer.save(path)

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:
        """Remember what `save_replay_buffer` wrote."""
        if self.trainer is None:
            self.remembered = ReplayBuffer.load(path)
        else:
            present = self.trainer.buffer
            present.set_state(ReplayBuffer.load(path, hindsight=present.hindsight).get_state())

    def _log(self) -> None:
        due = self.trainer.env_episode // self.log_interval_now if self.log_interval_now else 0
        if due > self._logged:
            self._logged = due
            self.dump_logs()


class ReplayView:
    """A replay buffer, by the names of Stable-Baselines3."""

    def __init__(self, buffer: Any) -> None:
        self.lockstep = buffer

    def size(self) -> int:
        """Return the number of transitions."""
        return 0 if self.lockstep is None else len(self.lockstep)


@dataclass(eq=False, repr=False)
class DQN(_OffPolicy):
    """Deep Q-learning, with one network's errors clipped at 1, and without double Q-learning."""

    algorithm, widths = "dqn", (64, 64)

    learning_rate: Rate = 1e-4
    batch_size: int = 32
    tau: float = 1.0
    train_freq: int | tuple[int, str] = 4
    target_update_interval: int = 10_000
    exploration_fraction: float = 0.1
    exploration_initial_eps: float = 1.0
    exploration_final_eps: float = 0.05
    max_grad_norm: float = 10

    def set_training(self, config: Any) -> None:
        super().set_training(config)
        # in environment steps there, but between two steps nothing is learned: so in whole rounds of gradient steps
        in_round = self.train_freq * self.n_envs if isinstance(self.train_freq, int) else 1
        rounds = max(1, round(self.target_update_interval / in_round))
        every = max(1, round(rounds * in_round * self.updates_per_step))
        config.training(double_q=False, huber_delta=1.0, grad_clip=self.max_grad_norm, target_update_interval=every)
        line = (self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction)
        config.training(epsilon=self.over_steps(LinearSchedule(*line)))


@dataclass(eq=False, repr=False)
class SAC(_OffPolicy):
    """Soft actor-critic."""

    algorithm = "sac"

    ent_coef: str | float = "auto"
    target_update_interval: int = 1
    target_entropy: str | float = "auto"

    def set_training(self, config: Any) -> None:
        super().set_training(config)
        learned, _, first = str(self.ent_coef).partition("_")
        config.training(alpha="auto" if learned == "auto" else float(self.ent_coef), initial_alpha=float(first or 1.0))
        config.training(target_update_interval=self.target_update_interval, target_entropy=self.target_entropy)


@dataclass(eq=False, repr=False)
class TQC(SAC):
    """Truncated quantile critics."""

    algorithm = "tqc"

    top_quantiles_to_drop_per_net: int = 2

    def set_training(self, config: Any) -> None:
        super().set_training(config)
        quantiles = (self.policy_kwargs or {}).get("n_quantiles", 25)
        config.training(num_quantiles=quantiles, quantiles_to_drop=self.top_quantiles_to_drop_per_net)


@dataclass(eq=False, repr=False)
class TD3(_OffPolicy):
    """Twin delayed deterministic policy gradient; without `action_noise` it does not explore."""

    algorithm, widths = "td3", (400, 300)

    learning_rate: Rate = 1e-3
    policy_delay: int = 2
    target_policy_noise: float = 0.2
    target_noise_clip: float = 0.5

    def set_training(self, config: Any) -> None:
        super().set_training(config)
        smoothing: dict[str, Any] = {"target_noise": self.target_policy_noise, "noise_clip": self.target_noise_clip}
        config.training(policy_delay=self.policy_delay, exploration_noise=0.0, **smoothing)


@dataclass(eq=False, repr=False)
class DDPG(TD3):
    """Deep deterministic policy gradient: TD3 with one critic, without its delay and its noise in targets."""

    n_critics = 1

    policy_delay: int = 1
    target_policy_noise: float = 0.0
