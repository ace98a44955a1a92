"""`OfflineTrainer`: learns from recorded data."""

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
"""Maximum number of gradient steps from one `UpdateEnd` event to the next. The event has their common statistics."""
ROWS_OF_OLD_HASH = 64
"""Number of rows in the hash with which checkpoints of version 0.2 identify the data."""


class OfflineTrainer(BaseTrainer):
    """Trainer that updates a policy with recorded data.

    `buffer` is a `ReplayBuffer`, a `SampleBatch`, an `OfflineDataset`, the id of a local Minari dataset or the path of
    a file (`lockstep.policy.offline_data.offline_source` says in which form the actions must be). The data pass through
    `policy.process_buffer` once.

    `step_per_epoch` counts gradient steps, each on `batch_size` transitions. Transitions of a replay buffer are drawn
    with replacement, other data pass by pass without replacement; `batch_size=None` takes all of them in each step. For
    a policy with memory a step takes `batch_size` sequences of a replay buffer, see `policy.process_buffer`.

    `env_step` remains 0. `samples_seen` and `dataset_passes` count the data, and schedules depend on gradient steps.
    `train_fn` and the event `UpdateEnd` come once for every 64 gradient steps, or fewer at the end of an epoch.
    `OfflineOptions` describes the keywords.

    Raises:
        MalformedBufferError: the data are empty, contain NaN or infinity, or do not fit the policy.
    """

    options_class: ClassVar[type[OfflineOptions]] = OfflineOptions
    updates_now = 0
    """Number of gradient steps that `policy_update_fn` makes in this training step."""
    inapplicable: ClassVar[Mapping[str, str]] = {
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
        if keywords.get("test_in_train") is False:  # the default, which programs may set for all trainers
            keywords.pop("test_in_train")
        options = options_from(type(self), self.options_class, self.inapplicable, keywords)
        super().__init__(policy, options)
        self.batch_size = options.batch_size
        self.buffer = self._prepare_data(options.buffer)
        self._check_data()
        if options.seed is not None:
            self.buffer.seed_streams(options.seed)

    def _prepare_data(self, source: object) -> Any:
        """Read the data, process them with the policy's `process_buffer`, and return the result.

        Raises:
            MalformedBufferError: they cannot be learned from.
        """
        try:
            # Messages about the data contain the file that the configuration names.
            input_ = self.policy.config.offline_data.input_
            origin = str(input_) if isinstance(input_, str | Path) else ""
            return self.policy.process_buffer(offline_source(source, self.policy, origin))
        except MalformedBufferError:
            raise
        except (KeyError, ValueError) as error:
            raise MalformedBufferError(f"buffer cannot be learned from: {error}") from error

    def _check_data(self) -> None:
        """Raise `ValueError` if the data do not fit the policy's algorithm and networks."""
        policy = self.policy
        if isinstance(self.buffer, ReplayBuffer):  # `process_buffer` may have made one
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

    @property
    def dataset_passes(self) -> float:
        """Average number of times that each transition was learned from."""
        return self.samples_seen / len(self.buffer)

    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Make up to 64 gradient steps. The statistics of the collect are empty."""
        no_collect = CollectStatsBase()
        num_steps = min(UPDATES_AT_ONCE, self.step_per_epoch - self.epoch_steps)
        if self.total_steps is not None:
            num_steps = min(num_steps, self.total_steps - self.gradient_step)
        self.updates_now = num_steps
        self.policy.timesteps[STEPS_SAMPLED] = self.gradient_step
        # Prioritised data need the present value of beta, the exponent of importance weights. Other data ignore it.
        with self._keeping_bad_batch(), self.buffer.beta_at(self.gradient_step):
            with policy_within_training_step(self.policy):
                training = self.policy_update_fn(no_collect)
            self._count_update(training)
        return no_collect, training, self.stop_reason is not None

    def _count_update(self, stats: TrainingStats) -> None:
        self.epoch_steps += self.updates_now
        num_samples = self.updates_now * (self.batch_size or len(self.buffer))
        if self.policy.is_stateful:  # the rows are sequences, of which padding and burn-in do not count
            steps = stats.metrics["num_module_steps_trained"]
            num_samples = round((steps.mean or 0.0) * steps.count)
        self.samples_seen += num_samples
        super()._count_update(stats)

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Make `updates_now` gradient steps, each on a batch of `buffer`."""
        return self.policy.update(self.batch_size or 0, self.buffer, repeat=self.updates_now)

    def info(self, with_history: bool = True) -> InfoStats:
        info = super().info(with_history)
        return replace(info, samples_seen=self.samples_seen, dataset_passes=self.dataset_passes)

    # -- plan ---

    def describe_updates(self) -> dict[str, str]:
        left = self.steps_left
        num_rows = len(self.buffer)
        size = self.batch_size or num_rows
        return {
            "gradient steps": f"{left:,} on {size:,} transitions each, {left * size / num_rows:.3g} passes",
            "data": f"{num_rows:,} transitions ({type(self.buffer).__name__})",
        }

    def work_left(self) -> tuple[float, float]:
        return self.steps_left, self.steps_left * (self.batch_size or len(self.buffer))

    def first_and_last_update(self) -> tuple[int, int]:
        start = self.position
        # Schedules are read once for each group of `UPDATES_AT_ONCE` gradient steps, at its first step. Each epoch
        # begins a new group. So the last group has what the whole groups leave of the last epoch: 1 to 64 steps.
        size_of_last_group = (self.steps_left - 1) % self.step_per_epoch % UPDATES_AT_ONCE + 1
        return start, max(start, self.steps_in_all - size_of_last_group)

    # -- state ---

    def own_folders(self) -> dict[str, dict[str, Any]]:
        """Return the state of the sampling from the data, and a digest of the data. The data are not saved."""
        return {"offline": {"state": {"data": self.data_identity, "drawing": self.buffer.drawing_state()}}}

    def set_own_folders(self, folders: Mapping[str, Any]) -> None:
        """Restore the state of the sampling from the data.

        Raises:
            ValueError: the run was made with other data, or is not offline.
        """
        if "offline" not in folders:
            raise ValueError(f"the checkpoint is not of an offline run: it has {sorted(folders)}")
        state = folders["offline"]["state"]
        saved_identity = state["data"]
        # Checkpoints of version 0.2 have a hash of 64 rows in place of the digest.
        has_digest = "digest" in saved_identity
        identity = self.data_identity if has_digest else self._old_data_identity()
        if saved_identity != identity:
            raise ValueError(
                f"the run was made with other data ({saved_identity['num_rows']} rows, these have {len(self.buffer)}); "
                "continue with the same"
            )
        self.buffer.set_drawing_state(state["drawing"])

    @cached_property
    def data_identity(self) -> dict[str, Any]:
        """Number of rows and a digest of all of them. The digest is computed for the first checkpoint only."""
        return {"num_rows": len(self.buffer), "digest": self.buffer.digest()}

    def _old_data_identity(self) -> dict[str, Any]:
        """Return the identity of the data in the form of version 0.2: the number of rows and a hash of some of them."""
        buffer = self.buffer
        num_rows = len(buffer)
        hashed = np.unique(np.linspace(0, num_rows - 1, ROWS_OF_OLD_HASH).astype(np.int64))
        return {"num_rows": num_rows, "sha256": digest_of_rows([buffer[buffer.indices()[hashed]]])}
