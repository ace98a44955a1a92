"""Options of trainers: each one is a field with its type, its range, its default and its meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, TypeVar

import numpy as np

from lockstep.options.checks import suggestion
from lockstep.options.section import Section, option
from lockstep.replay import ReplayBuffer
from lockstep.rollout import CollectorLike
from lockstep.rollout.base_collector import exactly_one
from lockstep.rollout.errors import MalformedBufferError
from lockstep.tracking import BaseLogger, LazyLogger
from lockstep.tracking.logger import SaveCheckpointFn
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer.callbacks import Callback, check_callbacks

EpochFn = Callable[[int, int], None]


@dataclass(kw_only=True)
class EvaluatorOptions(Section[Any]):
    """Options of `Evaluator`, which all trainers have.

    Options of trainers are sections without a configuration: a trainer makes them of its keywords and reads them once.
    Every wrong value is a `ValueError`, also one of another type.
    """

    test_collector: CollectorLike | None = None
    """Collector that evaluates the policy. Without one there is no evaluation."""
    episode_per_test: int | None = option(None, ge=1)
    """Number of episodes of an evaluation. With a `test_collector`, give this or `step_per_test`."""
    step_per_test: int | None = option(None, ge=1)
    """Number of environment steps of an evaluation, of which the episodes count that end within them."""
    custom_evaluation_function: Callable[[Any, Any], Any] | None = None
    """Called as `custom_evaluation_function(policy, collector)` in place of collecting. It returns `CollectStats`, a
    number (the score), or a dict of numbers with a "score"."""
    evaluation_parallel_to_training: bool = False
    """Evaluate in a thread while the policy is trained. The evaluation of an epoch is then reported at the end of the
    next one. The `test_collector` needs a policy of its own, a copy."""
    test_fn: EpochFn | None = None
    """Called as `test_fn(epoch, env_step)` before each evaluation."""

    def __setattr__(self, name: str, value: object) -> None:
        try:
            super().__setattr__(name, value)
        except TypeError as error:
            raise ValueError(str(error)) from None

    def prepare(self, name: str, value: object) -> Any:
        """Return Python's int for NumPy's; raise `ValueError` for something else than a collector."""
        if name == "test_collector" and value is not None:
            _check_collector(name, value)
        return int(value) if isinstance(value, np.integer) else value


@dataclass(kw_only=True)
class RunOptions(EvaluatorOptions):
    """Options of all trainers."""

    max_epoch: int = option(ge=0)
    """Maximum number of epochs. 0 trains nothing."""
    step_per_epoch: int = option(ge=1)
    """Environment steps of an epoch; gradient steps where nothing is collected."""
    total_steps: int | None = option(None, ge=1)
    """Maximum number of steps. The run ends with the update that reaches them, so its last epoch may be shorter."""
    test_interval: int = option(1, ge=1)
    """Epochs between two evaluations."""
    train_fn: EpochFn | None = None
    """Called as `train_fn(epoch, env_step)` before each collect."""
    stop_fn: Callable[[float], bool] | None = None
    """Called as `stop_fn(score)` after each evaluation. Where it returns True the run ends."""
    compute_score_fn: Callable[[CollectStats], float] | None = None
    """Score of an evaluation, which is compared for the best policy. `None`: the mean return."""
    save_best_fn: Callable[[Any], None] | None = None
    """Called as `save_best_fn(policy)` after each evaluation with a new best score."""
    save_checkpoint_fn: SaveCheckpointFn | None = None
    """Called as `save_checkpoint_fn(epoch, env_step, gradient_step)` every `checkpoint_interval` epochs and at the end
    of the run. It returns the path of what it has written."""
    checkpoint_interval: int = option(1, ge=0)
    """Epochs between two checkpoints. 0 writes none."""
    reward_metric: Callable[[Any], Any] | None = None
    """Return of an episode of several agents: `reward_metric(returns[episode, agent]) -> returns[episode]`. `None`: the
    sum over the agents."""
    logger: BaseLogger | None = None
    """Logger of all records. `None`: nothing is recorded."""
    callbacks: Sequence[Callback] = ()
    """Callbacks that observe the run and may end it."""
    seed: int | None = option(None, ge=0)
    """Seed of all random numbers but the initial weights, as `debugging(seed=)` of a configuration."""
    test_in_train: bool = False
    """Evaluate once more in an epoch whose training return satisfies `stop_fn`."""
    resume_from_log: bool = False
    """Continue from the logger's last save in the first run: from its full checkpoint with everything, else from its
    three counters."""
    verbose: bool = False
    """Print a line for each epoch."""
    show_progress: bool = False
    """Show a live display on a terminal."""
    nan_policy: Literal["stop", "ignore"] = "stop"
    """What happens at a loss that is not finite: "stop" ends the run, "ignore" continues."""

    def prepare(self, name: str, value: object) -> Any:
        """Raise `ValueError` for something else than callbacks or a logger, in words that say what to do."""
        if name == "callbacks":
            check_callbacks(value)
        if name == "logger" and not isinstance(value, BaseLogger | None):
            raise ValueError(f"logger={value!r} is not allowed; it must be a lockstep.tracking.BaseLogger, or None")
        return super().prepare(name, value)

    def validate(self) -> None:
        """Raise `ValueError` where the run is to continue from a logger that keeps nothing."""
        if self.resume_from_log and (self.logger is None or isinstance(self.logger, LazyLogger)):
            raise ValueError("resume_from_log=True needs a logger that keeps records; give that of the earlier run")


@dataclass(kw_only=True)
class CollectOptions(RunOptions):
    """Options of trainers that collect."""

    train_collector: CollectorLike
    """Collector of the data that the policy learns from."""
    step_per_collect: int | None = option(None, ge=1)
    """Environment steps of a collect. Give this or `episode_per_collect`."""
    episode_per_collect: int | None = option(None, ge=1)
    """Whole episodes of a collect. Give this or `step_per_collect`."""

    def prepare(self, name: str, value: object) -> Any:
        """Raise `ValueError` for something else than a collector."""
        if name == "train_collector":
            _check_collector(name, value)
        return super().prepare(name, value)

    def validate(self) -> None:
        """Raise `ValueError` unless exactly one number says how much to collect."""
        super().validate()
        exactly_one(step_per_collect=self.step_per_collect, episode_per_collect=self.episode_per_collect)


@dataclass(kw_only=True)
class OnpolicyOptions(CollectOptions):
    """Options of `OnpolicyTrainer`."""

    batch_size: int | Literal["auto"] | None = option(ge=1)
    """Rows of a minibatch. `None`: the whole rollout at once; "auto": 64 rows, or 8 sequences of networks with
    memory."""
    repeat_per_collect: int = option(ge=1)
    """Passes over each rollout."""


@dataclass(kw_only=True)
class OffpolicyOptions(CollectOptions):
    """Options of `OffpolicyTrainer`."""

    batch_size: int | None = option(ge=1)
    """Transitions of a gradient step. `None`: all of the buffer, each once."""
    update_per_step: float = option(1.0, gt=0, finite=True)
    """Gradient steps for each collected step. A fraction is carried over to the next collect."""
    learning_starts: int = option(0, ge=0)
    """Number of first steps, which take random actions and are not learned from at once."""
    buffer: ReplayBuffer | None = None
    """Transitions to begin with. They go once through `policy.process_buffer`."""

    def prepare(self, name: str, value: object) -> Any:
        """Raise `MalformedBufferError` for something else than a replay buffer."""
        if name == "buffer" and not isinstance(value, ReplayBuffer | None):
            kind = type(value).__name__
            raise MalformedBufferError(f"buffer is a {kind}; give a ReplayBuffer with transitions, or leave it out")
        return super().prepare(name, value)


@dataclass(kw_only=True)
class OfflineOptions(RunOptions):
    """Options of `OfflineTrainer`."""

    buffer: Any
    """Data to learn from: a `ReplayBuffer`, a `SampleBatch`, an `OfflineDataset`, the id of a local Minari dataset or
    the path of a file."""
    batch_size: int | None = option(ge=1)
    """Transitions of a gradient step, sequences for a policy with memory. `None`: all of the data, each once."""


def _check_collector(name: str, value: object) -> None:
    missing = [member for member in _collector_members() if not hasattr(value, member)]
    if "collect" in missing:
        raise ValueError(f"{name}={value!r} is not allowed; it must be a lockstep.Collector")
    if missing:
        raise ValueError(
            f"{name}={value!r} is not allowed; a collector has all members of lockstep.rollout.CollectorLike, and this "
            f"one lacks {', '.join(missing)}. Its base class CollectorTraits would give it the usual answers"
        )


def _collector_members() -> list[str]:
    """Return the names of what a trainer needs of a collector, sorted."""
    return sorted(name for name in {**CollectorLike.__annotations__, **vars(CollectorLike)} if name[0] != "_")


OptionsT = TypeVar("OptionsT", bound=RunOptions)


def options_from(
    trainer: type, kind: type[OptionsT], elsewhere: Mapping[str, str], keywords: Mapping[str, object]
) -> OptionsT:
    """Return the options that a trainer is given as keywords.

    Args:
        trainer: class of the trainer, for messages.
        kind: class of its options.
        elsewhere: options of other trainers, and what this one does instead. They are left out where they are None.
        keywords: options by name.

    Raises:
        TypeError: an option that no trainer has, or one without default that is not given.
        ValueError: an option of another trainer, a wrong value, or options that do not go together.
    """
    given: dict[str, Any] = {}
    for name, value in keywords.items():
        if name in elsewhere:
            if value is not None:
                raise ValueError(f"{name} does not apply to {trainer.__name__}: it {elsewhere[name]}")
        elif name in kind.declared():
            given[name] = value
        else:
            known = sorted({"policy", *kind.declared()})
            raise TypeError(f"{trainer.__name__} has no parameter {name!r}; {suggestion(name, known)}")

    missing = [name for name in required_options(kind) if name not in given]
    if missing:
        raise TypeError(f"{trainer.__name__} needs {', '.join(missing)}; give {missing[0]}=...")

    options = kind(**given)
    options.validate()
    return options


def required_options(kind: type[RunOptions]) -> list[str]:
    """Return the names of the options without default."""
    return [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
