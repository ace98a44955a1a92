"""The sections of a configuration that the learner reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack

from lockstep.data.agent_steps import AgentID
from lockstep.modules import (
    DEFAULT_MODULE_ID,
    DefaultActorCriticModule,
    DefaultTD3Module,
    RecurrentActorCriticModule,
    RLModuleSpec,
    check_module_id,
)
from lockstep.modules.model_config import ModelConfig
from lockstep.options.checks import suggestion
from lockstep.options.restarts import RestartLimits
from lockstep.options.schedules import ScheduleLike, stages_of
from lockstep.options.section import ConfigT, Section, option

if TYPE_CHECKING:
    from lockstep.learner.typed import (
        FaultToleranceOptions,
        FrameworkOptions,
        LearnersOptions,
        MultiAgentOptions,
        ResourcesOptions,
        TrainingOptions,
    )

Policies = list[str] | dict[str, RLModuleSpec | None]
CONFIGURED_MODULES = (DefaultActorCriticModule, DefaultTD3Module, RecurrentActorCriticModule)
"""modules that are configured by a `ModelConfig`; a network of your own may have a dict of its own"""
GradClipBy = Literal["value", "norm", "global_norm"]
NanPolicy = Literal["skip", "stop", "zero"]


@dataclass
class TrainingSection(Section[ConfigT]):
    """What every update needs; an algorithm's own section adds its coefficients."""

    name = "training"

    lr: ScheduleLike = option(3e-4, ge=0, finite=True)
    """learning rate: a number, `[[0, v0], [t1, v1], ...]` over sampled environment steps, or a function of them"""
    gamma: float = option(0.99, ge=0, le=1)
    """discount"""
    train_batch_size: int = option(2048, ge=1)
    """environment steps in one update, over all learners"""
    minibatch_size: int | Literal["auto"] | None = option(None, ge=1)
    """rows in one gradient step (sequences, where the module has memory), over all learners; `None`: the whole batch;
    "auto": 64 rows, or 8 sequences"""
    num_epochs: int = option(1, ge=1)
    """passes over the batch in one update"""
    shuffle_batch_per_epoch: bool = True
    """a new permutation for each pass"""
    grad_clip: float | None = option(None, gt=0)
    """the limit of gradients, measured as `grad_clip_by` says; `None`: off"""
    grad_clip_by: GradClipBy = "global_norm"
    """clip each element, each tensor's norm, or the norm of all gradients of one optimizer"""
    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] | Callable[..., Any] = "adam"
    """of all parameters, critics and temperatures too; a function or class `f([flat_tensor], lr=..., **kwargs)` that
    returns a `torch.optim.Optimizer`, which treats each element by itself"""
    optimizer_kwargs: dict[str, Any] = option(factory=dict)
    """its further settings by torch's names: `betas`, `momentum`, `weight_decay`, ..."""
    adam_epsilon: float = option(1e-8, gt=0)
    """epsilon of Adam and AdamW"""
    nan_policy: NanPolicy = "skip"
    """a gradient that is not finite: leave the parameters untouched and count it, raise, or set it to zero"""
    learner_class: type | None = None
    """a subclass of the algorithm's learner"""
    learner_config_dict: dict[str, Any] = option(factory=dict)
    """free-form settings for a learner of your own"""
    learner_connector: Callable[..., Any] | None = None
    """`f(observation_space, action_space)` returns a `Connector` or a list of them, which turn train columns (a dict of
    tensors) into those that are learned from"""
    intrinsic_reward: Literal["rnd"] | Callable[..., Any] | None = None
    """a reward for new observations: "rnd", or `f(observation_space)` that returns a module whose outputs `[N]` for
    observations `[N, ...]` are errors that it learns to make small"""
    intrinsic_coeff: float = option(1.0, ge=0)
    """what it is multiplied with, in units of the errors' running deviation"""

    of_whole_update: ClassVar[frozenset[str]] = frozenset(
        (
            "train_batch_size",
            "minibatch_size",
            "num_epochs",
            "shuffle_batch_per_epoch",
            "learner_class",
            "learner_connector",
        )
    )
    """options that hold for an update of all modules together, so that no module can have its own"""

    def __call__(self, **options: Unpack[TrainingOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def overridden(self, overrides: TrainingSection | Mapping[str, Any]) -> Self:
        """Return a copy with options of one module; `ValueError` for unknown ones, with "did you mean"."""
        if isinstance(overrides, type(self)):
            overrides.validate()
            return overrides
        if not isinstance(overrides, Mapping):
            raise TypeError(
                f"overrides for one module must be a dict of training options or a training section, not {overrides!r}"
            )
        known = [option.name for option in fields(self)]
        for name in overrides:
            if name not in known:
                raise ValueError(f"training has no option {name!r} to override for a module; {suggestion(name, known)}")
            if name in self.of_whole_update:
                raise ValueError(
                    f"training.{name} holds for the whole update, and cannot be overridden for one module; set it with "
                    f"training({name}=...). A module may have its own "
                    f"{', '.join(option for option in known if option not in self.of_whole_update)}"
                )
        changed = replace(self, **overrides)
        changed.validate()
        return changed

    def validate(self) -> None:
        """Refuse a minibatch that is larger than the batch."""
        if isinstance(self.minibatch_size, int) and self.minibatch_size > self.train_batch_size:
            raise ValueError(
                f"training.minibatch_size={self.minibatch_size} is larger than "
                f"training.train_batch_size={self.train_batch_size}; make the minibatch at most the batch"
            )


@dataclass
class SampledTraining(TrainingSection[ConfigT]):
    """Options of an update in which each gradient step takes a fresh sample, from a replay buffer or from data."""

    train_batch_size: int = 256
    """transitions in one gradient step, over all learners"""

    def validate(self) -> None:
        """Refuse passes and minibatches."""
        super().validate()
        for name, value, allowed in (
            ("minibatch_size", None, "None (use train_batch_size)"),
            ("num_epochs", 1, "1 (each gradient step draws a new sample; use replay.update_per_step)"),
        ):
            if getattr(self, name) != value:
                raise ValueError(f"training.{name}={getattr(self, name)!r} is not allowed; it must be {allowed}")


@dataclass
class LearnersSection(Section[ConfigT]):
    """Where learners run."""

    name = "learners"

    num_learners: int = option(0, ge=0)
    """0: one learner in this process; n: n processes (needs the extra `ray`)"""
    num_cpus_per_learner: int = option(1, ge=0)
    """processors that Ray keeps free for each learner"""
    num_gpus_per_learner: int = option(0, ge=0)
    """the same of GPUs"""
    custom_resources_per_learner: dict[str, float] = option(factory=dict, ge=0)
    """other resources of a cluster that each learner takes, by name"""
    max_requests_in_flight_per_learner: int = option(3, ge=1)
    """asynchronous updates that may be under way; beyond them a call waits, or its batch is dropped"""
    never_skip_update: bool = False
    """an empty update raises instead of being counted as skipped"""
    learner_timeout_s: float = option(300.0, gt=0)
    """seconds that one call on learners in other processes may take; after that they count as hanging"""

    def __call__(self, **options: Unpack[LearnersOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


@dataclass
class ResourcesSection(Section[ConfigT]):
    """What the main process of a run takes of a cluster."""

    name = "resources"

    num_cpus_for_main_process: int = option(1, ge=0)
    """processors that Ray keeps free for this process"""
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """how workers are laid over the nodes: together or apart, as a wish or as a must"""
    ray_address: str | None = None
    """of a running Ray cluster that learners and env runners join ("auto": the one of this machine); `None`: Ray is
    started on this machine where it is needed"""

    def __call__(self, **options: Unpack[ResourcesOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


@dataclass
class FaultToleranceSection(Section[ConfigT]):
    """How often what died, hangs or raises is started again, before the run ends with its error.

    The limits of a run count all learners together (all env runners, all environments of a vector); the limit within
    a time counts each learner, env runner or vector of environments by itself.
    """

    name = "fault_tolerance"

    max_learner_restarts: int = option(10, ge=0)
    """of learners in other processes, in a run; 0: never"""
    restart_failed_env_runners: bool = True
    """env runners in other processes"""
    max_env_runner_restarts: int = option(10, ge=0)
    """of env runners in other processes, in a run"""
    restart_failed_envs: bool = True
    """environments in processes of their own"""
    max_env_restarts: int = option(10, ge=0)
    """of environments in processes of their own, in a run; of each vector"""
    max_restarts_in_window: int = option(1, ge=0)
    """of the same learner, env runner or vector of environments within `restart_window_s`"""
    restart_window_s: float = option(60.0, gt=0)
    """seconds"""
    num_standby_processes: int = option(0, ge=0)
    """processes that wait to take the place of a lost learner, and as many for lost env runners: it need not wait for
    one to start. Not for those that have a GPU"""

    def __call__(self, **options: Unpack[FaultToleranceOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    @property
    def learner_limits(self) -> RestartLimits:
        """For learners in other processes."""
        return RestartLimits(self.max_learner_restarts, self.max_restarts_in_window, self.restart_window_s)

    @property
    def env_runner_limits(self) -> RestartLimits:
        """For env runners; none are allowed where `restart_failed_env_runners=False`."""
        in_run = self.max_env_runner_restarts if self.restart_failed_env_runners else 0
        return RestartLimits(in_run, self.max_restarts_in_window, self.restart_window_s)

    @property
    def env_limits(self) -> RestartLimits:
        """For environments; none are allowed where `restart_failed_envs=False`."""
        in_run = self.max_env_restarts if self.restart_failed_envs else 0
        return RestartLimits(in_run, self.max_restarts_in_window, self.restart_window_s)


@dataclass
class FrameworkSection(Section[ConfigT]):
    """How the arithmetic is done."""

    name = "framework"

    compile: bool | Literal["auto"] = "auto"
    """compile the whole gradient step; "auto": on the CPU, for runs of about a minute or more, in which it saves more
    time than a first start waits for the compiler. The code is kept for later runs"""
    compile_after: int = option(0, ge=0)
    """gradient steps before compiled code takes over, on the CPU: the same number whether or not the code was kept, so
    that the same seed gives the same bits; a run that comes to it earlier than the code waits"""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ... as torch names it"""
    dtype: Literal["float32", "float64"] = "float32"
    """of parameters, losses and optimizers"""
    mixed_precision: bool = False
    """networks compute in bfloat16 while learning; parameters, losses and optimizers stay in float32"""
    fused_losses: bool = True
    """compute losses in one kernel where there is one for the same numbers (PPO on the CPU)"""
    num_threads: int | None = option(None, ge=1)
    """threads of torch in this process; `None`: 1, which is fastest for small networks"""

    def __call__(self, framework: str | None = None, **options: Unpack[FrameworkOptions]) -> ConfigT:
        """Set options; return the configuration.

        `framework` is RLlib's word, and "torch" its only value here. `ValueError` for another.
        """
        if framework not in (None, "torch"):
            raise ValueError(
                f"framework={framework!r} is not allowed; Lockstep has 'torch' alone. What it computes on is "
                "framework(device=...)"
            )
        return self.change(options)

    def validate(self) -> None:
        """Raises `ValueError` naming the option."""
        kind, colon, number = self.device.lower().partition(":")
        if kind == "gpu":
            raise ValueError(
                f"framework.device={self.device!r} is not allowed; did you mean 'cuda{colon}{number}'? It is torch's "
                "name for a GPU; others are 'mps' and 'cpu'"
            )
        if self.mixed_precision and self.dtype != "float32":
            raise ValueError(
                f"framework.mixed_precision=True needs framework.dtype='float32', not {self.dtype!r}; switch one off"
            )


class AgentMapping(Mapping[Any, str]):
    """Agent id -> module id, as the function that `policy_mapping_fn` is; unlike a function it can be written to JSON.

    `KeyError` for an agent that it does not name.
    """

    def __init__(self, modules: Mapping[Any, str]) -> None:
        self._modules = dict(modules)

    @classmethod
    def by_spaces(cls, spaces: Mapping[Any, Any]) -> AgentMapping:
        """Return the mapping where agents with equal `spaces` share a module.

        Where all are equal it is "default_policy"; else each has the name that its agents have in common ("wolf" of
        wolf_0 and wolf_1), or that of its first agent.
        """
        kinds: list[tuple[Any, list[Any]]] = []
        for agent, pair in spaces.items():
            agents = next((agents for known, agents in kinds if known == pair), None)
            if agents is None:
                kinds.append((pair, [agent]))
            else:
                agents.append(agent)
        names = [_common_name(agents) for _, agents in kinds]
        modules: dict[Any, str] = {}
        for name, (_, agents) in zip(names, kinds):
            module_id = name if name and names.count(name) == 1 else str(agents[0])
            modules |= dict.fromkeys(agents, DEFAULT_MODULE_ID if len(kinds) == 1 else check_module_id(module_id))
        return cls(modules)

    def __call__(self, agent: object, episode: object = None) -> str:
        """Return the agent's module id; read from JSON, where all keys are text, an agent is found by its text."""
        if agent in self._modules:
            return self._modules[agent]
        if str(agent) in self._modules:
            return self._modules[str(agent)]
        raise KeyError(f"agent {agent!r} has no policy: multi_agent.policy_mapping_fn names {list(self._modules)}")

    def __getitem__(self, agent: AgentID) -> str:
        return self._modules[agent]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __repr__(self) -> str:
        return repr(self._modules)


def _common_name(agents: Collection[Any]) -> str:
    """Return what the names of agents have in common from the first letter on, without a number at its end."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*map(str, agents)))
    return "".join(letters[0] for letters in same).rstrip("0123456789_- ")


PolicyMapping = Callable[..., str] | Mapping[Any, str] | Sequence[Any] | None
"""What `multi_agent(policy_mapping_fn=)` takes: a function, a dict of agent -> module id, or stages of these."""
PoliciesToTrain = Collection[Any] | Callable[..., bool] | None
"""What `multi_agent(policies_to_train=)` takes: module ids, a function, or stages of these; None: all modules."""


@dataclass
class MultiAgentSection(Section[ConfigT]):
    """Who learns what."""

    name = "multi_agent"

    policies: Any = None
    """module ids, or `{module_id: RLModuleSpec}` (its fields as a dict, or None: the default module); `None`: as
    `rl_module_spec` says, one module for a single agent"""
    policy_mapping_fn: Callable[..., str] | Mapping[Any, str] | Sequence[Any] | None = None
    """`f(agent_id, episode) -> module id`, or a dict of agent id -> module id; `None`: every agent has the module
    "default_policy"; `[[0, f], [step, g]]`: others for the episodes that begin after so many environment steps (an
    episode keeps its own)"""
    policies_to_train: Collection[Any] | Callable[..., bool] | None = None
    """module ids that learn, or `f(module_id)` or `f(module_id, batch) -> bool` (`batch`: None for episodes); `None`:
    all; `[[0, ids], [step, others]]`: others after so many environment steps"""
    centralized_critic: Literal["state", "observations"] | bool = False
    """what the value functions see besides their agent's observation, in training only: the environment's `state()`, or
    all agents' observations; `True`: the state where there is one (MAPPO; `False`: IPPO)"""
    agent_id_in_obs: bool = False
    """observations get the agent's number, one-hot, so that agents who share a module can act differently"""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """what `train_batch_size` counts where there are several agents"""
    reward_metric: Callable[..., Any] | None = None
    """`f(returns[episode, agent]) -> [episode]`: what a trainer takes for the return of an episode; `None`: the sum
    over agents"""

    def __call__(self, **options: Unpack[MultiAgentOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def prepare(self, name: str, value: object) -> Any:
        """Bring `policies` into one form; a dict that maps agents becomes a function."""
        if name == "policy_mapping_fn":
            return mapping_in_one_form(value)
        return policies_in_one_form(value) if name == "policies" else value

    def validate(self) -> None:
        """Refuse what cannot say who learns."""
        for _, allowed in stages_of("multi_agent.policies_to_train", self.policies_to_train):
            check_policies_to_train(allowed)


def mapping_in_one_form(mapping: object) -> Any:
    """Return `multi_agent(policy_mapping_fn=)` with an `AgentMapping` in the place of a dict.

    `TypeError` for what is no mapping, nor a schedule of some.
    """
    stages = [
        [step, AgentMapping(value) if isinstance(value, Mapping) else value]
        for step, value in stages_of("multi_agent.policy_mapping_fn", mapping)
    ]
    for _, value in stages:
        if value is not None and not callable(value):
            raise TypeError(
                f"policy_mapping_fn={value!r} is not allowed; it must be a function (agent_id, episode) -> module id, "
                "a dict of agent id -> module id, [[0, function], [step, function], ...], or None"
            )
    return stages if len(stages) > 1 else stages[0][1]


def check_policies_to_train(allowed: object) -> None:
    """Raises `TypeError` unless it is a collection of module ids, a function, or None."""
    if isinstance(allowed, str):
        raise TypeError(f"policies_to_train={allowed!r} is one text; give a list of module ids, e.g. [{allowed!r}]")
    if not (allowed is None or callable(allowed) or isinstance(allowed, Collection)):
        raise TypeError(
            f"policies_to_train={allowed!r}; give a list of module ids, a function (module_id, batch) -> bool, or None"
        )
    if callable(allowed):
        takes_batch(allowed)


def takes_batch(function: Callable[..., Any]) -> bool:
    """Return whether `function` takes (module_id, batch), not (module_id) alone; `TypeError` where neither works."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it does not tell
        return True
    for arguments in (("id", None), ("id",)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise TypeError(f"policies_to_train{signature} must take (module_id), or (module_id, batch)")


def policies_in_one_form(policies: object) -> Policies | None:
    """Return `multi_agent(policies=...)` as a list of ids, or a dict id -> `RLModuleSpec` or None.

    A dict of a spec's fields becomes the spec. Raises `TypeError` for something else, `ValueError` for ids that cannot
    be, and unknown fields.
    """
    if policies is None:
        return None
    if isinstance(policies, str) or not isinstance(policies, Collection):
        raise TypeError(
            f"multi_agent.policies={policies!r}; give a list of module ids, or a dict {{module_id: RLModuleSpec}}"
        )
    for module_id in policies:
        check_module_id(module_id)
    if isinstance(policies, Mapping):
        return {module_id: checked_spec(module_id, spec) for module_id, spec in policies.items()}
    return sorted(policies) if isinstance(policies, set | frozenset) else list(policies)


def checked_spec(module_id: str, spec: object) -> RLModuleSpec | None:
    """Return the spec of one module, of which a dict may have the fields; `TypeError` for something else."""
    if spec is None or isinstance(spec, RLModuleSpec):
        return spec
    if not isinstance(spec, Mapping):
        raise TypeError(
            f"multi_agent.policies[{module_id!r}] is a {type(spec).__name__}; give an RLModuleSpec, a dict of its "
            "fields, or None for the default module"
        )
    known = [item.name for item in fields(RLModuleSpec)]
    unknown = sorted(set(spec) - set(known))
    if unknown:
        raise ValueError(f"multi_agent.policies[{module_id!r}] has {unknown}; an RLModuleSpec has {known}")
    options = dict(spec)
    if options.get("model_config") is not None and options.get("module_class") in (None, *CONFIGURED_MODULES):
        options["model_config"] = ModelConfig.of(options["model_config"])
    return RLModuleSpec(**options)
