"""The sections of a configuration about what a run leaves behind."""

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
    foreign_bases=("lockstep.trainer:Callback",),  # which is above this folder
    takes_others=False,
)
LOGGERS: dict[str, type[BaseLogger]] = {
    "jsonl": JsonlLogger,
    "tensorboard": TensorboardLogger,
    "wandb": WandbLogger,
    "mlflow": MLflowLogger,
}
LoggerName = Literal["jsonl", "tensorboard", "wandb", "mlflow"]


@dataclass
class ReportingSection(Section[ConfigT]):
    """Loggers and epochs."""

    name = "reporting"

    total_steps: int = option(100_000, ge=1)
    """environment steps (offline: gradient steps) of the whole run, which ends with the update that reaches them"""
    steps_per_epoch: int | None = option(None, ge=1)
    """the same between evaluations, rounded up to whole updates (the last epoch may be shorter); `None`: about a tenth
    of the run"""
    loggers: list[LoggerName] = option(factory=lambda: ["jsonl"])
    """where records go, by name"""
    logger_config: Mapping[LoggerName, Mapping[str, Any]] = option(factory=dict)
    """arguments of the loggers' classes by name: `{"wandb": {"project": "poles"}, "jsonl": {"train_interval": 100}}`"""

    def __call__(self, **options: Unpack[ReportingOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)

    def validate(self) -> None:
        """Refuse arguments that a logger does not have."""
        for name, arguments in self.logger_config.items():
            logger = LOGGERS[name]
            known = [*inspect.signature(logger).parameters, *inspect.signature(BaseLogger).parameters]
            known.remove("intervals")
            for argument in arguments:
                if argument not in known:
                    raise ValueError(
                        f"reporting.logger_config: {logger.__name__} has no argument {argument!r}; "
                        f"{suggestion(argument, known)}"
                    )


@dataclass
class CheckpointingSection(Section[ConfigT]):
    """Checkpoints of a run."""

    name = "checkpointing"

    checkpoint_interval: int = option(1, ge=0)
    """epochs between checkpoints; one is always written at the end. 0: never, so that the run cannot be resumed"""
    num_to_keep: int = option(3, ge=1)
    """older ones are deleted; the best policy is kept apart"""

    def __call__(self, **options: Unpack[CheckpointingOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


@dataclass
class DebuggingSection(Section[ConfigT]):
    """Seeds."""

    name = "debugging"

    seed: int = option(0, ge=0)
    """one seed for the tree of all random streams"""

    def __call__(self, **options: Unpack[DebuggingOptions]) -> ConfigT:
        """Set options; return the configuration."""
        return self.change(options)


@dataclass
class CallbacksSection(Section[ConfigT]):
    """Who watches the run."""

    name = "callbacks"

    callbacks_class: type | list[type] | None = None
    """a subclass of `lockstep.trainer.Callback`, or several; the trainer makes one of each, without arguments (those
    with arguments are given to `build_trainer(callbacks=[...])`)"""

    def __call__(self, callbacks_class: type | list[type] | None = None) -> ConfigT:
        """Set options; return the configuration."""
        return self.change({"callbacks_class": callbacks_class})

    @property
    def classes(self) -> list[type]:
        """All of them, in order."""
        return _listed(self.callbacks_class)

    def prepare(self, name: str, value: object) -> Any:
        """Refuse with `TypeError` what is no class of callbacks."""
        for each in _listed(value):
            if not CALLBACK.fits(each):
                raise TypeError(
                    f"callbacks.callbacks_class={each!r} is not allowed; it must be a subclass of "
                    "lockstep.trainer.Callback (give callbacks that are made already to build_trainer(callbacks=[...]))"
                )
        return value


def _listed(classes: object) -> list[Any]:
    return [] if classes is None else list(classes) if isinstance(classes, Iterable) else [classes]
