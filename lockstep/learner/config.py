"""The sections of a configuration that the learner reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import numpy as np

from lockstep.learner.option_types import takes_batch
from lockstep.state.checks import is_number
from lockstep.state.restarts import RestartLimits
from lockstep.state.schedules import Schedule, ScheduleLike
from lockstep.state.sections import Section

GradClipBy = Literal["value", "norm", "global_norm"]
NanPolicy = Literal["skip", "stop", "zero"]


@dataclass
class TrainingSection(Section):
    """What every update needs; an algorithm's own section adds its coefficients."""

    lr: ScheduleLike = 3e-4
    """learning rate: a number, `[[0, v0], [t1, v1], ...]` over sampled environment steps, or a function of them"""
    gamma: float = 0.99
    """discount"""
    train_batch_size: int = 2048
    """environment steps in one update, over all learners"""
    minibatch_size: int | None = None
    """rows in one gradient step (sequences, where the module has memory), over all learners; `None`: the whole batch"""
    num_epochs: int = 1
    """passes over the batch in one update"""
    shuffle_batch_per_epoch: bool = True
    """a new permutation for each pass"""
    grad_clip: float | None = None
    """`None`: off"""
    grad_clip_by: GradClipBy = "global_norm"
    """clip each element, each tensor's norm, or the norm of all gradients of one optimizer"""
    adam_epsilon: float = 1e-8
    """epsilon of the default optimizer"""
    nan_policy: NanPolicy = "skip"
    """a gradient that is not finite: leave the parameters untouched and count it, raise, or set it to zero"""
    learner_class: type | None = None
    """a subclass of the algorithm's learner"""
    learner_config_dict: dict[str, Any] = field(default_factory=dict)
    """free-form settings for a learner of your own"""

    of_whole_update: ClassVar[frozenset[str]] = frozenset(
        ("train_batch_size", "minibatch_size", "num_epochs", "shuffle_batch_per_epoch", "learner_class")
    )
    """options that hold for an update of all modules together, so that no module can have its own"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option, its value and what is allowed."""
        for name in [option.name for option in fields(self) if option.name == "lr" or option.name.endswith("_lr")]:
            rate = getattr(self, name)
            allowed = "a finite number, at least 0"
            require(name, rate, all(0 <= value < math.inf for value in values_of(rate)), allowed)
        require("gamma", self.gamma, 0.0 <= self.gamma <= 1.0, "between 0 and 1")
        require("train_batch_size", self.train_batch_size, self.train_batch_size >= 1, "at least 1")
        require("num_epochs", self.num_epochs, self.num_epochs >= 1, "at least 1")
        require("adam_epsilon", self.adam_epsilon, self.adam_epsilon > 0, "above 0")
        if self.minibatch_size is not None:
            require("minibatch_size", self.minibatch_size, self.minibatch_size >= 1, "at least 1, or None")
            if self.minibatch_size > self.train_batch_size:
                raise ValueError(
                    f"training.minibatch_size={self.minibatch_size} is larger than "
                    f"training.train_batch_size={self.train_batch_size}; make the minibatch at most the batch"
                )
        if self.grad_clip is not None:
            require("grad_clip", self.grad_clip, self.grad_clip > 0, "above 0, or None to switch clipping off")
        if self.learner_class is not None and not isinstance(self.learner_class, type):
            raise TypeError(f"training.learner_class={self.learner_class!r} must be a subclass of Learner, or None")
        if not isinstance(self.learner_config_dict, Mapping):
            raise TypeError(f"training.learner_config_dict={self.learner_config_dict!r} must be a dict")
        choice("grad_clip_by", self.grad_clip_by, ("value", "norm", "global_norm"))
        choice("nan_policy", self.nan_policy, ("skip", "stop", "zero"))


@dataclass
class LearnersSection(Section):
    """Where learners run."""

    num_learners: int = 0
    """0: one learner in this process; n: n processes (needs the extra `ray`)"""
    num_cpus_per_learner: int = 1
    num_gpus_per_learner: int = 0
    custom_resources_per_learner: dict[str, float] = field(default_factory=dict)
    """other resources of a cluster that each learner takes, by name"""
    max_requests_in_flight_per_learner: int = 3
    never_skip_update: bool = False
    """an empty update raises instead of being counted as skipped"""
    learner_timeout_s: float = 300.0
    """seconds that one call on learners in other processes may take; after that they count as hanging"""

    def validate(self) -> None:
        """Raises `ValueError` for what this machine or this version cannot give."""
        require("num_learners", self.num_learners, self.num_learners >= 0, "at least 0")
        require("learner_timeout_s", self.learner_timeout_s, self.learner_timeout_s > 0, "above 0 seconds")
        require("num_cpus_per_learner", self.num_cpus_per_learner, self.num_cpus_per_learner >= 0, "at least 0")
        require("num_gpus_per_learner", self.num_gpus_per_learner, self.num_gpus_per_learner >= 0, "at least 0")
        resources = self.custom_resources_per_learner
        numbers = isinstance(resources, Mapping) and all(map(is_number, resources.values()))
        if not numbers:
            raise TypeError(f"learners.custom_resources_per_learner={resources!r} must be a dict {{name: amount}}")
        for name, amount in resources.items():
            require(f"custom_resources_per_learner[{name!r}]", amount, amount >= 0, "at least 0")
        limit = self.max_requests_in_flight_per_learner
        require("max_requests_in_flight_per_learner", limit, limit >= 1, "at least 1")


@dataclass
class ResourcesSection(Section):
    """What the main process of a run takes of a cluster."""

    num_cpus_for_main_process: int = 1
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """how workers are laid over the nodes: together or apart, as a wish or as a must"""
    ray_address: str | None = None
    """of a running Ray cluster that learners and env runners join ("auto": the one of this machine); `None`: Ray is
    started on this machine where it is needed"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option."""
        cpus = self.num_cpus_for_main_process
        require("num_cpus_for_main_process", cpus, cpus >= 0, "at least 0")
        choice("placement_strategy", self.placement_strategy, ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"))


@dataclass
class FaultToleranceSection(Section):
    """How often what died, hangs or raises is started again, before the run ends with its error.

    The limits of a run count all learners together (all env runners, all environments of a vector); the limit within
    a time counts each learner, env runner or vector of environments by itself.
    """

    max_learner_restarts: int = 10
    """of learners in other processes, in a run; 0: never"""
    restart_failed_env_runners: bool = True
    max_env_runner_restarts: int = 10
    """of env runners in other processes, in a run"""
    restart_failed_envs: bool = True
    """environments in processes of their own"""
    max_env_restarts: int = 10
    """of environments in processes of their own, in a run; of each vector"""
    max_restarts_in_window: int = 1
    """of the same learner, env runner or vector of environments within `restart_window_s`"""
    restart_window_s: float = 60.0

    def validate(self) -> None:
        """Raises `ValueError` naming the option."""
        for name in ("max_learner_restarts", "max_env_runner_restarts", "max_env_restarts", "max_restarts_in_window"):
            require(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        require("restart_window_s", self.restart_window_s, self.restart_window_s > 0, "above 0 seconds")

    @property
    def learner_limits(self) -> RestartLimits:
        """For learners in other processes."""
        return RestartLimits(self.max_learner_restarts, self.max_restarts_in_window, self.restart_window_s)

    @property
    def env_runner_limits(self) -> RestartLimits:
        """For env runners; none are allowed where `restart_failed_env_runners=False`."""
        in_run = self.max_env_runner_restarts if self.restart_failed_env_runners else 0
        return RestartLimits(in_run, self.max_restarts_in_window, self.restart_window_s)

    @property
    def env_limits(self) -> RestartLimits:
        """For environments; none are allowed where `restart_failed_envs=False`."""
        in_run = self.max_env_restarts if self.restart_failed_envs else 0
        return RestartLimits(in_run, self.max_restarts_in_window, self.restart_window_s)


@dataclass
class FrameworkSection(Section):
    """How the arithmetic is done."""

    compile: bool = False
    """compile the whole gradient step (about 10-20 s once, then under 2 s from the compiler's cache)"""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ... as torch names it"""
    dtype: Literal["float32", "float64"] = "float32"
    mixed_precision: bool = False
    """networks compute in bfloat16 while learning; parameters, losses and optimizers stay in float32"""
    num_threads: int | None = None
    """threads of torch in this process; `None`: 1, which is fastest for small networks"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option."""
        choice("dtype", self.dtype, ("float32", "float64"))
        kind, colon, number = self.device.lower().partition(":")
        if kind == "gpu":
            raise ValueError(
                f"framework.device={self.device!r} is not allowed; did you mean 'cuda{colon}{number}'? It is torch's "
                "name for a GPU; others are 'mps' and 'cpu'"
            )
        if self.mixed_precision and self.dtype != "float32":
            raise ValueError(
                f"framework.mixed_precision=True needs framework.dtype='float32', not {self.dtype!r}; switch one off"
            )
        if self.num_threads is not None:
            require("num_threads", self.num_threads, self.num_threads >= 1, "at least 1, or None")


@dataclass
class MultiAgentSection(Section):
    """Who learns what."""

    policies: Any = None
    """module ids, or `{module_id: RLModuleSpec}` (its fields as a dict, or None: the default module); `None`: as
    `rl_module_spec` says, one module for a single agent"""
    policy_mapping_fn: Callable[..., str] | None = None
    """`f(agent_id, episode) -> module id`; `None`: every agent has the module "default_policy" """
    policies_to_train: Collection[str] | Callable[..., bool] | None = None
    """module ids that learn, or `f(module_id)` or `f(module_id, batch) -> bool` (`batch`: None for episodes); `None`:
    all"""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """what `train_batch_size` counts where there are several agents"""
    reward_metric: Callable[..., Any] | None = None
    """`f(returns[episode, agent]) -> [episode]`: what a trainer takes for the return of an episode; `None`: the sum
    over agents"""

    def validate(self) -> None:
        """Raises `ValueError` or `TypeError` naming the option; how ids fit together is checked with the whole."""
        choice("count_steps_by", self.count_steps_by, ("env_steps", "agent_steps"))
        check_policies_to_train(self.policies_to_train)
        for name, what in (
            ("policy_mapping_fn", "(agent_id, episode) -> module id"),
            ("reward_metric", "(returns[episode, agent]) -> one number for each episode"),
        ):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise TypeError(f"{name}={function!r} must be a function {what}")


def check_policies_to_train(allowed: object) -> None:
    """Raises `TypeError` unless it is a collection of module ids, a function, or None."""
    if isinstance(allowed, str):
        raise TypeError(f"policies_to_train={allowed!r} is one text; give a list of module ids, e.g. [{allowed!r}]")
    if not (allowed is None or callable(allowed) or isinstance(allowed, Collection)):
        raise TypeError(
            f"policies_to_train={allowed!r}; give a list of module ids, a function (module_id, batch) -> bool, or None"
        )
    if callable(allowed):
        takes_batch(allowed)


def values_of(schedule: ScheduleLike) -> list[float]:
    """The values that a schedule names: its number, those of its points, none of a function."""
    if isinstance(schedule, list | tuple | np.ndarray):
        return [float(point[1]) for point in Schedule(schedule).specification]  # type: ignore[union-attr]
    return [schedule] if isinstance(schedule, int | float | np.number) else []


def whole_samples(section: TrainingSection) -> None:
    """Raises `ValueError` for options of passes and minibatches, where each gradient step takes a sample of its own."""
    require("minibatch_size", section.minibatch_size, section.minibatch_size is None, "None (use train_batch_size)")
    require("num_epochs", section.num_epochs, section.num_epochs == 1, "1 (each gradient step draws a new sample)")


def require(name: str, value: object, condition: bool, allowed: str) -> None:
    """Raises `ValueError` unless `condition`."""
    if not condition:
        raise ValueError(f"{name}={value!r} is not allowed; it must be {allowed}")


def choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raises `ValueError` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not allowed; choose one of {', '.join(map(repr, allowed))}")
