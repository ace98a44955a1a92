"""`AlgorithmConfig`: the configuration of a run, which builds its policy, its collectors and its trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Self

import torch
from gymnasium import spaces

from lockstep.builder.trainer_protocol import TrainerLike
from lockstep.cluster.rank_collector import RankCollector
from lockstep.config.base import BaseConfig, Spaces, without_ray
from lockstep.connectors import NormalizeObs, ObsPipeline
from lockstep.data.row_share import ALL_ROWS, RowShare
from lockstep.envs.make import TimeLimitedMaker, named_environment
from lockstep.envs.multi_agent import AgentEnvs
from lockstep.envs.tensor import TENSOR_ENVS, TensorBoundary, TensorVecEnv
from lockstep.learner.config import AgentMapping
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.optimizers import check_configured_optimizer
from lockstep.modules import DEFAULT_MODULE_ID, MultiRLModule, MultiRLModuleSpec
from lockstep.options.schedules import stages_of
from lockstep.options.section import by_path
from lockstep.policy.acting import ActingPolicy, AgentsActingPolicy
from lockstep.policy.offline_data import open_data
from lockstep.policy.policy import Policy
from lockstep.replay.storage import machine_memory, row_nbytes
from lockstep.rollout import Collector, CollectorLike, EnvRunner, EnvRunnerGroup, GroupCollector, MultiAgentCollector
from lockstep.rollout.callbacks import misspelt_event, overridden_events
from lockstep.rollout.collector import WholeEpisodeCollector
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
NEEDS_MEMORY = "is for a network with memory; set rl_module(model_config={'recurrent': 'lstm'}), or leave it out"
ON_HOST = ("prepare_batch", "prepare_sequences", "after_gradient_step", "should_stop_passes", "takes_part")
"""hooks of a learner that see arrays, or that do what the host counts"""
Rule = tuple[str, object, str]
"""the path of an option, whether its value does not go with another's, and what is said after both"""


class AlgorithmConfig(BaseConfig):
    """A typed configuration with one section for each concern, and the builder of all parts of a run.

    `config.training.lr` reads an option, `config.training(lr=1e-3)` sets some and returns the configuration, so calls
    chain: `PPOConfig().environment("CartPole-v1").training(lr=1e-3).build_trainer().run()`. An unknown name raises with
    "did you mean".
    """

    learns_from_tensors: ClassVar[bool] = False
    """whether its learner takes a `TensorRollout`, or draws from a `TensorReplay`"""
    trainer_factory: ClassVar[Callable[..., TrainerLike] | None] = None
    """set by the trainer's floor, which stands above this one"""

    # -- checks across sections ---

    def validate(self) -> None:
        """Refuse options that do not go together; every build calls it. `ValueError` names them and their values."""
        super().validate()
        rules = [*self._rules_of_run(), *self._rules_of_modules()]
        rules += self._rules_of_offline() if self.is_offline else self._rules_of_online()
        rewarded = self.is_off_policy or self.learner_class.learns_step_by_step
        refused = f"is not allowed for {self.algorithm}, which does not learn from rewards step by step; leave it out"
        rules += [("training.intrinsic_reward", self.training.intrinsic_reward is not None and not rewarded, refused)]
        self._refuse(rules)
        self.evaluation_settings()
        for module_id, overrides in self.rl_module.algorithm_config_overrides_per_module.items():
            try:
                check_configured_optimizer(self.training.overridden(overrides))
            except (TypeError, ValueError) as error:
                where = f"rl_module.algorithm_config_overrides_per_module[{module_id!r}]"
                raise type(error)(f"{where}: {error}") from None

    def _refuse(self, rules: Iterable[Rule]) -> None:
        """Raise `ValueError` for the first rule that is broken."""
        for path, is_broken, words in rules:
            if is_broken:
                section, _, option = path.partition(".")
                value = attrgetter(option)(self.sections[section])
                raise ValueError(f"{path}={value!r} {words}")

    def _rules_of_run(self) -> list[Rule]:
        framework, asynchronous = self.framework, self.collects_while_learning
        runs_elsewhere = self.evaluation.evaluation_num_env_runners
        env, defaults = self.environment, self.env_runners.add_default_connectors
        left_out = "asks for a default connector, and env_runners.add_default_connectors=False leaves all of them out"
        misspelt = next(filter(None, map(misspelt_event, self.callbacks.classes)), None)
        decays = any(self.training.optimizer_kwargs.get(name) for name in ("weight_decay", "amsgrad"))
        return [
            ("environment.frame_stack", not defaults and env.frame_stack > 1, left_out),
            ("environment.normalize_observations", not defaults and env.normalize_observations, left_out),
            ("environment.rescale_actions", not defaults and env.rescale_actions, left_out),
            (
                "evaluation.epsilon",
                self.evaluation.epsilon and self.explores_by != "epsilon",
                f"is not allowed for {self.algorithm}, which does not explore by epsilon; "
                "evaluation(evaluation_explore=True) draws from its policy, or with its noise",
            ),
            ("callbacks.callbacks_class", misspelt is not None, f"is not allowed: {misspelt}"),
            *self._rules_of_exploration(),
            (
                "evaluation.evaluation_num_env_runners",
                runs_elsewhere and any(map(overridden_events, self.callbacks.classes)),
                f"is not allowed with callbacks={self.callbacks.classes}, which handle events of environments: env "
                "runners play episodes that turn out not to count; use 0",
            ),
            (
                "evaluation.evaluation_num_env_runners",
                runs_elsewhere and not (isinstance(self.environment.env, str) or callable(self.environment.env)),
                "needs an environment that env runners can make: an id, a class or a function",
            ),
            (
                "framework.device",
                not self.learners.num_learners and self._device_is_missing(),  # others have devices of their own
                "is not there; torch sees no such device",
            ),
            (
                "learners.num_gpus_per_learner",
                self.learners.num_gpus_per_learner and not framework.device.startswith("cuda"),
                f"needs a GPU, and framework.device={framework.device!r}; set framework(device='cuda'), or 0 GPUs",
            ),
            (
                "training.optimizer",
                framework.compile and (self.training.optimizer != "adam" or decays),
                f"with training.optimizer_kwargs={self.training.optimizer_kwargs!r} is not allowed with "
                "framework.compile=True: Adam's step alone is compiled, without weight_decay and amsgrad",
            ),
            (
                "env_runners.batch_mode",
                asynchronous and self.env_runners.batch_mode != "truncate_episodes",
                f"is not allowed: {self.algorithm} collects fragments of equal length from env runners in other "
                "processes; use 'truncate_episodes', or num_env_runners=0",
            ),
            (
                "training.max_lag",
                asynchronous and self.has_memory and self.max_lag > 0,
                "is not allowed: a network with memory learns from its present self only; set max_lag=0",
            ),
        ]

    def _rules_of_exploration(self) -> list[Rule]:
        section, allowed = self.env_runners, " and ".join(map(repr, self.explorations)) or "none"
        return [
            (
                "env_runners.exploration",
                section.exploration is not None and section.exploration not in self.explorations,
                f"is not allowed for {self.algorithm}, which has a use for {allowed}; leave it out",
            ),
            (
                "env_runners.exploration",
                section.exploration in ("ou", "gsde") and self.is_multi_agent,
                "is not allowed for several agents: it remembers for each environment; leave it out, or use 'normal'",
            ),
        ]

    def _rules_of_modules(self) -> list[Rule]:
        """Policies, mapping, who learns, specs and overrides have to fit together."""
        section, spec = self.multi_agent, self.rl_module.rl_module_spec
        rules: list[Rule] = [
            (
                f"multi_agent.{name}",
                bool(getattr(section, name)) and not self.is_multi_agent,
                "needs several agents; leave it out, or name modules with multi_agent(policies=...)",
            )
            for name in ("reward_metric", "centralized_critic", "agent_id_in_obs")
        ]
        rules += self._rules_of_critics()
        if section.policies is None:
            return [*rules, *self._rules_of_unnamed_policies()]
        ids = list(section.policies)
        specs = list(spec) if isinstance(spec, MultiRLModule) else ids
        specs = list(spec.rl_module_specs) if isinstance(spec, MultiRLModuleSpec) else specs
        overrides = self.rl_module.algorithm_config_overrides_per_module
        here = f"multi_agent.policies={ids}"
        mappings = [mapping for _, mapping in stages_of("policy_mapping_fn", section.policy_mapping_fn)]
        mapped = {mid for mapping in mappings if isinstance(mapping, AgentMapping) for mid in mapping.values()}
        return [
            *rules,
            ("multi_agent.policies", not ids, "is empty; name at least one module, or None for a single agent"),
            (
                "multi_agent.policies",
                set(specs) != set(ids),
                f"are others than the modules {specs} of rl_module.rl_module_spec; give the same",
            ),
            (
                "multi_agent.policy_mapping_fn",
                None in mappings and DEFAULT_MODULE_ID not in ids,
                f"maps every agent to {DEFAULT_MODULE_ID!r}, and {here}; give a function (agent_id, episode) -> id",
            ),
            (
                "multi_agent.policy_mapping_fn",
                not mapped <= set(ids),
                f"names others than {here}",
            ),
            (
                "multi_agent.policies_to_train",
                not self._modules_that_learn() <= set(ids),
                f"names others than {here}",
            ),
            (
                "rl_module.algorithm_config_overrides_per_module",
                not set(overrides) <= set(ids),
                f"names others than {here}",
            ),
        ]

    def _rules_of_unnamed_policies(self) -> list[Rule]:
        """Where no policies are named, the modules are known unless the environment may be of several agents."""
        if not self.modules_are_known:
            return []
        ids = set(self.module_specs())
        named = {
            "multi_agent.policies_to_train": self._modules_that_learn(),
            "rl_module.algorithm_config_overrides_per_module": set(
                self.rl_module.algorithm_config_overrides_per_module
            ),
        }
        return [
            (path, not names <= ids, f"names {sorted(names - ids)}; the modules are {sorted(ids)}")
            for path, names in named.items()
        ]

    def _modules_that_learn(self) -> set[str]:
        """Return the ids that `policies_to_train` names, of all stages."""
        stages = stages_of("policies_to_train", self.multi_agent.policies_to_train)
        return {mid for _, allowed in stages if allowed is not None and not callable(allowed) for mid in allowed}

    def _rules_of_critics(self) -> list[Rule]:
        """Return what does not go with a centralised critic."""
        remembers = any(getattr(self.rl_module.model_config, name, None) for name in ("recurrent", "attention"))
        central = self.multi_agent.centralized_critic
        return [
            (
                "multi_agent.centralized_critic",
                central and not self.learner_class.has_state_critic,
                f"is not allowed for {self.algorithm}, with no critic of states; use ppo, a2c, trpo, impala or appo",
            ),
            (
                "multi_agent.centralized_critic",
                central and remembers,
                "is not allowed with a network that has a memory; leave out one of them",
            ),
            (
                "multi_agent.centralized_critic",
                central and getattr(self.rl_module.model_config, "vf_share_layers", False),
                "needs a network of its own; set rl_module(model_config={'vf_share_layers': False})",
            ),
        ]

    def _rules_of_offline(self) -> list[Rule]:
        env = self.environment
        refused = f"is not allowed for {self.algorithm}:"
        return [
            ("environment.normalize_rewards", env.normalize_rewards, f"{refused} scale those of the data instead"),
            ("environment.frame_stack", env.frame_stack > 1, f"{refused} store stacked observations in the data"),
            (
                "framework.compile",
                self.framework.compile and not self._follows,
                f"{refused} its update is not compiled",
            ),
        ]

    def _rules_of_online(self) -> list[Rule]:
        runners, batch = self.env_runners, self.training.train_batch_size
        if not self.is_off_policy:
            fewer = f"is smaller than one step of each of the {runners.num_envs} environments of all env runners"
            return [("training.train_batch_size", batch < runners.num_envs, fewer)]
        refused = f"is not allowed for {self.algorithm}:"
        return [
            (
                "framework.compile",
                self.framework.compile and not self._follows,
                f"{refused} its target network is not compiled",
            ),
            (
                "replay.her",
                self.has_memory and self.replay.her,
                f"does not go with rl_module.model_config.{self.kind_of_memory}: what is remembered was seen with "
                "another goal",
            ),
            ("replay.sequence_length", self._needs_memory(self.replay.sequence_length), NEEDS_MEMORY),
            ("replay.burn_in", self._needs_memory(self.replay.burn_in), NEEDS_MEMORY),
            (
                "replay.capacity",
                self.replay.capacity < runners.num_envs_per_env_runner,
                "is less than one transition for each of "
                f"env_runners.num_envs_per_env_runner={runners.num_envs_per_env_runner} environments",
            ),
        ]

    @property
    def kind_of_memory(self) -> str:
        """The option that gives networks a memory."""
        return "recurrent" if getattr(self.rl_module.model_config, "attention", None) is None else "attention"

    def _needs_memory(self, value: int | None) -> bool:
        """Return whether an option is set that only a network with memory has a use for, and there is none."""
        known = map(self.rl_module.remembers, self.module_specs().values())
        return value is not None and all(remembers is False for remembers in known)

    @property
    def _follows(self) -> bool:
        """Whether the learner's target network follows after a gradient step, as compiled ones leave it to do."""
        return self.learner_class.after_gradient_step is not Learner.after_gradient_step

    def _device_is_missing(self) -> bool:
        try:
            kind = torch.device(self.framework.device).type
        except RuntimeError:
            return True
        return (kind == "cuda" and not torch.cuda.is_available()) or (
            kind == "mps" and not torch.backends.mps.is_available()
        )

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
            collector = (WholeEpisodeCollector if self._collects_whole_episodes else Collector)(
                policy, envs, exploration_noise=section.explore, streams=streams
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
        by_priority = self.is_off_policy and self.replay.prioritized
        scaled = not policy.is_multi_agent and sole_part(policy).connectors.rewards is not None
        self._refuse(
            [
                ("replay.prioritized", by_priority, f"{advice}, whose priorities are not shared; use one process"),
                (
                    "environment.normalize_rewards",
                    scaled,
                    f"{advice}, whose returns are not shared; leave it out, or use one process",
                ),
            ]
        )
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
        runners, several = self.env_runners, "is not allowed where a trainer trains several agents; leave it out"
        self._refuse(
            [
                ("replay.her", self.is_off_policy and self.replay.her, several),
                ("env_runners.vectorize_mode", runners.vectorize_mode not in ("auto", "sync"), several),
                ("multi_agent.count_steps_by", self.multi_agent.count_steps_by != "env_steps", several),
            ]
        )

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
