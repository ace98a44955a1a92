"""Configuration sections of collection (`EnvRunnersSection`) and of evaluation (`EvaluationSection`)."""

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
    """Options of collection."""

    name = "env_runners"

    num_env_runners: int = option(0, ge=0)
    """Number of processes that collect, each with its own environments (needs the extra `ray`); 0 collects in this
    process."""
    num_envs_per_env_runner: int = option(8, ge=1)
    """Number of environments of each runner. `num_envs` of `lockstep train` and `lockstep.train` is the number of
    environments of all runners."""
    vectorize_mode: Literal["auto", "sync", "async", "vector", "envpool"] = "auto"
    """Implementation that steps the environments of a runner: "sync" (one after the other, in the runner's process),
    "async" (each in its own process), "vector" (a vector environment that exists for this id) or "envpool". "auto" is
    "vector" for Atari ids and "sync" for all others."""
    rollout_fragment_length: int | None = option(None, ge=1)
    """Number of vector steps (one step in each environment) between two updates. With asynchronous sampling it is the
    length of one fragment, the result of one call of a runner. Defaults to the train batch size divided by the number
    of environments of all runners. With a replay buffer it defaults to the number of vector steps for which
    `replay(update_per_step=)` asks for one gradient step, at most 64."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """Whether a collect ends after a number of steps, and cuts the episodes that are running then. With
    "complete_episodes" each collect begins new episodes, and ends when whole episodes with at least this number of
    steps are collected."""
    explore: bool = True
    """Whether actions are sampled while collecting; otherwise the most likely ones are taken."""
    exploration: Literal["epsilon", "normal", "ou", "gsde", "noisy"] | None = None
    """Exploration method: "epsilon" or "noisy" weights (DQN and its variants), "normal" or "ou" (Ornstein-Uhlenbeck)
    noise (TD3, SAC), "gsde" (generalised state-dependent exploration; PPO, A2C, SAC). Defaults to the method of the
    algorithm."""
    exploration_config: dict[str, Any] = option(factory=dict)
    """Options of the exploration method by name: `epsilon` of "epsilon"; `scale` of "normal"; `sigma`, `theta`, `dt` of
    "ou"; `mean` and `weights` of both, one number for each action dimension; `sample_freq`, `log_std_init` of "gsde";
    `sigma` of "noisy"."""
    allow_host: bool = False
    """Whether the steps of tensor environments may be copied to the host if other options need that, with a warning
    that names these options. Otherwise such a run is refused."""
    step_timeout: float | None = option(None, gt=0)
    """Longest time in seconds that a step of an environment in its own process may take. Defaults to no limit."""
    sample_timeout_s: float = option(60.0, gt=0)
    """Longest time in seconds that a runner in another process may take for a fragment. After that it counts as hanging
    and is replaced."""
    max_requests_in_flight_per_env_runner: int = option(1, ge=1)
    """Largest number of fragments that are requested from one runner at a time, in asynchronous sampling."""
    num_cpus_per_env_runner: float = option(1.0, ge=0)
    """Number of processors that Ray reserves for each runner."""
    num_gpus_per_env_runner: float = option(0.0, ge=0)
    """Number of GPUs that Ray reserves for each runner."""
    custom_resources_per_env_runner: dict[str, float] = option(factory=dict, ge=0)
    """Other resources of the cluster that Ray reserves for each runner, by name."""
    env_to_module_connector: Callable[..., Any] | None = None
    """Function `f(observation_space, action_space)` that returns a `Connector` or a list of connectors. Observations
    pass through them before the connectors that options add (frame stack, normalisation)."""
    module_to_env_connector: Callable[..., Any] | None = None
    """Function `f(observation_space, action_space)` that returns a `Connector` or a list of connectors. Actions pass
    through them before they are rescaled or clipped for the environment."""
    add_default_connectors: bool = True
    """Whether options add connectors; otherwise only yours are used, and actions are neither rescaled nor clipped."""

    def __call__(self, **options: Unpack[EnvRunnersOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def validate(self) -> None:
        """Raise `ValueError` if `exploration_config` has options without `exploration`, or options of another
        method."""
        if self.exploration is not None:
            check_exploration(self.exploration, self.exploration_config)
        elif self.exploration_config:
            raise ValueError(
                f"env_runners.exploration_config={self.exploration_config!r} needs env_runners.exploration, which says "
                "what it is for"
            )

    @property
    def collects_whole_episodes(self) -> bool:
        """Whether a collect of steps consists of whole episodes."""
        return self.batch_mode == "complete_episodes"

    @property
    def num_envs(self) -> int:
        """Number of environments of all runners."""
        return max(1, self.num_env_runners) * self.num_envs_per_env_runner

    def split(self, num_envs: int) -> int:
        """Return the number of environments of each runner if all runners together have `num_envs`.

        Raises `ValueError` with possible numbers if they cannot be split evenly.
        """
        runners = max(1, self.num_env_runners)
        num_each, remainder = divmod(num_envs, runners)
        if remainder:
            below = f"{num_each * runners} or " if num_each else ""
            fitting = ", ".join(str(n) for n in range(1, num_envs + 1) if num_envs % n == 0)
            raise ValueError(
                f"{num_envs} environments cannot be split evenly over {runners} env runners "
                f"(env_runners.num_env_runners); give num_envs={below}{(num_each + 1) * runners}, or a number of env "
                f"runners that divides {num_envs}: {fitting}"
            )
        return num_each


@dataclass
class EvaluationSection(Section[ConfigT]):
    """Options of evaluation, which has its own environments and random streams."""

    name = "evaluation"

    evaluation_interval: int = option(1, ge=0)
    """Number of epochs between two evaluations; 0 evaluates never."""
    evaluation_duration: int = option(20, ge=1)
    """Length of an evaluation, in units of `evaluation_duration_unit`."""
    evaluation_duration_unit: Literal["episodes", "timesteps"] = "episodes"
    """Unit of `evaluation_duration`. With "timesteps" the episodes that end within so many steps count, which favours
    short episodes."""
    evaluation_num_envs: int = option(8, ge=1)
    """Number of environments of all evaluation runners; never more than the number of episodes."""
    evaluation_num_env_runners: int = option(0, ge=0)
    """Number of processes that evaluate (needs the extra `ray`); 0 evaluates in this process. Returns and lengths do
    not depend on this number."""
    evaluation_parallel_to_training: bool = False
    """Whether the policy of an epoch is evaluated while the next epoch trains."""
    evaluation_config: dict[str, Any] = option(factory=dict)
    """Settings that differ in evaluation, by path: `{"environment.env_config": {...}, "env_runners.explore": True}`."""
    custom_evaluation_function: Callable[..., Any] | None = None
    """Function `f(policy, collector)` that replaces the evaluation; returns `CollectStats`, a score, or a dict with the
    key "score"."""
    evaluation_explore: bool = False
    """Whether actions are sampled in evaluation; otherwise the most likely ones are taken."""
    epsilon: float = option(0.0, ge=0, le=1)
    """Probability of a random action in evaluation, for DQN and its variants."""
    stop_return: float | None = None
    """Mean return of an evaluation at which the run ends. Defaults to no end by return."""
    max_episode_steps: int | None = option(None, ge=1)
    """Number of steps after which an episode of evaluation is truncated. Defaults to the environment's own limit."""

    def __call__(self, **options: Unpack[EvaluationOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    @property
    def num_envs(self) -> int:
        """Number of environments of all evaluation runners; never more than the number of episodes."""
        if self.evaluation_duration_unit == "timesteps":
            return self.evaluation_num_envs
        return min(self.evaluation_num_envs, self.evaluation_duration)

    @property
    def num_processes(self) -> int:
        """Number of evaluation runners in other processes; 0 if the run does not evaluate."""
        return self.evaluation_num_env_runners if self.evaluation_interval else 0

    def validate(self) -> None:
        """Raise `ValueError` for environments that cannot be split evenly over the env runners."""
        if self.evaluation_num_env_runners and self.num_envs % self.evaluation_num_env_runners:
            raise ValueError(
                f"evaluation.evaluation_num_env_runners={self.evaluation_num_env_runners} cannot share {self.num_envs} "
                "environments evenly (evaluation_num_envs, or evaluation_duration where there are fewer episodes); "
                "give a multiple"
            )
