"""`BaseConfig`: the sections of a configuration, read, written and checked, and what follows from them."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium as gym
import torch

from lockstep.config.connectors import ConnectorBuilder
from lockstep.config.json_form import script_objects, section_from_plain, to_plain
from lockstep.config.learner_builder import LearnerBuilder, start_learners
from lockstep.config.module_builder import ModuleBuilder
from lockstep.config.replay_builder import ReplayBuilder
from lockstep.connectors import ModuleConnectors
from lockstep.data import MultiAgentEpisode
from lockstep.data.codec import DAMAGE
from lockstep.data.config import OfflineDataSection
from lockstep.data.values import check_entries
from lockstep.envs import VectorBoundary, make_vector
from lockstep.envs.config import EnvironmentSection
from lockstep.envs.make import is_module_name, named_environment
from lockstep.envs.multi_agent import AgentEnvAdapter, is_agent_env, make_adapter
from lockstep.envs.tensor import TENSOR_ENVS
from lockstep.learner.config import (
    AgentMapping,
    FaultToleranceSection,
    FrameworkSection,
    LearnersSection,
    MultiAgentSection,
    ResourcesSection,
    TrainingSection,
)
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.optimizers import check_configured_optimizer
from lockstep.modules import (
    DEFAULT_MODULE_ID,
    ActionDist,
    Exploration,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
)
from lockstep.modules.config import RLModuleSection
from lockstep.modules.exploration import LOG_STD_INIT, NOISY_SIGMA, make_exploration, needs_box
from lockstep.modules.model_config import ModelConfig
from lockstep.options.checks import suggestion
from lockstep.options.schedules import stages_of
from lockstep.options.section import FROZEN
from lockstep.replay import MultiAgentReplayBuffer, ReplayBuffer
from lockstep.replay.config import ReplaySection
from lockstep.replay.hindsight import Hindsight
from lockstep.rollout.config import EnvRunnersSection, EvaluationSection
from lockstep.rollout.protocols import CollectorLike, sole_part
from lockstep.state.names import load_library, script_name, script_source
from lockstep.state.sizes import ClaimedSizeError
from lockstep.state.streams import RandomStreams
from lockstep.state.trust import (
    SCRIPT,
    SIGNATURE,
    FileNames,
    NameInFile,
    UntrustedError,
    signed,
)
from lockstep.tracking.config import CallbacksSection, CheckpointingSection, DebuggingSection, ReportingSection

Section = Any
SECTIONS: dict[str, type[Section]] = {
    "environment": EnvironmentSection,
    "env_runners": EnvRunnersSection,
    "learners": LearnersSection,
    "resources": ResourcesSection,
    "rl_module": RLModuleSection,
    "training": TrainingSection,
    "multi_agent": MultiAgentSection,
    "evaluation": EvaluationSection,
    "offline_data": OfflineDataSection,
    "reporting": ReportingSection,
    "checkpointing": CheckpointingSection,
    "debugging": DebuggingSection,
    "fault_tolerance": FaultToleranceSection,
    "framework": FrameworkSection,
    "callbacks": CallbacksSection,
}
"""by name, in the order in which they are shown; "replay" comes after them where there is one"""
Spaces = tuple[Any, Any]
"""observation and action space, of all modules or `{module_id: space}`"""

ELSEWHERE = {
    "learning_rate": "lr",
    "n_steps": "train_batch_size rollout_fragment_length",
    "num_steps": "rollout_fragment_length",
    "n_envs": "num_envs_per_env_runner",
    "num_envs": "num_envs_per_env_runner",
    "batch_size": "minibatch_size train_batch_size",
    "train_batch_size_per_learner": "train_batch_size",
    "sgd_minibatch_size": "minibatch_size",
    "n_epochs": "num_epochs",
    "num_sgd_iter": "num_epochs",
    "update_epochs": "num_epochs",
    "repeat_per_collect": "num_epochs",
    "discount_factor": "gamma",
    "gae_lambda": "lambda_",
    "lambda": "lambda_",
    "clip_range": "clip_param",
    "clip_coef": "clip_param",
    "eps_clip": "clip_param",
    "clip_range_vf": "vf_clip_param",
    "value_clip": "vf_clip_param",
    "use_kl_loss": "kl_coeff",
    "advantage_normalization": "normalize_advantages",
    "ent_coef": "entropy_coeff alpha",
    "vf_coef": "vf_loss_coeff",
    "max_grad_norm": "grad_clip",
    "exploration_fraction": "epsilon",
    "exploration_initial_eps": "epsilon",
    "exploration_final_eps": "epsilon",
    "estimation_step": "n_step",
    "polyak": "tau",
    "policy_freq": "policy_delay",
    "n_quantiles": "num_quantiles",
    "top_quantiles_to_drop_per_net": "quantiles_to_drop",
    "action_noise": "exploration_noise",
    "target_policy_noise": "target_noise",
    "target_noise_clip": "noise_clip",
    "q_lr": "critic_lr",
    "policy_lr": "actor_lr",
    "critic_learning_rate": "critic_lr",
    "actor_learning_rate": "actor_lr",
    "alpha_learning_rate": "alpha_lr",
    "buffer_size": "capacity",
    "train_freq": "update_per_step",
    "gradient_steps": "update_per_step",
    "num_steps_sampled_before_learning_starts": "learning_starts",
    "total_timesteps": "total_steps",
    "net_arch": "model_config",
    "policy_kwargs": "model_config",
    "model": "model_config",
    "eval_freq": "evaluation_interval",
    "n_eval_episodes": "evaluation_duration",
    "evaluation_episodes": "evaluation_duration",
    "normalize_actions": "rescale_actions",
    "max_num_env_runner_restarts": "max_env_runner_restarts",
    "restart_failed_sub_environments": "restart_failed_envs",
}
"""a name elsewhere -> the names here, separated by spaces, of which an algorithm has one"""


class BaseConfig:
    """The sections of a configuration, and what is built from them without a policy.

    `config.training.lr` reads an option, `config.training(lr=1e-3)` sets some and returns the configuration, so calls
    chain. `config.lr` reads and sets too, where no other section has the name. An unknown name raises with "did you
    mean". Printed, a configuration shows only what differs from the defaults.
    """

    algorithm: ClassVar[str] = ""
    explorations: ClassVar[tuple[str, ...]] = ()
    """what `env_runners.exploration` may be"""
    learner_class: ClassVar[type[Learner]] = Learner
    training_class: ClassVar[type[TrainingSection]] = TrainingSection
    module_class: ClassVar[type[RLModule] | None] = None
    """the class of the network where none is configured; None: an actor with a state value, with memory or without"""
    is_off_policy: ClassVar[bool] = False
    """whether it learns from a replay buffer; then there is a section `replay`"""
    is_offline: ClassVar[bool] = False
    """whether it learns from data that are there already, without an environment"""
    squashes_actions: ClassVar[bool] = False
    """whether its default network acts in [-1, 1]; then actions are rescaled to the bounds of a Box"""
    can_prioritize: ClassVar[bool] = True
    """whether its loss leaves errors of rows for the priorities"""
    can_sum_rewards: ClassVar[bool] = True
    """whether it learns from transitions of several steps whose rewards are added up (`replay.n_step`)"""
    first_values: ClassVar[tuple[str, ...]] = ()
    """training options that shape networks or begin a state which checkpoints hold: a run keeps them"""
    is_asynchronous: ClassVar[bool] = False
    """whether it learns from what older policies did; then env runners in other processes collect while it learns"""

    environment: EnvironmentSection[Self]
    """which environment"""
    env_runners: EnvRunnersSection[Self]
    """how data is collected"""
    learners: LearnersSection[Self]
    """where learners run"""
    resources: ResourcesSection[Self]
    """what the main process takes of a cluster"""
    rl_module: RLModuleSection[Self]
    """which networks"""
    training: TrainingSection[Self]
    """the update"""
    multi_agent: MultiAgentSection[Self]
    """which modules there are, whose steps go where, who learns"""
    evaluation: EvaluationSection[Self]
    offline_data: OfflineDataSection[Self]
    """what an offline algorithm learns from"""
    reporting: ReportingSection[Self]
    """length of the run and loggers"""
    checkpointing: CheckpointingSection[Self]
    debugging: DebuggingSection[Self]
    """seeds"""
    fault_tolerance: FaultToleranceSection[Self]
    """how often what failed is started again"""
    framework: FrameworkSection[Self]
    """compile, device, threads"""
    callbacks: CallbacksSection[Self]
    """who watches the run"""
    replay: ReplaySection[Self]
    """what is remembered, and how often it is learned from; `ValueError` for an algorithm without a memory"""
    sections: Mapping[str, Section]
    """all of them by name"""

    def __init__(self) -> None:
        kinds: dict[str, type] = {**SECTIONS, "training": self.training_class}
        if self.is_off_policy:
            kinds["replay"] = ReplaySection
        self.join_sections({name: kind() for name, kind in kinds.items()})
        object.__setattr__(self, "_frozen", False)

    # -- sections ---

    @property
    def collects_while_learning(self) -> bool:
        """Whether the algorithm allows it and there are env runners in other processes."""
        return self.is_asynchronous and self.env_runners.num_env_runners > 0

    @property
    def max_lag(self) -> int:
        """How many updates a fragment may be behind the learner; 0 where the algorithm has no such option."""
        return getattr(self.training, "max_lag", 0)

    @property
    def has_memory(self) -> bool:
        """Whether a network remembers from step to step, as far as its configuration says; one of your own may, too."""
        return any(map(self.rl_module.remembers, self.module_specs().values()))

    @property
    def has_surely_no_memory(self) -> bool:
        """Whether every network is known to have no memory; a class of the user's own may have one."""
        return all(self.rl_module.remembers(spec) is False for spec in self.module_specs().values())

    @property
    def kind_of_memory(self) -> str:
        """The option that gives networks a memory."""
        return "recurrent" if getattr(self.rl_module.model_config, "attention", None) is None else "attention"

    @property
    def is_multi_agent(self) -> bool:
        """Whether there are policies of agents, or other modules than the one of a single agent."""
        return self.multi_agent.policies is not None or list(self.module_specs()) != [DEFAULT_MODULE_ID]

    def set_section(self, name: str, options: Mapping[str, Any]) -> Self:
        """Set options of one section; unknown names raise `ValueError` with a suggestion."""
        self._check_not_frozen()
        section = self.sections[name]
        known = section.options()
        for option in options:
            if option not in known:
                raise ValueError(f"{name} has no option {option!r}; {self._meant(option, name)}")
        section.set_options(options)
        return self

    def set_path(self, path: str, value: object) -> Self:
        """Set one option by its path, `"training.lr"` or `"rl_module.model_config.hiddens"`.

        The name of a section alone takes a mapping of its options.
        """
        name, _, option = path.partition(".")
        if name in self.sections and not option:
            if not isinstance(value, Mapping):
                raise ValueError(
                    f"{name}={value!r} is not allowed; {name!r} is a section: give one option of it by its path, such "
                    f"as '{name}.{next(iter(self.sections[name].options()))}', or a mapping of its options"
                )
            return getattr(self, name)(**value)
        if name not in self.sections:
            hint = self._suggest(name, list(self.sections))
            raise ValueError(f"unknown option {path!r}{hint}; write section.option, e.g. training.lr")
        option, _, inner = option.partition(".")
        method: Callable[..., Self] = getattr(self, name)
        return method(**{option: {inner: value} if inner else value})

    # -- reading and writing ---

    if not TYPE_CHECKING:  # type checkers know options by their full paths only

        def __getattr__(self, name: str) -> Any:
            if name == "replay":
                learned_from = "data that are there already" if self.is_offline else "what it has just collected"
                raise ValueError(f"{self.algorithm} has no replay section: it learns from {learned_from}")
            if not name.startswith("_"):
                for section in self.__dict__.get("sections", {}).values():
                    if name in section.__dict__:
                        return section.__dict__[name]
            raise AttributeError(
                f"{type(self).__name__} has no option {name!r}{self._suggest(name, self._all_names())}"
            )

    def __setattr__(self, name: str, value: object) -> None:
        self._check_not_frozen()
        for section_name, section in self.sections.items():
            if name in section.__dict__ and not name.startswith("_"):
                getattr(self, section_name)(**{name: value})
                return
        raise AttributeError(f"{type(self).__name__} has no option {name!r}{self._suggest(name, self._all_options())}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and dict(self.sections) == dict(other.sections)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show only what differs from the defaults; `to_dict()` has all."""
        changed = [f"{path}={value!r}" for path, value, is_default in self._paths() if not is_default]
        return f"{type(self).__name__}({', '.join(changed)})"

    def describe(self, *, all_options: bool = False) -> str:
        """Return a line `section.option = value` for each option that differs from its default, or for all of them."""
        lines = [f"{path} = {value!r}" for path, value, is_default in self._paths() if all_options or not is_default]
        return "\n".join([type(self).__name__, *lines])

    def _paths(self) -> Iterator[tuple[str, Any, bool]]:
        """For each option its path, its value, and whether that is the default."""
        default = type(self)().sections
        for name, section in self.sections.items():
            for option, value in section.options().items():
                yield f"{name}.{option}", value, value == getattr(default[name], option)

    @classmethod
    def of_algorithm(cls, algorithm: str) -> BaseConfig:
        """Return the defaults of the algorithm with this name; `ValueError` with "did you mean" for an unknown one."""
        known = _algorithms()
        if algorithm not in known:
            load_library()
            known = _algorithms()
        if algorithm not in known:
            raise ValueError(f"unknown algorithm {algorithm!r}; {suggestion(algorithm, known)}")
        return known[algorithm]()

    @classmethod
    def overrides(cls, **training: object) -> dict[str, Any]:
        """Return training options for one module, for `rl_module(algorithm_config_overrides_per_module={id: ...})`.

        Raises `ValueError` for names and values that the algorithm does not have.
        """
        cls.training_class().overridden(training)
        return training

    def copy(self) -> Self:
        """Return an independent, unfrozen copy."""
        new = type(self)()
        new.join_sections({name: section.copy() for name, section in self.sections.items()})
        return new

    def with_sections(self, **sections: Any) -> Self:
        """Return a configuration with other sections in place of some, and the very objects that are options here."""
        new = type(self)()
        new.join_sections({name: replace(section) for name, section in {**self.sections, **sections}.items()})
        return new

    def freeze(self) -> Self:
        """Refuse changes from now on with `ValueError`, in sections too and in dicts and lists of options."""
        for section in self.sections.values():
            section.freeze()
        object.__setattr__(self, "sections", MappingProxyType(self.sections))
        object.__setattr__(self, "_frozen", True)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return all options as plain JSON values: `{"algorithm": ..., section: {option: value}}`.

        Where options are classes or functions, there is also the user's "signature" over their names and arguments, by
        which `update_from_dict` recognises the user's own work. Objects of the running script are named
        `__main__:Class`, and "script" has their sources, `{name: {"file": ..., "text": ...}}`.
        """
        out: dict[str, Any] = {"algorithm": self.algorithm}
        for name, section in self.sections.items():
            out[name] = {option: to_plain(f"{name}.{option}", value) for option, value in section.options().items()}
        sources = {}
        for each in self.script_objects():
            if isinstance(each, NameInFile):
                sources[str(each)] = each.names.sources.get(each)
            else:
                sources[script_name(each)] = script_source(each)
        return {**signed(out), SCRIPT: sources} if sources else signed(out)

    def script_objects(self) -> list[Any]:
        """Return the classes and functions among the options that are defined in the running script.

        A configuration from a file has the names of such objects (text) where they were not handed in.
        """
        return [each for section in self.sections.values() for each in script_objects(section.options())]

    def to_json(self, path: str | Path | None = None) -> str:
        """Return `to_dict` as JSON text, and write it to `path` if there is one."""
        text = json.dumps(self.to_dict(), indent=2)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    def update_from_dict(
        self, data: Mapping[str, Any], *, trust: bool = False, file: str | Path = "the configuration"
    ) -> Self:
        """Set the options of a nested dict `{section: {option: value}}`, as read from a file.

        Args:
            data: what `to_dict` returned, or a part of it.
            trust: take all objects that it names. Otherwise these are classes of the kind that their options expect,
                unless this user has signed the names.
            file: where the dict was read, for messages, and for the signatures that may lie beside it.

        Raises:
            UntrustedError: an object that needs `trust=True`; the error names it and its option.
            ValueError: an unknown section or option, a value that an option does not take, or another algorithm; the
                error names the file.
        """
        names = FileNames(file, data, trust)
        try:
            self._set_sections(data, names)
        except (UntrustedError, ClaimedSizeError):
            raise
        except DAMAGE as error:
            raise ValueError(f"{file}: {error}") from error
        return self

    def _set_sections(self, data: Mapping[str, Any], names: FileNames) -> None:
        for name, options in data.items():
            if name in (SIGNATURE, SCRIPT):
                continue
            if name == "algorithm":
                if options != self.algorithm:
                    raise ValueError(f"the configuration is for {options!r}, this one for {self.algorithm!r}")
                continue
            if name not in self.sections or not isinstance(options, Mapping):
                raise ValueError(f"unknown section {name!r}{self._suggest(name, list(self.sections))}")
            getattr(self, name)(**section_from_plain(name, options, names))

    def named_options(self) -> dict[str, Any]:
        """Return `to_dict()`, in which an environment or offline data that cannot be written are only named.

        Functions of several agents that have no name are left out: who goes on gives them again.
        """
        try:
            return self.to_dict()
        except ValueError:
            changed, env, data = self.copy(), self.environment.env, self.offline_data.input_
        if env is not None and not isinstance(env, str):
            name = getattr(env, "__name__", type(env).__name__)
            changed.environment(env=name, observation_space=None, action_space=None)
        if hasattr(data, "__len__") and not isinstance(data, str | list | tuple):
            changed.offline_data(input_=None)
        for option in ("policy_mapping_fn", "reward_metric"):
            functions = [value for _, value in stages_of(option, getattr(self.multi_agent, option))]
            if any("<" in getattr(function, "__qualname__", "") for function in functions):
                changed.set_section("multi_agent", {option: None})
        return changed.to_dict()

    # -- checks ---

    def validate(self) -> None:
        """Refuse options of a section that do not go together; every build calls it."""
        for section in self.sections.values():
            section.validate()
            section.check_schedules((1, self.training.train_batch_size))
        check_configured_optimizer(self.training)

    # -- what an algorithm may override ---

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """Return the configuration of the default network with what the algorithm adds."""
        section = self.env_runners
        if section.exploration == "noisy":
            return replace(model_config, noisy_sigma=section.exploration_config.get("sigma", NOISY_SIGMA))
        if section.exploration != "gsde":
            return model_config
        return replace(model_config, gsde_log_std_init=section.exploration_config.get("log_std_init", LOG_STD_INIT))

    @property
    def explores_by(self) -> str | None:
        """The kind of exploration that is configured, or that of the algorithm; None: its policy's distribution."""
        if self.env_runners.exploration is not None:
            return self.env_runners.exploration
        if hasattr(self.training, "epsilon"):  # one of action values
            return "epsilon"
        return "normal" if hasattr(self.training, "exploration_noise") else None

    def exploration(self, module: RLModule) -> Exploration | None:
        """Return how a module's actions are drawn while collecting; None: from its distribution."""
        kind, training = self.explores_by, self.training
        if kind is None:
            return None
        defaults = {name: getattr(training, name, None) for name in ("epsilon", "exploration_noise")}
        return make_exploration(kind, self.env_runners.exploration_config, module, **defaults)

    def check_actions(self, action_space: gym.Space[Any]) -> None:
        """Raise `ValueError` for actions that the default networks, or the exploration, cannot take."""
        try:
            ActionDist(action_space)
        except ValueError as error:
            raise ValueError(f"{self.algorithm} cannot act in {action_space}: {error}") from None
        if needs_box(self.env_runners.exploration, action_space):
            raise ValueError(
                f"{self.algorithm}: env_runners.exploration={self.env_runners.exploration!r} needs a Box of actions, "
                f"not {action_space}"
            )

    def process_buffer(self, buffer: Any) -> Any:
        """Return offline data in the form that the algorithm learns from."""
        return buffer

    # -- modules, spaces, environments ---

    def module_specs(self) -> dict[str, RLModuleSpec | RLModule]:
        """Return the spec (or the built module) of each module, by id; one spec serves all policies that have none."""
        spec, policies = self.rl_module.rl_module_spec, self.multi_agent.policies
        specs_by_id = self.rl_module.specs_by_id()
        if specs_by_id is not None:
            return specs_by_id
        if policies is None:
            return {DEFAULT_MODULE_ID: spec or RLModuleSpec()}
        if len(policies) > 1 and getattr(spec, "is_built", False):
            raise ValueError(
                f"rl_module.rl_module_spec is one built module for multi_agent.policies={list(policies)}; give an "
                "RLModuleSpec (each gets a module of its own), or a MultiRLModule"
            )
        specs = policies if isinstance(policies, Mapping) else {}
        return {module_id: specs.get(module_id) or spec or RLModuleSpec() for module_id in policies}

    def declared_spaces(self) -> Spaces | None:
        """Return `({module_id: space}, {module_id: space})` where all modules bring their own, else None.

        A single module's are those of the environment where that is not configured, unless connectors stand between.
        """
        configured = self.environment.observation_space is not None and self.environment.action_space is not None
        if not self._modules_are_named and (configured or self._connectors_are_between):
            return None
        found = {mid: (spec.observation_space, spec.action_space) for mid, spec in self.module_specs().items()}
        return None if any(None in pair for pair in found.values()) else by_kind(found)

    @property
    def _connectors_are_between(self) -> bool:
        """Whether a module may see or act in other spaces than those of the environment."""
        runners = self.env_runners
        asked = runners.env_to_module_connector is not None or runners.module_to_env_connector is not None
        return asked or self.environment.frame_stack > 1

    @property
    def modules_are_known(self) -> bool:
        """Whether the ids of all modules follow from the configuration, without a look at its environment."""
        return self._modules_are_named or not _may_have_agents(self.environment.env)

    @property
    def _modules_are_named(self) -> bool:
        """Whether the configuration names its modules, whose specs may then bring spaces."""
        return self.multi_agent.policies is not None or self.rl_module.specs_by_id() is not None

    def spaces_by_module(self, env: object = None, spaces: Spaces | None = None) -> dict[str, Spaces]:
        """Return (observation space, action space) of each module: its spec's, else those of the environment.

        The environment is asked only where its spaces are needed. Raises `KeyError` where spaces are given by module
        id and one is missing.
        """
        specs = self.module_specs()
        declared = {
            mid: (spec.observation_space, spec.action_space) if self._modules_are_named else (None, None)
            for mid, spec in specs.items()
        }
        if not any(None in pair for pair in declared.values()):
            return declared
        of_environment = self.find_spaces(env, spaces)
        by_module = {}
        for module_id, pair in declared.items():
            both = list(pair)
            for which, kind in enumerate(("observation", "action")):
                if both[which] is None:
                    space = of_environment[which]
                    if type(space) is dict and module_id not in space:
                        raise KeyError(f"no {kind} space for module {module_id!r}; there are some for {sorted(space)}")
                    both[which] = space[module_id] if type(space) is dict else space
            by_module[module_id] = (both[0], both[1])
        return by_module

    def policy_spaces(self, env: object = None, spaces: Spaces | None = None) -> Spaces:
        """Return observation and action space of a policy; of several agents both are dicts by module id."""
        if not self.is_multi_agent:
            return self.find_spaces(env, spaces)
        return by_kind(self.spaces_by_module(env, spaces))

    def with_agents(self, env: object = None) -> Self:
        """Return a copy that names policies, where the environment is of several agents and none are named.

        Agents whose spaces are equal share one policy. Where all are, that is "default_policy"; else each has the name
        that its agents have in common ("wolf" of wolf_0 and wolf_1), or that of its first agent. The configuration
        itself is returned for an environment of one agent and where policies are named already.
        """
        env = self.environment.env if env is None else env
        if self._modules_are_named or not _may_have_agents(env):
            return self
        of_agents = self._agent_spaces(env)
        if of_agents is None:
            return self
        mapping = AgentMapping.by_spaces(of_agents)
        policies = list(dict.fromkeys(mapping.values()))
        return self.with_sections().multi_agent(policies=policies, policy_mapping_fn=mapping)

    def agents_with_id(self, env: object = None) -> list[Any] | None:
        """Return the agents in the order of their numbers, where observations have these; else None."""
        if not self.multi_agent.agent_id_in_obs:
            return None
        return list(self._agent_spaces(env) or ())

    def _agent_spaces(self, env: object) -> dict[Any, Spaces] | None:
        """Return (observation space, action space) of each agent; None for an environment of one agent."""
        with self._played(env) as adapter:
            if adapter is None:
                return None
            observation_spaces, action_spaces = adapter.spaces()
        return {agent: (space, action_spaces[agent]) for agent, space in observation_spaces.items()}

    @contextmanager
    def _played(self, env: object = None) -> Iterator[AgentEnvAdapter | None]:
        """Yield how an environment, or one that a function makes, is played; None where it is of one agent."""
        env = self.environment.env if env is None else env
        env = named_environment(env) if isinstance(env, str) else env
        made = env(**self.environment.env_config) if callable(env) else env
        section = self.multi_agent
        added: Any = {"agent_ids": section.agent_id_in_obs, "critic": section.centralized_critic}
        try:
            yield make_adapter(made, **added) if is_agent_env(made) else None
        finally:
            if made is not env and hasattr(made, "close"):
                made.close()

    def spaces_of_agents(self, env: object) -> Spaces | None:
        """Return spaces by module id of an environment of several agents (or a function that makes one), else None.

        Where all agents have the same spaces, so has a module that the mapping function does not name at first. Raises
        `KeyError` for a module that is not there, `ValueError` where two agents of one module have different spaces.
        """
        if self.multi_agent.policies is None or not _may_have_agents(env):
            return None
        of_agents = self._agent_spaces(env)
        if not of_agents:
            return None
        mappings = [mapping for _, mapping in stages_of("policy_mapping_fn", self.multi_agent.policy_mapping_fn)]
        episodes = [MultiAgentEpisode(agent_to_module_mapping_fn=mapping) for mapping in mappings]
        module_ids = list(self.module_specs())
        found: dict[str, Spaces] = {}
        for episode, (agent, pair) in itertools.product(episodes, of_agents.items()):
            module_id = episode.module_for(agent)
            if module_id not in module_ids:
                raise KeyError(f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(module_ids)}")
            if found.setdefault(module_id, pair) != pair:
                raise ValueError(
                    f"agent {agent!r} of module {module_id!r} has the spaces {pair}, another agent of it "
                    f"{found[module_id]}; map them to different modules"
                )
        first = next(iter(of_agents.values()))
        if all(pair == first for pair in of_agents.values()):
            found = dict.fromkeys(module_ids, first) | found
        return by_kind(found)

    def find_spaces(self, env: object = None, spaces: Spaces | None = None) -> Spaces:
        """Return observation and action space: `spaces`, the configured ones, or those of an environment.

        Each may be a dict by module id; so they are for several agents, where the policies are configured.
        """
        section = self.environment
        if spaces is not None:
            return spaces
        if section.observation_space is not None and section.action_space is not None:
            return section.observation_space, section.action_space
        chosen = section.env if env is None else env
        by_module = self.spaces_of_agents(chosen)
        if by_module is not None:
            return by_module
        boundary = self.make_envs(1, env)
        try:
            return boundary.observation_space, boundary.action_space
        finally:
            if isinstance(chosen, str) or callable(chosen):
                boundary.close()

    def make_envs(self, num_envs: int, env: object = None, **env_config: object) -> VectorBoundary:
        """Make the vector environment that the configuration names, or `env`."""
        section = self.environment
        runners = self.env_runners
        chosen: Any = section.env if env is None else env
        finished = not isinstance(chosen, str) and not callable(chosen)
        mode = "auto" if finished else runners.vectorize_mode
        options = {**section.env_config, **env_config}
        if isinstance(chosen, str) and chosen in TENSOR_ENVS:
            options = {"device": self.framework.device, **options}
        return make_vector(
            chosen,
            num_envs=1 if finished else num_envs,
            mode=mode,
            env_config=None if finished else options or None,
            step_timeout=runners.step_timeout,
            restarts=self.fault_tolerance.env_limits if mode == "async" else None,
        )

    # -- replay buffers ---

    def build_replay_buffer(
        self,
        num_envs: int,
        seed: int | None = None,
        gamma: float | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        connectors: ModuleConnectors | None = None,
    ) -> ReplayBuffer:
        """Build an empty replay buffer with a sub-buffer for each environment, seeded by the configuration.

        An offline algorithm, which has no section `replay`, gets one with the defaults.

        Args:
            num_envs: how many environments write into it.
            seed: of its random numbers, in place of the configuration's.
            gamma: of its n-step returns, in place of the configuration's.
            module_id: whose network learns from it: one with memory gets sequences.
            connectors: what observations go through before they are stored. Of stacks of frames each frame is stored
                once, and a stack is put together again where it is read.
        """
        section: ReplaySection = self.replay if self.is_off_policy else ReplaySection()
        remembers = self.rl_module.remembers(self.module_specs().get(module_id, RLModuleSpec()))
        return ReplayBuilder(section, is_off_policy=self.is_off_policy).build(
            num_envs,
            seed=RandomStreams(self.debugging.seed).seed("replay") if seed is None else seed,
            gamma=self.training.gamma if gamma is None else gamma,
            remembers=remembers,
            num_frames=1 if connectors is None else connectors.num_frames,
            hindsight=self.build_hindsight() if section.her else None,
        )

    def build_replay_buffers(self, agents: Mapping[str, Sequence[Any]], num_envs: int) -> MultiAgentReplayBuffer:
        """Build an empty replay buffer for each module, with a sub-buffer for each agent in each environment."""
        seeds = RandomStreams(self.debugging.seed).child("replay")
        overrides = self.rl_module.algorithm_config_overrides_per_module

        def build(module_id: str, number: int) -> ReplayBuffer:
            gamma = overrides.get(module_id, {}).get("gamma")
            return self.build_replay_buffer(number, seeds.seed(module_id), gamma, module_id)

        return MultiAgentReplayBuffer(agents, num_envs, build)

    def build_replay(self, policy: object, collector: CollectorLike) -> ReplayBuffer | MultiAgentReplayBuffer:
        """Build the empty replay that a collector of this policy writes into.

        With one agent it has a sub-buffer for each environment, with several agents a buffer for each module.
        """
        if collector.agents_of_modules:
            return self.build_replay_buffers(collector.agents_of_modules, collector.num_envs)
        return self.build_replay_buffer(collector.num_envs, connectors=sole_part(policy).connectors)

    def build_hindsight(self) -> Hindsight:
        """Build the relabelling with the environment's `compute_reward`; `ValueError` where it has none."""
        return ReplayBuilder(self.replay, is_off_policy=self.is_off_policy).build_hindsight(self.environment)

    # -- learners ---

    def build_learner(
        self, env: object = None, spaces: Spaces | None = None, reducer: Reducer | None = None
    ) -> Learner:
        """Build a learner in this process. `spaces`: (observation, action); else they are asked of the environment.

        With a `reducer` it is one of several learners that act as one; each is built from the same configuration.
        """
        if spaces is not None and not (isinstance(spaces, tuple | list) and len(spaces) == 2):
            raise TypeError(f"spaces={spaces!r}; give (observation space, action space)")
        config = self
        if self.environment.env is None and env is None and spaces is None:
            self.rl_module.validate()
            spaces = self.declared_spaces()
        if self.environment.env is None and (env is not None or spaces is not None):
            named = {"env": env} if spaces is None else dict(zip(("observation_space", "action_space"), spaces))
            config = self.with_sections(environment=replace(self.environment, **named))
        config.validate()
        return config._build_learner(env, spaces, reducer)

    def _build_learner(self, env: object, spaces: Spaces | None, reducer: Reducer | None) -> Learner:
        self.set_num_threads()
        streams = RandomStreams(self.debugging.seed)
        connectors, modules = self._build_modules(self.spaces_by_module(env, spaces), streams, env)
        builder = LearnerBuilder(
            self.training,
            self.rl_module,
            self.multi_agent,
            self.learners,
            self.framework,
            learner_class=self.learner_class,
        )
        return builder.build(connectors, modules, streams.child("learner"), reducer)

    def _build_modules(
        self, spaces: Mapping[str, Spaces], streams: RandomStreams, env: object
    ) -> tuple[dict[str, ModuleConnectors], dict[str, RLModule]]:
        specs = self.module_specs()
        single = list(specs) == [DEFAULT_MODULE_ID]
        connectors, modules = {}, {}
        if self.multi_agent.centralized_critic:
            specs = self._with_critic_spaces(specs, env)
        for module_id, (observation_space, action_space) in spaces.items():
            built, seen = self.build_connectors(observation_space, action_space)
            module_streams = streams if single else streams.child(module_id)
            connectors[module_id] = built
            modules[module_id] = self.build_module(specs[module_id], *seen, module_streams)
        return connectors, modules

    def _with_critic_spaces(
        self, specs: Mapping[str, RLModuleSpec | RLModule], env: object
    ) -> dict[str, RLModuleSpec | RLModule]:
        """Return specs that say what a centralised critic sees; the environment is asked where they do not."""
        lacking = {mid: spec for mid, spec in specs.items() if not spec.is_built and not spec.critic_space}
        if not lacking:
            return dict(specs)
        with self._played(env) as adapter:
            if adapter is None:
                raise ValueError(
                    "multi_agent.centralized_critic needs an environment that says what the critic sees; give one, or "
                    "policies={module_id: RLModuleSpec(critic_space=...)}"
                )
            space = adapter.critic_space()
        return {**specs, **{mid: replace(spec, critic_space=space) for mid, spec in lacking.items()}}

    def build_learner_group(
        self,
        env: object = None,
        spaces: Spaces | None = None,
        rl_module_spec: RLModuleSpec | RLModule | MultiRLModuleSpec | MultiRLModule | None = None,
    ) -> LearnerGroup:
        """Build the group of learners, in this process or others, each from this configuration.

        `rl_module_spec` takes the place of the configured one. `ImportError` where others need ray and it is not there.
        """
        if rl_module_spec is not None:
            return self.copy().rl_module(rl_module_spec=rl_module_spec).build_learner_group(env, spaces)
        section = self.learners
        if section.num_learners == 0:
            return LearnerGroup(self.build_learner(env, spaces), section)
        self.validate()
        if self._connectors_are_between:
            for pair in self.spaces_by_module(env, spaces).values():
                self.build_connectors(*pair)  # here, not in another process
        learners = start_learners(
            partial(self.copy().build_learner, env, spaces),
            section,
            strategy=self.resources.placement_strategy,
            limits=self.fault_tolerance.learner_limits,
            num_standby=self.fault_tolerance.num_standby_processes,
            address=self.resources.ray_address,
            num_cpus=self.cpus_of_run,
        )
        return LearnerGroup(learners, section)

    @property
    def cpus_of_run(self) -> float:
        """CPUs that learners, env runners and this process ask of a cluster together."""
        learners = self.learners.num_learners * self.learners.num_cpus_per_learner
        num_env_runners = self.env_runners.num_env_runners + self.evaluation.num_processes
        runners = num_env_runners * self.env_runners.num_cpus_per_env_runner
        return float(learners + runners + self.resources.num_cpus_for_main_process)

    def build_module(
        self,
        spec: RLModuleSpec | RLModule,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        streams: RandomStreams,
    ) -> RLModule:
        """Build a network; its initial weights depend on the seed of its streams only."""
        builder = ModuleBuilder(
            self.rl_module,
            algorithm=self.algorithm,
            module_class=self.module_class,
            complete_model_config=self.complete_model_config,
        )
        return builder.build(spec, observation_space, action_space, streams)

    def build_connectors(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> tuple[ModuleConnectors, Spaces]:
        """Build the transforms around a network; returns them and the spaces that the network sees and acts in.

        Raises:
            TypeError: an option that is to give connectors gives something else.
            ValueError: connectors that do not go together, spaces that they cannot take, or in which the algorithm
                cannot act.
        """
        check_entries(observation_space, "the observation space")
        check_entries(action_space, "the action space")
        builder = ConnectorBuilder(
            self.environment,
            self.env_runners,
            self.training,
            algorithm=self.algorithm,
            squashes_actions=self.squashes_actions or getattr(self.rl_module.model_config, "squash_actions", False),
            num_learners=self.learners.num_learners,
            is_offline=self.is_offline,
        )
        connectors, seen = builder.build(observation_space, action_space)
        self.check_actions(seen[1])
        return connectors, seen

    def build_acting_parts(
        self, spaces: Spaces, module_id: str = DEFAULT_MODULE_ID
    ) -> tuple[RLModule, ModuleConnectors]:
        """Build a network and its transforms to act with, shaped as a learner's are, whose weights they take."""
        connectors, seen = self.build_connectors(*spaces)
        spec = copy.deepcopy(self.module_specs()[module_id])
        module = self.build_module(spec, *seen, RandomStreams(self.debugging.seed))
        module.acting_connectors = connectors.acting_names
        return module.to(getattr(torch, self.framework.dtype)), connectors

    def set_num_threads(self) -> None:
        """Set the number of torch's threads in this process: `framework.num_threads`, or one."""
        chosen = self.framework.num_threads or 1
        if torch.get_num_threads() != chosen:
            torch.set_num_threads(chosen)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self.join_sections(self.sections)

    def join_sections(self, sections: Mapping[str, Section]) -> None:
        """Take these as the sections of this configuration."""
        object.__setattr__(self, "sections", {name: section.join(self) for name, section in sections.items()})
        self.__dict__.update(self.sections)

    def _check_not_frozen(self) -> None:
        if self.__dict__.get("_frozen"):
            raise ValueError(FROZEN)

    def _meant(self, option: str, section: str) -> str:
        """Suggest options of the section, else of others, that are called so or that other libraries call so."""
        names = [option, *ELSEWHERE.get(option, "").split()]
        known = {name: list(each.options()) for name, each in self.sections.items()}
        here = [name for name in names if name in known[section]]
        there = [f"{other}.{name}" for other in known for name in names if name in known[other]]
        return suggestion(option, sorted(known[section]), elsewhere=here or there, most=3)

    def _all_names(self) -> list[str]:
        methods = [name for name in dir(type(self)) if not name.startswith("_")]
        return [*self._all_options(), *self.__dict__.get("sections", {}), *methods]

    def _all_options(self) -> list[str]:
        return [option for section in self.__dict__.get("sections", {}).values() for option in section.options()]

    @staticmethod
    def _suggest(name: str, known: list[str]) -> str:
        elsewhere = [other for other in ELSEWHERE.get(name, "").split() if other in known]
        return f"; {suggestion(name, sorted(known), elsewhere=elsewhere, most=3)}"


def by_kind(spaces: Mapping[str, Spaces]) -> Spaces:
    """Return observation spaces and action spaces by module id, of both for each module."""
    return {mid: pair[0] for mid, pair in spaces.items()}, {mid: pair[1] for mid, pair in spaces.items()}


def _may_have_agents(env: object) -> bool:
    """Return whether `env` may be, or make, an environment of several agents; asked before one is made."""
    if env is None or (isinstance(env, str) and ":" not in env and not is_module_name(env)):
        return False
    return callable(env) or isinstance(env, str) or is_agent_env(env)


def _algorithms() -> dict[str, type[BaseConfig]]:
    """Return the configurations that are imported, by the name of their algorithm."""
    return {each.__dict__["algorithm"]: each for each in _subclasses(BaseConfig) if "algorithm" in vars(each)}


def _subclasses(base: type[BaseConfig]) -> Iterator[type[BaseConfig]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)
