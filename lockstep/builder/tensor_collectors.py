"""`TensorCollectorBuilder`: whether steps of tensor environments stay on their device, and the collector of them."""

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

ON_HOST = ("prepare_batch", "prepare_sequences", "after_gradient_step", "should_stop_passes", "takes_part")
"""Hooks of a learner that see arrays, or that do what the host counts."""


class TensorCollectorBuilder:
    """Builds the collector that steps tensor environments and stores their steps on the device.

    Args:
        config: the configuration of the run.
        policy: the policy that acts and learns.
    """

    def __init__(self, config: RunConfig, policy: Policy) -> None:
        self.config = config
        self.policy = policy

    # -- whether ---

    @property
    def has_environments(self) -> bool:
        """Whether the environments are tensors on a device: configured by an id, or finished ones."""
        env = self.config.environment.env
        named = named_environment(env) if isinstance(env, str) else env
        if isinstance(named, str):
            return named in TENSOR_ENVS and self.config.env_runners.vectorize_mode in ("auto", "vector")
        return isinstance(named, TensorVecEnv | TensorBoundary)

    @property
    def fits(self) -> bool:
        """Whether steps can be collected and learned from on the device, see `AlgorithmConfig.collects_tensors`."""
        config = self.config
        part = sole_part(self.policy)
        connectors = part.connectors
        return (
            config.learns_from_tensors
            and not self._learner_is_on_host
            and not config.learners.num_learners
            and not part.is_stateful
            and (part.exploration is None or part.exploration.draws_on_device)
            and (not config.is_off_policy or self._replay_fits(part))
            and connectors.recorded.is_identity
            and not connectors.learner
            and _statistics_on_device(connectors.obs)
            and config.training.intrinsic_reward is None
            and not config.env_runners.collects_whole_episodes
            and not any(map(overridden_events, config.callbacks.classes))
        )

    @property
    def _learner_is_on_host(self) -> bool:
        """Whether a learner class of the user's own overrides a hook that a CUDA graph would not call again."""
        own = self.config.learner_class
        chosen = self.config.training.learner_class or own
        return any(getattr(chosen, name) is not getattr(own, name) for name in ON_HOST)

    def _replay_fits(self, part: ActingPolicy) -> bool:
        """Return whether a `TensorReplay` does what is asked of a replay buffer, and random actions can be drawn."""
        replay = self.config.replay
        space = part.action_space
        has_form = isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and space.is_bounded())
        asks_more = replay.her or replay.ignore_obs_next
        return has_form and not asks_more and replay.storage == "memory" and not part.has_statistics

    # -- builds ---

    def build_for(self, envs: object) -> TensorCollector | None:
        """Build the collector of these environments in one process; None where they are stepped from the host."""
        if isinstance(envs, TensorBoundary) and self.config.collects_tensors(self.policy):
            return self._build(envs, ALL_ROWS)
        return None

    def build_share(self, reducer: Reducer) -> TensorCollector:
        """Build the collector of a rank's share of the environments.

        Raises `ValueError` for options with which the numbers drawn would differ from those in one process.
        """
        config = self.config
        number = reducer.world_size
        self._check_share(number)
        if self.policy.is_multi_agent or not config.collects_tensors(self.policy):
            raise ValueError(
                f"environment.env={config.environment.env!r} is not allowed on {number} ranks where {config.algorithm} "
                "with these options copies steps to the host: use one process, or an environment that is no tensor; "
                "docs/gpu.md says what goes on the device"
            )
        envs = config.make_envs(config.env_runners.num_envs_per_env_runner // number)
        assert isinstance(envs, TensorBoundary)
        return self._build(envs, RowShare(reducer.rank, number, reducer.gather))

    def _check_share(self, number: int) -> None:
        """Raise `ValueError` for what cannot be divided among `number` ranks."""
        env = self.config.environment.env
        advice = f"is not allowed with tensor environments on {number} ranks"
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
        config = self.config
        section = config.env_runners
        default = 1 if config.is_off_policy else -(-config.training.train_batch_size // (envs.num_envs * share.number))
        return TensorCollector(
            self.policy,
            envs,
            section.rollout_fragment_length or default,
            exploration_noise=section.explore,
            replay=self._replay_options() if config.is_off_policy else None,
            streams=RandomStreams(config.debugging.seed).child("train_collector"),
            share=share,
        )

    def _replay_options(self) -> dict[str, Any]:
        """Return the options of a `TensorReplay`."""
        section = self.config.replay
        return {
            "capacity": section.capacity,
            "n_step": section.n_step,
            "gamma": self.config.training.gamma,
            "priorities": section.priorities(),
        }


def _statistics_on_device(pipeline: ObsPipeline) -> bool:
    """Return whether the statistics of observations can be taken where tensors are."""
    with_statistics = [connector for connector in pipeline.connectors if connector.has_statistics]
    if not with_statistics:
        return True
    first = pipeline.connectors[0]
    return with_statistics == [first] and first.takes_moments
