"""`Builder`: builds the policy of a run and its collectors from a configuration."""

from __future__ import annotations

from functools import partial

from lockstep.builder.agent_parts import AgentParts
from lockstep.builder.run_config import RunConfig
from lockstep.builder.runners import RunnerBuilder
from lockstep.builder.tensor_collectors import TensorCollectorBuilder
from lockstep.cluster.rank_collector import RankCollector
from lockstep.config.base import Spaces
from lockstep.learner.group import LearnerGroup
from lockstep.learner.many.reduction import Reducer
from lockstep.policy.policy import Policy
from lockstep.replay.storage import row_nbytes
from lockstep.rollout import CollectorLike, GroupCollector
from lockstep.rollout.group_collector import AsyncGroupCollector, EvaluationCollector
from lockstep.state.sizes import machine_memory
from lockstep.state.streams import RandomStreams


class Builder:
    """Builder of the policy, of the collector of training data and of the collector of evaluation.

    It has no options. For steps that users may override in their configuration (`make_envs`,
    `build_replay_buffer`, `build_env_runner`, ...) it always calls the method of the configuration.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def build_policy(self, env: object = None, spaces: Spaces | None = None, reducer: Reducer | None = None) -> Policy:
        """Build a policy and its group of learners; see `AlgorithmConfig.build_policy`."""
        config = self.config if spaces is not None else self.config.with_agents(env)
        config = config.with_groups_of_environment()
        observation_space, action_space = config.policy_spaces(env, spaces)
        if reducer is None or reducer.world_size == 1:
            group = config.build_learner_group(env, (observation_space, action_space))
        else:
            # This process has one of the learners; the reducer connects it with the learners of the other ranks.
            several = config.copy().learners(num_learners=reducer.world_size)
            learner = several.build_learner(env, (observation_space, action_space), reducer)
            group = LearnerGroup(learner, config.learners)
        try:
            return Policy(
                config,
                group,
                observation_space=observation_space,
                action_space=action_space,
                agents=config.agents_with_id(env),
            )
        except BaseException:
            # This includes KeyboardInterrupt: nobody else has the group and could end the processes of its learners.
            group.shutdown()
            raise

    def build_collector(self, policy: Policy) -> CollectorLike:
        """Build the collector of training data: for a rank, over env runners, on a device, or in this process.

        An off-policy collector also gets its replay buffer.
        """
        config = self.config
        reducer = policy.learner_group.reducer
        parts = AgentParts.of(config, policy.is_multi_agent)
        tensors = TensorCollectorBuilder(config, policy)
        if config.is_off_policy:
            self._check_replay_memory(policy)

        collector: CollectorLike
        if reducer.world_size > 1:
            if tensors.has_environments and (not tensors.steps_rows_alone or tensors.decide()):
                return tensors.build_share(reducer)
            parts.check()
            collector = self._build_rank_collector(policy, reducer)
        elif config.env_runners.num_env_runners:
            parts.check()  # before processes are started
            if tensors.has_environments:
                tensors.decide()
            collector = self._build_group_collector(policy)
        else:
            envs = parts.make_envs(config.env_runners.num_envs_per_env_runner)
            device_collector = tensors.build_for(envs)
            if device_collector is not None:
                return device_collector  # it has constructed its replay itself
            options = {
                "exploration_noise": config.env_runners.explore,
                "streams": RandomStreams(config.debugging.seed).child("train_collector"),
                "whole_episodes": config.env_runners.collects_whole_episodes,
            }
            collector = parts.build_collector(policy, envs, options)

        if config.is_off_policy:
            collector.buffer = config.build_replay(policy, collector)
        return collector

    def _check_replay_memory(self, policy: Policy) -> None:
        """Raise `ValueError` for replay buffers that are larger than this machine's memory.

        Without this check the run would be killed hours later, when the buffer is nearly full.
        """
        section = self.config.replay
        available = machine_memory()
        row_bytes = 0
        for part in policy.acting.values():
            num_frames = part.connectors.num_frames
            # Frames of a stack are stored once and put together when they are sampled.
            stores_once = section.ignore_obs_next or num_frames > 1
            row_bytes += row_nbytes(part.stored_observation_space, part.module.action_space, stores_once, num_frames)
            row_bytes += sum(leaf.nbytes for leaf in part.get_initial_state(1).values())
        needed = section.capacity * row_bytes
        if section.storage == "memory" and needed > available:
            raise ValueError(
                f"replay.capacity={section.capacity} needs {needed / 2**30:,.1f} GiB and this machine has "
                f"{available / 2**30:,.1f} GiB of memory; lower it, store each observation once "
                "(replay.ignore_obs_next=True), or use files (replay.storage='memmap')"
            )

    def _build_group_collector(self, policy: Policy) -> GroupCollector:
        """Build the collector over env runners: synchronous or asynchronous with the learner."""
        config = self.config
        spaces = (policy.observation_space, policy.action_space)
        if not config.collects_while_learning:
            return GroupCollector(policy, config.build_env_runner_group(spaces))
        fragment_length, num_fragments = config.fragments()
        return AsyncGroupCollector(
            policy,
            config.build_env_runner_group(spaces, with_logp=config.max_lag > 0),
            fragment_length=fragment_length,
            fragments_per_batch=num_fragments,
            max_lag=config.max_lag,
            fixed_lag=getattr(config.training, "fixed_lag", True),
        )

    def _build_rank_collector(self, policy: Policy, reducer: Reducer) -> RankCollector:
        """Build the collector of a rank, which steps its share of the environments."""
        config = self.config
        num_envs = config.env_runners.num_envs // reducer.world_size
        share = config.copy().env_runners(num_envs_per_env_runner=num_envs)
        build = partial(share.build_env_runner, (policy.observation_space, policy.action_space))
        return RankCollector(policy, build, reducer, config.env_runners)

    def build_test_collector(self, policy: Policy) -> CollectorLike:
        """Build the collector of evaluation: over env runners, or in this process."""
        section = self.config.evaluation
        settings = self.config.evaluation_settings()
        if section.evaluation_num_env_runners:
            spaces = (policy.observation_space, policy.action_space)
            return EvaluationCollector(policy, RunnerBuilder(settings).build_evaluation_group(spaces))
        parts = AgentParts.of(settings, policy.is_multi_agent)
        options = {
            "exploration_noise": settings.env_runners.explore,
            "epsilon": section.epsilon,
            "streams": RandomStreams(self.config.debugging.seed).child("test_collector"),
        }
        return parts.build_collector(policy, parts.make_envs(section.num_envs), options)
