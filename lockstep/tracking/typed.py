"""Keyword types of the options declared in this folder."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict


class ReportingOptions(TypedDict, total=False):
    """Options of `ReportingSection`."""

    total_steps: int
    steps_per_epoch: int | None
    loggers: list[Literal["jsonl", "tensorboard", "wandb", "mlflow"]]
    logger_config: Mapping[Literal["jsonl", "tensorboard", "wandb", "mlflow"], Mapping[str, Any]]


class CheckpointingOptions(TypedDict, total=False):
    """Options of `CheckpointingSection`."""

    checkpoint_interval: int
    num_to_keep: int


class DebuggingOptions(TypedDict, total=False):
    """Options of `DebuggingSection`."""

    seed: int
