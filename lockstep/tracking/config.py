"""Sections of a configuration about the records, checkpoints, seeds and callbacks of a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from lockstep.options.checks import suggestion
from lockstep.options.section import ConfigT, Section, option
from lockstep.state.trust import Kind
from lockstep.tracking.jsonl import JsonlLogger
from lockstep.tracking.logger import BaseLogger
from lockstep.tracking.tensorboard import TensorboardLogger
from lockstep.tracking.wandb_mlflow import MLflowLogger, WandbLogger

if TYPE_CHECKING:
    from lockstep.tracking.typed import CheckpointingOptions, DebuggingOptions, ReportingOptions

CALLBACK = Kind(
    "a subclass of lockstep.trainer.Callback",
    foreign_bases=("lockstep.trainer:Callback",),  # a text, because the trainer is on a higher floor
    takes_others=False,
)
LOGGERS: dict[str, type[BaseLogger]] = {
    "jsonl": JsonlLogger,
    "tensorboard": TensorboardLogger,
    "wandb": WandbLogger,
    "mlflow": MLflowLogger,
}
"""Classes of loggers by the names that options have for them."""
LoggerName = Literal["jsonl", "tensorboard", "wandb", "mlflow"]


@dataclass
class ReportingSection(Section[ConfigT]):
    """Options of the section `reporting`: length of the run, epochs and loggers."""

    name = "reporting"

    total_steps: int = option(100_000, ge=1)
    """Number of environment steps of the run (offline: gradient steps). The update that reaches it is the last."""
    steps_per_epoch: int | None = option(None, ge=1)
    """Number of such steps between two evaluations, rounded up to whole updates; the last epoch may be shorter.
    Defaults to about a tenth of the run."""
    loggers: list[LoggerName] = option(factory=lambda: ["jsonl"])
    """Names of the loggers that write the run's records."""
    logger_config: Mapping[LoggerName, Mapping[str, Any]] = option(factory=dict)
    """Arguments of the loggers' classes, by the loggers' names:
    `{"wandb": {"project": "poles"}, "jsonl": {"train_interval": 100}}`."""

    def __call__(self, **options: Unpack[ReportingOptions]) -> ConfigT:
        """Set options, and return the configuration."""
        return self.change(options)

    def validate(self) -> None:
        """Check that the loggers have the arguments in `logger_config`. `ValueError` for an unknown one."""
        for name, arguments in self.logger_config.items():
            logger = LOGGERS[name]
            known = [*inspect.signature(logger).parameters, *inspect.signature(BaseLogger).parameters]
            known.remove("intervals")  # the `**intervals` of a logger, which are arguments of `BaseLogger`
            for argument in arguments:
                if argument not in known:
                    raise ValueError(
                        f"reporting.logger_config: {logger.__name__} has no argument {argument!r}; "
                        f"{suggestion(argument, known)}"
                    )


@dataclass
class CheckpointingSection(Section[ConfigT]):
    """Options of the section `checkpointing`."""

    name = "checkpointing"

    checkpoint_interval: int = option(1, ge=0)
    """Number of epochs between two checkpoints; there always is one at the end. 0 writes none, so that the run cannot
    be resumed."""
    num_to_keep: int = option(3, ge=1)
    """Number of checkpoints that are kept; older ones are deleted. The best policy is stored separately."""

    def __call__(self, **options: Unpack[CheckpointingOptions]) -> ConfigT:
        """Set options, and return the configuration."""
        return self.change(options)


@dataclass
class DebuggingSection(Section[ConfigT]):
    """Options of the section `debugging`."""

    name = "debugging"

    seed: int = option(0, ge=0)
    """Seed of all random streams of the run."""

    def __call__(self, **options: Unpack[DebuggingOptions]) -> ConfigT:
        """Set options, and return the configuration."""
        return self.change(options)


@dataclass
class CallbacksSection(Section[ConfigT]):
    """Options of the section `callbacks`."""

    name = "callbacks"

    callbacks_class: type | list[type] | None = None
    """Subclass of `lockstep.trainer.Callback`, or several. The trainer makes one object of each, without arguments.
    Callbacks that need arguments are given to `build_trainer(callbacks=[...])`."""

    def __call__(self, callbacks_class: type | list[type] | None = None) -> ConfigT:
        """Set options, and return the configuration."""
        return self.change({"callbacks_class": callbacks_class})

    @property
    def classes(self) -> list[type]:
        """The classes of callbacks, in order."""
        return _as_list(self.callbacks_class)

    def prepare(self, name: str, value: object) -> Any:
        """Return the value of an option. `TypeError` for one that is not a class of callbacks."""
        for each in _as_list(value):
            if not CALLBACK.fits(each):
                raise TypeError(
                    f"callbacks.callbacks_class={each!r} is not allowed; it must be a subclass of "
                    "lockstep.trainer.Callback (give callbacks that are made already to build_trainer(callbacks=[...]))"
                )
        return value


def _as_list(classes: object) -> list[Any]:
    """Return one class or several as a list, empty for None."""
    if classes is None:
        return []
    return list(classes) if isinstance(classes, Iterable) else [classes]
