"""`OffpolicyTrainer`: collects some steps, and learns from samples of a replay buffer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from lockstep.data.trees import map_tree
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.options.texts import size_text
from lockstep.policy.offline_data import check_numbers
from lockstep.policy.policy import Policy, policy_within_training_step
from lockstep.policy.tensor_updates import launch_update
from lockstep.replay import ReplayBuffer
from lockstep.rollout.errors import MalformedBufferError
from lockstep.tracking.statistics import CollectStatsBase, TrainingStats
from lockstep.trainer.base import BaseTrainer
from lockstep.trainer.checks import check_discounts
from lockstep.trainer.options import OffpolicyOptions, options_from

if TYPE_CHECKING:
    from lockstep.trainer.typed import OffpolicyKeywords


class OffpolicyTrainer(BaseTrainer):
    """Trainer that updates a policy with samples of a replay buffer.

    After each collect it makes `update_per_step` gradient steps per collected step, each on a new sample of
    `batch_size` transitions. The replay buffer is that of the train collector and is part of checkpoints. If the
    collector has no buffer, one is made from the policy's configuration. `OffpolicyOptions` describes the keywords.
    """

    options_class: ClassVar[type[OffpolicyOptions]] = OffpolicyOptions
    updates_now = 0
    """Number of gradient steps that `policy_update_fn` makes in this training step."""
    inapplicable: ClassVar[Mapping[str, str]] = {
        "repeat_per_collect": "makes gradient steps by the number of collected steps; set update_per_step",
    }

    def __init__(self, policy: Policy, **keywords: Unpack[OffpolicyKeywords]) -> None:
        options = options_from(type(self), self.options_class, self.inapplicable, keywords)
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
        """Replay buffer: a `ReplayBuffer`, a `MultiAgentReplayBuffer` for several agents, or a `TensorReplay` for
        tensor environments."""
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
            self._add_initial_data(options.buffer)

    def _add_initial_data(self, source: ReplayBuffer) -> None:
        """Process the initial transitions with the policy's `process_buffer`, and add them to the replay buffer.

        Raises:
            ValueError: the replay buffer takes no initial transitions.
            MalformedBufferError: there are no transitions, or they do not fit the replay buffer.
        """
        if self.policy.is_multi_agent:
            raise ValueError("buffer is not allowed with several agents, who begin with nothing; leave it out")
        if self.buffer.device is not None:
            raise ValueError("buffer is not allowed with tensor environments, whose replay begins empty; leave it out")
        if len(source) == 0:
            raise MalformedBufferError(
                "buffer is an empty replay buffer; give a ReplayBuffer with transitions, or leave it out"
            )
        check_numbers(source, "the transitions of buffer")
        prepared = self.policy.process_buffer(source)
        if prepared is self.buffer:  # the collector's own buffer was given: its transitions are in place already
            return
        if not isinstance(prepared, ReplayBuffer):
            raise MalformedBufferError(
                f"process_buffer gave a {type(prepared).__name__}; OffpolicyTrainer needs a ReplayBuffer of it"
            )
        try:
            # If the collector's own buffer was given, the processed transitions replace the raw ones.
            self.buffer.update(prepared, replace_all=source is self.buffer)
        except (KeyError, ValueError) as error:
            raise MalformedBufferError(f"buffer does not fit the train collector's: {error}") from error

    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Collect once, and make the gradient steps that are due."""
        is_random = self.env_step < self.learning_starts
        # A run that was restored without its replay buffer acts with the policy while the buffer fills again.
        is_refilling = self.env_step < self.learning_resumes_at
        with policy_within_training_step(self.policy):
            arguments: dict[str, Any] = {"n_step": self.step_per_collect, "n_episode": self.episode_per_collect}
            if self.collector.launches_updates and self.learns_ahead and not (is_random or is_refilling):
                # As in `OnpolicyTrainer.training_step`: `policy_update_fn` below only waits for the launched steps.
                arguments["then"] = self._launch_update
            stats = self.collector.collect(**arguments, random=is_random)
        if not is_random and not is_refilling:
            self.steps_learned_from += stats.n_collected_steps
        self._count_collect(stats)

        num_due = self._num_due(self.steps_learned_from)
        self.updates_now = num_due - self.updates_made
        self.updates_made = num_due
        if self.updates_now == 0:
            return stats, None, self.stop_reason is not None
        with self._keeping_bad_batch():
            with policy_within_training_step(self.policy):
                training = self.policy_update_fn(stats)
            self._count_update(training)
        return stats, training, self.stop_reason is not None

    @property
    def learns_ahead(self) -> bool:
        """Whether an update on a device is launched before the host has read the collect's statistics.

        See `OnpolicyTrainer.learns_ahead` for the reasons against it.
        """
        # The methods are compared because a subclass cannot be expected to declare that it has its own.
        has_own_update = type(self).policy_update_fn is not OffpolicyTrainer.policy_update_fn
        may_evaluate_between = self.test_in_train and self.stop_fn is not None
        return not has_own_update and not may_evaluate_between

    def _launch_update(self) -> None:
        """Launch the gradient steps that are due after the running collect, without waiting for them."""
        collector: Any = self.collector
        num_collected = collector.num_steps * collector.num_envs
        num_steps = self._num_due(self.steps_learned_from + num_collected) - self.updates_made
        if num_steps > 0 and self.batch_size is not None:
            self.policy.timesteps[STEPS_SAMPLED] = self.env_step + num_collected
            launch_update(self.policy, self.batch_size, self.buffer, num_steps)

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Make `updates_now` gradient steps, each on a new sample of `buffer`."""
        return self.policy.update(self.batch_size or 0, self.buffer, repeat=self.updates_now)

    def _num_due(self, steps: int) -> int:
        """Return the total number of gradient steps that are due after a number of collected steps."""
        # One product for the whole run: sums of fractions would lose steps to rounding.
        return math.floor(self.update_per_step * steps + 1e-9)

    def _last_batch(self) -> dict[str, Any] | None:
        if self.buffer.device is None:
            return super()._last_batch()
        sampled = self.policy.learner_group.learner.device_update.sampled
        columns: dict[str, Any] = map_tree(lambda leaf: leaf.cpu().clone(), sampled)
        return columns

    @property
    def gradient_steps_left(self) -> int:
        """Number of gradient steps in the rest of the run if nothing ends it earlier."""
        steps_left = self.steps_in_all - self.env_step
        random_steps = min(steps_left, self._random_steps_left(self.step_per_collect or 1))
        return self._num_due(self.steps_learned_from + steps_left - random_steps) - self.updates_made

    def _random_steps_left(self, steps_per_collect: int) -> int:
        """Return the number of steps with random actions in the rest of the run, in whole collects."""
        missing = max(0, self.learning_starts - self.env_step)
        return -(-missing // steps_per_collect) * steps_per_collect

    # -- plan ---

    def describe_updates(self) -> dict[str, str]:
        about = "about " if self._may_overshoot() else ""
        rows = f"{self.batch_size:,}" if self.batch_size else "all"
        return {
            "updates": f"{self.update_per_step:g} gradient steps for each of {self.steps_left:,} environment steps, "
            f"after {self.learning_starts:,} random ones{self._overshoot_text()}",
            "gradient steps": f"{about}{self.gradient_steps_left:,} on {rows} transitions each",
            "replay buffer": f"{self.buffer.maxsize:,} transitions, {len(self.buffer):,} in it{self._memory_text()}",
        }

    def _memory_text(self) -> str:
        """Return a remark about the memory of the full replay buffer, or an empty string if it is not known."""
        state_bytes = 0
        for module in self.policy.acting.values():
            state_bytes += sum(state.nbytes for state in module.get_initial_state(1).values())
        spaces = self.collector.observation_space, self.collector.env.action_space
        size = self.buffer.expected_bytes(*spaces, state_bytes)
        if size is None:
            return ""
        files = "in files of " if self.policy.config.replay.storage == "memmap" else ""
        return f", {files}{size_text(size)}"

    def work_left(self) -> tuple[float, float]:
        num_steps = self.gradient_steps_left
        return num_steps, num_steps * (self.batch_size or len(self.buffer))

    def first_and_last_update(self) -> tuple[int, int]:
        """Return the positions of the run at its next and at its last update.

        The next update follows the collects with random actions that are left, and then as many collects as it takes
        until a gradient step is due.
        """
        steps_per_collect = self.step_per_collect
        if steps_per_collect is None:
            return super().first_and_last_update()

        # The next gradient step is due when the product of rate and collected steps reaches the next whole number. The
        # small number below keeps a rounding error from adding a collect.
        rate = self.update_per_step
        steps_until_due = (math.floor(rate * self.steps_learned_from) + 1) / rate - self.steps_learned_from
        num_collects = max(1, math.ceil(steps_until_due / steps_per_collect - 1e-9))
        random_steps = self._random_steps_left(steps_per_collect)
        return self.position + random_steps + num_collects * steps_per_collect, self.steps_in_all
