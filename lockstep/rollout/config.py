"""The sections of a configuration that collection and evaluation read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lockstep.state.checks import check_whole
from lockstep.state.sections import Section

VECTORIZE_MODES = ("auto", "sync", "async", "vector", "envpool")
BATCH_MODES = ("truncate_episodes", "complete_episodes")


@dataclass
class EnvRunnersSection(Section):
    """How data is collected."""

    num_env_runners: int = 0
    """0: in this process; m: m processes (needs the extra `ray`)"""
    num_envs_per_env_runner: int = 8
    """environments of each runner; `num_envs` of `lockstep train` and `lockstep.train` counts those of all runners"""
    vectorize_mode: Literal["auto", "sync", "async", "vector", "envpool"] = "auto"
    """who steps the environments; "auto": our own vectoriser in this process"""
    rollout_fragment_length: int | None = None
    """vector steps before an update (asynchronous: in a fragment); `None`: the train batch divided by the number of
    environments of all runners, and 1 where a replay buffer is learned from"""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """"complete_episodes": a collect goes on until it has its steps in whole episodes, which begin with it"""
    explore: bool = True
    """draw actions while collecting; False takes the most likely ones"""
    step_timeout: float | None = None
    """seconds that a step of an environment in its own process may take"""
    sample_timeout_s: float = 60.0
    """seconds that a runner in another process may take for a fragment; after that it counts as hanging"""
    max_requests_in_flight_per_env_runner: int = 1
    """fragments that one runner is asked for ahead, in asynchronous sampling"""
    num_cpus_per_env_runner: float = 1.0
    num_gpus_per_env_runner: float = 0.0
    custom_resources_per_env_runner: dict[str, float] = field(default_factory=dict)
    """other resources of a cluster that each runner takes, by name"""

    @property
    def num_envs(self) -> int:
        """Environments of all runners."""
        return max(1, self.num_env_runners) * self.num_envs_per_env_runner

    def split(self, num_envs: int) -> int:
        """Return how many of `num_envs` environments each runner has. `ValueError`, with the numbers that can, where
        they cannot be split evenly."""
        runners = max(1, check_whole("env_runners.num_env_runners", self.num_env_runners, 0))
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

    def validate(self) -> None:
        """Raises `ValueError` naming the option, its value and what is allowed."""
        for name in ("num_env_runners", "num_cpus_per_env_runner", "num_gpus_per_env_runner"):
            if getattr(self, name) < 0:
                raise ValueError(f"env_runners.{name}={getattr(self, name)} is not allowed; it must be at least 0")
        if self.sample_timeout_s <= 0:
            raise ValueError(f"env_runners.sample_timeout_s={self.sample_timeout_s} must be above 0 seconds")
        if self.max_requests_in_flight_per_env_runner < 1:
            raise ValueError(
                f"env_runners.max_requests_in_flight_per_env_runner={self.max_requests_in_flight_per_env_runner} must "
                "be at least 1"
            )
        if self.num_envs_per_env_runner < 1:
            raise ValueError(f"env_runners.num_envs_per_env_runner={self.num_envs_per_env_runner} must be at least 1")
        if self.vectorize_mode not in VECTORIZE_MODES:
            raise ValueError(
                f"env_runners.vectorize_mode={self.vectorize_mode!r} is not allowed; choose one of {VECTORIZE_MODES}"
            )
        if self.batch_mode not in BATCH_MODES:
            raise ValueError(f"env_runners.batch_mode={self.batch_mode!r} is not allowed; choose one of {BATCH_MODES}")


@dataclass
class EvaluationSection(Section):
    """Evaluation on environments and random streams of its own."""

    evaluation_interval: int = 1
    """epochs between evaluations; 0: none"""
    evaluation_episodes: int = 20
    evaluation_num_envs: int = 8
    evaluation_explore: bool = False
    """draw actions in evaluation too"""
    epsilon: float = 0.0
    """of DQN, C51 and QR-DQN: the probability of a chance action in evaluation"""
    stop_return: float | None = None
    """end the run when an evaluation's mean return reaches this"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option."""
        for name in ("evaluation_episodes", "evaluation_num_envs"):
            if getattr(self, name) < 1:
                raise ValueError(f"evaluation.{name}={getattr(self, name)} must be at least 1")
        if not 0.0 <= self.epsilon <= 1.0:
            raise ValueError(f"evaluation.epsilon={self.epsilon} is not allowed; it must be between 0 and 1")
        if self.evaluation_interval < 0:
            raise ValueError(f"evaluation.evaluation_interval={self.evaluation_interval} must be 0 or more")
