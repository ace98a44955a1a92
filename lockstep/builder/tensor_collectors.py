"""`TensorCollectorBuilder`: decides whether steps of tensor environments stay on their device, and builds their
collector."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from lockstep.builder.run_config import RunConfig
from lockstep.config.replay_builder import ReplayBuilder
from lockstep.config.rules import Rule, refuse
from lockstep.connectors import ObsPipeline
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.envs.make import name_of_env, tensor_class
from lockstep.envs.tensor import TENSOR_ENVS, TensorBoundary, TensorVecEnv
from lockstep.learner.learner import Learner
from lockstep.learner.many.reduction import Reducer
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.policy import Policy
from lockstep.rollout.callbacks import overridden_events
from lockstep.rollout.protocols import sole_part
from lockstep.rollout.tensor_collector import TensorCollector
from lockstep.state.streams import RandomStreams


@dataclass(frozen=True)
class HostRule:
    """Feature that needs the host: with it, steps of tensor environments are copied there."""

    feature: str
    """The feature, as it is written in a configuration."""
    applies: Callable[[RunConfig, ActingPolicy], object]
    """Function that returns a true value for a configuration and acting policy with this feature."""
    reason: str
    """What runs on the host. It follows the feature and a colon."""


ROWS_ALONE = ("sync", "async")
"""Values of `env_runners.vectorize_mode` with which each row of an environment id or class is stepped alone."""
HOST_HOOKS = ("prepare_batch", "prepare_sequences", "after_gradient_step", "should_stop_passes", "takes_part")
"""Hooks of a learner that run on the host. A CUDA graph would not call them."""


class TensorCollectorBuilder:
    """Builder of the collector that steps tensor environments and stores their steps on the device.

    Args:
        config: The configuration of the run.
        policy: The policy that acts and learns.
    """

    def __init__(self, config: RunConfig, policy: Policy) -> None:
        self.config = config
        self.policy = policy

    # -- conditions ---

    @property
    def has_environments(self) -> bool:
        """Whether the configured environments are tensor environments: an id or a class of them, or finished ones."""
        env = self.config.environment.env
        return tensor_class(env) is not None or isinstance(env, TensorVecEnv | TensorBoundary)

    @property
    def steps_rows_alone(self) -> bool:
        """Whether each row is a tensor environment of its own, which is stepped from the host."""
        return self.has_environments and self.config.env_runners.vectorize_mode in ROWS_ALONE

    @property
    def host_reasons(self) -> list[str]:
        """Reasons why steps have to be copied to the host, one for each rule that applies; empty if they stay."""
        if self.policy.is_multi_agent:
            return ["multi_agent(...): tensor environments have one agent"]
        part = sole_part(self.policy)
        return [f"{rule.feature}: {rule.reason}" for rule in HOST_RULES if rule.applies(self.config, part)]

    @property
    def can_stay_on_device(self) -> bool:
        """Whether steps can be collected and learned from on the device; see `AlgorithmConfig.collects_tensors`."""
        return not self.host_reasons

    def decide(self) -> bool:
        """Return whether steps of tensor environments stay on the device; warn if they are copied to the host.

        Raises `ValueError` if they would be copied, and `env_runners(allow_host=True)` does not allow that.
        """
        config = self.config
        if config.collects_tensors(self.policy):
            return True
        # There are no reasons if the user's own configuration overrides `collects_tensors`.
        reasons = self.host_reasons or [f"{type(config).__name__}.collects_tensors returns False"]
        env = config.environment.env
        name = repr(env) if isinstance(env, str) else name_of_env(env)
        text = f"{config.algorithm} copies the steps of environment.env={name} to the host. {'. '.join(reasons)}"
        if not config.env_runners.allow_host:
            raise ValueError(
                f"{text}. That is not allowed unless you set env_runners(allow_host=True), which is slow; or leave out "
                "what is named, or take an environment that is no tensor (docs/gpu.md has a table)"
            )
        warnings.warn(f"{text} (env_runners.allow_host=True)", stacklevel=2)
        return False

    # -- collectors ---

    def build_for(self, envs: object, share: RowShare = ALL_ROWS) -> TensorCollector | None:
        """Build the collector of these environments, which are all of the run or the share of a rank.

        Returns None if they are not tensor environments, or if their steps have to be copied to the host.
        """
        if isinstance(envs, TensorBoundary):
            return self._build(envs, share) if self.decide() else None
        if self.has_environments:
            self.decide()
        return None

    def build_share(self, reducer: Reducer) -> TensorCollector:
        """Build the collector of a rank's share of the environments.

        Raises `ValueError` for options with which the run would not equal that of one process.
        """
        config = self.config
        num_ranks = reducer.world_size
        self._check_share(num_ranks)
        if not config.collects_tensors(self.policy):
            raise ValueError(
                f"environment.env={config.environment.env!r} is not allowed on {num_ranks} ranks where "
                f"{config.algorithm} with these options copies steps to the host. {'. '.join(self.host_reasons)}. Use "
                "one process, or an environment that is no tensor; docs/gpu.md has a table"
            )
        envs = config.make_envs(config.env_runners.num_envs_per_env_runner // num_ranks)
        collector = self.build_for(envs, RowShare(reducer.rank, num_ranks, reducer.gather))
        assert collector is not None
        return collector

    def _check_share(self, num_ranks: int) -> None:
        """Raise `ValueError` for options that cannot be divided among `num_ranks` ranks."""
        env = self.config.environment.env
        advice = f"is not allowed with tensor environments on {num_ranks} ranks"
        if tensor_class(env) is None:
            raise ValueError(
                f"environment.env: a finished {type(env).__name__} {advice}, each of which makes its share; give an "
                f"id, or a class that is called with the number of environments: {', '.join(TENSOR_ENVS)}"
            )
        rules: list[Rule[RunConfig]] = [
            Rule(
                "replay.prioritized",
                lambda config: config.is_off_policy and config.replay.prioritized,
                f"{advice}, whose priorities are not shared; use one process",
            ),
        ]
        refuse(self.config, rules)

    def _build(self, envs: TensorBoundary, share: RowShare) -> TensorCollector:
        """Build the collector of a share of the environments."""
        config = self.config
        section = config.env_runners
        num_steps = section.rollout_fragment_length
        if num_steps is None:
            num_envs = envs.num_envs * share.number
            num_steps = 1 if config.is_off_policy else -(-config.training.train_batch_size // num_envs)
        return TensorCollector(
            self.policy,
            envs,
            num_steps,
            exploration_noise=section.explore,
            replay=self._replay_options(envs) if config.is_off_policy else None,
            streams=RandomStreams(config.debugging.seed).child("train_collector"),
            share=share,
        )

    def _replay_options(self, envs: TensorBoundary) -> dict[str, Any]:
        """Return the keyword arguments of a `TensorReplay`.

        Raises `ValueError` for hindsight if the environments have no `compute_reward`.
        """
        section = self.config.replay
        hindsight = None
        if section.her:
            hindsight = ReplayBuilder(section, is_off_policy=True).build_hindsight_of(envs.tensors)
        return {
            "capacity": section.capacity,
            "n_step": section.n_step,
            "gamma": self.config.training.gamma,
            "priorities": section.priorities(),
            "hindsight": hindsight,
        }


def _overrides_host_hooks(learner_class: type[Learner[Any]] | None, default_class: type[Learner[Any]]) -> bool:
    """Return whether a user's learner class overrides a hook of the algorithm's class that runs on the host."""
    if learner_class is None:
        return False
    # The methods are compared because a user's class cannot be expected to declare which hooks it overrides.
    return any(getattr(learner_class, name) is not getattr(default_class, name) for name in HOST_HOOKS)


def _draws_actions_on_device(space: object) -> bool:
    """Return whether uniformly random actions of an action space can be drawn on a device."""
    return isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and space.is_bounded())


def _statistics_on_device(pipeline: ObsPipeline) -> bool:
    """Return whether the running statistics of observations can be computed on a device.

    The learner adds raw observations to them, so that only the first connector may have statistics.
    """
    with_statistics = [connector for connector in pipeline.connectors if connector.has_statistics]
    if not with_statistics:
        return True
    first = pipeline.connectors[0]
    return with_statistics == [first] and first.takes_moments


# The list is the only place that says what needs the host. Everything between the environments and the loss has to be
# an operation on tensors of fixed shapes. Whoever moves a feature to the device removes its rule.
HOST_RULES = (
    HostRule(
        "this algorithm",
        lambda config, part: not config.learns_from_tensors,
        "its learner takes arrays on the host",
    ),
    HostRule(
        "training(learner_class=...)",
        lambda config, part: _overrides_host_hooks(config.training.learner_class, config.learner_class),
        f"the class overrides a hook that runs on the host ({', '.join(HOST_HOOKS)})",
    ),
    HostRule(
        "learners(num_learners=...)",
        lambda config, part: config.learners.num_learners,
        "learners in other processes get their rows from the host; start one rank for each device with torchrun",
    ),
    HostRule(
        "env_runners(num_env_runners=...)",
        lambda config, part: config.env_runners.num_env_runners,
        "env runners in other processes send arrays; start one rank for each device with torchrun",
    ),
    HostRule(
        "env_runners(vectorize_mode=...)",
        lambda config, part: config.env_runners.vectorize_mode in ROWS_ALONE,
        "rows that are stepped one by one, or in processes of their own, take and return arrays",
    ),
    HostRule(
        "rl_module(model_config={'recurrent': ...})",
        lambda config, part: config.is_off_policy and part.is_stateful,
        "a replay buffer on a device draws rows, and a network with a memory learns from sequences",
    ),
    HostRule(
        "rl_module(rl_module_spec=...)",
        lambda config, part: part.is_stateful and not part.module.reads_begins,
        "the network has a memory, and does not reset it within a sequence (the property reads_begins)",
    ),
    HostRule(
        "env_runners(exploration=...)",
        lambda config, part: part.exploration is not None and not part.exploration.draws_on_device,
        "this exploration draws its random numbers on the host",
    ),
    HostRule(
        "environment(normalize_observations=...)",
        lambda config, part: not _statistics_on_device(part.connectors.obs),
        "only statistics of the environment's own observations are computed on a device, not those behind another "
        "connector",
    ),
    HostRule(
        "replay(ignore_obs_next=True)",
        lambda config, part: config.is_off_policy and config.replay.ignore_obs_next,
        "a buffer on a device stores both observations",
    ),
    HostRule(
        "replay(storage=...)",
        lambda config, part: config.is_off_policy and config.replay.storage != "memory",
        "a buffer on a device is in its memory",
    ),
    HostRule(
        "replay(learning_starts=...)",
        lambda config, part: config.is_off_policy and not _draws_actions_on_device(part.action_space),
        "random actions are drawn on a device for a Discrete space or a bounded Box only",
    ),
    HostRule(
        "env_runners(env_to_module_connector=...)",
        lambda config, part: not all(connector.on_device for connector in part.connectors.recorded.connectors),
        "a connector whose output is stored may read values on the host unless its class sets on_device = True",
    ),
    HostRule(
        "env_runners(module_to_env_connector=...)",
        lambda config, part: part.connectors.actions is not None and not part.connectors.actions.on_device,
        "a connector of actions may read values on the host unless its class sets on_device = True, and must keep the "
        "action space",
    ),
    HostRule(
        "training(learner_connector=...)",
        lambda config, part: not all(connector.on_device for connector in part.connectors.learner),
        "a connector of train columns may read values on the host unless its class sets on_device = True",
    ),
    HostRule(
        "training(intrinsic_reward=...)",
        lambda config, part: config.training.intrinsic_reward is not None,
        "the reward for novelty is computed from arrays",
    ),
    HostRule(
        "env_runners(batch_mode='complete_episodes')",
        lambda config, part: config.env_runners.collects_whole_episodes,
        "a collect on a device has a fixed number of steps",
    ),
    HostRule(
        "callbacks(...)",
        lambda config, part: any(map(overridden_events, config.callbacks.classes)),
        "callbacks of environments and episodes read arrays",
    ),
)
