"""`ARS` of sb3-contrib: augmented random search for the weights of a policy, without gradients."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.rollout import Collector
from lockstep.state import RandomStreams
from lockstep_sb3.common.base_class import BaseAlgorithm, Rate, StopTraining, option
from lockstep_sb3.common.vec_env.async_eval import AsyncEval, Episodes


@dataclass(eq=False, repr=False)
class ARS(BaseAlgorithm):
    """Augmented random search (Mania et al. 2018, https://arxiv.org/abs/1803.07055).

    An update plays episodes with `2 * n_delta` candidates: the weights plus and minus `n_delta` random directions. The
    weights then move along the `n_top` best directions, each weighted by the difference of its two returns. Normalised
    observations, as in version V2 of the paper, come from a `VecNormalize` around the environments.

    Args:
        policy: "LinearPolicy" (without biases) or "MlpPolicy".
        n_delta: Number of directions.
        n_top: Number of the best directions that the weights move along. Defaults to all.
        learning_rate: Size of a step, in standard deviations of the returns.
        delta_std: Standard deviation of a candidate's weights around the present ones.
        zero_policy: Begin with weights of 0.
        alive_bonus_offset: Number that is added to the reward of each step, to cancel a bonus for staying alive.
        n_eval_episodes: Number of episodes of each candidate.
    """

    algorithm = "reinforce"
    """Algorithm in Lockstep that has the same network: a policy without values."""
    policy_names = ("LinearPolicy", "MlpPolicy")
    critic_name = None
    policy_package = "ars"
    log_interval = 1

    n_delta: int = 8
    n_top: int | None = None
    learning_rate: Rate = field(default=0.02, kw_only=True)
    delta_std: Rate = field(default=0.05, kw_only=True)
    zero_policy: bool = field(default=True, kw_only=True)
    alive_bonus_offset: float = field(default=0.0, kw_only=True)
    n_eval_episodes: int = field(default=1, kw_only=True)
    device: Any = field(default="cpu", kw_only=True)
    gamma: float = option(0.99, None)
    use_sde: bool = option(False, None)
    sde_sample_freq: int = option(-1, None)

    def __post_init__(self) -> None:
        for name in ("n_delta", "n_eval_episodes"):
            if getattr(self, name) < 1:
                self.refuse(f"{name}={getattr(self, name)}", "it must be at least 1")
        if self.n_top is None:
            self.n_top = self.n_delta
        if self.n_top > self.n_delta:
            warnings.warn(f"n_top={self.n_top} is more than n_delta={self.n_delta}: all are used", stacklevel=3)
            self.n_top = self.n_delta
        if self.n_top < 1:
            self.refuse(f"n_top={self.n_top}", "it must be at least 1")
        self.pop_size = 2 * self.n_delta
        super().__post_init__()

    def set_up(self, observation_space: Any, action_space: Any) -> None:
        if not isinstance(action_space, spaces.Box | spaces.Discrete):
            self.refuse(f"the action space {action_space}", "it must be a Box or a Discrete")
        super().set_up(observation_space, action_space)
        if self.zero_policy:
            self.set_weights(torch.zeros_like(self.get_weights()))

    def set_options(self, config: Any, kwargs: dict[str, Any]) -> None:
        is_linear = self.policy_name == "LinearPolicy"
        if is_linear and "net_arch" in kwargs:
            self.refuse(f"net_arch={kwargs['net_arch']!r} of a LinearPolicy", "give MlpPolicy for hidden layers")
        if is_linear:
            kwargs["net_arch"] = []
        self.has_biases = bool(kwargs.pop("with_bias", not is_linear))
        squashes = bool(kwargs.pop("squash_output", not is_linear)) and isinstance(self.action_space, spaces.Box)
        config.rl_module(model_config={"squash_mean": squashes})
        config.environment(rescale_actions=squashes)

    def make_buffer(self) -> None:
        return None

    def make_trainer(self, **options: Any) -> Any:
        collector: Collector = options["train_collector"]
        if not collector.is_seeded:
            # As Lockstep's trainers do: the model's seed decides which episodes the candidates play.
            collector.reseed(RandomStreams(self.config.debugging.seed).child("train_collector"))
        return RandomSearchTrainer(self, collector)

    def update_trainer(self) -> None:
        """Do nothing: the trainer reads the options of the model before each update."""

    def log_unit(self) -> int:
        return int(self.trainer.num_updates)

    # -- weights ---

    def searched_parameters(self) -> dict[str, Tensor]:
        """Return the parameters that the search changes, by name."""
        return {
            name: value
            for name, value in self.lockstep.state_dict().items()
            if not name.endswith("log_std") and (self.has_biases or not name.endswith("bias"))
        }

    def get_weights(self) -> Tensor:
        """Return the searched parameters as one vector `[W]` on the CPU."""
        return torch.cat([value.detach().cpu().flatten() for value in self.searched_parameters().values()])

    def set_weights(self, weights: Tensor) -> None:
        """Set the searched parameters from a vector `[W]`."""
        parameters = self.searched_parameters()
        parts = weights.split([value.numel() for value in parameters.values()])
        named = {name: part.view_as(value) for (name, value), part in zip(parameters.items(), parts)}
        self.lockstep.load_state_dict(named, strict=False)

    # -- learning ---

    def learn(  # type: ignore[override]  # the order of sb3-contrib, in which `async_eval` comes before the last
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = -1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        async_eval: AsyncEval | None = None,
        progress_bar: bool = False,
    ) -> Self:
        """Train the model, and return it. Parameters are those of `PPO.learn` and:

        Args:
            async_eval: Processes that play the candidates' episodes, an `AsyncEval`. They are closed at the end.
                Callbacks are then called after the episodes, without the values of their steps.
        """
        if self.trainer is not None:
            self.trainer.async_eval = async_eval
        try:
            if async_eval is not None:
                async_eval.start(self)
            return super().learn(
                total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar=progress_bar
            )
        finally:
            if async_eval is not None:
                async_eval.close()


class RandomSearchTrainer:
    """Trainer that `learn` drives: each training step plays the candidates' episodes, and moves the weights.

    Args:
        model: The model.
        collector: Collector of the candidates' episodes.
    """

    def __init__(self, model: ARS, collector: Collector) -> None:
        self.model = model
        self.collector = collector
        self.env_step = 0
        self.num_updates = 0
        """Number of updates since `learn` began."""
        self.async_eval: AsyncEval | None = None

    def reset(self) -> None:
        """Begin a new run."""
        self.env_step = 0
        self.num_updates = 0
        self.collector.reset()

    def training_step(self) -> tuple[None, None, None]:
        """Play the episodes of all candidates, and move the weights. There are no statistics to return."""
        model = self.model
        model.before_update()
        delta_std = self.present_value(model.delta_std)
        learning_rate = self.present_value(model.learning_rate)
        weights = model.get_weights()
        # The directions depend on the seed and the step alone, so that a model continues after `load` as without.
        seed = (model.config.debugging.seed, self.env_step)
        directions = np.random.default_rng(seed).standard_normal((model.n_delta, len(weights)), dtype=np.float32)
        deltas = torch.from_numpy(directions)

        try:
            candidates = torch.cat([weights + delta_std * deltas, weights - delta_std * deltas])
            returns = [
                float(np.sum(episode_returns) + model.alive_bonus_offset * np.sum(lengths))
                for episode_returns, lengths in self.play(candidates)
            ]
        finally:
            model.set_weights(weights)  # also if a callback ends `learn` between two candidates
        model.callback.on_rollout_end()

        plus, minus = torch.tensor(returns).view(2, model.n_delta)
        best = torch.maximum(plus, minus).argsort(descending=True)[: model.n_top]
        plus, minus = plus[best], minus[best]
        return_std = float(torch.cat([plus, minus]).std())
        step_size = learning_rate / (len(best) * return_std + 1e-6)
        model.set_weights(weights + step_size * ((plus - minus) @ deltas[best]))
        self.num_updates += 1

        model.logger.record("rollout/return_std", return_std)
        model.logger.record("train/iterations", self.num_updates, exclude="tensorboard")
        model.logger.record("train/delta_std", delta_std)
        model.logger.record("train/learning_rate", learning_rate)
        model.logger.record("train/step_size", step_size)
        return None, None, None

    def play(self, candidates: Tensor) -> list[Episodes]:
        """Play the episodes of candidates `[N, W]`, and return them in this order."""
        if self.async_eval is not None:
            played = self.async_eval.play(candidates)
            self.report_played(played)
            return played
        played = []
        for candidate in candidates:
            self.model.set_weights(candidate)
            stats = self.collector.collect(n_episode=self.model.n_eval_episodes)
            self.env_step += stats.n_collected_steps
            played.append((stats.returns, stats.lens))
        return played

    def report_played(self, played: list[Episodes]) -> None:
        """Count the steps and episodes that processes have played, and notify the callbacks."""
        model = self.model
        for episode_returns, lengths in played:
            self.env_step += int(np.sum(lengths))
            for episode_return, length in zip(episode_returns, lengths):
                model.ep_info_buffer.append({"r": float(episode_return), "l": int(length)})
        while model.num_timesteps < self.env_step:
            model.num_timesteps = min(model.num_timesteps + model.n_envs, self.env_step)
            if not model.callback.on_step():
                raise StopTraining

    def present_value(self, value: Rate) -> float:
        """Return the present value of a number or schedule."""
        schedule = self.model.over_steps(value)
        return float(schedule(self.env_step) if callable(schedule) else schedule)
