"""`BaseConfig`: the sections of a configuration, which are read, written and checked, and the parts built from them."""

from __future__ import annotations

import copy
import itertools
import json
import re
import warnings
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
from lockstep.data.groups import INTRINSIC, checked_groups, has_state
from lockstep.data.values import check_entries
from lockstep.envs import VectorBoundary, make_vector
from lockstep.envs.config import EnvironmentSection
from lockstep.envs.make import is_module_name, named_environment, tensor_class
from lockstep.envs.multi_agent import AgentEnvAdapter, is_agent_env, make_adapter
from lockstep.envs.tensor import TensorEnv
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
    DefaultActorCriticModule,
    Exploration,
    MultiRLModule,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
)
from lockstep.modules.config import RLModuleSection
from lockstep.modules.exploration import LOG_STD_INIT, NOISY_SIGMA, RepeatedNoise, make_exploration, needs_box
from lockstep.modules.model_config import ModelConfig, options_of
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
"""A section of options. Each is another class, of which code that goes through all sections knows nothing."""
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
"""Section classes by name, in the order in which they are shown. `"replay"` comes after them, if there is one."""
Spaces = tuple[Any, Any]
"""Observation space and action space. Each is one for all modules, or a dict `{module_id: space}`."""

EQUIVALENT_NAMES = {
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
"""Names of options in other libraries, with their names here. A value may list several names, separated by spaces: an
algorithm has one of them."""


class BaseConfig:
    """Configuration of an algorithm: sections of options, and the parts that are built from them without a policy.

    `config.training.lr` reads an option. `config.training(lr=1e-3)` sets options and returns the configuration, so that
    calls can be chained. `config.lr` also reads and sets an option, if no other section has the name. An unknown name
    raises an error with "did you mean". A printed configuration shows only the options that differ from the defaults.
    """

    algorithm: ClassVar[str] = ""
    """Name of the algorithm."""
    explorations: ClassVar[tuple[str, ...]] = ()
    """Values that `env_runners.exploration` may have."""
    learner_class: ClassVar[type[Learner]] = Learner
    """Class of the learner."""
    training_class: ClassVar[type[TrainingSection]] = TrainingSection
    """Class of the section `training`."""
    module_class: ClassVar[type[RLModule] | None] = None
    """Class of the default network. None stands for an actor-critic, with or without memory."""
    is_off_policy: ClassVar[bool] = False
    """Whether the algorithm learns from a replay buffer, so that there is a section `replay`."""
    is_offline: ClassVar[bool] = False
    """Whether the algorithm learns from recorded data, without an environment."""
    needs_teacher: ClassVar[bool] = False
    """Whether the algorithm learns from another policy, so that a run is built only with `training.teacher`."""
    squashes_actions: ClassVar[bool] = False
    """Whether the default network acts in [-1, 1], so that actions are rescaled to the bounds of a Box."""
    can_prioritize: ClassVar[bool] = True
    """Whether the loss gives an error for each row, which prioritised replay needs."""
    can_sum_rewards: ClassVar[bool] = True
    """Whether the algorithm can learn from n-step transitions, whose rewards are summed (`replay.n_step`)."""
    first_values: ClassVar[tuple[str, ...]] = ()
    """Training options that determine the shape of networks, or the first value of a state in checkpoints. A resumed
    run keeps them."""
    is_asynchronous: ClassVar[bool] = False
    """Whether the algorithm can learn from data of older policies, so that env runners in other processes collect while
    it learns."""

    environment: EnvironmentSection[Self]
    """Options of the environment and of its observations, actions and rewards."""
    env_runners: EnvRunnersSection[Self]
    """Options of data collection."""
    learners: LearnersSection[Self]
    """Number and place of the learners."""
    resources: ResourcesSection[Self]
    """Resources of a cluster for the main process."""
    rl_module: RLModuleSection[Self]
    """Options of the networks."""
    training: TrainingSection[Self]
    """Options of the update."""
    multi_agent: MultiAgentSection[Self]
    """Modules of several agents, mapping of agents to modules, and modules that learn."""
    evaluation: EvaluationSection[Self]
    """Options of evaluation."""
    offline_data: OfflineDataSection[Self]
    """Recorded data of an offline algorithm."""
    reporting: ReportingSection[Self]
    """Length of the run, and its loggers."""
    checkpointing: CheckpointingSection[Self]
    """Options of checkpoints."""
    debugging: DebuggingSection[Self]
    """Seeds."""
    fault_tolerance: FaultToleranceSection[Self]
    """Limits on restarts of failed environments and processes."""
    framework: FrameworkSection[Self]
    """Compilation, device, dtype and threads."""
    callbacks: CallbacksSection[Self]
    """Callbacks of the run."""
    replay: ReplaySection[Self]
    """Options of replay. Reading it raises `ValueError` for an algorithm without replay."""
    sections: Mapping[str, Section]
    """All sections by name."""

    def __init__(self) -> None:
        section_classes: dict[str, type] = {**SECTIONS, "training": self.training_class}
        if self.is_off_policy:
            section_classes["replay"] = ReplaySection
        self.join_sections({name: section_class() for name, section_class in section_classes.items()})
        # Bypasses `__setattr__`, which sets options.
        object.__setattr__(self, "_frozen", False)

    # -- sections ---

    @property
    def collects_while_learning(self) -> bool:
        """Whether env runners in other processes collect data while the learner updates."""
        return self.is_asynchronous and self.env_runners.num_env_runners > 0

    @property
    def max_lag(self) -> int:
        """Largest number of updates that a fragment may be behind the learner; 0 without such an option."""
        return getattr(self.training, "max_lag", 0)

    @property
    def has_memory(self) -> bool:
        """Whether the configuration gives a network a memory. It cannot tell for a class of the user's own."""
        return any(map(self.rl_module.remembers, self.module_specs().values()))

    @property
    def has_surely_no_memory(self) -> bool:
        """Whether every network is known to have no memory. False for a class of the user's own."""
        return all(self.rl_module.remembers(spec) is False for spec in self.module_specs().values())

    @property
    def kind_of_memory(self) -> str:
        """Name of the option of `model_config` that gives networks a memory."""
        return "recurrent" if getattr(self.rl_module.model_config, "attention", None) is None else "attention"

    @property
    def is_multi_agent(self) -> bool:
        """Whether there are policies of several agents, or other modules than the one of a single agent."""
        return self.multi_agent.policies is not None or list(self.module_specs()) != [DEFAULT_MODULE_ID]

    def set_section(self, name: str, options: Mapping[str, Any]) -> Self:
        """Set options of one section, and return the configuration.

        Raises:
            ValueError: The section has no such option; the message suggests the closest. Or a value is not allowed.
            TypeError: A value has another type than its option.
        """
        self._check_not_frozen()
        section = self.sections[name]
        known = section.options()
        for option in options:
            if option not in known:
                raise ValueError(f"{name} has no option {option!r}; {self._advice(option, name)}")
        section.set_options(options)
        return self

    def set_path(self, path: str, value: object) -> Self:
        """Set one option by its path, such as `"training.lr"` or `"rl_module.model_config.hiddens"`.

        With the name of a section as path, the value is a mapping of its options.

        Raises:
            ValueError: There is no such option, or its value is not allowed.
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
        # The rest of a longer path is the key of a dict.
        option, _, key = option.partition(".")
        method: Callable[..., Self] = getattr(self, name)
        return method(**{option: {key: value} if key else value})

    # -- reading and writing ---

    # Options are found by name alone at run time, but not by type checkers: with a `__getattr__` they would accept
    # every name, also a misspelt section or method.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "replay":
                source = "data that are there already" if self.is_offline else "what it has just collected"
                raise ValueError(f"{self.algorithm} has no replay section: it learns from {source}")
            # `__dict__`, because copying and unpickling ask for attributes before there are sections.
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
        """Return the options that differ from the defaults, as text. `to_dict()` has all options."""
        changed = [f"{path}={value!r}" for path, value, is_default in self._paths() if not is_default]
        return f"{type(self).__name__}({', '.join(changed)})"

    def describe(self, *, all_options: bool = False) -> str:
        """Return one line `section.option = value` for each option.

        Args:
            all_options: Whether options with their default value are shown as well.
        """
        lines = [f"{path} = {value!r}" for path, value, is_default in self._paths() if all_options or not is_default]
        return "\n".join([type(self).__name__, *lines])

    def _paths(self) -> Iterator[tuple[str, Any, bool]]:
        """Yield the path of each option, its value, and whether that is the default."""
        default = type(self)().sections
        for name, section in self.sections.items():
            for option, value in section.options().items():
                yield f"{name}.{option}", value, value == getattr(default[name], option)

    @classmethod
    def of_algorithm(cls, algorithm: str) -> BaseConfig:
        """Return a configuration of the algorithm with this name, with the defaults.

        Capital letters and hyphens are accepted: "PPO" and "QR-DQN" are "ppo" and "qrdqn".

        Raises:
            ValueError: There is no such algorithm; the message suggests the closest.
        """
        known = _algorithms()
        if algorithm not in known:
            # Its file may not be imported yet.
            load_library()
            known = _algorithms()
        if algorithm not in known:
            by_spelling = {_bare_spelling(name): name for name in known}
            bare = _bare_spelling(algorithm)
            if bare not in by_spelling:
                raise ValueError(f"unknown algorithm {algorithm!r}; {suggestion(algorithm.lower(), known)}")
            algorithm = by_spelling[bare]
        return known[algorithm]()

    @classmethod
    def overrides(cls, **training: object) -> dict[str, Any]:
        """Return training options for one module, for `rl_module(algorithm_config_overrides_per_module={id: ...})`.

        Raises:
            ValueError: The algorithm has no such option, or the value is not allowed.
        """
        cls.training_class().overridden(training)
        return training

    def copy(self) -> Self:
        """Return an independent, unfrozen copy."""
        new = type(self)()
        new.join_sections({name: section.copy() for name, section in self.sections.items()})
        return new

    def with_sections(self, **sections: Any) -> Self:
        """Return a configuration in which some sections are replaced. The values of options are shared, not copied.

        So a built environment or network is still the user's object, and not a copy of it.
        """
        new = type(self)()
        new.join_sections({name: replace(section) for name, section in {**self.sections, **sections}.items()})
        return new

    def freeze(self) -> Self:
        """Freeze the configuration with its sections, dicts and lists: every later change raises `ValueError`."""
        for section in self.sections.values():
            section.freeze()
        object.__setattr__(self, "sections", MappingProxyType(self.sections))
        object.__setattr__(self, "_frozen", True)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return all options as plain JSON values: `{"algorithm": ..., section: {option: value}}`.

        If options are classes or functions, `"signature"` is the user's signature over their names and arguments, by
        which `update_from_dict` recognises the user's own files. Objects of the running script are named
        `__main__:Class`, and `"script"` holds their sources, `{name: {"file": ..., "text": ...}}`.

        Raises:
            ValueError: The value of an option cannot be written.
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
        # The sources are only for readers, so the signature does not cover them.
        return {**signed(out), SCRIPT: sources} if sources else signed(out)

    def script_objects(self) -> list[Any]:
        """Return the classes and functions among the options that are defined in the running script.

        A configuration from a file has names (text) for such objects, unless they were handed in.
        """
        objects: list[Any] = []
        for section in self.sections.values():
            objects.extend(script_objects(section.options()))
        return objects

    def to_json(self, path: str | Path | None = None) -> str:
        """Return `to_dict` as JSON text, and write it to the file `path` if one is given."""
        text = json.dumps(self.to_dict(), indent=2)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def update_from_dict(
        self, data: Mapping[str, Any], *, trust: bool = False, file: str | Path = "the configuration"
    ) -> Self:
        """Set options from a nested dict `{section: {option: value}}`, as read from a file.

        Args:
            data: The result of `to_dict`, or a part of it.
            trust: Whether all objects that it names are accepted. Otherwise only classes of the kind that their options
                expect are, unless this user has signed the names.
            file: File of the dict, for messages and for the signatures next to it.

        Raises:
            UntrustedError: An object needs `trust=True`. The message names the object and its option.
            ValueError: A section or option is unknown, a value is not allowed, or the dict is of another algorithm. The
                message names the file.
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
        """Set the options of `update_from_dict`."""
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
        """Return `to_dict()`, with names for an environment or recorded data that cannot be written.

        Functions of several agents that have no name are left out. A user who resumes the run passes them again.
        """
        try:
            return self.to_dict()
        except ValueError:
            pass  # an option cannot be written
        changed = self.copy()
        env = self.environment.env
        data = self.offline_data.input_
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
        """Check that the options of each section fit together. Every `build_...` method calls this.

        Raises:
            ValueError, TypeError: They do not.
        """
        for section in self.sections.values():
            section.validate()
            # The steps of the first updates. At these, a function of `progress_remaining` has values that are refused.
            section.check_schedules((1, self.training.train_batch_size))
        check_configured_optimizer(self.training)

    # -- methods that an algorithm may override ---

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """Return the default network's configuration with the fields that the algorithm and its exploration add."""
        section = self.env_runners
        if section.exploration == "noisy":
            sigma = section.exploration_config.get("sigma", NOISY_SIGMA)
            return replace(model_config, noisy_sigma=sigma)
        if section.exploration == "gsde":
            log_std_init = section.exploration_config.get("log_std_init", LOG_STD_INIT)
            return replace(model_config, gsde_log_std_init=log_std_init)
        return model_config

    @property
    def explores_by(self) -> str | None:
        """Kind of exploration: the configured one, or else the algorithm's. None samples the policy's distribution."""
        if self.env_runners.exploration is not None:
            return self.env_runners.exploration
        # An algorithm declares its exploration by the option for it.
        if hasattr(self.training, "epsilon"):
            return "epsilon"
        if hasattr(self.training, "exploration_noise"):
            return "normal"
        if getattr(self.training, "noise_repeat", 1) > 1:
            return "repeated"
        return None

    def exploration(self, module: RLModule) -> Exploration | None:
        """Return the exploration of a module during collection. None samples the module's distribution."""
        kind = self.explores_by
        if kind is None:
            return None
        if kind == "repeated":
            return RepeatedNoise(module.action_dist_cls, self.training.noise_repeat)  # type: ignore[attr-defined]
        defaults = {name: getattr(self.training, name, None) for name in ("epsilon", "exploration_noise")}
        return make_exploration(kind, self.env_runners.exploration_config, module, **defaults)

    def check_actions(self, action_space: gym.Space[Any]) -> None:
        """Raise `ValueError` for an action space in which the default networks or the exploration cannot act."""
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
        """Return recorded data in the form that the algorithm learns from."""
        return buffer

    # -- modules, spaces, environments ---

    def module_specs(self) -> dict[str, RLModuleSpec | RLModule]:
        """Return the spec of each module, or the built network, by module id.

        A policy without a spec of its own has `rl_module.rl_module_spec`.

        Raises:
            ValueError: One built network would have to serve several policies.
        """
        spec = self.rl_module.rl_module_spec
        policies = self.multi_agent.policies
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
        """Return the spaces of all modules, each as a dict by module id, or None if a spec lacks its own spaces.

        The spaces in the spec of a single agent's module stand for those of the environment, unless these are
        configured or connectors change them.
        """
        section = self.environment
        are_configured = section.observation_space is not None and section.action_space is not None
        if not self._modules_are_named and (are_configured or self._connectors_change_spaces):
            return None
        pairs = {mid: (spec.observation_space, spec.action_space) for mid, spec in self.module_specs().items()}
        if any(None in pair for pair in pairs.values()):
            return None
        return split_spaces(pairs)

    @property
    def _connectors_change_spaces(self) -> bool:
        """Whether connectors may give a module other spaces than those of the environment."""
        runners = self.env_runners
        are_configured = runners.env_to_module_connector is not None or runners.module_to_env_connector is not None
        return are_configured or self.environment.frame_stack > 1

    def training_of(self, module_id: str) -> TrainingSection[Any]:
        """Return the training options of a module: its own, or the common ones.

        Raises:
            ValueError: An own option is not allowed; the message begins with its path.
        """
        overrides = self.rl_module.algorithm_config_overrides_per_module.get(module_id)
        if overrides is None:
            return self.training
        try:
            return self.training.overridden(overrides)
        except (TypeError, ValueError) as error:
            path = f"rl_module.algorithm_config_overrides_per_module[{module_id!r}]"
            raise type(error)(f"{path}: {error}") from None

    @property
    def symmetries(self) -> list[Callable[..., Any]]:
        """Functions of the symmetries of all modules."""
        module_ids = self.rl_module.algorithm_config_overrides_per_module
        sections = [self.training, *map(self.training_of, module_ids)]
        return [section.symmetry for section in sections if section.symmetry is not None]

    @property
    def symmetric_modules(self) -> list[str]:
        """Ids of the modules that act by the mean of both images of an observation."""
        return [module_id for module_id, spec in self.module_specs().items() if self.acts_symmetrically(spec)]

    def acts_symmetrically(self, spec: RLModuleSpec | RLModule) -> bool:
        """Return whether a spec is that of a network of Lockstep with the option `symmetric`."""
        if spec.is_built:
            return getattr(spec, "action_mirror", None) is not None
        if spec.module_class is not None and not issubclass(spec.module_class, DefaultActorCriticModule):
            return False  # another class may have an option of this name with another meaning
        model_config = self.rl_module.model_config if spec.model_config is None else spec.model_config
        return bool(options_of(model_config).get("symmetric", False))

    @property
    def parts_of_networks(self) -> tuple[str, ...]:
        """Parts of the networks that may have a group of observations."""
        learner_class: Any = self.training.learner_class or self.learner_class
        intrinsic = () if self.training.intrinsic_reward is None else (INTRINSIC,)
        return (*learner_class.observed_by, *intrinsic)

    @property
    def parts_without_network(self) -> list[str]:
        """Parts that have a group of observations, and that the algorithm does not have."""
        all_groups = [self.rl_module.observation_groups or {}]
        all_groups += [getattr(spec, "observation_groups", None) or {} for spec in self.module_specs().values()]
        named = dict.fromkeys(itertools.chain.from_iterable(all_groups))
        return [part for part in named if part not in self.parts_of_networks]

    @property
    def modules_are_known(self) -> bool:
        """Whether the ids of all modules follow from the configuration alone, without making the environment."""
        return self._modules_are_named or not _may_have_agents(self.environment.env)

    @property
    def _modules_are_named(self) -> bool:
        """Whether the configuration names its modules, so that their specs may have spaces of their own."""
        return self.multi_agent.policies is not None or self.rl_module.specs_by_id() is not None

    def spaces_by_module(self, env: object = None, spaces: Spaces | None = None) -> dict[str, Spaces]:
        """Return the observation and action space of each module: those of its spec, or else of the environment.

        The environment is made only if its spaces are needed.

        Raises:
            KeyError: Spaces are given by module id, and one is missing.
        """
        declared: dict[str, Spaces] = {}
        for module_id, spec in self.module_specs().items():
            # The spec of a single agent's module has no spaces of its own here: connectors may change the
            # environment's.
            declared[module_id] = (None, None)
            if self._modules_are_named:
                declared[module_id] = (spec.observation_space, spec.action_space)
        if not any(None in pair for pair in declared.values()):
            return declared

        environment_spaces = self.find_spaces(env, spaces)
        by_module: dict[str, Spaces] = {}
        for module_id, pair in declared.items():
            completed = []
            for kind, space, environment_space in zip(("observation", "action"), pair, environment_spaces):
                if space is None:
                    space = _space_of_module(kind, environment_space, module_id)
                completed.append(space)
            by_module[module_id] = (completed[0], completed[1])
        return by_module

    def policy_spaces(self, env: object = None, spaces: Spaces | None = None) -> Spaces:
        """Return the observation and action space of a policy. With several agents both are dicts by module id."""
        if not self.is_multi_agent:
            return self.find_spaces(env, spaces)
        return split_spaces(self.spaces_by_module(env, spaces))

    def with_agents(self, env: object = None) -> Self:
        """Return a configuration that names policies, for an environment of several agents.

        Agents with equal spaces share one policy. If all spaces are equal, it is "default_policy". Otherwise a policy
        has the common part of its agents' names ("wolf" for wolf_0 and wolf_1), or the name of its first agent.

        The configuration itself is returned if it names policies already, or if the environment has one agent.
        """
        env = self.environment.env if env is None else env
        if self._modules_are_named or not _may_have_agents(env):
            return self
        agent_spaces = self._agent_spaces(env)
        if agent_spaces is None:
            return self
        mapping = AgentMapping.by_spaces(agent_spaces)
        policies = list(dict.fromkeys(mapping.values()))
        return self.with_sections().multi_agent(policies=policies, policy_mapping_fn=mapping)

    def with_groups_of_environment(self) -> Self:
        """Return a configuration with the observation groups that the environment brings with it.

        They become part of the configuration, so that files of the policy have them: a policy is loaded without its
        environment. The configuration itself is returned if it has groups, or if the environment has none.
        """
        groups = self._groups_of_environment()
        if not groups or self.rl_module.observation_groups is not None:
            return self
        return self.with_sections().rl_module(observation_groups=groups)

    def _groups_of_environment(self) -> dict[str, tuple[str, ...]]:
        """Return the observation groups of a finished environment, such as an `RslRlEnv`; empty if it has none.

        Groups of parts that this algorithm does not have are left out, since the environment was made for any
        algorithm.
        """
        groups = getattr(self.environment.env, "observation_groups", None)
        if not isinstance(groups, Mapping):
            return {}
        return {part: keys for part, keys in checked_groups(groups).items() if part in self.parts_of_networks}

    def agents_with_id(self, env: object = None) -> list[Any] | None:
        """Return the agents in the order of their ids in observations, or None if observations have no agent ids."""
        if not self.multi_agent.agent_id_in_obs:
            return None
        return list(self._agent_spaces(env) or ())

    def _agent_spaces(self, env: object) -> dict[Any, Spaces] | None:
        """Return the observation and action space of each agent, or None for an environment of one agent."""
        with self._agent_adapter(env) as adapter:
            if adapter is None:
                return None
            observation_spaces, action_spaces = adapter.spaces()
        return {agent: (space, action_spaces[agent]) for agent, space in observation_spaces.items()}

    @contextmanager
    def _agent_adapter(self, env: object = None) -> Iterator[AgentEnvAdapter | None]:
        """Context with the adapter of an environment of several agents, or None for an environment of one agent.

        An environment that is made for this is closed at the end.
        """
        env = self.environment.env if env is None else env
        env = named_environment(env) if isinstance(env, str) else env
        if tensor_class(env) is not None:
            yield None
            return
        made = env(**self.environment.env_config) if callable(env) else env
        section = self.multi_agent
        try:
            if is_agent_env(made):
                yield make_adapter(made, agent_ids=section.agent_id_in_obs, critic=section.centralized_critic)
            else:
                yield None
        finally:
            if made is not env and hasattr(made, "close"):
                made.close()

    def spaces_of_agents(self, env: object) -> Spaces | None:
        """Return the spaces by module id for an environment of several agents, or None for any other environment.

        The mapping functions are called for one episode each. If all agents have equal spaces, a module that no agent
        is mapped to has these as well.

        Args:
            env: The environment, or a function that makes it.

        Raises:
            KeyError: An agent is mapped to an unknown module.
            ValueError: Two agents of one module have different spaces.
        """
        if self.multi_agent.policies is None or not _may_have_agents(env):
            return None
        agent_spaces = self._agent_spaces(env)
        if not agent_spaces:
            return None

        mappings = [mapping for _, mapping in stages_of("policy_mapping_fn", self.multi_agent.policy_mapping_fn)]
        episodes = [MultiAgentEpisode(agent_to_module_mapping_fn=mapping) for mapping in mappings]
        module_ids = list(self.module_specs())
        module_spaces: dict[str, Spaces] = {}
        for episode, (agent, pair) in itertools.product(episodes, agent_spaces.items()):
            module_id = episode.module_for(agent)
            if module_id not in module_ids:
                raise KeyError(f"agent {agent!r} is mapped to the module {module_id!r}; there are {sorted(module_ids)}")
            if module_spaces.setdefault(module_id, pair) != pair:
                raise ValueError(
                    f"agent {agent!r} of module {module_id!r} has the spaces {pair}, another agent of it "
                    f"{module_spaces[module_id]}; map them to different modules"
                )

        first = next(iter(agent_spaces.values()))
        if all(pair == first for pair in agent_spaces.values()):
            module_spaces = dict.fromkeys(module_ids, first) | module_spaces
        return split_spaces(module_spaces)

    def find_spaces(self, env: object = None, spaces: Spaces | None = None) -> Spaces:
        """Return the observation and action space: `spaces`, the configured ones, or those of an environment.

        With several agents whose policies are configured, each is a dict by module id.

        Args:
            env: An environment or a function that makes one, instead of the configured one.
            spaces: Spaces that are known already.
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
            # A built environment is the user's, who may go on with it.
            if isinstance(chosen, str) or callable(chosen):
                boundary.close()

    def make_envs(self, num_envs: int, env: object = None, **env_config: object) -> VectorBoundary:
        """Make the configured vector environment, or one of `env`.

        Args:
            num_envs: Number of environments. A built environment stays as it is.
            env: An id, a class, a function or a built environment, instead of the configured one.
            env_config: Keywords of the environment, in addition to the configured ones.
        """
        section = self.environment
        runners = self.env_runners
        chosen: Any = section.env if env is None else env
        if not isinstance(chosen, str) and not callable(chosen):
            return make_vector(chosen, num_envs=1, mode="auto", step_timeout=runners.step_timeout)

        options = {**section.env_config, **env_config}
        made_by = tensor_class(chosen)
        if isinstance(made_by, type) and issubclass(made_by, TensorEnv):
            options = {"device": self.framework.device, **options}
        # Only environments in processes of their own can be restarted.
        restarts = self.fault_tolerance.env_limits if runners.vectorize_mode == "async" else None
        return make_vector(
            chosen,
            num_envs=num_envs,
            mode=runners.vectorize_mode,
            env_config=options or None,
            step_timeout=runners.step_timeout,
            restarts=restarts,
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
        """Build an empty replay buffer, with a sub-buffer for each environment.

        An offline algorithm has no section `replay`, and gets a buffer with the defaults.

        Args:
            num_envs: Number of environments that write into the buffer.
            seed: Seed of its random numbers. Defaults to one derived from the configuration's seed.
            gamma: Discount of its n-step returns. Defaults to the configuration's.
            module_id: Module that learns from the buffer. A network with memory gets sequences.
            connectors: Connectors of the observations. Of stacked frames each frame is stored once, and stacks are put
                together when they are read.
        """
        section: ReplaySection = self.replay if self.is_off_policy else ReplaySection()
        spec = self.module_specs().get(module_id, RLModuleSpec())
        if seed is None:
            seed = RandomStreams(self.debugging.seed).seed("replay")
        if gamma is None:
            gamma = self.training.gamma
        num_frames = 1 if connectors is None else connectors.num_frames
        hindsight = self.build_hindsight() if section.her else None
        return ReplayBuilder(section, is_off_policy=self.is_off_policy).build(
            num_envs,
            seed=seed,
            gamma=gamma,
            remembers=self.rl_module.remembers(spec),
            num_frames=num_frames,
            hindsight=hindsight,
        )

    def build_replay_buffers(self, agents: Mapping[str, Sequence[Any]], num_envs: int) -> MultiAgentReplayBuffer:
        """Build an empty replay buffer for each module, with a sub-buffer for each of its agents in each environment.

        Args:
            agents: Agents of each module.
            num_envs: Number of environments.
        """
        seeds = RandomStreams(self.debugging.seed).child("replay")
        overrides = self.rl_module.algorithm_config_overrides_per_module

        def build(module_id: str, number: int) -> ReplayBuffer:
            """Build the buffer of a module with `number` sub-buffers."""
            gamma = overrides.get(module_id, {}).get("gamma")
            return self.build_replay_buffer(number, seeds.seed(module_id), gamma, module_id)

        return MultiAgentReplayBuffer(agents, num_envs, build)

    def build_replay(self, policy: object, collector: CollectorLike) -> ReplayBuffer | MultiAgentReplayBuffer:
        """Build the empty replay buffer that a collector writes into.

        With one agent it has a sub-buffer for each environment. With several agents there is a buffer for each module.

        Args:
            policy: The policy of the collector.
            collector: The collector.
        """
        if collector.agents_of_modules:
            return self.build_replay_buffers(collector.agents_of_modules, collector.num_envs)
        return self.build_replay_buffer(collector.num_envs, connectors=sole_part(policy).connectors)

    def build_hindsight(self) -> Hindsight:
        """Build the relabelling of goals, with the environment's `compute_reward`.

        Raises:
            ValueError: The environment has no `compute_reward`.
        """
        return ReplayBuilder(self.replay, is_off_policy=self.is_off_policy).build_hindsight(self.environment)

    # -- learners ---

    def build_learner(
        self, env: object = None, spaces: Spaces | None = None, reducer: Reducer | None = None
    ) -> Learner:
        """Build a learner in this process.

        Args:
            env: An environment or a function that makes one, instead of the configured one.
            spaces: `(observation space, action space)`. Defaults to those of the environment.
            reducer: Sums over the learners, if this is one of several that act as one. Each is built from the same
                configuration.
        """
        if spaces is not None and not (isinstance(spaces, tuple | list) and len(spaces) == 2):
            raise TypeError(f"spaces={spaces!r}; give (observation space, action space)")
        config = self
        if self.environment.env is None and env is None and spaces is None:
            self.rl_module.validate()
            spaces = self.declared_spaces()
        if self.environment.env is None and (env is not None or spaces is not None):
            # The checks below need an environment or spaces in the configuration.
            changes = {"env": env} if spaces is None else dict(zip(("observation_space", "action_space"), spaces))
            config = self.with_sections(environment=replace(self.environment, **changes))
        config = config.with_groups_of_environment()
        config.validate()
        return config._build_learner(env, spaces, reducer)

    def _build_learner(self, env: object, spaces: Spaces | None, reducer: Reducer | None) -> Learner:
        """Build a learner from a configuration that is checked and has an environment or spaces."""
        self.set_num_threads()
        streams = RandomStreams(self.debugging.seed)
        connectors, modules = self._build_modules(self.spaces_by_module(env, spaces), streams)
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
        self, spaces: Mapping[str, Spaces], streams: RandomStreams
    ) -> tuple[dict[str, ModuleConnectors], dict[str, RLModule]]:
        """Return the connectors and the network of each module, by id."""
        specs = self.module_specs()
        is_single = list(specs) == [DEFAULT_MODULE_ID]
        groups = self._groups_of_environment()
        if groups and self.rl_module.observation_groups not in (None, groups):
            warnings.warn(
                f"rl_module.observation_groups={self.rl_module.observation_groups} is used, and the environment's "
                f"{groups} are not",
                stacklevel=2,
            )
        connectors = {}
        modules = {}
        for module_id, (observation_space, action_space) in spaces.items():
            connectors[module_id], module_spaces = self.build_connectors(observation_space, action_space, module_id)
            # Several modules have different initial weights, and none depends on the number of the others.
            module_streams = streams if is_single else streams.child(module_id)
            modules[module_id] = self.build_module(specs[module_id], *module_spaces, module_streams)
        return connectors, modules

    def build_learner_group(
        self,
        env: object = None,
        spaces: Spaces | None = None,
        rl_module_spec: RLModuleSpec | RLModule | MultiRLModuleSpec | MultiRLModule | None = None,
    ) -> LearnerGroup:
        """Build the group of learners, in this process or in others, each from this configuration.

        Args:
            env: An environment or a function that makes one, instead of the configured one.
            spaces: `(observation space, action space)`. Defaults to those of the environment.
            rl_module_spec: Spec or network, instead of the configured one.

        Raises:
            ImportError: Learners in other processes need Ray, which is not installed.
        """
        if rl_module_spec is not None:
            return self.copy().rl_module(rl_module_spec=rl_module_spec).build_learner_group(env, spaces)
        section = self.learners
        if section.num_learners == 0:
            return LearnerGroup(self.build_learner(env, spaces), section)
        self.validate()
        if self._connectors_change_spaces or self.symmetries:
            # So that an error of the user's connectors and functions is raised here, and not in another process.
            for module_id, pair in self.spaces_by_module(env, spaces).items():
                self.build_connectors(*pair, module_id)
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
        """Number of processors that learners, env runners and this process together ask of a cluster."""
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
        """Build a network, see `ModuleBuilder.build`. Its initial weights depend only on the seed of `streams`."""
        builder = ModuleBuilder(
            self.rl_module,
            algorithm=self.algorithm,
            observation_groups=self.rl_module.observation_groups,
            module_class=self.module_class,
            has_central_state=bool(self.multi_agent.centralized_critic),
            has_intrinsic_reward=self.training.intrinsic_reward is not None,
            complete_model_config=self.complete_model_config,
        )
        return builder.build(spec, observation_space, action_space, streams)

    def build_connectors(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        module_id: str = DEFAULT_MODULE_ID,
        *,
        spec: RLModuleSpec | RLModule | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> tuple[ModuleConnectors, Spaces]:
        """Return the transforms around a network, and the network's observation and action space.

        Args:
            observation_space: Observation space of the environment.
            action_space: Action space of the environment.
            module_id: Id of the network, whose training options may have a symmetry of its own.
            spec: Spec of the network. Defaults to the configured one.
            overrides: Training options of the network. Defaults to the configured ones.

        Raises:
            TypeError: An option that should give connectors gives something else.
            ValueError: Connectors do not fit together, cannot take the spaces, or the algorithm cannot act in the
                action space. Or the function of a symmetry is not a mirror.
        """
        if spec is None:
            spec = self.module_specs().get(module_id, RLModuleSpec())
        training = self.training_of(module_id) if overrides is None else self.training.overridden(overrides)
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
            has_central_state=bool(self.multi_agent.centralized_critic) and has_state(observation_space),
            symmetry=training.symmetry,
            acts_symmetrically=self.acts_symmetrically(spec),
            compares_images=training.symmetry_loss_coeff > 0,
            augments=training.symmetry_augmentation,
        )
        connectors, module_spaces = builder.build(observation_space, action_space)
        self.check_actions(module_spaces[1])
        return connectors, module_spaces

    def build_acting_parts(
        self, spaces: Spaces, module_id: str = DEFAULT_MODULE_ID
    ) -> tuple[RLModule, ModuleConnectors]:
        """Build a network and its transforms for acting, in the shape of a learner's, whose weights they take."""
        connectors, module_spaces = self.build_connectors(*spaces, module_id)
        # A copy, because a built network is the learner's.
        spec = copy.deepcopy(self.module_specs()[module_id])
        module = self.build_module(spec, *module_spaces, RandomStreams(self.debugging.seed))
        module.acting_connectors = connectors.acting_names
        return module.to(getattr(torch, self.framework.dtype)), connectors

    def set_num_threads(self) -> None:
        """Set the number of torch's threads in this process: `framework.num_threads`, or one."""
        num_threads = self.framework.num_threads or 1
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # Sections are pickled without their configuration.
        self.__dict__.update(state)
        self.join_sections(self.sections)

    def join_sections(self, sections: Mapping[str, Section]) -> None:
        """Make these the sections of this configuration."""
        # Bypasses `__setattr__`, which sets options. As attributes, the sections are found without `__getattr__`.
        object.__setattr__(self, "sections", {name: section.join(self) for name, section in sections.items()})
        self.__dict__.update(self.sections)

    def _check_not_frozen(self) -> None:
        """Raise `ValueError` if the configuration is frozen."""
        if self.__dict__.get("_frozen"):
            raise ValueError(FROZEN)

    def _advice(self, option: str, section: str) -> str:
        """Return the suggestions for an unknown option of a section.

        Options of the section that other libraries call so come first, then options of other sections with the name or
        such a meaning, then options of the section with a similar name.
        """
        names = [option, *EQUIVALENT_NAMES.get(option, "").split()]
        known = {name: list(each.options()) for name, each in self.sections.items()}
        in_section = [name for name in names if name in known[section]]
        in_others = [f"{other}.{name}" for other, name in itertools.product(known, names) if name in known[other]]
        return suggestion(option, sorted(known[section]), elsewhere=in_section or in_others, most=3)

    def _all_names(self) -> list[str]:
        """Return the names of all options, sections and methods."""
        methods = [name for name in dir(type(self)) if not name.startswith("_")]
        return [*self._all_options(), *self.__dict__.get("sections", {}), *methods]

    def _all_options(self) -> list[str]:
        """Return the names of the options of all sections."""
        names: list[str] = []
        for section in self.__dict__.get("sections", {}).values():
            names.extend(section.options())
        return names

    @staticmethod
    def _suggest(name: str, known: list[str]) -> str:
        """Return the end of a message about an unknown name, with the closest of the known ones."""
        elsewhere = [other for other in EQUIVALENT_NAMES.get(name, "").split() if other in known]
        return f"; {suggestion(name, sorted(known), elsewhere=elsewhere, most=3)}"


def split_spaces(spaces: Mapping[str, Spaces]) -> Spaces:
    """Return the observation spaces and the action spaces by module id, from pairs of both by module id."""
    observation_spaces = {module_id: pair[0] for module_id, pair in spaces.items()}
    action_spaces = {module_id: pair[1] for module_id, pair in spaces.items()}
    return observation_spaces, action_spaces


def _space_of_module(kind: str, space: object, module_id: str) -> Any:
    """Return the space of a module, from one space for all modules or a dict by module id.

    Raises:
        KeyError: The dict has no space for the module.
    """
    if type(space) is not dict:  # not `isinstance`, because a Dict space is a mapping as well
        return space
    if module_id not in space:
        raise KeyError(f"no {kind} space for module {module_id!r}; there are some for {sorted(space)}")
    return space[module_id]


def _may_have_agents(env: object) -> bool:
    """Return whether `env` may be or make an environment of several agents, without making it."""
    if env is None or (isinstance(env, str) and ":" not in env and not is_module_name(env)):
        return False
    return callable(env) or isinstance(env, str) or is_agent_env(env)


def _bare_spelling(algorithm: str) -> str:
    """Return an algorithm's name in small letters, without hyphens, underscores and spaces."""
    return re.sub(r"[-_ ]", "", algorithm.lower())


def _algorithms() -> dict[str, type[BaseConfig]]:
    """Return the imported configuration classes by the name of their algorithm."""
    return {each.__dict__["algorithm"]: each for each in _subclasses(BaseConfig) if "algorithm" in vars(each)}


def _subclasses(base: type[BaseConfig]) -> Iterator[type[BaseConfig]]:
    """Yield all direct and indirect subclasses."""
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)
