"""Options of the trainers. Each option is a field with its type, range, default and description."""

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
from lockstep.tracking import BaseLogger
from lockstep.tracking.logger import SaveCheckpointFn
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer.callbacks import Callback, check_callbacks

EpochFn = Callable[[int, int], None]
"""Function of the epoch and the environment step."""


@dataclass(kw_only=True)
class EvaluatorOptions(Section[Any]):
    """Options of `Evaluator`, which all trainers have.

    The options of a trainer are checked by the same class `Section` as the options of a configuration. A trainer makes
    them from its keywords and reads them once. A value that is not allowed raises `ValueError`, also if its type is
    wrong.
    """

    test_collector: CollectorLike | None = None
    """Collector that evaluates the policy. Without one there is no evaluation."""
    episode_per_test: int | None = option(None, ge=1)
    """Number of episodes of an evaluation. With a `test_collector`, give this or `step_per_test`."""
    step_per_test: int | None = option(None, ge=1)
    """Number of environment steps of an evaluation. Only episodes that end within these steps count."""
    custom_evaluation_function: Callable[[Any, Any], Any] | None = None
    """Function that replaces the collect of an evaluation, called as `custom_evaluation_function(policy, collector)`.
    It returns `CollectStats`, a number (the score), or a dict of numbers with a "score"."""
    evaluation_parallel_to_training: bool = False
    """Evaluate in a thread while the policy is trained. The evaluation of an epoch is then reported at the end of the
    next epoch. The `test_collector` must act with a copy of the policy."""
    test_fn: EpochFn | None = None
    """Called as `test_fn(epoch, env_step)` before each evaluation."""

    def __setattr__(self, name: str, value: object) -> None:
        # Sections raise `TypeError` for a wrong type; trainers promise `ValueError` for every wrong value.
        try:
            super().__setattr__(name, value)
        except TypeError as error:
            raise ValueError(str(error)) from None

    def prepare(self, name: str, value: object) -> Any:
        """Check that `test_collector` is a collector, and convert NumPy integers to Python's."""
        if name == "test_collector" and value is not None:
            _check_collector(name, value)
        return int(value) if isinstance(value, np.integer) else value


@dataclass(kw_only=True)
class RunOptions(EvaluatorOptions):
    """Options of all trainers."""

    max_epoch: int = option(ge=0)
    """Maximum number of epochs. 0 trains nothing."""
    step_per_epoch: int = option(ge=1)
    """Number of environment steps in an epoch; number of gradient steps for a trainer that collects nothing."""
    total_steps: int | None = option(None, ge=1)
    """Maximum number of steps. The run ends with the update that reaches it, so its last epoch may be shorter."""
    test_interval: int = option(1, ge=1)
    """Number of epochs from one evaluation to the next."""
    train_fn: EpochFn | None = None
    """Called as `train_fn(epoch, env_step)` before each collect."""
    stop_fn: Callable[[float], bool] | None = None
    """Called as `stop_fn(score)` after each evaluation. The run ends when it returns True."""
    compute_score_fn: Callable[[CollectStats], float] | None = None
    """Function that returns the score of an evaluation, which is compared for the best policy. Defaults to the mean
    return."""
    save_best_fn: Callable[[Any], None] | None = None
    """Called as `save_best_fn(policy)` after each evaluation with a new best score."""
    save_checkpoint_fn: SaveCheckpointFn | None = None
    """Called as `save_checkpoint_fn(epoch, env_step, gradient_step)` every `checkpoint_interval` epochs and at the end
    of the run. It returns the path of the checkpoint."""
    checkpoint_interval: int = option(1, ge=0)
    """Number of epochs from one checkpoint to the next. 0 writes no checkpoints."""
    reward_metric: Callable[[Any], Any] | None = None
    """Function from the agents' returns to one return per episode: `reward_metric(returns[episode, agent]) ->
    returns[episode]`. Defaults to the sum over the agents."""
    logger: BaseLogger | None = None
    """Logger of all records. By default nothing is recorded."""
    callbacks: Sequence[Callback] = ()
    """Callbacks that observe the run and may end it."""
    seed: int | None = option(None, ge=0)
    """Seed of all random numbers except the initial weights, like `debugging(seed=)` of a configuration."""
    test_in_train: bool = False
    """Evaluate once more in an epoch whose training return satisfies `stop_fn`."""
    resume_from_log: bool = False
    """Continue the run whose records the logger has, from the last checkpoint that they name. If that is not a full
    checkpoint, only epoch, environment steps and gradient steps are restored. It applies to the trainer's first run."""
    verbose: bool = False
    """Print a line for each epoch."""
    show_progress: bool = False
    """Show a live display on a terminal."""
    nan_policy: Literal["stop", "ignore"] = "stop"
    """Reaction to a loss that is not finite: "stop" ends the run, "ignore" continues."""

    def prepare(self, name: str, value: object) -> Any:
        """Check the types of `callbacks` and `logger`, whose error messages say what to pass."""
        if name == "callbacks":
            check_callbacks(value)
        if name == "logger" and not isinstance(value, BaseLogger | None):
            raise ValueError(f"logger={value!r} is not allowed; it must be a lockstep.tracking.BaseLogger, or None")
        return super().prepare(name, value)

    def validate(self) -> None:
        """Raise `ValueError` if the run should continue from a logger that keeps no records."""
        if self.resume_from_log and (self.logger is None or not self.logger.keeps_records):
            raise ValueError("resume_from_log=True needs a logger that keeps records; give that of the earlier run")


@dataclass(kw_only=True)
class CollectOptions(RunOptions):
    """Options of trainers that collect."""

    train_collector: CollectorLike
    """Collector of the data that the policy learns from."""
    step_per_collect: int | None = option(None, ge=1)
    """Number of environment steps in a collect. Give this or `episode_per_collect`."""
    episode_per_collect: int | None = option(None, ge=1)
    """Number of whole episodes in a collect. Give this or `step_per_collect`."""

    def prepare(self, name: str, value: object) -> Any:
        """Check that `train_collector` is a collector."""
        if name == "train_collector":
            _check_collector(name, value)
        return super().prepare(name, value)

    def validate(self) -> None:
        """Raise `ValueError` unless exactly one of the two lengths of a collect is given."""
        super().validate()
        exactly_one(step_per_collect=self.step_per_collect, episode_per_collect=self.episode_per_collect)


@dataclass(kw_only=True)
class OnpolicyOptions(CollectOptions):
    """Options of `OnpolicyTrainer`."""

    batch_size: int | Literal["auto"] | None = option(ge=1)
    """Number of rows in a minibatch. None takes the whole rollout at once; "auto" takes 64 rows, or 8 sequences if the
    networks have a memory."""
    repeat_per_collect: int = option(ge=1)
    """Number of passes over each rollout."""


@dataclass(kw_only=True)
class OffpolicyOptions(CollectOptions):
    """Options of `OffpolicyTrainer`."""

    batch_size: int | None = option(ge=1)
    """Number of transitions in a gradient step. None takes the whole buffer, each transition once."""
    update_per_step: float = option(1.0, gt=0, finite=True)
    """Number of gradient steps for each collected step. A fraction is carried over to the next collect."""
    learning_starts: int = option(0, ge=0)
    """Number of environment steps with random actions before the first gradient step."""
    buffer: ReplayBuffer | None = None
    """Initial transitions. They pass through `policy.process_buffer` once."""

    def prepare(self, name: str, value: object) -> Any:
        """Check that `buffer` is a replay buffer; raise `MalformedBufferError` otherwise."""
        if name == "buffer" and not isinstance(value, ReplayBuffer | None):
            kind = type(value).__name__
            raise MalformedBufferError(f"buffer is a {kind}; give a ReplayBuffer with transitions, or leave it out")
        return super().prepare(name, value)


@dataclass(kw_only=True)
class OfflineOptions(RunOptions):
    """Options of `OfflineTrainer`."""

    buffer: Any
    """Recorded data to learn from: a `ReplayBuffer`, a `SampleBatch`, an `OfflineDataset`, the id of a local Minari
    dataset or the path of a file."""
    batch_size: int | None = option(ge=1)
    """Number of transitions in a gradient step, or of sequences for a policy with memory. None takes all of the data,
    each transition once."""


def _check_collector(name: str, value: object) -> None:
    """Raise `ValueError` for an object that lacks members of the protocol `CollectorLike`, and name them."""
    missing = [member for member in _collector_members() if not hasattr(value, member)]
    if "collect" in missing:
        raise ValueError(f"{name}={value!r} is not allowed; it must be a lockstep.Collector")
    if missing:
        raise ValueError(
            f"{name}={value!r} is not allowed; a collector has all members of lockstep.rollout.CollectorLike, and this "
            f"one lacks {', '.join(missing)}. Its base class CollectorTraits would give it the usual answers"
        )


def _collector_members() -> list[str]:
    """Return the sorted names of the public attributes and methods of the protocol `CollectorLike`."""
    members = {**CollectorLike.__annotations__, **vars(CollectorLike)}
    return sorted(name for name in members if name[0] != "_")


OptionsT = TypeVar("OptionsT", bound=RunOptions)


def options_from(
    trainer: type, options_class: type[OptionsT], inapplicable: Mapping[str, str], keywords: Mapping[str, object]
) -> OptionsT:
    """Return a trainer's options, made from its keywords.

    Args:
        trainer: class of the trainer, for messages.
        options_class: class of its options.
        inapplicable: options of other trainers, each with the reason why this one has no use for it. Their value may be
            None, so that one set of keywords fits several trainers.
        keywords: options by name.

    Raises:
        TypeError: an option that no trainer has, or an option without default is missing.
        ValueError: an option of another trainer, a wrong value, or options that exclude each other.
    """
    values: dict[str, Any] = {}
    for name, value in keywords.items():
        if name in inapplicable:
            if value is not None:
                raise ValueError(f"{name} does not apply to {trainer.__name__}: it {inapplicable[name]}")
        elif name in options_class.declared():
            values[name] = value
        else:
            known = sorted({"policy", *options_class.declared()})
            raise TypeError(f"{trainer.__name__} has no parameter {name!r}; {suggestion(name, known)}")

    missing = [name for name in required_options(options_class) if name not in values]
    if missing:
        raise TypeError(f"{trainer.__name__} needs {', '.join(missing)}; give {missing[0]}=...")

    options = options_class(**values)
    options.validate()
    return options


def required_options(options_class: type[RunOptions]) -> list[str]:
    """Return the names of the options without default."""
    return [
        field.name for field in fields(options_class) if field.default is MISSING and field.default_factory is MISSING
    ]
