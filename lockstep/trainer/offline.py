"""`OfflineTrainer`: learn from data that are there already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from lockstep.data.columns import Columns
from lockstep.data.digests import digest_of_rows
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.modules import DEFAULT_MODULE_ID
from lockstep.policy.offline_data import offline_source
from lockstep.policy.policy import Policy, policy_within_training_step
from lockstep.replay import ReplayBuffer
from lockstep.rollout.errors import MalformedBufferError
from lockstep.tracking.statistics import CollectStatsBase, InfoStats, TrainingStats
from lockstep.trainer.base import BaseTrainer
from lockstep.trainer.checks import check_discounts
from lockstep.trainer.options import OfflineOptions, options_from

if TYPE_CHECKING:
    from lockstep.trainer.typed import OfflineKeywords

COLLECTS_NOTHING = "collects nothing; it learns from its buffer"
UPDATES_AT_ONCE = 64
"""gradient steps between two events: callbacks see their common statistics"""
ROWS_OF_OLD_NOTE = 64
"""rows that the note of version 0.2 is a hash of"""


class OfflineTrainer(BaseTrainer):
    """Trains a policy on what others have collected.

    `buffer`: a `ReplayBuffer`, a `SampleBatch`, an `OfflineDataset`, the id of a local Minari dataset or the path of a
    file (`lockstep.policy.offline_data.offline_source` says whose actions it holds). It goes once through
    `policy.process_buffer`. `step_per_epoch` counts gradient steps, each on `batch_size` transitions: of a replay
    buffer drawn with replacement, of other data without, pass after pass; `None`: on all of them, once each.
    Of a policy with memory a step takes `batch_size` sequences of a replay buffer, see `policy.process_buffer`.
    `env_step` stays 0; `samples_seen` and `dataset_passes` count, and schedules go by gradient steps. `train_fn` is
    called before every 64 gradient steps (fewer at the end of an epoch), which are one event. `OfflineOptions`
    describes its keywords.

    Raises `MalformedBufferError` for data that are empty, have NaN or infinity, or do not fit the policy.
    """

    options_class: ClassVar[type[OfflineOptions]] = OfflineOptions
    updates_now = 0
    """gradient steps that `policy_update_fn` makes"""
    elsewhere: ClassVar[Mapping[str, str]] = {
        "train_collector": COLLECTS_NOTHING,
        "step_per_collect": COLLECTS_NOTHING,
        "episode_per_collect": COLLECTS_NOTHING,
        "repeat_per_collect": "counts its epochs in gradient steps; set step_per_epoch",
        "update_per_step": "makes one gradient step for each step of an epoch; set step_per_epoch",
        "learning_starts": COLLECTS_NOTHING,
        "test_in_train": "has no training returns to look at; set test_interval",
        "reward_metric": "trains one agent, whose return is one number already",
    }

    def __init__(self, policy: Policy, **keywords: Unpack[OfflineKeywords]) -> None:
        if keywords.get("test_in_train") is False:
            keywords.pop("test_in_train")
        options = options_from(type(self), self.options_class, self.elsewhere, keywords)
        super().__init__(policy, options)
        self.batch_size = options.batch_size
        try:
            named = policy.config.offline_data.input_
            origin = str(named) if isinstance(named, str | Path) else ""
            self.buffer = policy.process_buffer(offline_source(options.buffer, policy, origin))
        except (KeyError, ValueError) as error:
            if isinstance(error, MalformedBufferError):
                raise
            raise MalformedBufferError(f"buffer cannot be learned from: {error}") from error
        if isinstance(self.buffer, ReplayBuffer):  # the algorithm may have made another one
            policy.acting[DEFAULT_MODULE_ID].check_action_form(self.buffer)
            if "replay" in policy.config.sections:
                policy.config.replay.check_buffer(
                    self.buffer, can_sum_rewards=policy.config.can_sum_rewards, is_stateful=policy.is_stateful
                )
            if Columns.REWARDS in policy.required_columns:
                check_discounts(policy.config.training.gamma, self.buffer)
            if self.buffer.is_prioritized and not policy.config.can_prioritize:
                raise ValueError(
                    f"buffer draws by priority, and {policy.config.algorithm} has no errors that priorities could come "
                    "from; give its transitions alone: buffer.to_batch()"
                )
        if policy.is_stateful and self.batch_size is None:
            raise ValueError("batch_size=None is not allowed with a network that has a memory; say how many sequences")
        if options.seed is not None:
            self.buffer.seed_streams(options.seed)

    @property
    def dataset_passes(self) -> float:
        """Mean number of times that a transition was learned from."""
        return self.samples_seen / len(self.buffer)

    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Make some gradient steps; nothing is collected."""
        nothing = CollectStatsBase()
        due = min(UPDATES_AT_ONCE, self.step_per_epoch - self.epoch_steps)
        if self.total_steps is not None:
            due = min(due, self.total_steps - self.gradient_step)
        self.updates_now = due
        self.policy.timesteps[STEPS_SAMPLED] = self.gradient_step
        with self._keeping_bad_batch(), self.buffer.beta_at(self.gradient_step):
            with policy_within_training_step(self.policy):
                training = self.policy_update_fn(nothing)
            self._count_update(training)
        return nothing, training, self.stop_reason is not None

    def _count_update(self, stats: TrainingStats) -> None:
        self.epoch_steps += self.updates_now
        learned = self.updates_now * (self.batch_size or len(self.buffer))
        if self.policy.is_stateful:  # of sequences the steps that count
            steps = stats.metrics["num_module_steps_trained"]
            learned = round((steps.mean or 0.0) * steps.count)
        self.samples_seen += learned
        super()._count_update(stats)

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Make `updates_now` gradient steps, each on a batch of `buffer`."""
        return self.policy.update(self.batch_size or 0, self.buffer, repeat=self.updates_now)

    def info(self, with_history: bool = True) -> InfoStats:
        info = super().info(with_history)
        return replace(info, samples_seen=self.samples_seen, dataset_passes=self.dataset_passes)

    # -- plan ---

    def describe_updates(self) -> dict[str, str]:
        left, rows = self.steps_left, len(self.buffer)
        size = self.batch_size or rows
        return {
            "gradient steps": f"{left:,} on {size:,} transitions each, {left * size / rows:.3g} passes",
            "data": f"{rows:,} transitions ({type(self.buffer).__name__})",
        }

    def work_left(self) -> tuple[float, float]:
        return self.steps_left, self.steps_left * (self.batch_size or len(self.buffer))

    def first_and_last_update(self) -> tuple[int, int]:
        start, end = self.position, self.steps_in_all
        return start, max(start, end - ((self.steps_left - 1) % self.step_per_epoch % UPDATES_AT_ONCE + 1))

    # -- state ---

    def own_folders(self) -> dict[str, dict[str, Any]]:
        """Return where drawing from the data stands, and a digest of the data. The data are not saved."""
        return {"offline": {"state": {"data": self.data_note, "drawing": self.buffer.drawing_state()}}}

    def set_own_folders(self, folders: Mapping[str, Any]) -> None:
        """Draw on from where `own_folders` was taken; raise `ValueError` for other data."""
        if "offline" not in folders:
            raise ValueError(f"the checkpoint is not of an offline run: it has {sorted(folders)}")
        state = folders["offline"]["state"]
        # Version 0.2 noted a hash of 64 rows, without a digest. The next checkpoint has the digest.
        of_all_rows = "digest" in state["data"]
        if state["data"] != (self.data_note if of_all_rows else self._note_of_some_rows()):
            raise ValueError(
                f"the run was made with other data ({state['data']['num_rows']} rows, these have {len(self.buffer)}); "
                "go on with the same"
            )
        self.buffer.set_drawing_state(state["drawing"])

    @cached_property
    def data_note(self) -> dict[str, Any]:
        """Number of rows, and a digest of all of them. It is taken when a checkpoint is first written or read."""
        return {"num_rows": len(self.buffer), "digest": self.buffer.digest()}

    def _note_of_some_rows(self) -> dict[str, Any]:
        """Return what version 0.2 noted of the data: the number of rows, and a hash of some of them."""
        buffer, num_rows = self.buffer, len(self.buffer)
        some = np.unique(np.linspace(0, num_rows - 1, ROWS_OF_OLD_NOTE).astype(np.int64))
        return {"num_rows": num_rows, "sha256": digest_of_rows([buffer[buffer.indices()[some]]])}
