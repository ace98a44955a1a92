"""Rules between options of different sections, as a table of rows: an option, a condition and a message.

The rows are checked in their order, and the first one that is broken is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import torch

from lockstep.config.base import BaseConfig
from lockstep.data.groups import CRITIC, POLICY
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.options.schedules import stages_of
from lockstep.rollout.callbacks import misspelt_event, overridden_events


class HasSections(Protocol):
    """Configuration, as far as every rule reads it."""

    @property
    def sections(self) -> Mapping[str, Any]:
        """Sections by name."""
        ...


ConfigT = TypeVar("ConfigT", bound=HasSections)


@dataclass(frozen=True)
class Rule(Generic[ConfigT]):
    """Rule that refuses an option together with other options.

    The error reads `option=value message`. A condition is computed only if no earlier rule is broken, so it may rely on
    the earlier rules.
    """

    option: str
    """Path of the option."""
    when: Callable[[ConfigT], object]
    """Condition: a function that returns a true value for a configuration that is refused."""
    message: str | Callable[[ConfigT], str]
    """Text after the option and its value: why they are refused, and what to do. A function if it has other values."""


def refuse(config: ConfigT, rules: Iterable[Rule[ConfigT]]) -> None:
    """Raise `ValueError` for the first rule that the configuration breaks."""
    for rule in rules:
        if rule.when(config):
            section, _, option = rule.option.partition(".")
            value = attrgetter(option)(config.sections[section])
            message = rule.message if isinstance(rule.message, str) else rule.message(config)
            raise ValueError(f"{rule.option}={value!r} {message}")


def only(applies: Callable[[BaseConfig], object], *rules: Rule[BaseConfig]) -> tuple[Rule[BaseConfig], ...]:
    """Return rules that hold only for configurations for which `applies` returns a true value."""

    # A function of its own, because a lambda in a comprehension would use the last `rule` of all.
    def restricted(rule: Rule[BaseConfig]) -> Rule[BaseConfig]:
        return replace(rule, when=lambda config: applies(config) and rule.when(config))

    return tuple(restricted(rule) for rule in rules)


# -- the run ---


def _needs_default_connectors(option: str, is_set: Callable[[BaseConfig], object]) -> Rule[BaseConfig]:
    """Return the rule for an option that adds a default connector."""
    return Rule(
        option,
        lambda config: not config.env_runners.add_default_connectors and is_set(config),
        "asks for a default connector, and env_runners.add_default_connectors=False leaves all of them out",
    )


def _misspelt(callbacks: list[type]) -> str | None:
    """Return the message about the first method whose name is almost that of an event, or None."""
    return next(filter(None, map(misspelt_event, callbacks)), None)


def _can_be_made(env: object) -> bool:
    """Return whether env runners in other processes can make the environment."""
    return isinstance(env, str) or callable(env)


def _device_is_missing(name: str) -> bool:
    """Return whether this process has no such device."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        return True
    if kind == "cuda":
        return not torch.cuda.is_available()
    if kind == "mps":
        return not torch.backends.mps.is_available()
    return False


def _remembers_environments(option: str, kinds: tuple[str, ...], advice: str) -> Rule[BaseConfig]:
    """Return the rule for kinds of exploration that keep their noise for each environment, not for each agent."""
    return Rule(
        option,
        lambda config: config.explores_by in kinds and config.is_multi_agent,
        f"is not allowed for several agents: it remembers for each environment; {advice}",
    )


def _is_plain_adam(optimizer: object, settings: Mapping[str, Any]) -> bool:
    """Return whether the optimizer is Adam in the form that can be compiled."""
    return optimizer == "adam" and not any(settings.get(name) for name in ("weight_decay", "amsgrad"))


OF_RUN: tuple[Rule[BaseConfig], ...] = (
    _needs_default_connectors("environment.frame_stack", lambda config: config.environment.frame_stack > 1),
    _needs_default_connectors(
        "environment.normalize_observations", lambda config: config.environment.normalize_observations
    ),
    _needs_default_connectors("environment.rescale_actions", lambda config: config.environment.rescale_actions),
    Rule(
        "evaluation.epsilon",
        lambda config: config.evaluation.epsilon and config.explores_by != "epsilon",
        lambda config: (
            f"is not allowed for {config.algorithm}, which does not explore by epsilon; "
            "evaluation(evaluation_explore=True) draws from its policy, or with its noise"
        ),
    ),
    Rule(
        "callbacks.callbacks_class",
        lambda config: _misspelt(config.callbacks.classes) is not None,
        lambda config: f"is not allowed: {_misspelt(config.callbacks.classes)}",
    ),
    Rule(
        "env_runners.exploration",
        lambda config: (
            config.env_runners.exploration is not None and config.env_runners.exploration not in config.explorations
        ),
        lambda config: (
            f"is not allowed for {config.algorithm}, which supports "
            f"{' and '.join(map(repr, config.explorations)) or 'none'}; leave it out"
        ),
    ),
    _remembers_environments("env_runners.exploration", ("ou", "gsde"), "leave it out, or use 'normal'"),
    _remembers_environments("training.noise_repeat", ("repeated",), "set noise_repeat=1"),
    Rule(
        "evaluation.evaluation_num_env_runners",
        lambda config: (
            config.evaluation.evaluation_num_env_runners and any(map(overridden_events, config.callbacks.classes))
        ),
        lambda config: (
            f"is not allowed with callbacks={config.callbacks.classes}, which handle events of environments: env "
            "runners play episodes that turn out not to count; use 0"
        ),
    ),
    Rule(
        "evaluation.evaluation_num_env_runners",
        lambda config: config.evaluation.evaluation_num_env_runners and not _can_be_made(config.environment.env),
        "needs an environment that env runners can make: an id, a class or a function",
    ),
    Rule(
        "framework.device",
        # Learners in other processes have other devices, which this process may not see.
        lambda config: not config.learners.num_learners and _device_is_missing(config.framework.device),
        "is not there; torch sees no such device",
    ),
    Rule(
        "learners.num_gpus_per_learner",
        lambda config: config.learners.num_gpus_per_learner and not config.framework.device.startswith("cuda"),
        lambda config: (
            f"needs a GPU, and framework.device={config.framework.device!r}; set framework(device='cuda'), or 0 GPUs"
        ),
    ),
    Rule(
        "training.optimizer",
        lambda config: (
            config.framework.compile is True
            and not _is_plain_adam(config.training.optimizer, config.training.optimizer_kwargs)
        ),
        lambda config: (
            f"with training.optimizer_kwargs={config.training.optimizer_kwargs!r} is not allowed with "
            "framework.compile=True: Adam's step alone is compiled, without weight_decay and amsgrad"
        ),
    ),
    *only(
        lambda config: config.collects_while_learning,
        Rule(
            "env_runners.batch_mode",
            lambda config: config.env_runners.batch_mode != "truncate_episodes",
            lambda config: (
                f"is not allowed: {config.algorithm} collects fragments of equal length from env runners in other "
                "processes; use 'truncate_episodes', or num_env_runners=0"
            ),
        ),
        Rule(
            "training.max_lag",
            lambda config: config.has_memory and config.max_lag > 0,
            "is not allowed: a network with memory learns from its present self only; set max_lag=0",
        ),
    ),
)


# -- modules: policies, mapping, learning modules, specs and overrides must fit together ---


def _needs_several_agents(name: str) -> Rule[BaseConfig]:
    """Return the rule for an option of `multi_agent` that has no meaning for a single agent."""
    return Rule(
        f"multi_agent.{name}",
        lambda config: getattr(config.multi_agent, name) and not config.is_multi_agent,
        "needs several agents; leave it out, or name modules with multi_agent(policies=...)",
    )


def _has_any(model_config: object, *names: str) -> bool:
    """Return whether one of these fields of the default network's configuration is set."""
    return any(getattr(model_config, name, None) for name in names)


def _are_others(specs_by_id: Mapping[str, object] | None, policies: Iterable[str]) -> bool:
    """Return whether the module ids of `rl_module_spec` differ from the policies. None is a spec for any module."""
    return specs_by_id is not None and set(specs_by_id) != set(policies)


def _mappings(policy_mapping_fn: object) -> list[Any]:
    """Return the policy mapping functions of all stages of the run."""
    return [mapping for _, mapping in stages_of("policy_mapping_fn", policy_mapping_fn)]


def _mapped_ids(policy_mapping_fn: object) -> set[str]:
    """Return the module ids in the mappings of all stages of the run. Functions may return any id, so they add none."""
    module_ids: set[str] = set()
    for mapping in _mappings(policy_mapping_fn):
        if isinstance(mapping, Mapping):  # an `AgentMapping`
            module_ids.update(mapping.values())
    return module_ids


def _ids_that_learn(policies_to_train: object) -> set[str]:
    """Return the module ids in `policies_to_train` of all stages of the run. Functions add none."""
    module_ids: set[str] = set()
    for _, allowed in stages_of("policies_to_train", policies_to_train):
        if allowed is not None and not callable(allowed):
            module_ids.update(allowed)
    return module_ids


def _names_policies(option: str, ids: Callable[[BaseConfig], set[str]]) -> Rule[BaseConfig]:
    """Return the rule for an option whose module ids must be among the policies."""
    return Rule(
        option,
        lambda config: not ids(config) <= set(config.multi_agent.policies),
        lambda config: f"names others than multi_agent.policies={list(config.multi_agent.policies)}",
    )


def _names_modules(option: str, ids: Callable[[BaseConfig], set[str]]) -> Rule[BaseConfig]:
    """Return the rule for an option whose module ids must be among the modules of the configuration."""
    return Rule(
        option,
        lambda config: not ids(config) <= set(config.module_specs()),
        lambda config: (
            f"names {sorted(ids(config) - set(config.module_specs()))}; the modules are {sorted(config.module_specs())}"
        ),
    )


TO_TRAIN = "multi_agent.policies_to_train"
OVERRIDES = "rl_module.algorithm_config_overrides_per_module"
OF_MODULES: tuple[Rule[BaseConfig], ...] = (
    _needs_several_agents("reward_metric"),
    _needs_several_agents("centralized_critic"),
    _needs_several_agents("agent_id_in_obs"),
    *only(
        lambda config: config.multi_agent.centralized_critic,
        Rule(
            "multi_agent.centralized_critic",
            lambda config: CRITIC not in config.learner_class.observed_by,
            lambda config: (
                f"is not allowed for {config.algorithm}, which has no critic; use an actor-critic, such as ppo or sac"
            ),
        ),
        Rule(
            "multi_agent.centralized_critic",
            lambda config: _has_any(config.rl_module.model_config, "vf_share_layers"),
            "needs a network of its own; set rl_module(model_config={'vf_share_layers': False})",
        ),
    ),
    Rule(
        "rl_module.observation_groups",
        lambda config: config.parts_without_network,
        lambda config: (
            f"has a group for {', '.join(map(repr, config.parts_without_network))}, which {config.algorithm} with "
            f"these options does not have; its parts are {', '.join(map(repr, config.parts_of_networks))}"
        ),
    ),
    *only(
        # Without policies the module ids are known, unless the environment may have several agents.
        lambda config: config.multi_agent.policies is None and config.modules_are_known,
        _names_modules(TO_TRAIN, lambda config: _ids_that_learn(config.multi_agent.policies_to_train)),
        _names_modules(OVERRIDES, lambda config: set(config.rl_module.algorithm_config_overrides_per_module)),
    ),
    *only(
        lambda config: config.multi_agent.policies is not None,
        Rule(
            "multi_agent.policies",
            lambda config: not config.multi_agent.policies,
            "is empty; name at least one module, or None for a single agent",
        ),
        Rule(
            "multi_agent.policies",
            lambda config: _are_others(config.rl_module.specs_by_id(), config.multi_agent.policies),
            lambda config: (
                f"are others than the modules {list(config.rl_module.specs_by_id() or ())} of "
                "rl_module.rl_module_spec; give the same"
            ),
        ),
        Rule(
            "multi_agent.policy_mapping_fn",
            lambda config: (
                None in _mappings(config.multi_agent.policy_mapping_fn)
                and DEFAULT_MODULE_ID not in config.multi_agent.policies
            ),
            lambda config: (
                f"maps every agent to {DEFAULT_MODULE_ID!r}, and multi_agent.policies="
                f"{list(config.multi_agent.policies)}; give a function (agent_id, episode) -> id"
            ),
        ),
        _names_policies(
            "multi_agent.policy_mapping_fn", lambda config: _mapped_ids(config.multi_agent.policy_mapping_fn)
        ),
        _names_policies(TO_TRAIN, lambda config: _ids_that_learn(config.multi_agent.policies_to_train)),
        _names_policies(OVERRIDES, lambda config: set(config.rl_module.algorithm_config_overrides_per_module)),
    ),
)


# -- mirror images ---


SYMMETRIC = "rl_module.model_config.symmetric=True"
OF_SYMMETRY: tuple[Rule[BaseConfig], ...] = (
    Rule(
        "training.symmetry",
        lambda config: any(config.training_of(mid).symmetry is None for mid in config.symmetric_modules),
        f"is not allowed with {SYMMETRIC}, which needs the mirror image of observations and actions; set "
        "training(symmetry=f)",
    ),
    *only(
        lambda config: config.symmetries,
        Rule(
            "training.symmetry",
            lambda config: not getattr(config.training.learner_class or config.learner_class, "learns_symmetry", False),
            lambda config: (
                f"is not allowed for {config.algorithm}, which does not learn from mirror images; use ppo, sac, tqc, "
                "crossq, flashsac or cql"
            ),
        ),
        Rule(
            "training.symmetry",
            lambda config: config.has_memory,
            lambda config: (
                f"does not go with rl_module.model_config.{config.kind_of_memory}: what a network would remember of "
                "mirrored observations is not recorded"
            ),
        ),
        Rule(
            "training.symmetry_loss_coeff",
            lambda config: any(config.training_of(mid).symmetry_loss_coeff for mid in config.symmetric_modules),
            f"is not allowed with {SYMMETRIC}: such a network is in mirror image already; leave it out",
        ),
        Rule(
            "training.intrinsic_reward",
            lambda config: config.training.intrinsic_reward is not None and config.symmetric_modules,
            f"is not allowed with {SYMMETRIC}; leave out one of them",
        ),
        Rule(
            "env_runners.exploration",
            lambda config: config.env_runners.exploration == "gsde" and config.symmetric_modules,
            f"is not allowed with {SYMMETRIC}: its noise depends on the features of one image only; leave it out",
        ),
        Rule(
            "rl_module.observation_groups",
            lambda config: POLICY in (config.rl_module.observation_groups or {}) and config.symmetric_modules,
            f"does not go with {SYMMETRIC}: the function of the symmetry may need entries that the policy does not "
            "see; leave out the group 'policy', or learn from mirror images (symmetry_augmentation) without it",
        ),
    ),
)


# -- sources of data: recorded data, rollouts, replay ---


def _needs_memory(name: str) -> Rule[BaseConfig]:
    """Return the rule for an option of `replay` that only networks with a memory use."""
    return Rule(
        f"replay.{name}",
        lambda config: getattr(config.replay, name) is not None and config.has_surely_no_memory,
        "is for a network with memory; set rl_module(model_config={'recurrent': 'lstm'}), or leave it out",
    )


OF_OFFLINE: tuple[Rule[BaseConfig], ...] = (
    Rule(
        "environment.normalize_rewards",
        lambda config: config.environment.normalize_rewards,
        lambda config: f"is not allowed for {config.algorithm}: scale those of the data instead",
    ),
    Rule(
        "environment.frame_stack",
        lambda config: config.environment.frame_stack > 1,
        lambda config: f"is not allowed for {config.algorithm}: store stacked observations in the data",
    ),
    Rule(
        "framework.compile",
        lambda config: config.framework.compile is True and not config.learner_class.updates_targets_after_step,
        lambda config: f"is not allowed for {config.algorithm}: its update is not compiled",
    ),
)
OF_ON_POLICY: tuple[Rule[BaseConfig], ...] = (
    Rule(
        "training.train_batch_size",
        lambda config: config.training.train_batch_size < config.env_runners.num_envs,
        lambda config: (
            f"is smaller than one step of each of the {config.env_runners.num_envs} environments of all env runners"
        ),
    ),
)
OF_REPLAY: tuple[Rule[BaseConfig], ...] = (
    Rule(
        "framework.compile",
        lambda config: config.framework.compile is True and not config.learner_class.updates_targets_after_step,
        lambda config: f"is not allowed for {config.algorithm}: its target network is not compiled",
    ),
    Rule(
        "replay.her",
        lambda config: config.has_memory and config.replay.her,
        lambda config: (
            f"does not go with rl_module.model_config.{config.kind_of_memory}: what is remembered was seen with "
            "another goal"
        ),
    ),
    Rule(
        "replay.n_step",
        lambda config: config.replay.n_step > 1 and not config.can_sum_rewards,
        lambda config: (
            f"is not allowed for {config.algorithm}, which needs the reward of each step for itself; set "
            "replay(n_step=1)"
        ),
    ),
    _needs_memory("sequence_length"),
    _needs_memory("burn_in"),
    Rule(
        "replay.capacity",
        lambda config: config.replay.capacity < config.env_runners.num_envs_per_env_runner,
        lambda config: (
            "is less than one transition for each of "
            f"env_runners.num_envs_per_env_runner={config.env_runners.num_envs_per_env_runner} environments"
        ),
    ),
)

RULES: tuple[Rule[BaseConfig], ...] = (
    *OF_RUN,
    *OF_MODULES,
    *OF_SYMMETRY,
    *only(lambda config: config.is_offline, *OF_OFFLINE),
    *only(lambda config: not config.is_offline and not config.is_off_policy, *OF_ON_POLICY),
    *only(lambda config: not config.is_offline and config.is_off_policy, *OF_REPLAY),
    Rule(
        "training.intrinsic_reward",
        lambda config: (
            config.training.intrinsic_reward is not None
            and not (config.is_off_policy or config.learner_class.learns_step_by_step)
        ),
        lambda config: (
            f"is not allowed for {config.algorithm}, which does not learn from rewards step by step; leave it out"
        ),
    ),
)
"""Rules of every configuration."""

_SEVERAL = "is not allowed where a trainer trains several agents; leave it out"
OF_SEVERAL_AGENTS: tuple[Rule[BaseConfig], ...] = (
    Rule("replay.her", lambda config: config.is_off_policy and config.replay.her, _SEVERAL),
    Rule(
        "env_runners.vectorize_mode",
        lambda config: config.env_runners.vectorize_mode not in ("auto", "sync"),
        _SEVERAL,
    ),
    Rule(
        "multi_agent.count_steps_by",
        lambda config: config.multi_agent.count_steps_by != "env_steps",
        _SEVERAL,
    ),
)
"""Rules of a configuration from which a trainer for several agents is built."""
