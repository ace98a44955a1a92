"""`TensorCollectorBuilder`: decides whether steps of tensor environments stay on their device, and builds their
collector."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from lockstep.builder.run_config import RunConfig
from lockstep.config.rules import Rule, refuse
from lockstep.connectors import ObsPipeline
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.envs.make import named_environment
from lockstep.envs.tensor import TENSOR_ENVS, TensorBoundary, TensorVecEnv
from lockstep.learner.many.reduction import Reducer
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.policy import Policy
from lockstep.rollout.callbacks import overridden_events
from lockstep.rollout.protocols import sole_part
from lockstep.rollout.tensor_collector import TensorCollector
from lockstep.state.streams import RandomStreams

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
        """Whether the configured environments are tensor environments: an id of one, or a finished one."""
        env = self.config.environment.env
        resolved = named_environment(env) if isinstance(env, str) else env
        if isinstance(resolved, str):
            return resolved in TENSOR_ENVS and self.config.env_runners.vectorize_mode in ("auto", "vector")
        return isinstance(resolved, TensorVecEnv | TensorBoundary)

    @property
    def can_stay_on_device(self) -> bool:
        """Whether steps can be collected and learned from on the device; see `AlgorithmConfig.collects_tensors`.

        Everything between the environments and the loss has to be an operation on tensors of fixed shapes.
        """
        config = self.config
        part = sole_part(self.policy)
        connectors = part.connectors
        return (
            config.learns_from_tensors
            and not self._learner_has_host_hooks
            and not config.learners.num_learners
            and not part.is_stateful
            and (part.exploration is None or part.exploration.draws_on_device)
            and (not config.is_off_policy or self._supports_replay(part))
            and connectors.recorded.is_identity
            and not connectors.learner
            and _statistics_on_device(connectors.obs)
            and config.training.intrinsic_reward is None
            and not config.env_runners.collects_whole_episodes
            and not any(map(overridden_events, config.callbacks.classes))
        )

    @property
    def _learner_has_host_hooks(self) -> bool:
        """Whether the user's learner class overrides a hook that runs on the host."""
        default_class = self.config.learner_class
        learner_class = self.config.training.learner_class or default_class
        # The methods are compared because a user's class cannot be expected to declare which hooks it overrides.
        return any(getattr(learner_class, name) is not getattr(default_class, name) for name in HOST_HOOKS)

    def _supports_replay(self, part: ActingPolicy) -> bool:
        """Return whether a `TensorReplay` supports the options of replay, and random actions can be drawn on a
        device."""
        replay = self.config.replay
        space = part.action_space
        can_draw_actions = isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and space.is_bounded())
        needs_host_replay = replay.her or replay.ignore_obs_next or replay.storage != "memory"
        return can_draw_actions and not needs_host_replay and not part.has_statistics

    # -- collectors ---

    def build_for(self, envs: object, share: RowShare = ALL_ROWS) -> TensorCollector | None:
        """Build the collector of these environments, which are all of the run or the share of a rank.

        Returns None if they are not tensor environments, or if their steps have to be copied to the host.
        """
        if isinstance(envs, TensorBoundary) and self.config.collects_tensors(self.policy):
            return self._build(envs, share)
        return None

    def build_share(self, reducer: Reducer) -> TensorCollector:
        """Build the collector of a rank's share of the environments.

        Raises `ValueError` for options with which the run would not equal that of one process.
        """
        config = self.config
        num_ranks = reducer.world_size
        self._check_share(num_ranks)
        if self.policy.is_multi_agent or not config.collects_tensors(self.policy):
            raise ValueError(
                f"environment.env={config.environment.env!r} is not allowed on {num_ranks} ranks where "
                f"{config.algorithm} with these options copies steps to the host: use one process, or an environment "
                "that is no tensor; docs/gpu.md says what goes on the device"
            )
        envs = config.make_envs(config.env_runners.num_envs_per_env_runner // num_ranks)
        collector = self.build_for(envs, RowShare(reducer.rank, num_ranks, reducer.gather))
        assert collector is not None
        return collector

    def _check_share(self, num_ranks: int) -> None:
        """Raise `ValueError` for options that cannot be divided among `num_ranks` ranks."""
        env = self.config.environment.env
        advice = f"is not allowed with tensor environments on {num_ranks} ranks"
        if not isinstance(env, str):
            raise ValueError(
                f"environment.env: a finished {type(env).__name__} {advice}, each of which makes its share; give an "
                f"id: {', '.join(TENSOR_ENVS)}"
            )
        scales_rewards = any(part.connectors.rewards is not None for part in self.policy.acting.values())
        rules: list[Rule[RunConfig]] = [
            Rule(
                "replay.prioritized",
                lambda config: config.is_off_policy and config.replay.prioritized,
                f"{advice}, whose priorities are not shared; use one process",
            ),
            Rule(
                "environment.normalize_rewards",
                lambda config: scales_rewards,
                f"{advice}, whose returns are not shared; leave it out, or use one process",
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
            replay=self._replay_options() if config.is_off_policy else None,
            streams=RandomStreams(config.debugging.seed).child("train_collector"),
            share=share,
        )

    def _replay_options(self) -> dict[str, Any]:
        """Return the keyword arguments of a `TensorReplay`."""
        section = self.config.replay
        return {
            "capacity": section.capacity,
            "n_step": section.n_step,
            "gamma": self.config.training.gamma,
            "priorities": section.priorities(),
        }


def _statistics_on_device(pipeline: ObsPipeline) -> bool:
    """Return whether the running statistics of observations can be computed on a device.

    The learner adds raw observations to them, so that only the first connector may have statistics.
    """
    with_statistics = [connector for connector in pipeline.connectors if connector.has_statistics]
    if not with_statistics:
        return True
    first = pipeline.connectors[0]
    return with_statistics == [first] and first.takes_moments
