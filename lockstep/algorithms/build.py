"""From a configuration to its parts: each part is handed only its own section."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium import spaces as gym_spaces

from lockstep.algorithms.acting import ActingPolicy
from lockstep.algorithms.asynchronous import build_async_collector, collects_while_learning
from lockstep.algorithms.module_specs import (
    declared_spaces,
    module_specs,
    spaces_by_module,
    spaces_of_agents,
)
from lockstep.algorithms.multi_agent_policy import AnyPolicy, MultiAgentPolicy
from lockstep.algorithms.policy import Policy
from lockstep.connectors import (
    ClipActions,
    FrameStack,
    ModuleConnectors,
    NormalizeObs,
    NormalizeRewards,
    ObsPipeline,
    RescaleActions,
)
from lockstep.envs import VectorBoundary, goal_functions, make_vector
from lockstep.envs.make import single_env_factory
from lockstep.learner.config import CONFIGURED_MODULES, LearnersSection
from lockstep.learner.group import LearnerBackend, LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.learner.reduction import Reducer
from lockstep.modules import (
    DEFAULT_MODULE_ID,
    ActionDist,
    MultiRLModule,
    RLModule,
    RLModuleSpec,
)
from lockstep.modules.model_config import ModelConfig
from lockstep.replay import ReplayBuffer
from lockstep.replay.config import ReplaySection
from lockstep.replay.hindsight import Hindsight
from lockstep.replay.storage import machine_memory, row_nbytes
from lockstep.rollout import Collector, CollectorLike, EnvRunner, EnvRunnerGroup, GroupCollector
from lockstep.rollout.collector import WholeEpisodeCollector
from lockstep.rollout.runner_group import LocalRunner
from lockstep.state.messages import install_hint
from lockstep.state.restarts import RestartLimits
from lockstep.state.streams import RandomStreams

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig

Spaces = tuple[Any, Any]


def make_envs(config: AlgorithmConfig, num_envs: int, env: Any = None, **env_config: Any) -> VectorBoundary:
    """The vector environment that the configuration names (or `env`)."""
    section = config.environment
    runners = config.env_runners
    chosen = section.env if env is None else env
    finished = not isinstance(chosen, str) and not callable(chosen)
    mode = "auto" if finished else runners.vectorize_mode
    return make_vector(
        chosen,
        num_envs=1 if finished else num_envs,
        mode=mode,
        env_config=None if finished else {**section.env_config, **env_config} or None,
        step_timeout=runners.step_timeout,
        restarts=config.fault_tolerance.env_limits if mode == "async" else None,
    )


def find_spaces(config: AlgorithmConfig, env: Any, spaces: Spaces | None) -> Spaces:
    """Observation and action space: as given, as configured, or asked of an environment that is closed again.

    Each may be a dict by module id; so they are for a PettingZoo environment, where the policies are configured.
    """
    section = config.environment
    if spaces is not None:
        return spaces
    if section.observation_space is not None and section.action_space is not None:
        return section.observation_space, section.action_space
    given = section.env if env is None else env
    by_module = spaces_of_agents(config, given)
    if by_module is not None:
        return by_module
    boundary = make_envs(config, 1, env)
    try:
        return boundary.observation_space, boundary.action_space
    finally:
        if isinstance(given, str) or callable(given):
            boundary.close()


def build_learner(
    config: AlgorithmConfig, env: Any = None, spaces: Spaces | None = None, reducer: Reducer | None = None
) -> Learner:
    """A built learner with its module and connectors; with a `reducer` one of several that act as one."""
    if spaces is not None and not (isinstance(spaces, tuple | list) and len(spaces) == 2):
        raise TypeError(f"spaces={spaces!r}; give (observation space, action space)")
    if config.environment.env is None and env is None and spaces is None:
        config.rl_module.validate()
        spaces = declared_spaces(config)
    if config.environment.env is None and (env is not None or spaces is not None):
        section = config.environment
        named = {"env": env} if spaces is None else dict(zip(("observation_space", "action_space"), spaces))
        config = config.with_sections(environment=replace(section, **named))
    config.validate()
    set_num_threads(config)
    streams = RandomStreams(config.debugging.seed)
    specs = module_specs(config)
    one = list(specs) == [DEFAULT_MODULE_ID]
    connectors, modules = {}, {}
    for mid, own in spaces_by_module(config, specs, lambda: find_spaces(config, env, spaces)).items():
        check_spaces(config.algorithm, *own)
        connectors[mid], module_space = build_connectors(config, *own)
        modules[mid] = build_module(config, specs[mid], module_space, own[1], streams if one else streams.child(mid))
    overrides = config.rl_module.algorithm_config_overrides_per_module
    unknown = sorted(set(overrides) - set(modules))
    if unknown:
        raise ValueError(f"algorithm_config_overrides_per_module names {unknown}; the modules are {sorted(modules)}")
    training = config.training
    learner_class = training.learner_class or config.learner_class
    if not issubclass(learner_class, Learner):
        raise TypeError(f"training.learner_class={learner_class.__name__} must be a subclass of Learner")
    learner = learner_class(
        config=training,
        module_spec=config.rl_module.rl_module_spec
        if isinstance(config.rl_module.rl_module_spec, MultiRLModule)
        else MultiRLModule(modules),
        framework=config.framework,
        connectors=connectors,
        module_configs={mid: training.overridden(given) for mid, given in overrides.items()},
        policies_to_train=config.multi_agent.policies_to_train,
        streams=streams.child("learner"),
        reducer=reducer,
        never_skip_update=config.learners.never_skip_update,
    )
    learner.build()
    return learner


def build_learners(config: AlgorithmConfig, env: Any = None, spaces: Spaces | None = None) -> LearnerBackend:
    """Learners in processes of their own, each from the same configuration. `ImportError` without ray."""
    config.validate()
    build = partial(build_learner, config.copy(), env, spaces)
    strategy = config.resources.placement_strategy
    limits = config.fault_tolerance.learner_limits
    return start_learners(
        build,
        config.learners,
        strategy=strategy,
        limits=limits,
        address=config.resources.ray_address,
        num_cpus=cpus_of_run(config),
    )


def cpus_of_run(config: AlgorithmConfig) -> float:
    """What learners, env runners and this process ask of a cluster together."""
    learners = config.learners.num_learners * config.learners.num_cpus_per_learner
    return float(
        learners
        + config.env_runners.num_env_runners * config.env_runners.num_cpus_per_env_runner
        + config.resources.num_cpus_for_main_process
    )


def start_learners(
    build: Any,
    section: LearnersSection,
    *,
    strategy: str = "PACK",
    limits: RestartLimits | None = None,
    address: str | None = None,
    num_cpus: float = 0.0,
) -> LearnerBackend:
    """`section.num_learners` learners `build(reducer=...)` in processes of their own. `ImportError` without ray."""
    try:
        from lockstep.cluster.processes import start_ray
        from lockstep.cluster.ray_learners import RayLearnerBackend

        start = partial(start_ray, address, num_cpus or section.num_learners * section.num_cpus_per_learner)
        return RayLearnerBackend(build, section, strategy=strategy, limits=limits, start_ray=start)
    except ModuleNotFoundError as error:
        raise without_ray(error, f"learners.num_learners={section.num_learners}") from error


LearnerGroup.start_learners = staticmethod(start_learners)


def build_module(
    config: AlgorithmConfig,
    spec: RLModuleSpec | RLModule,
    observation_space: Any,
    action_space: Any,
    streams: RandomStreams,
) -> RLModule:
    """A configured network; its initial weights depend on the seed of its streams only."""
    if isinstance(spec, RLModule):
        return spec
    section = config.rl_module
    model_config = spec.model_config if spec.model_config is not None else section.model_config
    module_class = spec.module_class or config.default_module_class(model_config)
    if issubclass(module_class, CONFIGURED_MODULES):
        # A network of your own may have a dict of its own.
        model_config = config.complete_model_config(ModelConfig.of(model_config))
    filled = RLModuleSpec(
        module_class=module_class,
        observation_space=spec.observation_space or observation_space,
        action_space=spec.action_space or action_space,
        inference_only=spec.inference_only,
        model_config=model_config,
    )
    try:
        return filled.build(seed=streams.seed("module"))
    except ValueError as error:
        if spec.module_class is None and config.algorithm not in str(error):
            raise ValueError(f"{config.algorithm} cannot be built for these spaces or options: {error}") from error
        raise


def build_connectors(
    config: AlgorithmConfig, observation_space: Any, action_space: Any
) -> tuple[ModuleConnectors, Any]:
    """The transforms around the network, and the space it sees."""
    section = config.environment
    space = observation_space
    if section.frame_stack > 1:
        space = FrameStack(section.frame_stack, space).observation_space
    steps: list[Any] = []
    if section.normalize_observations:
        steps.append(NormalizeObs(clip=section.clip_observations))
    pipeline = ObsPipeline(steps, space)
    space = pipeline.observation_space
    rewards = (
        NormalizeRewards(gamma=config.training.gamma, clip=section.clip_rewards) if section.normalize_rewards else None
    )
    actions: Any = None
    if isinstance(action_space, gym_spaces.Box):
        squashed = config.squashes_actions or getattr(config.rl_module.model_config, "squash_actions", False)
        if section.rescale_actions or squashed:
            if not action_space.is_bounded():
                raise ValueError(
                    f"{config.algorithm} cannot act in {action_space}: its actions are rescaled onto the bounds, which "
                    "must be finite; wrap the environment so that they are"
                )
            actions = RescaleActions(action_space)
        elif section.clip_actions:
            actions = ClipActions(action_space)
    return ModuleConnectors(obs=pipeline, rewards=rewards, actions=actions), space


def build_policy(config: AlgorithmConfig, env: Any = None, spaces: Spaces | None = None) -> AnyPolicy:
    """A policy over a group of learners: a `Policy`, of several agents a `MultiAgentPolicy`."""
    if config.is_multi_agent:
        from lockstep.algorithms.build_agents import build_multi_agent_policy

        return build_multi_agent_policy(config, env, spaces)
    spaces = find_spaces(config, env, spaces)
    group = config.build_learner_group(env, spaces)
    try:
        return Policy(config, group, observation_space=spaces[0], action_space=spaces[1])
    except BaseException:
        group.shutdown()
        raise


def build_acting_parts(
    config: AlgorithmConfig, spaces: Spaces, module_id: str = DEFAULT_MODULE_ID
) -> tuple[RLModule, ModuleConnectors]:
    """A network and its transforms to act with, of the same shape as a learner's; weights come from there."""
    import torch

    check_spaces(config.algorithm, *spaces)
    connectors, module_space = build_connectors(config, *spaces)
    spec = copy.deepcopy(module_specs(config)[module_id])
    module = build_module(config, spec, module_space, spaces[1], RandomStreams(config.debugging.seed))
    module.acting_connectors = connectors.acting_names
    return module.to(getattr(torch, config.framework.dtype)), connectors


def build_env_runner(
    config: AlgorithmConfig,
    spaces: Spaces,
    with_logp: bool = False,
    *,
    index: int = 0,
    num_runners: int = 1,
    generation: int = 0,
) -> EnvRunner:
    """The runner number `index` of `num_runners`, with environments of its own; see `EnvRunner`."""
    set_num_threads(config)
    module, connectors = build_acting_parts(config, spaces)
    return EnvRunner(
        ActingPolicy(config, module, connectors, observation_space=spaces[0], action_space=spaces[1]),
        make_envs(config, config.env_runners.num_envs_per_env_runner),
        index=index,
        num_runners=num_runners,
        generation=generation,
        streams=RandomStreams(config.debugging.seed).child("train_collector"),
        explore=config.env_runners.explore,
        with_logp=with_logp,
        whole_episodes=config.env_runners.batch_mode == "complete_episodes",
    )


def build_env_runner_group(
    config: AlgorithmConfig, spaces: Spaces | None = None, *, with_logp: bool = False
) -> EnvRunnerGroup:
    """Runners in processes of their own, each from the same configuration; for `num_env_runners=0` one in this process.

    Raises `ImportError` without ray, `ValueError` for a finished environment, which cannot be made several times.
    """
    config.validate()
    section, env = config.env_runners, config.environment.env
    if not isinstance(env, str) and not callable(env):
        raise ValueError(
            f"env runners make their own environments, env={env!r} is one already; give an id or a function"
        )
    build = partial(build_env_runner, config.copy(), spaces or find_spaces(config, None, None), with_logp)
    limits = config.fault_tolerance.env_runner_limits
    if section.num_env_runners == 0:
        return EnvRunnerGroup(LocalRunner(build), section, limits)
    try:
        from lockstep.cluster.processes import start_ray
        from lockstep.cluster.ray_runners import RayRunnerBackend

        cpus = cpus_of_run(config)
        return EnvRunnerGroup(
            RayRunnerBackend(build, section, start_ray=partial(start_ray, config.resources.ray_address, cpus)),
            section,
            limits,
        )
    except ModuleNotFoundError as error:
        raise without_ray(error, f"env_runners.num_env_runners={section.num_env_runners}") from error


def without_ray(error: ModuleNotFoundError, option: str) -> ImportError:
    """What to raise where `option` needs Ray and it is not installed; raises itself what misses another module."""
    if error.name != "ray":
        raise error
    return ImportError(f"{option} needs Ray: {install_hint('ray')}, or set it to 0")


def build_collector(config: AlgorithmConfig, policy: AnyPolicy) -> CollectorLike:
    """The training collector: of environments in this process, or of env runners."""
    if config.is_off_policy:
        check_replay_memory(config, replay_nbytes(config, policy))
    if isinstance(policy, MultiAgentPolicy):
        from lockstep.algorithms.build_agents import build_multi_agent_collector

        number = config.env_runners.num_envs_per_env_runner
        return build_multi_agent_collector(
            config, policy, "train_collector", number, explore=config.env_runners.explore
        )
    spaces = policy.observation_space, policy.action_space
    if collects_while_learning(config):
        group = build_env_runner_group(config, spaces, with_logp=config.max_lag > 0)
        return build_async_collector(config, policy, group)
    if config.env_runners.num_env_runners:
        group = build_env_runner_group(config, spaces)
        buffer = build_replay_buffer(config, group.num_envs) if config.is_off_policy else None
        return GroupCollector(policy, group, buffer)
    envs = make_envs(config, config.env_runners.num_envs_per_env_runner)
    whole = config.env_runners.batch_mode == "complete_episodes"
    return (WholeEpisodeCollector if whole else Collector)(
        policy,
        envs,
        build_replay_buffer(config, envs.num_envs) if config.is_off_policy else None,
        exploration_noise=config.env_runners.explore,
        streams=RandomStreams(config.debugging.seed).child("train_collector"),
    )


def replay_nbytes(config: AlgorithmConfig, policy: AnyPolicy) -> int:
    """Return the bytes of the columns of the replay buffer, of several agents those of all modules."""
    observations, actions = policy.observation_space, policy.action_space
    pairs: list[tuple[Any, Any]] = [(observations, actions)]
    if isinstance(policy, MultiAgentPolicy):
        pairs = [(space, actions[module_id]) for module_id, space in observations.items()]
    if config.environment.frame_stack > 1:
        pairs = [
            (FrameStack(config.environment.frame_stack, space).observation_space, action) for space, action in pairs
        ]
    section = config.replay
    return sum(section.capacity * row_nbytes(*pair, section.ignore_obs_next) for pair in pairs)


def check_replay_memory(config: AlgorithmConfig, needed: int) -> None:
    """Raises `ValueError`, with both numbers, for a replay buffer that this machine's memory cannot hold."""
    section, there = config.replay, machine_memory()
    if section.storage == "memory" and needed > there:
        raise ValueError(
            f"replay.capacity={section.capacity} needs {needed / 2**30:,.1f} GiB and this machine has "
            f"{there / 2**30:,.1f} GiB of memory; lower it, store each observation once "
            "(replay.ignore_obs_next=True), or use files (replay.storage='memmap')"
        )


def build_replay_buffer(
    config: AlgorithmConfig, num_envs: int, seed: int | None = None, gamma: float | None = None
) -> ReplayBuffer:
    """An empty replay buffer with a sub-buffer for each environment; its random numbers come from the seed.

    `gamma`: where it is not the configuration's. Of an offline algorithm, which has no section `replay`: a plain one.
    """
    section = config.sections.get("replay", ReplaySection())
    return ReplayBuffer(
        section.capacity,
        buffer_num=num_envs,
        n_step=section.n_step,
        gamma=config.training.gamma if gamma is None else gamma,
        ignore_obs_next=section.ignore_obs_next,
        storage=section.storage,
        hindsight=build_hindsight(config) if section.her else None,
        priorities={"alpha": section.alpha, "beta": section.beta} if section.prioritized else None,
        seed=RandomStreams(config.debugging.seed).seed("replay") if seed is None else seed,
    )


def build_hindsight(config: AlgorithmConfig) -> Hindsight:
    """Relabelling with the environment's own `compute_reward`; `ValueError` where it has none."""
    section, replay = config.environment, config.replay
    finished = isinstance(section.env, gym.Env)
    env = section.env if finished else single_env_factory(section.env, section.env_config)()
    try:
        compute_reward, compute_terminated = goal_functions(env)
    except ValueError:
        if not finished:
            env.close()
        raise
    return Hindsight(
        compute_reward,
        future_k=replay.her_future_k,
        strategy=replay.her_strategy,
        compute_terminated=compute_terminated,
    )


def build_test_collector(config: AlgorithmConfig, policy: AnyPolicy) -> CollectorLike:
    """The evaluation collector: environments and random streams of its own."""
    num_envs = min(config.evaluation.evaluation_num_envs, config.evaluation.evaluation_episodes)
    epsilon = config.evaluation.epsilon
    if isinstance(policy, MultiAgentPolicy):
        from lockstep.algorithms.build_agents import build_multi_agent_collector

        return build_multi_agent_collector(
            config, policy, "test_collector", num_envs, explore=config.evaluation.evaluation_explore, epsilon=epsilon
        )
    return Collector(
        policy,
        make_envs(config, num_envs),
        exploration_noise=config.evaluation.evaluation_explore,
        epsilon=epsilon,
        streams=RandomStreams(config.debugging.seed).child("test_collector"),
    )


def check_spaces(algorithm: str, observation_space: Any, action_space: Any) -> None:
    """Raises `ValueError` for spaces that the algorithm's default networks cannot take."""
    try:
        ActionDist(action_space)
    except ValueError as error:
        raise ValueError(f"{algorithm} cannot act in {action_space}: {error}") from None


def set_num_threads(config: AlgorithmConfig) -> int:
    """Threads of torch in this process (house, decision 9); returns the number."""
    import torch

    chosen = config.framework.num_threads or 1
    if torch.get_num_threads() != chosen:
        torch.set_num_threads(chosen)
    return int(chosen)
