"""`OffpolicyTrainer`: collect some steps, learn from samples of all that is remembered."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.options.texts import size_text
from lockstep.policy.offline_data import check_numbers
from lockstep.policy.policy import Policy, policy_within_training_step
from lockstep.policy.tensor_updates import launch_update
from lockstep.replay import ReplayBuffer, TensorReplay
from lockstep.rollout.errors import MalformedBufferError
from lockstep.tracking.statistics import CollectStatsBase, TrainingStats
from lockstep.trainer.base import BaseTrainer
from lockstep.trainer.checks import check_discounts
from lockstep.trainer.options import OffpolicyOptions, options_from

if TYPE_CHECKING:
    from lockstep.trainer.typed import OffpolicyKeywords


class OffpolicyTrainer(BaseTrainer):
    """Trains a policy on what it remembers.

    After each collect come `update_per_step` gradient steps for each collected step, each on a fresh sample of
    `batch_size` transitions. The replay buffer is the train collector's and part of the checkpoint; where it has none,
    one is made as the policy's configuration says. `OffpolicyOptions` describes its keywords.
    """

    options_class: ClassVar[type[OffpolicyOptions]] = OffpolicyOptions
    updates_now = 0
    """gradient steps that `policy_update_fn` makes"""
    elsewhere: ClassVar[Mapping[str, str]] = {
        "repeat_per_collect": "makes gradient steps by the number of collected steps; set update_per_step",
    }

    def __init__(self, policy: Policy, **keywords: Unpack[OffpolicyKeywords]) -> None:
        options = options_from(type(self), self.options_class, self.elsewhere, keywords)
        super().__init__(policy, options)
        self.batch_size = options.batch_size
        self.learning_starts = options.learning_starts
        self.update_per_step = float(options.update_per_step)

        train_collector = options.train_collector
        self.collector = train_collector
        if train_collector.buffer is None:
            train_collector.buffer = policy.config.build_replay(policy, train_collector)
            if options.seed is not None:
                train_collector.buffer.seed_streams(options.seed)
        if not train_collector.buffer.is_sampled:
            raise ValueError(
                "OffpolicyTrainer learns from a replay buffer, train_collector has a rollout store; give "
                f"Collector(..., buffer=VectorReplayBuffer(size, {train_collector.num_envs}))"
            )
        self.buffer = train_collector.buffer
        """a `ReplayBuffer`; of several agents a `MultiAgentReplayBuffer`, of tensor environments a `TensorReplay`"""
        if isinstance(self.buffer, ReplayBuffer):
            check_discounts(policy.config.training.gamma, self.buffer)
        policy.config.replay.check_buffer(
            self.buffer, can_sum_rewards=policy.config.can_sum_rewards, is_stateful=policy.is_stateful
        )
        if self.max_epoch and self.learning_starts >= self.steps_in_all:
            warnings.warn(
                f"learning_starts={self.learning_starts} is not below the {self.steps_in_all} steps of the run: "
                "nothing will be learned",
                stacklevel=2,
            )
        if options.buffer is not None:
            self._begin_with(options.buffer)

    def _begin_with(self, source: ReplayBuffer) -> None:
        """Take in the transitions to begin with, once through the policy's `process_buffer`."""
        if self.policy.is_multi_agent:
            raise ValueError("buffer is not allowed with several agents, who begin with nothing; leave it out")
        if isinstance(self.buffer, TensorReplay):
            raise ValueError("buffer is not allowed with tensor environments, whose replay begins empty; leave it out")
        if len(source) == 0:
            raise MalformedBufferError(
                "buffer is an empty replay buffer; give a ReplayBuffer with transitions, or leave it out"
            )
        check_numbers(source, "the transitions of buffer")
        prepared = self.policy.process_buffer(source)
        if prepared is self.buffer:
            return
        if not isinstance(prepared, ReplayBuffer):
            raise MalformedBufferError(
                f"process_buffer gave a {type(prepared).__name__}; OffpolicyTrainer needs a ReplayBuffer of it"
            )
        try:
            self.buffer.update(prepared, replace_all=source is self.buffer)  # what was made of it takes its place
        except (KeyError, ValueError) as error:
            raise MalformedBufferError(f"buffer does not fit the train collector's: {error}") from error

    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Collect once, and make the gradient steps that are due for it, where there are any."""
        random = self.env_step < self.learning_starts
        refills = self.env_step < self.learning_resumes_at
        with policy_within_training_step(self.policy):
            amounts: dict[str, Any] = {"n_step": self.step_per_collect, "n_episode": self.episode_per_collect}
            if self.collector.launches_updates and self.learns_ahead and not (random or refills):
                amounts["then"] = self._launch_update
            stats = self.collector.collect(**amounts, random=random)
        if not random and not refills:
            self.steps_learned_from += stats.n_collected_steps
        self._count_collect(stats)
        due = self._num_due(self.steps_learned_from)
        self.updates_now, self.updates_made = due - self.updates_made, due
        if self.updates_now == 0:
            return stats, None, self.stop_reason is not None
        with self._keeping_bad_batch():
            with policy_within_training_step(self.policy):
                training = self.policy_update_fn(stats)
            self._count_update(training)
        return stats, training, self.stop_reason is not None

    @property
    def learns_ahead(self) -> bool:
        """Whether an update on a device begins before the host has read what was collected; see `OnpolicyTrainer`."""
        plain = type(self).policy_update_fn is OffpolicyTrainer.policy_update_fn
        return plain and not (self.test_in_train and self.stop_fn is not None)

    def _launch_update(self) -> None:
        """Begin the update that is due after the collect that is under way."""
        collector: Any = self.collector
        collected = collector.num_steps * collector.num_envs
        due = self._num_due(self.steps_learned_from + collected) - self.updates_made
        if due > 0 and self.batch_size is not None:
            self.policy.timesteps[STEPS_SAMPLED] = self.env_step + collected
            launch_update(self.policy, self.batch_size, self.buffer, due)

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Make `updates_now` gradient steps, each on a fresh sample of `buffer`."""
        return self.policy.update(self.batch_size or 0, self.buffer, repeat=self.updates_now)

    def _num_due(self, steps: int) -> int:
        """Return the gradient steps due for so many steps; one product, so that no fraction is lost to rounding."""
        return math.floor(self.update_per_step * steps + 1e-9)

    def _learned_from(self) -> dict[str, Any] | None:
        if self.buffer.device is None:
            return super()._learned_from()
        sampled = self.policy.learner_group.learner.device_update.sampled
        return {name: column.cpu().clone() for name, column in sampled.items()}

    @property
    def gradient_steps_left(self) -> int:
        """Gradient steps that the rest of the run makes if nothing ends it earlier."""
        collect, left = self.step_per_collect or 1, self.steps_in_all - self.env_step
        random = min(left, -(-max(0, self.learning_starts - self.env_step) // collect) * collect)
        return self._num_due(self.steps_learned_from + left - random) - self.updates_made

    # -- plan ---

    def describe_updates(self) -> dict[str, str]:
        about = "about " if self._collects_more() else ""
        rows = f"{self.batch_size:,}" if self.batch_size else "all"
        return {
            "updates": f"{self.update_per_step:g} gradient steps for each of {self.steps_left:,} environment steps, "
            f"after {self.learning_starts:,} random ones{self._beyond_text()}",
            "gradient steps": f"{about}{self.gradient_steps_left:,} on {rows} transitions each",
            "replay buffer": f"{self.buffer.maxsize:,} transitions, {len(self.buffer):,} in it{self._memory_text()}",
        }

    def _memory_text(self) -> str:
        """Return words about the memory of the replay buffer once it has rows; nothing where it is not known."""
        states = [state for part in self.policy.acting.values() for state in part.get_initial_state(1).values()]
        spaces = self.collector.observation_space, self.collector.env.action_space
        size = self.buffer.expected_bytes(*spaces, sum(state.nbytes for state in states))
        if size is None:
            return ""
        files = "in files of " if self.policy.config.replay.storage == "memmap" else ""
        return f", {files}{size_text(size)}"

    def work_left(self) -> tuple[float, float]:
        steps = self.gradient_steps_left
        return steps, steps * (self.batch_size or len(self.buffer))

    def first_and_last_update(self) -> tuple[int, int]:
        collect = self.step_per_collect
        if collect is None:
            return super().first_and_last_update()
        random = -(-max(0, self.learning_starts - self.env_step) // collect) * collect
        rate, learned_from = self.update_per_step, self.steps_learned_from
        missing = (math.floor(rate * learned_from) + 1) / rate - learned_from
        return self.position + random + max(1, math.ceil(missing / collect - 1e-9)) * collect, self.steps_in_all
