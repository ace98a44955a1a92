"""`OffPolicyAlgorithm`, the base class of algorithms that train on samples of a replay buffer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lockstep.data import DEFAULT_MODULE_ID
from lockstep.replay import ReplayBuffer
from lockstep.trainer import OffpolicyTrainer
from lockstep_sb3.common.base_class import BaseAlgorithm, option
from lockstep_sb3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise


class ReplayView:
    """Replay buffer with the method names of Stable-Baselines3."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.lockstep = buffer

    def size(self) -> int:
        """Return the number of transitions."""
        return len(self.lockstep)


@dataclass(eq=False, repr=False)
class OffPolicyAlgorithm(BaseAlgorithm):
    """Algorithm that trains on samples of a replay buffer."""

    widths = (256, 256)
    num_critics: ClassVar[int] = 2
    """Default number of critics."""

    buffer_size: int = option(1_000_000, "replay.capacity")
    learning_starts: int = option(100, "replay.learning_starts")
    batch_size: int = option(256, "training.train_batch_size")
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
        if self.has_q:
            config.rl_module(model_config={"num_critics": kwargs.pop("n_critics", self.num_critics)})

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
