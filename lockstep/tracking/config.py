"""The sections of a configuration about what a run leaves behind."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lockstep.state.checks import check_whole, suggestion
from lockstep.state.sections import Section
from lockstep.tracking.jsonl import JsonlLogger
from lockstep.tracking.logger import BaseLogger
from lockstep.tracking.mlflow import MLflowLogger
from lockstep.tracking.tensorboard import TensorboardLogger
from lockstep.tracking.wandb import WandbLogger

CLASSES = {"jsonl": JsonlLogger, "tensorboard": TensorboardLogger, "wandb": WandbLogger, "mlflow": MLflowLogger}
LOGGERS = tuple(CLASSES)


@dataclass
class ReportingSection(Section):
    """Loggers and epochs."""

    total_steps: int = 100_000
    """environment steps (offline: gradient steps) of the whole run, which ends with the update that reaches them"""
    steps_per_epoch: int | None = None
    """the same between evaluations, rounded up to whole updates (the last epoch may be shorter); `None`: about a tenth
    of the run"""
    loggers: list[str] = field(default_factory=lambda: ["jsonl"])
    """any of "jsonl", "tensorboard", "wandb", "mlflow" """
    logger_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    """arguments of the loggers' classes by name: `{"wandb": {"project": "poles"}, "jsonl": {"train_interval": 100}}`"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option."""
        if self.total_steps < 1:
            raise ValueError(f"reporting.total_steps={self.total_steps} must be at least 1")
        if self.steps_per_epoch is not None and self.steps_per_epoch < 1:
            raise ValueError(f"reporting.steps_per_epoch={self.steps_per_epoch} must be at least 1, or None")
        loggers: Any = self.loggers
        if not isinstance(loggers, list | tuple):
            told = (
                f"one text; give a list, [{loggers!r}]" if isinstance(loggers, str) else "no list; give one, ['jsonl']"
            )
            raise ValueError(f"reporting.loggers={loggers!r} is {told}")
        wrong = [name for name in self.loggers if name not in LOGGERS]
        if wrong:
            raise ValueError(f"reporting.loggers={wrong} are unknown; choose from {LOGGERS}")
        for name, options in self.logger_config.items():
            if name not in LOGGERS or not isinstance(options, dict):
                raise ValueError(
                    f"reporting.logger_config={{{name!r}: {options!r}}} is not allowed; give a dict of "
                    f"arguments for any of {LOGGERS}"
                )
            _check_arguments(name, options)


def _check_arguments(name: str, options: dict[str, Any]) -> None:
    known: list[str] = []
    for one in (CLASSES[name], BaseLogger):
        parameters = inspect.signature(vars(one)["__init__"]).parameters.values()
        known += [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]
    for option in options:
        if option not in known:
            raise ValueError(
                f"reporting.logger_config: {CLASSES[name].__name__} has no argument {option!r}; "
                f"{suggestion(option, known)}"
            )


@dataclass
class CheckpointingSection(Section):
    """Checkpoints of a run."""

    checkpoint_interval: int = 1
    """epochs between checkpoints; one is always written at the end"""
    num_to_keep: int = 3
    """older ones are deleted; the best policy is kept apart"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option."""
        if self.checkpoint_interval < 1 or self.num_to_keep < 1:
            raise ValueError("checkpointing.checkpoint_interval and num_to_keep must be at least 1")


@dataclass
class DebuggingSection(Section):
    """Seeds."""

    seed: int = 0
    """one seed for the tree of all random streams"""

    def validate(self) -> None:
        """Raises `ValueError` naming the option."""
        check_whole("debugging.seed", self.seed, 0)


@dataclass
class CallbacksSection(Section):
    """Who watches the run."""

    callbacks_class: type | list[type] | None = None
    """a subclass of `lockstep.trainer.Callback`, or several; the trainer makes one of each, without arguments (those
    with arguments are given to `build_trainer(callbacks=[...])`)"""

    @property
    def classes(self) -> list[type]:
        """All of them, in order."""
        given: Any = self.callbacks_class
        return [] if given is None else list(given) if isinstance(given, Iterable) else [given]

    def validate(self) -> None:
        """Raises `TypeError` for what is no class of callbacks."""
        for given in self.classes:
            if not isinstance(given, type) or not callable(getattr(given, "on_event", None)):
                raise TypeError(
                    f"callbacks.callbacks_class={given!r} is not allowed; it must be a subclass of "
                    "lockstep.trainer.Callback (give callbacks that are made already to build_trainer(callbacks=[...]))"
                )
