"""Which modules a configuration has, and in which spaces each of them lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.data import MultiAgentEpisode
from lockstep.learner.learner import Learner
from lockstep.modules import (
    DEFAULT_MODULE_ID,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
)

if TYPE_CHECKING:
    from lockstep.algorithms.config import AlgorithmConfig

Spaces = tuple[Any, Any]
"""observation and action space, of all modules or `{module_id: space}`"""


def check_multi_agent(config: AlgorithmConfig) -> None:
    """Refuses with `ValueError` what does not fit together: policies, mapping, who learns, specs, overrides."""
    policies, spec = config.multi_agent.policies, config.rl_module.rl_module_spec
    named = list(spec) if isinstance(spec, MultiRLModule) else None
    named = list(spec.rl_module_specs) if isinstance(spec, MultiRLModuleSpec) else named
    if policies is not None and named is not None and set(named) != set(policies):
        raise ValueError(
            f"multi_agent.policies={sorted(policies)}, but rl_module.rl_module_spec has the modules {sorted(named)}; "
            "give both the same ids, or only one of them"
        )
    if config.multi_agent.reward_metric is not None and not config.is_multi_agent:
        raise ValueError(
            "multi_agent.reward_metric needs several agents; one agent's return is one number already. Leave it out, "
            "or name modules with multi_agent(policies=...)"
        )
    if policies is None:
        return
    ids = list(policies)
    if not ids:
        raise ValueError("multi_agent.policies is empty; name at least one module, or None for a single agent")
    if config.multi_agent.policy_mapping_fn is None and DEFAULT_MODULE_ID not in ids:
        raise ValueError(
            f"multi_agent.policy_mapping_fn=None maps every agent to {DEFAULT_MODULE_ID!r}, which is not among "
            f"multi_agent.policies={ids}; give a function (agent_id, episode) -> module id"
        )
    allowed = config.multi_agent.policies_to_train
    for name, given in (
        ("multi_agent.policies_to_train", [] if allowed is None or callable(allowed) else list(allowed)),
        (
            "rl_module.algorithm_config_overrides_per_module",
            list(config.rl_module.algorithm_config_overrides_per_module),
        ),
    ):
        unknown = sorted(set(given) - set(ids))
        if unknown:
            raise ValueError(f"{name} names {unknown}; multi_agent.policies={ids}")


def check_off_policy(config: AlgorithmConfig) -> None:
    """Refuses with `ValueError` what learning from a replay buffer cannot do."""
    section = config.environment
    for name in ("normalize_observations", "normalize_rewards"):
        if getattr(section, name):
            raise ValueError(
                f"environment.{name}=True is not allowed for {config.algorithm}: what was stored long ago would "
                "get other statistics than what acts; wrap the environment instead"
            )
    if config.framework.compile and config.learner_class.after_gradient_step is Learner.after_gradient_step:
        raise ValueError(
            f"framework.compile=True is not allowed for {config.algorithm}: its target network is not compiled"
        )
    if config.replay.capacity < config.env_runners.num_envs_per_env_runner:
        raise ValueError(
            f"replay.capacity={config.replay.capacity} is less than one transition for each of "
            f"env_runners.num_envs_per_env_runner={config.env_runners.num_envs_per_env_runner} environments"
        )


def check_offline(config: AlgorithmConfig) -> None:
    """Refuses with `ValueError` what learning from data that are there already cannot do."""
    section = config.environment
    if section.normalize_rewards:
        raise ValueError(
            f"environment.normalize_rewards=True is not allowed for {config.algorithm}: it is for rewards as "
            "they come; scale those of the data instead"
        )
    if section.frame_stack > 1:
        raise ValueError(
            f"environment.frame_stack={section.frame_stack} is not allowed for {config.algorithm}: data are taken as "
            "they are; store stacked observations"
        )
    if config.framework.compile:
        raise ValueError(f"framework.compile=True is not allowed for {config.algorithm}: its update is not compiled")


def module_specs(config: AlgorithmConfig) -> dict[str, RLModuleSpec | RLModule]:
    """The spec (or the built module) of each module, by id; one spec serves all policies that have none."""
    spec, policies = config.rl_module.rl_module_spec, config.multi_agent.policies
    if isinstance(spec, MultiRLModule):
        return dict(spec.items())
    if isinstance(spec, MultiRLModuleSpec):
        return dict(spec.rl_module_specs)
    if policies is None:
        return {DEFAULT_MODULE_ID: spec or RLModuleSpec()}
    if isinstance(spec, RLModule) and len(policies) > 1:
        raise ValueError(
            f"rl_module.rl_module_spec is one built module for multi_agent.policies={list(policies)}; give an "
            "RLModuleSpec (each gets a module of its own), or a MultiRLModule"
        )
    own = policies if isinstance(policies, Mapping) else {}
    return {module_id: own.get(module_id) or spec or RLModuleSpec() for module_id in policies}


def declared_spaces(config: AlgorithmConfig) -> Spaces | None:
    """`({module_id: space}, {module_id: space})` where all modules bring their own, else None.

    A single module's are those of the environment where that is not configured, unless frames are stacked between.
    """
    several = config.multi_agent.policies is not None or isinstance(
        config.rl_module.rl_module_spec, MultiRLModule | MultiRLModuleSpec
    )
    configured = config.environment.observation_space is not None and config.environment.action_space is not None
    if not several and (configured or config.environment.frame_stack > 1):
        return None
    specs = module_specs(config)
    observation = {mid: spec.observation_space for mid, spec in specs.items()}
    action = {mid: spec.action_space for mid, spec in specs.items()}
    return None if None in (*observation.values(), *action.values()) else (observation, action)


def spaces_by_module(
    config: AlgorithmConfig, specs: Mapping[str, RLModuleSpec | RLModule], find_spaces: Callable[[], Spaces]
) -> dict[str, Spaces]:
    """(observation space, action space) of each module: its spec's own, else those of the environment.

    `find_spaces` is asked only where they are needed. Raises `KeyError` where spaces are given by module id and one is
    missing.
    """
    found: list[Spaces] = []

    def of_environment(module_id: str, which: int) -> Any:
        if not found:
            found.append(find_spaces())
        space = found[0][which]
        if type(space) is not dict:
            return space
        if module_id not in space:
            kind = ("observation", "action")[which]
            raise KeyError(f"no {kind} space for module {module_id!r}; there are some for {sorted(space)}")
        return space[module_id]

    several = config.multi_agent.policies is not None or isinstance(
        config.rl_module.rl_module_spec, MultiRLModule | MultiRLModuleSpec
    )
    spaces = {}
    for module_id, spec in specs.items():
        own = (spec.observation_space, spec.action_space) if several else (None, None)
        spaces[module_id] = (
            of_environment(module_id, 0) if own[0] is None else own[0],
            of_environment(module_id, 1) if own[1] is None else own[1],
        )
    return spaces


def spaces_of_agents(config: AlgorithmConfig, env: Any) -> Spaces | None:
    """`({module_id: space}, {module_id: space})` of a PettingZoo environment (or a function that makes one), else None.

    The mapping function is asked for every possible agent of one episode. Where all agents have the same spaces, a
    module that it does not name then (it may act in others) has them too. Raises `KeyError` for a module that is not
    there, `ValueError` where two agents of one module have different spaces.
    """
    if config.multi_agent.policies is None or isinstance(env, str) or env is None:
        return None
    made = env(**config.environment.env_config) if callable(env) else env
    if not hasattr(made, "possible_agents"):
        return None
    found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    module_ids = list(module_specs(config))
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=config.multi_agent.policy_mapping_fn)
    try:
        of_agents = {agent: (made.observation_space(agent), made.action_space(agent)) for agent in made.possible_agents}
        for agent, own in of_agents.items():
            module_id = episode.module_for(agent)
            if module_id not in module_ids:
                raise KeyError(f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(module_ids)}")
            for spaces, space in zip(found, own):
                if spaces.setdefault(module_id, space) != space:
                    raise ValueError(
                        f"agent {agent!r} of module {module_id!r} has the space {space}, another agent of it "
                        f"{spaces[module_id]}; map them to different modules"
                    )
        if all(own == of_agents[made.possible_agents[0]] for own in of_agents.values()):
            for module_id in module_ids:
                for spaces, space in zip(found, of_agents[made.possible_agents[0]]):
                    spaces.setdefault(module_id, space)
    finally:
        if made is not env:
            made.close()
    return found
