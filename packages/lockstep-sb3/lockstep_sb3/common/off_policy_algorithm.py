"""`OffPolicyAlgorithm`, the base class of algorithms that train on samples of a replay buffer."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lockstep.data import DEFAULT_MODULE_ID
from lockstep.policy import policy_within_training_step
from lockstep.replay import ReplayBuffer as LockstepBuffer
from lockstep.tracking import CollectStatsBase, TrainingStats
from lockstep.trainer import OffpolicyTrainer
from lockstep_sb3.common.base_class import BaseAlgorithm, option
from lockstep_sb3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from lockstep_sb3.common.log_names import OFF_POLICY_METRICS, MetricNames
from lockstep_sb3.common.noise import (
    ActionNoise,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    VectorizedActionNoise,
)
from lockstep_sb3.her import GoalSelectionStrategy, HerReplayBuffer

HER_OPTIONS = ("n_sampled_goal", "goal_selection_strategy", "copy_info_dict")
"""Options of `HerReplayBuffer` in `replay_buffer_kwargs`."""


class FixedStepsTrainer(OffpolicyTrainer):
    """Trainer that can make a fixed number of gradient steps after each collect, however many steps it took."""

    steps_per_collect: int | None = None
    """Number of gradient steps after a collect. None depends on the number of collected steps (`update_per_step`)."""

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        number = self.updates_now if self.steps_per_collect is None else self.steps_per_collect
        return self.policy.update(self.batch_size or 0, self.buffer, repeat=number)


@dataclass(eq=False, repr=False)
class OffPolicyAlgorithm(BaseAlgorithm):
    """Algorithm that trains on samples of a replay buffer."""

    log_unit_name = "episodes"
    step_counter = "num_collected_steps"
    widths = (256, 256)
    num_critics: ClassVar[int] = 2
    """Default number of critics."""

    buffer_size: int = option(1_000_000, "replay.capacity")
    learning_starts: int = option(100, "replay.learning_starts")
    batch_size: int = option(256, "training.train_batch_size")
    train_freq: int | tuple[int, str] = 1
    gradient_steps: int = 1
    action_noise: ActionNoise | None = None
    replay_buffer_class: type[ReplayBuffer] | None = None
    replay_buffer_kwargs: dict[str, Any] | None = None
    optimize_memory_usage: bool = option(False, "replay.ignore_obs_next")
    n_steps: int = option(1, "replay.n_step")
    use_sde_at_warmup: bool = option(False, None)

    def __post_init__(self) -> None:
        kwargs = dict(self.replay_buffer_kwargs or {})
        strategy = kwargs.get("goal_selection_strategy")
        if isinstance(strategy, GoalSelectionStrategy):
            kwargs["goal_selection_strategy"] = strategy.name.lower()  # files contain plain data only
        self.replay_buffer_kwargs = kwargs
        super().__post_init__()

    @property
    def train_frequency(self) -> tuple[int, str]:
        """Number and unit of the steps between two updates: steps of all environments ("step"), or "episode"s."""
        frequency: Any = self.train_freq
        return (frequency, "step") if isinstance(frequency, int) else (int(frequency[0]), str(frequency[1]))

    @property
    def updates_per_step(self) -> float:
        """Number of gradient steps for each environment step. `gradient_steps=-1` is one for each.

        It is 1 if the number of gradient steps does not depend on the number of steps.
        """
        frequency, unit = self.train_frequency
        return 1.0 if self.gradient_steps <= 0 or unit == "episode" else self.gradient_steps / (frequency * self.n_envs)

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        config.replay(update_per_step=self.updates_per_step)
        if self.get_vec_normalize_env() is not None:
            warnings.warn(
                "what is remembered is normalised as it was when seen; Stable-Baselines3 does it anew for each "
                "sample, as Lockstep does with environment(normalize_observations=True)",
                stacklevel=8,
            )
        self._set_buffer_options(config)
        if self.action_noise is not None:
            self._set_noise(config, self.action_noise)
        if self.critic_name == "qf":
            config.rl_module(model_config={"num_critics": kwargs.pop("n_critics", self.num_critics)})

    def _set_buffer_options(self, config: Any) -> None:
        """Set the options in `replay_buffer_kwargs`, and check that the class of the buffer is a known one."""
        if self.replay_buffer_class not in (None, ReplayBuffer, DictReplayBuffer, NStepReplayBuffer, HerReplayBuffer):
            self.refuse(
                f"replay_buffer_class={self.replay_buffer_class}",
                "give ReplayBuffer, DictReplayBuffer, NStepReplayBuffer or HerReplayBuffer",
            )
        kwargs = dict(self.replay_buffer_kwargs or {})
        if not kwargs.pop("handle_timeout_termination", True):
            self.refuse("handle_timeout_termination=False", "a truncated episode is never taken for a terminated one")
        if self.replay_buffer_class is HerReplayBuffer:
            for name in HER_OPTIONS:
                kwargs.pop(name, None)
        if self.replay_buffer_class is NStepReplayBuffer:
            config.replay(n_step=kwargs.pop("n_steps", 3))
            gamma = kwargs.pop("gamma", self.gamma)
            if gamma != self.gamma:
                self.refuse(f"replay_buffer_kwargs gamma={gamma}", f"it must be gamma={self.gamma}")
        if kwargs:
            self.refuse(f"replay_buffer_kwargs={kwargs}", "these have no counterpart")

    def _set_noise(self, config: Any, action_noise: Any) -> None:
        """Set the exploration that `action_noise` describes."""
        noise = action_noise.base_noise if isinstance(action_noise, VectorizedActionNoise) else action_noise
        # The type itself: a program's own subclass may draw other numbers.
        if type(noise) not in (NormalActionNoise, OrnsteinUhlenbeckActionNoise):
            self.refuse(
                f"action_noise={action_noise!r}",
                "give NormalActionNoise, OrnsteinUhlenbeckActionNoise or several of them",
            )
        size = math.prod(self.action_space.shape)
        sigma = np.broadcast_to(np.asarray(noise.sigma, float).ravel(), size)
        mean = np.broadcast_to(np.asarray(noise.mean, float).ravel(), size)
        scale = float(sigma.max())
        options: dict[str, Any] = {}
        if scale and np.any(sigma != scale):
            options["weights"] = (sigma / scale).tolist()
        if mean.any():
            options["mean"] = mean.tolist()
        if isinstance(noise, OrnsteinUhlenbeckActionNoise):
            if noise.initial_noise is not None and np.any(noise.initial_noise):
                self.refuse(f"initial_noise={noise.initial_noise!r}", "the noise starts at 0 in each episode")
            options |= {"sigma": scale, "theta": noise.theta, "dt": noise.dt}
            config.env_runners(exploration="ou", exploration_config=options)
        else:
            config.env_runners(exploration="normal", exploration_config={"scale": scale, **options})

    def make_buffer(self) -> LockstepBuffer:
        connectors = self.lockstep.acting[DEFAULT_MODULE_ID].connectors
        buffer = self.config.build_replay_buffer(self.n_envs, connectors=connectors)
        about: dict[str, Any] = {"buffer_size": self.buffer_size, "device": self.device, "n_envs": self.n_envs}
        about |= {"observation_space": self.observation_space, "action_space": self.action_space}
        about |= {"optimize_memory_usage": self.optimize_memory_usage, "buffer": buffer}
        if self.replay_buffer_class is HerReplayBuffer:
            kwargs = self.replay_buffer_kwargs or {}
            about |= {name: kwargs[name] for name in HER_OPTIONS if name in kwargs}
            self._replay_buffer: ReplayBuffer = HerReplayBuffer(env=self.env, **about)
        else:
            has_parts = hasattr(self.observation_space, "spaces")
            self._replay_buffer = DictReplayBuffer(**about) if has_parts else ReplayBuffer(**about)
        return buffer

    def _connect(self) -> None:
        if isinstance(self._replay_buffer, HerReplayBuffer):
            self._replay_buffer.set_env(self.env)
        super()._connect()

    def make_trainer(self, **options: Any) -> OffpolicyTrainer:
        frequency, unit = self.train_frequency
        options |= {f"{unit}_per_collect": frequency * (self.n_envs if unit == "step" else 1)}
        options |= {"update_per_step": self.updates_per_step, "learning_starts": self.learning_starts}
        trainer = FixedStepsTrainer(batch_size=self.batch_size, **options)
        trainer.steps_per_collect = self._fixed_steps
        return trainer

    @property
    def _fixed_steps(self) -> int | None:
        """Number of gradient steps after each collect; None if it depends on the number of steps."""
        _, unit = self.train_frequency
        return self.gradient_steps if unit == "episode" and self.gradient_steps > 0 else None

    def update_trainer(self) -> None:
        frequency, unit = self.train_frequency
        self.trainer.step_per_collect = frequency * self.n_envs if unit == "step" else None
        self.trainer.episode_per_collect = frequency if unit == "episode" else None
        self.trainer.steps_per_collect = self._fixed_steps
        self.trainer.update_per_step = self.updates_per_step
        self.trainer.learning_starts = self.learning_starts
        self.trainer.batch_size = self.batch_size
        # With `gradient_steps=0` the policy acts, and nothing is learned.
        self.trainer.learning_resumes_at = sys.maxsize if self.gradient_steps == 0 else 0

    def reset_trainer(self) -> None:
        super().reset_trainer()
        self.update_trainer()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Make gradient steps, each on a new sample of the replay buffer."""
        with policy_within_training_step(self.lockstep):
            self.note_training(self.lockstep.update(batch_size, self.buffer, repeat=gradient_steps))

    @property
    def replay_buffer(self) -> ReplayBuffer:
        """Replay buffer. It can be set to that of another model with as many environments."""
        return self._replay_buffer

    @replay_buffer.setter
    def replay_buffer(self, replay_buffer: ReplayBuffer) -> None:
        self._replay_buffer = replay_buffer
        self.buffer = replay_buffer.lockstep
        if self.env is not None:
            self._connect()

    def save_replay_buffer(self, path: Any) -> None:
        """Save the replay buffer to a folder."""
        self.buffer.save(path)

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:
        """Restore the replay buffer from a folder of `save_replay_buffer`."""
        self.buffer.set_state(LockstepBuffer.load(path, hindsight=self.buffer.hindsight).get_state())

    def log_unit(self) -> int:
        return int(self.trainer.env_episode)

    @property
    def metric_names(self) -> MetricNames:
        return OFF_POLICY_METRICS

    def computed_values(self) -> dict[str, Callable[[], Any]]:
        return {**super().computed_values(), "buffer_actions": lambda: self.step_result.actions}

    def rollout_values(self) -> dict[str, Any]:
        return {
            "replay_buffer": self.replay_buffer,
            "action_noise": self.action_noise,
            "learning_starts": self.learning_starts,
            "train_freq": self.train_freq,
        }
