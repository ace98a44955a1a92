"""Keyword types of the options declared in this folder."""

# Written by `python tests/architecture/keyword_types.py` from the fields of the sections: do not edit.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Required, TypedDict

from lockstep.replay import ReplayBuffer
from lockstep.rollout import CollectorLike
from lockstep.tracking import BaseLogger
from lockstep.tracking.logger import SaveCheckpointFn
from lockstep.tracking.statistics import CollectStats
from lockstep.trainer.callbacks import Callback


class EvaluatorKeywords(TypedDict, total=False):
    """Options of `EvaluatorOptions`."""

    test_collector: CollectorLike | None
    episode_per_test: int | None
    step_per_test: int | None
    custom_evaluation_function: Callable[[Any, Any], Any] | None
    evaluation_parallel_to_training: bool
    test_fn: Callable[[int, int], None] | None


class RunKeywords(EvaluatorKeywords, total=False):
    """Options of `RunOptions`."""

    max_epoch: Required[int]
    step_per_epoch: Required[int]
    total_steps: int | None
    test_interval: int
    train_fn: Callable[[int, int], None] | None
    stop_fn: Callable[[float], bool] | None
    compute_score_fn: Callable[[CollectStats], float] | None
    save_best_fn: Callable[[Any], None] | None
    save_checkpoint_fn: SaveCheckpointFn | None
    checkpoint_interval: int
    reward_metric: Callable[[Any], Any] | None
    logger: BaseLogger | None
    callbacks: Sequence[Callback]
    seed: int | None
    test_in_train: bool
    resume_from_log: bool
    verbose: bool
    show_progress: bool
    nan_policy: Literal["stop", "ignore"]


class CollectKeywords(RunKeywords, total=False):
    """Options of `CollectOptions`."""

    train_collector: Required[CollectorLike]
    step_per_collect: int | None
    episode_per_collect: int | None


class OnpolicyKeywords(CollectKeywords, total=False):
    """Options of `OnpolicyOptions`."""

    batch_size: Required[int | Literal["auto"] | None]
    repeat_per_collect: Required[int]


class OffpolicyKeywords(CollectKeywords, total=False):
    """Options of `OffpolicyOptions`."""

    batch_size: Required[int | None]
    update_per_step: float
    learning_starts: int
    buffer: ReplayBuffer | None


class OfflineKeywords(RunKeywords, total=False):
    """Options of `OfflineOptions`."""

    buffer: Required[Any]
    batch_size: Required[int | None]
