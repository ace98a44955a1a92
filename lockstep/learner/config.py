"""Sections of a configuration that describe learners: training, devices, resources, restarts, several agents."""

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
"""Module classes whose `model_config` is a `ModelConfig`. A network of your own may have any dict instead."""
GradClipBy = Literal["value", "norm", "global_norm"]
NanPolicy = Literal["skip", "stop", "zero"]


@dataclass
class TrainingSection(Section[ConfigT]):
    """Options of every update. The section of an algorithm adds its own coefficients."""

    name = "training"

    lr: ScheduleLike = option(3e-4, ge=0, finite=True)
    """Learning rate: a number, a function of the number of sampled environment steps, or points
    `[[0, v0], [t1, v1], ...]` over it, which are joined by straight lines."""
    gamma: float = option(0.99, ge=0, le=1)
    """Discount factor of the return."""
    train_batch_size: int = option(2048, ge=1)
    """Number of environment steps in one update, over all learners."""
    minibatch_size: int | Literal["auto"] | None = option(None, ge=1)
    """Number of rows in one gradient step, over all learners; for a module with memory, the number of sequences. `None`
    takes the whole batch, "auto" takes 64 rows or 8 sequences."""
    num_epochs: int = option(1, ge=1)
    """Number of passes over the batch in one update."""
    shuffle_batch_per_epoch: bool = True
    """Shuffle the rows again before each pass."""
    grad_clip: float | None = option(None, gt=0)
    """Limit above which gradients are clipped, measured as in `grad_clip_by`. `None` switches clipping off."""
    grad_clip_by: GradClipBy = "global_norm"
    """Quantity that `grad_clip` limits: each element ("value"), the norm of each tensor ("norm"), or the norm of all
    gradients of one optimizer ("global_norm")."""
    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] | Callable[..., Any] = "adam"
    """Optimizer of all parameters: of policies, value functions (critics) and entropy coefficients (temperatures). It
    may also be a function or class `f([flat_tensor], lr=..., **kwargs)` that returns a `torch.optim.Optimizer`; this
    optimizer has to treat each element of a tensor independently of the others."""
    optimizer_kwargs: dict[str, Any] = option(factory=dict)
    """Further settings of the optimizer by their names in torch: `betas`, `momentum`, `weight_decay`, ..."""
    adam_epsilon: float = option(1e-8, gt=0)
    """Epsilon of Adam and AdamW, which is added to the denominator of a step."""
    nan_policy: NanPolicy = "skip"
    """Action on a gradient that is not finite: count it and leave the parameters as they are ("skip"), raise an error
    ("stop"), or set its bad elements to zero ("zero")."""
    learner_class: type | None = None
    """Subclass of the algorithm's learner, to be used instead of it."""
    learner_config_dict: dict[str, Any] = option(factory=dict)
    """Settings for a learner of your own, in any form."""
    learner_connector: Callable[..., Any] | None = None
    """Function `f(observation_space, action_space)` that returns a `Connector` or a list of connectors. They transform
    the columns of a train batch (a dict of tensors) before the loss reads them."""
    intrinsic_reward: Literal["rnd"] | Callable[..., Any] | None = None
    """Additional reward for new observations: "rnd", or a function `f(observation_space)` that returns a module. The
    module maps observations `[N, ...]` to errors `[N]`, and is trained to make them small."""
    intrinsic_coeff: float = option(1.0, ge=0)
    """Coefficient of the intrinsic reward, which is measured in running standard deviations of the errors."""

    symmetry: Callable[..., Any] | None = None
    """Function `f(observations, actions)` that returns both in mirror image, for a task that is the same in a mirror
    (Mittal et al. 2024). It gets trees of tensors `[N, ...]`: observations as the environment gives them, and actions
    as the environment takes them. Applied twice it must return what it was given."""
    symmetry_augmentation: bool = True
    """Learn from each row and from its mirror image, in the same gradient step. Needs `symmetry`."""
    symmetry_loss_coeff: float = option(0.0, ge=0, finite=True)
    """Weight of the mean squared difference between the policy's mean action for a mirrored observation and the
    mirrored mean action. Needs `symmetry`. With 0 the difference is a metric only."""

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
    """Options of the whole update, in which all modules are trained together. A single module cannot override them."""

    def __call__(self, **options: Unpack[TrainingOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def overridden(self, overrides: TrainingSection | Mapping[str, Any]) -> Self:
        """Return a copy of the section with the overrides of one module; `ValueError` for an unknown option."""
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

    @property
    def return_bound(self) -> float | None:
        """Bound of the discounted returns, to which rewards are scaled. None: rewards are not bounded."""
        return None

    def validate(self) -> None:
        """Check that the minibatch is not larger than the batch, and the symmetry; `ValueError` otherwise."""
        if isinstance(self.minibatch_size, int) and self.minibatch_size > self.train_batch_size:
            raise ValueError(
                f"training.minibatch_size={self.minibatch_size} is larger than "
                f"training.train_batch_size={self.train_batch_size}; make the minibatch at most the batch"
            )
        if self.symmetry_loss_coeff > 0 and self.symmetry is None:
            raise ValueError(
                f"training.symmetry_loss_coeff={self.symmetry_loss_coeff} needs the mirror image of observations and "
                "actions; set training(symmetry=f), or leave it out"
            )


@dataclass
class SampledTraining(TrainingSection[ConfigT]):
    """Options of an update in which each gradient step samples rows from a replay buffer or from recorded data."""

    train_batch_size: int = 256
    """Number of transitions in one gradient step, over all learners."""

    def validate(self) -> None:
        """Check that `minibatch_size` and `num_epochs` have their defaults; `ValueError` otherwise.

        Each gradient step draws its own sample, so there is no batch to divide or to pass over.
        """
        super().validate()
        for name, value, allowed in (
            ("minibatch_size", None, "None (use train_batch_size)"),
            ("num_epochs", 1, "1 (each gradient step draws a new sample; use replay.update_per_step)"),
        ):
            if getattr(self, name) != value:
                raise ValueError(f"training.{name}={getattr(self, name)!r} is not allowed; it must be {allowed}")


@dataclass
class LearnersSection(Section[ConfigT]):
    """Number of learners, their processes and their resources."""

    name = "learners"

    num_learners: int = option(0, ge=0)
    """Number of learner processes, which need the extra `ray`. 0: one learner in this process."""
    num_cpus_per_learner: int = option(1, ge=0)
    """Number of processors that Ray reserves for each learner."""
    num_gpus_per_learner: int = option(0, ge=0)
    """Number of GPUs that Ray reserves for each learner."""
    custom_resources_per_learner: dict[str, float] = option(factory=dict, ge=0)
    """Other resources of a cluster that Ray reserves for each learner, by name."""
    max_requests_in_flight_per_learner: int = option(3, ge=1)
    """Number of asynchronous updates that may wait or run. A further call waits, or with `on_full="drop"` the oldest
    waiting batch is dropped."""
    never_skip_update: bool = False
    """Raise an error for an update without data. By default it is counted as skipped."""
    learner_timeout_s: float = option(300.0, gt=0)
    """Time limit in seconds of one call on learners in other processes. After that they count as hanging."""

    def __call__(self, **options: Unpack[LearnersOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


@dataclass
class ResourcesSection(Section[ConfigT]):
    """Resources of a cluster that the main process of a run takes, and the address of the cluster."""

    name = "resources"

    num_cpus_for_main_process: int = option(1, ge=0)
    """Number of processors that Ray reserves for this process."""
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """Placement of workers on the nodes of the cluster: on few nodes ("PACK") or on many ("SPREAD") if possible, or
    strictly on one node or on different ones."""
    ray_address: str | None = None
    """Address of a running Ray cluster that learners and env runners join ("auto": the one of this machine). `None`
    starts Ray on this machine when it is needed."""

    def __call__(self, **options: Unpack[ResourcesOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


@dataclass
class FaultToleranceSection(Section[ConfigT]):
    """Limits on how often learners, env runners and environments that failed are started again.

    A failure is an exit, a hang or an exception. Beyond a limit the run ends with the error.

    The limits of a run count the restarts of all learners together, of all env runners together, and of all
    environments in a vector together. The limit within a time window counts each learner, env runner or vector of
    environments separately.
    """

    name = "fault_tolerance"

    max_learner_restarts: int = option(10, ge=0)
    """Largest number of restarts of learners in other processes, in a run. 0: they are not restarted."""
    restart_failed_env_runners: bool = True
    """Restart failed env runners in other processes."""
    max_env_runner_restarts: int = option(10, ge=0)
    """Largest number of restarts of env runners in other processes, in a run."""
    restart_failed_envs: bool = True
    """Restart failed environments that run in their own processes."""
    max_env_restarts: int = option(10, ge=0)
    """Largest number of restarts of environments that run in their own processes, in a run, for each vector."""
    max_restarts_in_window: int = option(1, ge=0)
    """Largest number of restarts of one learner, env runner or vector of environments within `restart_window_s`."""
    restart_window_s: float = option(60.0, gt=0)
    """Length of the time window of `max_restarts_in_window`, in seconds."""
    num_standby_processes: int = option(0, ge=0)
    """Number of standby processes for lost learners, and the same number for lost env runners. A standby process takes
    over at once, where a new one would first have to start. There are none for learners and env runners with a GPU."""

    def __call__(self, **options: Unpack[FaultToleranceOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    @property
    def learner_limits(self) -> RestartLimits:
        """Restart limits of learners in other processes."""
        return RestartLimits(self.max_learner_restarts, self.max_restarts_in_window, self.restart_window_s)

    @property
    def env_runner_limits(self) -> RestartLimits:
        """Restart limits of env runners; no restarts with `restart_failed_env_runners=False`."""
        in_run = self.max_env_runner_restarts if self.restart_failed_env_runners else 0
        return RestartLimits(in_run, self.max_restarts_in_window, self.restart_window_s)

    @property
    def env_limits(self) -> RestartLimits:
        """Restart limits of environments; no restarts with `restart_failed_envs=False`."""
        in_run = self.max_env_restarts if self.restart_failed_envs else 0
        return RestartLimits(in_run, self.max_restarts_in_window, self.restart_window_s)


@dataclass
class FrameworkSection(Section[ConfigT]):
    """Device, number format, threads and compilation of the computation."""

    name = "framework"

    compile: bool | Literal["auto"] = "auto"
    """Compile the whole gradient step. "auto" compiles on the CPU if the run is long enough (about a minute) to save
    more time than the compiler takes. The code is kept for later runs."""
    compile_after: int = option(0, ge=0)
    """Number of eager gradient steps on the CPU before compiled code takes over. These steps are eager even if an
    earlier run has left its code, so that the same seed always gives the same bits. If the code is not ready by then,
    the run waits."""
    device: str = "cpu"
    """Device of the networks, by its name in torch: cpu, cuda, cuda:1, mps, ..."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number format of parameters, losses and optimizers."""
    mixed_precision: bool = False
    """Let networks compute in bfloat16 while learning. Parameters, losses and optimizers stay in float32.

    Some processors are slower in bfloat16 than in float32.
    """
    fused_losses: bool = True
    """Compute a loss in one kernel if there is a kernel that gives the same results (PPO on the CPU)."""
    num_threads: int | None = option(None, ge=1)
    """Number of torch's threads in this process. Defaults to 1, which is fastest for small networks."""

    def __call__(self, framework: str | None = None, **options: Unpack[FrameworkOptions]) -> ConfigT:
        """Set options; return the configuration.

        `framework` is an option of RLlib; only "torch" is allowed here, and other values raise `ValueError`.
        """
        if framework not in (None, "torch"):
            raise ValueError(
                f"framework={framework!r} is not allowed; Lockstep has 'torch' alone. Set the device "
                "with framework(device=...)"
            )
        return self.change(options)

    def validate(self) -> None:
        """Check device and number formats; `ValueError` naming the option."""
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
    """Mapping of agent ids to module ids that can be called like a `policy_mapping_fn`, and written to JSON.

    A call with an agent that is not in the mapping raises `KeyError`.
    """

    def __init__(self, modules: Mapping[Any, str]) -> None:
        self._modules = dict(modules)

    @classmethod
    def by_spaces(cls, spaces: Mapping[Any, Any]) -> AgentMapping:
        """Return the mapping in which agents with equal `spaces` share a module.

        If all agents share one, it is "default_policy". Otherwise each module has the name that its agents have in
        common ("wolf" of wolf_0 and wolf_1), or the name of its first agent.
        """
        # Spaces can be compared, but not hashed.
        groups: list[tuple[Any, list[Any]]] = []
        for agent, agent_spaces in spaces.items():
            agents = next((agents for known, agents in groups if known == agent_spaces), None)
            if agents is None:
                groups.append((agent_spaces, [agent]))
            else:
                agents.append(agent)
        if len(groups) == 1:
            return cls(dict.fromkeys(groups[0][1], DEFAULT_MODULE_ID))

        names = [_common_name(agents) for _, agents in groups]
        modules: dict[Any, str] = {}
        for name, (_, agents) in zip(names, groups):
            is_unique = name and names.count(name) == 1
            module_id = check_module_id(name if is_unique else str(agents[0]))
            modules |= dict.fromkeys(agents, module_id)
        return cls(modules)

    def __call__(self, agent: object, episode: object = None) -> str:
        """Return the agent's module id. In JSON all keys are text, so an agent is looked up by its text as well."""
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
    """Return the longest common beginning of the agents' names, without a number at its end."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*map(str, agents)))
    return "".join(letters[0] for letters in same).rstrip("0123456789_- ")


PolicyMapping = Callable[..., str] | Mapping[Any, str] | Sequence[Any] | None
"""Values of `multi_agent(policy_mapping_fn=)`: a function, a dict of agent -> module id, or stages of these."""
PoliciesToTrain = Collection[Any] | Callable[..., bool] | None
"""Values of `multi_agent(policies_to_train=)`: module ids, a function, or stages of these; None for all modules."""


@dataclass
class MultiAgentSection(Section[ConfigT]):
    """Modules of several agents, and which of the modules learn."""

    name = "multi_agent"

    policies: Any = None
    """Module ids, or a dict `{module_id: RLModuleSpec}`. In the dict a spec may also be a dict of its fields, or None
    for the default module. `None` takes the modules of `rl_module_spec`, one module for a single agent."""
    policy_mapping_fn: Callable[..., str] | Mapping[Any, str] | Sequence[Any] | None = None
    """Function `f(agent_id, episode) -> module id`, or a dict of agent id -> module id. `None` gives every agent the
    module "default_policy". `[[0, f], [step, g]]` changes the mapping for episodes that begin after so many environment
    steps; an episode keeps the mapping that it began with."""
    policies_to_train: Collection[Any] | Callable[..., bool] | None = None
    """Ids of the modules that learn, or a function `f(module_id) -> bool` or `f(module_id, batch) -> bool`, where
    `batch` is None if the data are episodes. `None` trains all modules. `[[0, ids], [step, other_ids]]` changes the
    modules after so many environment steps."""
    centralized_critic: Literal["state", "observations"] | bool = False
    """Additional input of the value functions, in training only: the environment's `state()`, or the observations of
    all agents. `True` takes the state if the environment has one. PPO with such a critic is known as
    MAPPO, and PPO without it as IPPO."""
    agent_id_in_obs: bool = False
    """Append the agent's number to its observations, one-hot, so that agents with a common module can act
    differently."""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """Unit of `train_batch_size` with several agents: steps of the environment, or steps of agents."""
    reward_metric: Callable[..., Any] | None = None
    """Function that a trainer computes the returns of episodes with, from those of their agents: it maps an array
    `[episodes, agents]` to `[episodes]`. `None` sums over agents."""

    def __call__(self, **options: Unpack[MultiAgentOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def prepare(self, name: str, value: object) -> Any:
        """Return the value of an option in the form in which it is stored. `Section.change` calls it for each option.

        `policies` becomes a list or a dict of specs, and a dict in `policy_mapping_fn` an `AgentMapping`.
        """
        if name == "policy_mapping_fn":
            return mapping_in_one_form(value)
        return policies_in_one_form(value) if name == "policies" else value

    def validate(self) -> None:
        """Check `policies_to_train`; `TypeError` or `ValueError` otherwise."""
        for _, allowed in stages_of("multi_agent.policies_to_train", self.policies_to_train):
            check_policies_to_train(allowed)


def mapping_in_one_form(mapping: object) -> Any:
    """Return `multi_agent(policy_mapping_fn=)` with each dict as an `AgentMapping`.

    Raises `TypeError` for a value that is neither a function, a dict, None, nor a schedule of these.
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
    """Check that `allowed` is a collection of module ids, a function, or None; `TypeError` otherwise."""
    if isinstance(allowed, str):
        raise TypeError(f"policies_to_train={allowed!r} is one text; give a list of module ids, e.g. [{allowed!r}]")
    if not (allowed is None or callable(allowed) or isinstance(allowed, Collection)):
        raise TypeError(
            f"policies_to_train={allowed!r}; give a list of module ids, a function (module_id, batch) -> bool, or None"
        )
    if callable(allowed):
        takes_batch(allowed)


def takes_batch(function: Callable[..., Any]) -> bool:
    """Return whether `function` takes (module_id, batch) rather than (module_id); `TypeError` for other parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in functions have none
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

    A dict of a spec's fields becomes a spec. Raises `TypeError` for other values, `ValueError` for illegal ids and
    unknown fields.
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
    """Return the spec of one module, made from a dict of its fields if it is one; `TypeError` for other values."""
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
