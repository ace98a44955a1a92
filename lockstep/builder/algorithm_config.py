"""`AlgorithmConfig`: the configuration of a run, which builds its policy, its collectors and its trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

from gymnasium import spaces

from lockstep.builder.trainer_protocol import TrainerLike
from lockstep.cluster.rank_collector import RankCollector
from lockstep.config.base import BaseConfig, Spaces, without_ray
from lockstep.config.rules import OF_SEVERAL_AGENTS, RULES, Rule, refuse
from lockstep.connectors import NormalizeObs, ObsPipeline
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.envs.make import TimeLimitedMaker, named_environment
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.envs.tensor import TENSOR_ENVS, TensorBoundary, TensorVecEnv
from lockstep.learner.group import LearnerGroup
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.optimizers import check_configured_optimizer
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.options.section import by_path
from lockstep.policy.acting import ActingPolicy, AgentsActingPolicy
from lockstep.policy.offline_data import open_data
from lockstep.policy.policy import Policy
from lockstep.replay.storage import machine_memory, row_nbytes
from lockstep.rollout import Collector, CollectorLike, EnvRunner, EnvRunnerGroup, GroupCollector, MultiAgentCollector
from lockstep.rollout.callbacks import overridden_events
from lockstep.rollout.config import EnvRunnersSection
from lockstep.rollout.env_runner import MultiAgentEnvRunner
from lockstep.rollout.group_collector import AsyncGroupCollector, EvaluationCollector
from lockstep.rollout.protocols import sole_part
from lockstep.rollout.runner_group import BuildRunner, LocalRunner
from lockstep.rollout.tensor_collector import TensorCollector
from lockstep.state.streams import RandomStreams

OF_EVALUATION = (
    *("environment.env", "environment.env_config"),
    *("env_runners.explore", "env_runners.vectorize_mode", "env_runners.step_timeout", "env_runners.sample_timeout_s"),
    *("env_runners.num_cpus_per_env_runner", "env_runners.num_gpus_per_env_runner"),
    "env_runners.custom_resources_per_env_runner",
)
"""options that `evaluation_config` may set; what observations and actions go through is part of the policy"""
ON_HOST = ("prepare_batch", "prepare_sequences", "after_gradient_step", "should_stop_passes", "takes_part")
"""hooks of a learner that see arrays, or that do what the host counts"""


class AlgorithmConfig(BaseConfig):
    """A typed configuration with one section for each concern, and the builder of all parts of a run.

    `config.training.lr` reads an option, `config.training(lr=1e-3)` sets some and returns the configuration, so calls
    chain: `PPOConfig().environment("CartPole-v1").training(lr=1e-3).build_trainer().run()`. An unknown name raises with
    "did you mean".
    """

    learns_from_tensors: ClassVar[bool] = False
    """whether its learner takes a `TensorRollout`, or draws from a `TensorReplay`"""
    rules: ClassVar[tuple[Rule[Any], ...]] = ()
    """Rules between options that an algorithm adds to those of all, see `lockstep.config.rules`"""
    trainer_factory: ClassVar[Callable[..., TrainerLike] | None] = None
    """set by the trainer's floor, which stands above this one"""

    # -- checks across sections ---

    def validate(self) -> None:
        """Refuse options that do not go together; every build calls it. `ValueError` names them and their values."""
        super().validate()
        refuse(self, RULES)
        self.evaluation_settings()
        for module_id, overrides in self.rl_module.algorithm_config_overrides_per_module.items():
            try:
                check_configured_optimizer(self.training.overridden(overrides))
            except (TypeError, ValueError) as error:
                where = f"rl_module.algorithm_config_overrides_per_module[{module_id!r}]"
                raise type(error)(f"{where}: {error}") from None
        refuse(self, self.rules)

    # -- builds ---

    def build_policy(self, env: Any = None, spaces: Spaces | None = None, reducer: Reducer | None = None) -> Policy:
        """Build a policy that acts and learns, over its group of learners; of several agents see `with_agents`.

        `reducer`: joins its learner with those of other ranks.
        """
        config = self if spaces is not None else self.with_agents(env)
        observation_space, action_space = config.policy_spaces(env, spaces)
        if reducer is None or reducer.world_size == 1:
            group = config.build_learner_group(env, (observation_space, action_space))
        else:
            several = config.copy().learners(num_learners=reducer.world_size)
            learner = several.build_learner(env, (observation_space, action_space), reducer)
            group = LearnerGroup(learner, config.learners)
        try:
            agents, spaces = config.agents_with_id(env), (observation_space, action_space)
            return Policy(config, group, observation_space=spaces[0], action_space=spaces[1], agents=agents)
        except BaseException:
            group.shutdown()
            raise

    def build_offline_data(self) -> Any:
        """Open the data that `offline_data(input_=...)` names, see `open_data`. `ValueError` where it names none."""
        return open_data(self.offline_data)

    def build_trainer(self, **options: Any) -> TrainerLike:
        """Build the trainer with its policy, collectors, evaluation and (with `folder=`) the run's files."""
        factory = type(self).trainer_factory
        if factory is None:
            raise RuntimeError("import lockstep before building a trainer; only its lower floors are loaded")
        return factory(self, **options)

    # -- collectors ---

    def build_collector(self, policy: Policy | None = None) -> CollectorLike:
        """Build the collector of training data, on environments of its own: here, or in env runners' processes."""
        policy = policy or self.build_policy()
        section, several = self.env_runners, policy.is_multi_agent
        if self.is_off_policy:
            self._check_replay_memory(policy)
        streams, num_envs = RandomStreams(self.debugging.seed).child("train_collector"), section.num_envs_per_env_runner
        collector: Any
        if policy.learner_group.reducer.world_size > 1 and self._has_tensor_envs:
            return self._build_tensor_collector_of_rank(policy, policy.learner_group.reducer)
        if policy.learner_group.reducer.world_size > 1:
            collector = self._build_rank_collector(policy, policy.learner_group.reducer)
        elif section.num_env_runners:
            collector = self._build_group_collector(policy)
        elif several:
            collector = MultiAgentCollector(
                policy,
                self.make_agent_envs(num_envs),
                exploration_noise=section.explore,
                streams=streams,
                whole_episodes=self._collects_whole_episodes,
            )
        else:
            envs = self.make_envs(num_envs)
            if isinstance(envs, TensorBoundary) and self.collects_tensors(policy):
                return self._build_tensor_collector(policy, envs, ALL_ROWS)
            collector = Collector(
                policy,
                envs,
                exploration_noise=section.explore,
                streams=streams,
                whole_episodes=self._collects_whole_episodes,
            )
        if self.is_off_policy:
            collector.buffer = (
                self.build_replay_buffers(collector.agents_of_modules, collector.num_envs)
                if several
                else self.build_replay_buffer(collector.num_envs, connectors=sole_part(policy).connectors)
            )
        return collector

    @property
    def _has_tensor_envs(self) -> bool:
        """Whether the environments are tensors on a device, of an id or finished ones."""
        env = self.environment.env
        named = named_environment(env) if isinstance(env, str) else env
        is_id = isinstance(named, str) and named in TENSOR_ENVS
        finished = isinstance(named, TensorVecEnv | TensorBoundary)
        return finished or (is_id and self.env_runners.vectorize_mode in ("auto", "vector"))

    def _build_tensor_collector(self, policy: Policy, envs: TensorBoundary, share: RowShare) -> TensorCollector:
        section = self.env_runners
        default = 1 if self.is_off_policy else -(-self.training.train_batch_size // (envs.num_envs * share.number))
        return TensorCollector(
            policy,
            envs,
            section.rollout_fragment_length or default,
            exploration_noise=section.explore,
            replay=self._tensor_replay() if self.is_off_policy else None,
            streams=RandomStreams(self.debugging.seed).child("train_collector"),
            share=share,
        )

    def _build_tensor_collector_of_rank(self, policy: Policy, reducer: Reducer) -> TensorCollector:
        """Build the collector of a rank's share of tensor environments; `ValueError` for what would draw other numbers
        than in one process."""
        env, number = self.environment.env, reducer.world_size
        advice = f"is not allowed with tensor environments on {number} ranks"
        if not isinstance(env, str):
            raise ValueError(
                f"environment.env: a finished {type(env).__name__} {advice}, each of which makes its share; give an "
                f"id: {', '.join(TENSOR_ENVS)}"
            )
        scaled = not policy.is_multi_agent and sole_part(policy).connectors.rewards is not None
        rules: list[Rule[AlgorithmConfig]] = [
            Rule(
                "replay.prioritized",
                lambda config: config.is_off_policy and config.replay.prioritized,
                f"{advice}, whose priorities are not shared; use one process",
            ),
            Rule(
                "environment.normalize_rewards",
                lambda config: scaled,
                f"{advice}, whose returns are not shared; leave it out, or use one process",
            ),
        ]
        refuse(self, rules)
        if policy.is_multi_agent or not self.collects_tensors(policy):
            raise ValueError(
                f"environment.env={env!r} is not allowed on {number} ranks where {self.algorithm} with these options "
                "copies steps to the host: use one process, or an environment that is no tensor; docs/gpu.md says what "
                "goes on the device"
            )
        envs = self.make_envs(self.env_runners.num_envs_per_env_runner // number)
        assert isinstance(envs, TensorBoundary)
        return self._build_tensor_collector(policy, envs, RowShare(reducer.rank, number, reducer.gather))

    def collects_tensors(self, policy: Policy) -> bool:
        """Return whether steps of tensor environments are collected and learned from on their device.

        Else they are environments as all others, whose steps are copied to the host.
        """
        part = sole_part(policy)
        connectors = part.connectors
        return (
            self.learns_from_tensors
            and not self._learner_is_on_host
            and not self.learners.num_learners
            and not part.is_stateful
            and (part.exploration is None or part.exploration.draws_on_device)
            and (not self.is_off_policy or self._replays_tensors(part))
            and connectors.recorded.is_identity
            and not connectors.learner
            and _statistics_on_device(connectors.obs)
            and self.training.intrinsic_reward is None
            and not self._collects_whole_episodes
            and not any(map(overridden_events, self.callbacks.classes))
        )

    @property
    def _learner_is_on_host(self) -> bool:
        """Whether a learner class of the user's own overrides a hook that a CUDA graph would not call again."""
        own, chosen = self.learner_class, self.training.learner_class or self.learner_class
        return any(getattr(chosen, name) is not getattr(own, name) for name in ON_HOST)

    def _tensor_replay(self) -> dict[str, Any]:
        """Return the options of a `TensorReplay`."""
        section = self.replay
        options = {"capacity": section.capacity, "n_step": section.n_step, "gamma": self.training.gamma}
        return {**options, "priorities": section.priorities()}

    def _replays_tensors(self, part: ActingPolicy) -> bool:
        """Return whether a `TensorReplay` does what is asked of a replay buffer, and random actions can be drawn."""
        replay, space = self.replay, part.action_space
        has_form = isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and space.is_bounded())
        unknown = replay.her or replay.ignore_obs_next
        return has_form and not unknown and replay.storage == "memory" and not part.has_statistics

    @property
    def _collects_whole_episodes(self) -> bool:
        return self.env_runners.batch_mode == "complete_episodes"

    def build_test_collector(self, policy: Policy) -> CollectorLike:
        """Build the evaluation collector, with environments and random streams of its own: here, or in env runners'
        processes."""
        section, settings = self.evaluation, self.evaluation_settings()
        streams = RandomStreams(self.debugging.seed).child("test_collector")
        explore, epsilon = settings.env_runners.explore, section.epsilon
        if section.evaluation_num_env_runners:
            spaces = policy.observation_space, policy.action_space
            build = partial(settings.build_env_runner, spaces, evaluates=True)
            return EvaluationCollector(policy, self._runner_group(build, settings.env_runners))
        if policy.is_multi_agent:
            several = settings.make_agent_envs(section.num_envs)
            return MultiAgentCollector(policy, several, exploration_noise=explore, epsilon=epsilon, streams=streams)
        envs = settings.make_envs(section.num_envs)
        return Collector(policy, envs, exploration_noise=explore, epsilon=epsilon, streams=streams)

    def evaluation_settings(self) -> Self:
        """Return the configuration that evaluation makes its environments with: `evaluation_config` set, and
        `env_runners` those of evaluation.

        Raises `ValueError` for an option that is unknown, or that evaluation shares with training.
        """
        section, config = self.evaluation, self.copy()
        runners = max(1, section.evaluation_num_env_runners)
        config.env_runners(
            num_env_runners=section.evaluation_num_env_runners,
            num_envs_per_env_runner=section.num_envs // runners,
            batch_mode="truncate_episodes",
            explore=section.evaluation_explore,
        )
        for path, value in by_path(section.evaluation_config).items():
            try:
                config.set_path(path, value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"evaluation.evaluation_config[{path!r}]: {error}") from None
            if not f"{path}.".startswith(tuple(f"{each}." for each in OF_EVALUATION)):
                raise ValueError(
                    f"evaluation.evaluation_config[{path!r}]={value!r} is not allowed: it is the same in training and "
                    f"evaluation, or an option of evaluation(...); others are {', '.join(OF_EVALUATION)}"
                )
        if section.max_episode_steps is not None:
            config.environment(config.time_limited_env(section.max_episode_steps))
        return config

    def time_limited_env(self, limit: int) -> TimeLimitedMaker:
        """Return a function that makes the environment with episodes of at most `limit` steps. `ValueError` where
        single environments are not made."""
        env, mode = self.environment.env, self.env_runners.vectorize_mode
        reason = ""
        if self.is_multi_agent:
            reason = "for several agents"
        elif isinstance(env, str) and env in TENSOR_ENVS:
            reason = f"for {env}, whose rows are stepped together"
        elif mode in ("vector", "envpool"):
            reason = f"with env_runners.vectorize_mode={mode!r}, where rows are stepped together"
        elif not isinstance(env, str) and not callable(env):
            reason = f"for environment.env={env!r}, which is finished; give an id, a class or a function"
        if reason:
            raise ValueError(
                f"evaluation.max_episode_steps={limit} is not allowed {reason}; limit the episodes in the environment "
                "itself, and leave the option out"
            )
        return TimeLimitedMaker(env, limit)

    def make_agent_envs(self, num_envs: int) -> AgentEnvs:
        """Make the environments of several agents; `ValueError` for options that do not go with them."""
        self._check_several_agents()
        env, section = self.environment.env, self.multi_agent
        added: Any = {"agent_ids": section.agent_id_in_obs, "critic": section.centralized_critic}
        if not isinstance(env, str) and not callable(env):
            return AgentEnvs(env, **added)
        return AgentEnvs(env, num_envs, self.environment.env_config, **added)

    def _check_several_agents(self) -> None:
        """Raise `ValueError` for options that do not go with several agents."""
        if self.is_offline:
            raise ValueError(
                f"{self.algorithm} learns from data that are there already, which no trainer does for several agents; "
                "use build_learner_group() and update_from_batch(MultiAgentBatch)"
            )
        refuse(self, OF_SEVERAL_AGENTS)

    # -- env runners ---

    def build_env_runner_group(self, spaces: Spaces | None = None, *, with_logp: bool = False) -> EnvRunnerGroup:
        """Build env runners that sample together, in other processes or, for `num_env_runners=0`, one in this process.

        `with_logp`: fragments say how likely each action was when it was taken.

        Raises:
            ImportError: without ray.
            ValueError: a finished environment, of which no others can be made.
        """
        self.validate()
        section, env = self.env_runners, self.environment.env
        if not isinstance(env, str) and not callable(env):
            raise ValueError(
                f"env runners make their own environments, env={env!r} is one already; give an id or a function"
            )
        return self._runner_group(
            partial(self.copy().build_env_runner, spaces or self.policy_spaces(), with_logp), section
        )

    def _runner_group(self, build: BuildRunner, section: EnvRunnersSection) -> EnvRunnerGroup:
        limits = self.fault_tolerance.env_runner_limits
        if section.num_env_runners == 0:
            return EnvRunnerGroup(LocalRunner(build), section, limits)
        try:
            from lockstep.cluster.processes import start_ray
            from lockstep.cluster.ray_runners import RayRunnerBackend

            start = partial(start_ray, self.resources.ray_address, self.cpus_of_run)
            number = self.fault_tolerance.num_standby_processes
            backend = RayRunnerBackend(build, section, num_standby=number, start_ray=start)
            return EnvRunnerGroup(backend, section, limits)
        except ModuleNotFoundError as error:
            raise without_ray(error, f"env_runners.num_env_runners={section.num_env_runners}") from error

    def build_env_runner(
        self,
        spaces: Spaces,
        with_logp: bool = False,
        evaluates: bool = False,
        *,
        index: int = 0,
        num_runners: int = 1,
        generation: int = 0,
    ) -> EnvRunner:
        """Build the runner number `index` of `num_runners`, with environments of its own; see `EnvRunner`.

        `evaluates`: with the random streams of evaluation, and its epsilon.
        """
        self.set_num_threads()
        options: dict[str, Any] = {
            "index": index,
            "num_runners": num_runners,
            "generation": generation,
            "streams": RandomStreams(self.debugging.seed).child("test_collector" if evaluates else "train_collector"),
            "explore": self.env_runners.explore,
            "epsilon": self.evaluation.epsilon if evaluates else 0.0,
            "stores": not evaluates,
            "with_logp": with_logp,
            "whole_episodes": self._collects_whole_episodes,
            "callbacks": [make() for make in self.callbacks.classes],
        }
        num_envs = self.env_runners.num_envs_per_env_runner
        if self.is_multi_agent:
            by_module = {module_id: (space, spaces[1][module_id]) for module_id, space in spaces[0].items()}
            parts = {module_id: self._acting_policy(pair, module_id) for module_id, pair in by_module.items()}
            return MultiAgentEnvRunner(AgentsActingPolicy(self, parts), self.make_agent_envs(num_envs), **options)
        return EnvRunner(
            self._acting_policy(spaces),
            self.make_envs(num_envs),
            with_states=self.is_off_policy,
            **options,
        )

    def _acting_policy(self, spaces: Spaces, module_id: str = DEFAULT_MODULE_ID) -> ActingPolicy:
        module, connectors = self.build_acting_parts(spaces, module_id)
        return ActingPolicy(self, module, connectors, observation_space=spaces[0], action_space=spaces[1])

    def _build_group_collector(self, policy: Policy) -> GroupCollector:
        if policy.is_multi_agent:
            self._check_several_agents()  # before there are processes
        spaces = policy.observation_space, policy.action_space
        if not self.collects_while_learning:
            return GroupCollector(policy, self.build_env_runner_group(spaces))
        length, number = self.fragments()
        return AsyncGroupCollector(
            policy,
            self.build_env_runner_group(spaces, with_logp=self.max_lag > 0),
            fragment_length=length,
            fragments_per_batch=number,
            max_lag=self.max_lag,
            fixed_lag=getattr(self.training, "fixed_lag", True),
        )

    def _build_rank_collector(self, policy: Policy, reducer: Reducer) -> RankCollector:
        """Build the collector of ranks, each of which has its share of the environments."""
        if policy.is_multi_agent:
            self._check_several_agents()
        spaces, each = (policy.observation_space, policy.action_space), self.env_runners.num_envs // reducer.world_size
        build = partial(self.copy().env_runners(num_envs_per_env_runner=each).build_env_runner, spaces)
        return RankCollector(policy, build, reducer, self.env_runners)

    def fragments(self) -> tuple[int, int]:
        """Return the vector steps of a fragment, and how many fragments reach `train_batch_size`.

        Without a `rollout_fragment_length`, fragments of all runners make one batch.
        """
        section, batch = self.env_runners, self.training.train_batch_size
        num_envs = section.num_envs_per_env_runner
        num_runners = max(1, section.num_env_runners)  # without runners this process is the one
        length = section.rollout_fragment_length or -(-batch // (num_runners * num_envs))
        return length, max(1, -(-batch // (length * num_envs)))

    @property
    def steps_per_batch(self) -> int:
        """Environment steps in a train batch of whole fragments."""
        length, number = self.fragments()
        return length * number * self.env_runners.num_envs_per_env_runner

    def _check_replay_memory(self, policy: Policy) -> None:
        """Raise `ValueError`, with both numbers, for buffers that this machine's memory cannot hold."""
        section, available = self.replay, machine_memory()
        needed = section.capacity * sum(
            row_nbytes(
                part.seen_space,
                part.module.action_space,
                section.ignore_obs_next or part.connectors.num_frames > 1,
                part.connectors.num_frames,
            )
            + sum(leaf.nbytes for leaf in part.get_initial_state(1).values())
            for part in policy.acting.values()
        )
        if section.storage == "memory" and needed > available:
            raise ValueError(
                f"replay.capacity={section.capacity} needs {needed / 2**30:,.1f} GiB and this machine has "
                f"{available / 2**30:,.1f} GiB of memory; lower it, store each observation once "
                "(replay.ignore_obs_next=True), or use files (replay.storage='memmap')"
            )


def _statistics_on_device(pipeline: ObsPipeline) -> bool:
    """Return whether the statistics of observations can be taken where tensors are."""
    with_statistics = [connector for connector in pipeline.connectors if connector.has_statistics]
    if not with_statistics:
        return True
    first = pipeline.connectors[0]
    return with_statistics == [first] and isinstance(first, NormalizeObs) and first.takes_moments
