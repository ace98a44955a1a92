"""`AlgorithmConfig`: joins the sections of a configuration. Each part of the library receives only its own section."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lockstep.algorithms.asynchronous import check_asynchronous, collects_while_learning
from lockstep.algorithms.build import (
    build_collector,
    build_env_runner_group,
    build_learner,
    build_learners,
    build_policy,
)
from lockstep.algorithms.module_specs import (
    check_multi_agent,
    check_off_policy,
    check_offline,
    module_specs,
)
from lockstep.algorithms.offline import open_data
from lockstep.algorithms.plain_values import from_plain, to_plain
from lockstep.data.config import OfflineDataSection
from lockstep.envs.config import EnvironmentSection
from lockstep.learner.config import (
    FaultToleranceSection,
    FrameworkSection,
    LearnersSection,
    MultiAgentSection,
    ResourcesSection,
    TrainingSection,
)
from lockstep.learner.group import LearnerGroup
from lockstep.learner.learner import Learner
from lockstep.learner.reduction import Reducer
from lockstep.modules import DEFAULT_MODULE_ID, Exploration, RLModule, default_module_class
from lockstep.modules.config import RLModuleSection
from lockstep.modules.model_config import ModelConfig
from lockstep.replay.config import ReplaySection
from lockstep.rollout import EnvRunnerGroup
from lockstep.rollout.config import EnvRunnersSection, EvaluationSection
from lockstep.state.checks import suggestion
from lockstep.state.options import FROZEN
from lockstep.tracking.config import CallbacksSection, CheckpointingSection, DebuggingSection, ReportingSection

Section = Any

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
    "n_eval_episodes": "evaluation_episodes",
    "evaluation_duration": "evaluation_episodes",
    "normalize_actions": "rescale_actions",
    "max_num_env_runner_restarts": "max_env_runner_restarts",
    "restart_failed_sub_environments": "restart_failed_envs",
}
"""name of an option in other libraries -> its names here, of which an algorithm has one"""


class AlgorithmConfig:
    """A typed configuration with one section for each concern; section methods chain.

    Options are read as attributes (`config.lr`), set by section methods (`config.training(lr=1e-3)`) or by
    assignment; an unknown name raises with "did you mean". `copy()`, `freeze()`, `==`, `to_dict()`, `to_json()`,
    `describe()`; printed, it shows only what differs from the defaults.
    """

    algorithm: ClassVar[str] = ""
    learner_class: ClassVar[type[Learner]] = Learner
    training_class: ClassVar[type[TrainingSection]] = TrainingSection
    is_off_policy: ClassVar[bool] = False
    """does it learn from a replay buffer? Then there is a section `replay`"""
    is_offline: ClassVar[bool] = False
    """does it learn from data that are there already, without an environment?"""
    squashes_actions: ClassVar[bool] = False
    """does its default network act in [-1, 1]? Then actions are rescaled to the bounds of a Box"""
    can_prioritize: ClassVar[bool] = True
    """does its loss leave errors of rows for the priorities?"""
    first_values: ClassVar[tuple[str, ...]] = ()
    """training options that shape networks or begin a state which checkpoints hold: a run keeps them"""
    is_asynchronous: ClassVar[bool] = False
    """does it learn from what older policies did? Then env runners in other processes collect while it learns"""
    trainer_factory: ClassVar[Callable[..., Any] | None] = None
    """set by the trainer's floor, which stands above this one"""

    def __init__(self) -> None:
        sections: dict[str, Section] = {
            "environment": EnvironmentSection(),
            "env_runners": EnvRunnersSection(),
            "learners": LearnersSection(),
            "resources": ResourcesSection(),
            "rl_module": RLModuleSection(),
            "training": self.training_class(),
            "multi_agent": MultiAgentSection(),
            "evaluation": EvaluationSection(),
            "offline_data": OfflineDataSection(),
            "reporting": ReportingSection(),
            "checkpointing": CheckpointingSection(),
            "debugging": DebuggingSection(),
            "fault_tolerance": FaultToleranceSection(),
            "framework": FrameworkSection(),
            "callbacks": CallbacksSection(),
        }
        if self.is_off_policy:
            sections["replay"] = ReplaySection()
        self._take(sections)
        object.__setattr__(self, "_frozen", False)

    sections: Mapping[str, Section]

    # -- sections ---

    @property
    def environment(self) -> EnvironmentSection[Self]:
        """Which environment."""
        return self._section("environment")

    @property
    def env_runners(self) -> EnvRunnersSection[Self]:
        """How data is collected."""
        return self._section("env_runners")

    @property
    def learners(self) -> LearnersSection[Self]:
        """Where learners run."""
        return self._section("learners")

    @property
    def resources(self) -> ResourcesSection[Self]:
        """What the main process takes of a cluster."""
        return self._section("resources")

    @property
    def rl_module(self) -> RLModuleSection[Self]:
        """Which networks."""
        return self._section("rl_module")

    @property
    def training(self) -> TrainingSection[Self]:
        """The update."""
        return self._section("training")

    @property
    def replay(self) -> ReplaySection[Self]:
        """What is remembered, and how often it is learned from; `ValueError` for an algorithm without a memory."""
        if not self.is_off_policy:
            raise ValueError(f"{self.algorithm} has no replay section: it learns from what it has just collected")
        return self._section("replay")

    @property
    def offline_data(self) -> OfflineDataSection[Self]:
        """What an offline algorithm learns from."""
        return self._section("offline_data")

    @property
    def multi_agent(self) -> MultiAgentSection[Self]:
        """Which modules there are, whose steps go where, who learns."""
        return self._section("multi_agent")

    @property
    def evaluation(self) -> EvaluationSection[Self]:
        """Evaluation."""
        return self._section("evaluation")

    @property
    def reporting(self) -> ReportingSection[Self]:
        """Length of the run and loggers."""
        return self._section("reporting")

    @property
    def checkpointing(self) -> CheckpointingSection[Self]:
        """Checkpoints."""
        return self._section("checkpointing")

    @property
    def debugging(self) -> DebuggingSection[Self]:
        """Seeds."""
        return self._section("debugging")

    @property
    def fault_tolerance(self) -> FaultToleranceSection[Self]:
        """How often what failed is started again."""
        return self._section("fault_tolerance")

    @property
    def framework(self) -> FrameworkSection[Self]:
        """Compile, device, threads."""
        return self._section("framework")

    @property
    def callbacks(self) -> CallbacksSection[Self]:
        """Who watches the run."""
        return self._section("callbacks")

    @property
    def max_lag(self) -> int:
        """How many updates a fragment may be behind the learner; 0 where the algorithm has no such option."""
        return getattr(self.training, "max_lag", 0)

    def _section(self, name: str) -> Any:
        return self.__dict__["sections"][name]

    @property
    def is_multi_agent(self) -> bool:
        """Are there policies of agents, or other modules than the one of a single agent?"""
        return self.multi_agent.policies is not None or list(module_specs(self)) != [DEFAULT_MODULE_ID]

    def set_section(self, name: str, options: Mapping[str, Any]) -> Self:
        """Sets options of one section; unknown names raise `ValueError` with a suggestion."""
        self._check_not_frozen()
        section = self.sections[name]
        known = section.options()
        for option in options:
            if option not in known:
                raise ValueError(f"{name} has no option {option!r}; {self._meant(option, name)}")
        section.set_options(options)
        return self

    def set_path(self, path: str, value: Any) -> Self:
        """Sets one option by its path, `"training.lr"` or `"rl_module.model_config.hiddens"`."""
        name, _, option = path.partition(".")
        if name not in self.sections or not option:
            hint = self._suggest(name, list(self.sections))
            raise ValueError(f"unknown option {path!r}{hint}; write section.option, e.g. training.lr")
        option, _, inner = option.partition(".")
        method: Callable[..., Self] = getattr(self, name)
        return method(**{option: {inner: value} if inner else value})

    # -- reading and writing ---

    if not TYPE_CHECKING:  # type checkers know options by their full paths only

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                for section in self.__dict__.get("sections", {}).values():
                    if name in section.__dict__:
                        return section.__dict__[name]
            raise AttributeError(
                f"{type(self).__name__} has no option {name!r}{self._suggest(name, self._all_names())}"
            )

    def __setattr__(self, name: str, value: Any) -> None:
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
        """Only what differs from the defaults; `to_dict()` has all."""
        default = type(self)().sections
        changed = [
            f"{name}.{f.name}={getattr(section, f.name)!r}"
            for name, section in self.sections.items()
            for f in fields(section)
            if getattr(section, f.name) != getattr(default[name], f.name)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def describe(self, *, all_options: bool = False) -> str:
        """A line `section.option = value` for each option that differs from its default, or for all of them."""
        default = type(self)().sections
        lines = [
            f"{name}.{f.name} = {getattr(section, f.name)!r}"
            for name, section in self.sections.items()
            for f in fields(section)
            if all_options or getattr(section, f.name) != getattr(default[name], f.name)
        ]
        return "\n".join([type(self).__name__, *lines])

    @classmethod
    def overrides(cls, **training: Any) -> dict[str, Any]:
        """Training options for one module, for `rl_module(algorithm_config_overrides_per_module={id: ...})`.

        Raises `ValueError` for names and values that the algorithm does not have.
        """
        cls.training_class().overridden(training)
        return training

    def copy(self) -> Self:
        """An independent, unfrozen copy."""
        new = type(self)()
        new._take({name: section.copy() for name, section in self.sections.items()})
        return new

    def with_sections(self, **sections: Any) -> Self:
        """Return a configuration with other sections in place of some, and the very objects that are options here."""
        new = type(self)()
        new._take({name: replace(section) for name, section in {**self.sections, **sections}.items()})
        return new

    def freeze(self) -> Self:
        """From now on setting anything raises `ValueError`, in its sections too and in dicts and lists of options."""
        for section in self.sections.values():
            section.freeze()
        object.__setattr__(self, "sections", MappingProxyType(self.sections))
        object.__setattr__(self, "_frozen", True)
        return self

    def to_dict(self) -> dict[str, Any]:
        """All options as plain JSON values: `{"algorithm": ..., section: {option: value}}`."""
        out: dict[str, Any] = {"algorithm": self.algorithm}
        for name, section in self.sections.items():
            out[name] = {f.name: to_plain(f"{name}.{f.name}", getattr(section, f.name)) for f in fields(section)}
        return out

    def to_json(self, path: str | Path | None = None) -> str:
        """`to_dict` as JSON text, written to `path` if given."""
        text = json.dumps(self.to_dict(), indent=2)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    def update_from_dict(self, data: Mapping[str, Any]) -> Self:
        """Sets the options of a nested dict `{section: {option: value}}`, as read from a file."""
        for name, options in data.items():
            if name == "algorithm":
                if options != self.algorithm:
                    raise ValueError(f"the configuration is for {options!r}, this one for {self.algorithm!r}")
                continue
            if name not in self.sections or not isinstance(options, Mapping):
                raise ValueError(f"unknown section {name!r}{self._suggest(name, list(self.sections))}")
            getattr(self, name)(**{key: from_plain(value) for key, value in options.items()})
        return self

    # -- checks and builds ---

    def validate(self) -> None:
        """Refuses mistakes within and across sections; every build calls it. Raises `ValueError`."""
        for section in self.sections.values():
            section.validate()
            section.check_schedules((1, self.training.train_batch_size))
        check_multi_agent(self)
        if self.evaluation.epsilon and not hasattr(self.training, "epsilon"):
            raise ValueError(
                f"evaluation.epsilon={self.evaluation.epsilon} is not allowed for {self.algorithm}, which "
                "has no action values; evaluation(evaluation_explore=True) draws from its policy"
            )
        if collects_while_learning(self):
            check_asynchronous(self)
        if not self.learners.num_learners and self.framework_device_missing():  # others have devices of their own
            raise ValueError(f"framework.device={self.framework.device!r} is not there; torch sees no such device")
        if self.learners.num_gpus_per_learner and not self.framework.device.startswith("cuda"):
            raise ValueError(
                f"learners.num_gpus_per_learner={self.learners.num_gpus_per_learner}, but "
                f"framework.device={self.framework.device!r}; "
                "set framework(device='cuda'), or num_gpus_per_learner=0"
            )
        for module_id, overrides in self.rl_module.algorithm_config_overrides_per_module.items():
            try:
                self.training.overridden(overrides)
            except (TypeError, ValueError) as error:
                where = f"rl_module.algorithm_config_overrides_per_module[{module_id!r}]"
                raise type(error)(f"{where}: {error}") from None
        if self.is_offline:
            check_offline(self)
            return
        if self.is_off_policy:
            check_off_policy(self)
            return
        batch, envs = self.training.train_batch_size, self.env_runners.num_envs
        if batch < envs:
            raise ValueError(
                f"training.train_batch_size={batch} is smaller than env_runners.num_envs_per_env_runner={envs}; "
                "one update needs at least one step of every environment"
            )

    def default_module_class(self, model_config: Any) -> type[RLModule]:
        """The class of the network where none is configured."""
        return default_module_class(model_config)

    def complete_model_config(self, model_config: ModelConfig) -> ModelConfig:
        """What the algorithm adds to the configuration of its default network."""
        return model_config

    def exploration(self, action_space: Any) -> Exploration | None:
        """How actions are drawn while collecting; None: from the policy's own distribution."""
        return None

    def process_buffer(self, buffer: Any) -> Any:
        """Offline data as the algorithm wants them; an algorithm that wants them otherwise overrides this."""
        return buffer

    def framework_device_missing(self) -> bool:
        """Is the device one that torch cannot see?"""
        import torch

        try:
            kind = torch.device(self.framework.device).type
        except RuntimeError:
            return True
        return (kind == "cuda" and not torch.cuda.is_available()) or (
            kind == "mps" and not torch.backends.mps.is_available()
        )

    def build_learner(
        self, env: Any = None, spaces: tuple[Any, Any] | None = None, reducer: Reducer | None = None
    ) -> Learner:
        """A built learner in this process. `spaces`: (observation, action); else they are asked of the environment.

        With a `reducer` it is one of several learners that act as one; each is built from the same configuration.
        """
        return build_learner(self, env, spaces, reducer)

    def build_learner_group(
        self, env: Any = None, spaces: tuple[Any, Any] | None = None, rl_module_spec: Any = None
    ) -> LearnerGroup:
        """The group of learners. `rl_module_spec` takes the place of the configured one."""
        if rl_module_spec is not None:
            return self.copy().rl_module(rl_module_spec=rl_module_spec).build_learner_group(env, spaces)
        section = self.learners
        return LearnerGroup(
            build_learners(self, env, spaces) if section.num_learners else self.build_learner(env, spaces), section
        )

    def build_policy(self, env: Any = None, spaces: tuple[Any, Any] | None = None) -> Any:
        """A policy that acts and learns; of several agents a `MultiAgentPolicy`."""
        return build_policy(self, env, spaces)

    def build_offline_data(self) -> Any:
        """The data that `offline_data(input_=...)` names, see `open_data`. `ValueError` where it names none."""
        return open_data(self.offline_data)

    def build_collector(self, policy: Any = None) -> Any:
        """The collector of training data, on environments of its own."""
        return build_collector(self, policy or self.build_policy())

    def build_env_runner_group(
        self, spaces: tuple[Any, Any] | None = None, *, with_logp: bool = False
    ) -> EnvRunnerGroup:
        """Env runners that sample together; `with_logp`: fragments say how likely each action was when it was taken."""
        return build_env_runner_group(self, spaces, with_logp=with_logp)

    def build_trainer(self, **options: Any) -> Any:
        """The trainer with its policy, collectors, evaluation and (with `folder=`) the run's files."""
        factory = type(self).trainer_factory
        if factory is None:
            raise RuntimeError("import lockstep before building a trainer; only its lower floors are loaded")
        return factory(self, **options)

    # -- inside ---

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._take(self.sections)

    def _take(self, sections: Mapping[str, Section]) -> None:
        object.__setattr__(self, "sections", {name: section.join(self) for name, section in sections.items()})

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
        return [f.name for section in self.__dict__.get("sections", {}).values() for f in fields(section)]

    @staticmethod
    def _suggest(name: str, known: list[str]) -> str:
        elsewhere = [other for other in ELSEWHERE.get(name, "").split() if other in known]
        return f"; {suggestion(name, sorted(known), elsewhere=elsewhere, most=3)}"
