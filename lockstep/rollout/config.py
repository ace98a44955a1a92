"""The sections of a configuration that collection and evaluation read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from lockstep.modules.exploration import check_exploration
from lockstep.options.section import ConfigT, Section, option

if TYPE_CHECKING:
    from lockstep.rollout.typed import EnvRunnersOptions, EvaluationOptions


@dataclass
class EnvRunnersSection(Section[ConfigT]):
    """How data is collected."""

    name = "env_runners"

    num_env_runners: int = option(0, ge=0)
    """0: in this process; m: m processes (needs the extra `ray`)"""
    num_envs_per_env_runner: int = option(8, ge=1)
    """environments of each runner; `num_envs` of `lockstep train` and `lockstep.train` counts those of all runners"""
    vectorize_mode: Literal["auto", "sync", "async", "vector", "envpool"] = "auto"
    """who steps the environments; "auto": our own vectoriser in this process"""
    rollout_fragment_length: int | None = option(None, ge=1)
    """vector steps before an update (asynchronous: in a fragment); `None`: the train batch divided by the number of
    environments of all runners; where a replay buffer is learned from, those that make one gradient step due, at most
    64"""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """"complete_episodes": a collect goes on until it has its steps in whole episodes, which begin with it"""
    explore: bool = True
    """draw actions while collecting; False takes the most likely ones"""
    exploration: Literal["epsilon", "normal", "ou", "gsde", "noisy"] | None = None
    """how actions are drawn: "epsilon" or "noisy" weights (DQN and its kin), "normal" or "ou" noise (TD3, SAC), "gsde"
    (PPO, A2C, SAC); `None`: as the algorithm does by itself"""
    exploration_config: dict[str, Any] = option(factory=dict)
    """options of the exploration by name: `epsilon`; `scale`; `sigma`, `theta`, `dt`; `sample_freq`, `log_std_init`;
    `sigma` of noisy weights"""
    step_timeout: float | None = option(None, gt=0)
    """seconds that a step of an environment in its own process may take"""
    sample_timeout_s: float = option(60.0, gt=0)
    """seconds that a runner in another process may take for a fragment; after that it counts as hanging"""
    max_requests_in_flight_per_env_runner: int = option(1, ge=1)
    """fragments that one runner is asked for ahead, in asynchronous sampling"""
    num_cpus_per_env_runner: float = option(1.0, ge=0)
    """processors that Ray keeps free for each runner"""
    num_gpus_per_env_runner: float = option(0.0, ge=0)
    """the same of GPUs"""
    custom_resources_per_env_runner: dict[str, float] = option(factory=dict, ge=0)
    """other resources of a cluster that each runner takes, by name"""
    env_to_module_connector: Callable[..., Any] | None = None
    """`f(observation_space, action_space)` returns a `Connector` or a list of them, which observations go through
    before those that options ask for (frame stack, normalisation)"""
    module_to_env_connector: Callable[..., Any] | None = None
    """`f(observation_space, action_space)` returns a `Connector` or a list of them, which actions go through before
    they are rescaled or clipped for the environment"""
    add_default_connectors: bool = True
    """False: only your connectors; actions are neither rescaled nor clipped"""

    def __call__(self, **options: Unpack[EnvRunnersOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def validate(self) -> None:
        """Refuse options of an exploration that is not there, or does not have them."""
        if self.exploration is not None:
            check_exploration(self.exploration, self.exploration_config)
        elif self.exploration_config:
            raise ValueError(
                f"env_runners.exploration_config={self.exploration_config!r} needs env_runners.exploration, which says "
                "what it is for"
            )

    @property
    def collects_whole_episodes(self) -> bool:
        """Whether a collect by steps has whole episodes only."""
        return self.batch_mode == "complete_episodes"

    @property
    def num_envs(self) -> int:
        """Environments of all runners."""
        return max(1, self.num_env_runners) * self.num_envs_per_env_runner

    def split(self, num_envs: int) -> int:
        """Return how many of `num_envs` environments each runner has. `ValueError`, with the numbers that can, where
        they cannot be split evenly."""
        runners = max(1, self.num_env_runners)
        each, left = divmod(num_envs, runners)
        if left:
            below = f"{each * runners} or " if each else ""
            fitting = ", ".join(str(n) for n in range(1, num_envs + 1) if num_envs % n == 0)
            raise ValueError(
                f"{num_envs} environments cannot be split evenly over {runners} env runners "
                f"(env_runners.num_env_runners); give num_envs={below}{(each + 1) * runners}, or a number of env "
                f"runners that divides {num_envs}: {fitting}"
            )
        return each


@dataclass
class EvaluationSection(Section[ConfigT]):
    """Evaluation on environments and random streams of its own."""

    name = "evaluation"

    evaluation_interval: int = option(1, ge=0)
    """epochs between evaluations; 0: none"""
    evaluation_duration: int = option(20, ge=1)
    """how long an evaluation is, in `evaluation_duration_unit`"""
    evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes"
    """"timesteps": the episodes that end within so many steps count, of which short ones are the more"""
    evaluation_num_envs: int = option(8, ge=1)
    """environments of all evaluation's env runners; of those more than its episodes none are made"""
    evaluation_num_env_runners: int = option(0, ge=0)
    """0: in this process; m: m processes (needs the extra `ray`), with the bits of one"""
    evaluation_parallel_to_training: bool = False
    """evaluate the policy of an epoch while the next epoch trains"""
    evaluation_config: dict[str, Any] = option(factory=dict)
    """other settings for evaluation by path: `{"environment.env_config": {...}, "env_runners.explore": True}`"""
    custom_evaluation_function: Callable[..., Any] | None = None
    """`f(policy, collector)` in place of an evaluation; returns `CollectStats`, a score, or a dict with a "score" """
    evaluation_explore: bool = False
    """draw actions in evaluation too"""
    epsilon: float = option(0.0, ge=0, le=1)
    """of DQN and its kin: the probability of a chance action in evaluation"""
    stop_return: float | None = None
    """end the run when an evaluation's mean return reaches this"""
    max_episode_steps: int | None = option(None, ge=1)
    """Truncate an episode of evaluation after this number of steps. `None`: the environment's own limit alone."""

    def __call__(self, **options: Unpack[EvaluationOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    @property
    def num_envs(self) -> int:
        """Environments of all evaluation's env runners: no more than there are episodes."""
        if self.evaluation_duration_unit == "timesteps":
            return self.evaluation_num_envs
        return min(self.evaluation_num_envs, self.evaluation_duration)

    @property
    def num_processes(self) -> int:
        """Env runners in other processes; none where nothing is evaluated."""
        return self.evaluation_num_env_runners if self.evaluation_interval else 0

    def validate(self) -> None:
        """Refuse environments that cannot be split evenly over the env runners."""
        if self.evaluation_num_env_runners and self.num_envs % self.evaluation_num_env_runners:
            raise ValueError(
                f"evaluation.evaluation_num_env_runners={self.evaluation_num_env_runners} cannot share {self.num_envs} "
                "environments evenly (evaluation_num_envs, or evaluation_duration where there are fewer episodes); "
                "give a multiple"
            )
