"""`OnpolicyTrainer`: collects a rollout, learns from all of it, and drops it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from lockstep.data.minibatch import minibatches_per_pass
from lockstep.data.rollout import EpisodeStore, RolloutStore
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.learner.minibatches import UpdateOptions
from lockstep.options.texts import count_text, size_text
from lockstep.policy.policy import Policy, policy_within_training_step
from lockstep.tracking.statistics import CollectStatsBase, TrainingStats
from lockstep.trainer.base import BaseTrainer
from lockstep.trainer.options import OnpolicyOptions, options_from

if TYPE_CHECKING:
    from lockstep.trainer.typed import OnpolicyKeywords


class OnpolicyTrainer(BaseTrainer):
    """Trainer that updates a policy from its most recent rollout.

    Each collect is followed by one update: `repeat_per_collect` passes over the rollout, in minibatches of `batch_size`
    rows. `OnpolicyOptions` describes the keywords.
    """

    options_class: ClassVar[type[OnpolicyOptions]] = OnpolicyOptions
    learns_from_rollouts = True
    inapplicable: ClassVar[Mapping[str, str]] = {
        "buffer": "learns from its train_collector's rollouts only",
        "learning_starts": "learns from every rollout",
        "update_per_step": "makes one update for each collect; set repeat_per_collect",
    }

    def __init__(self, policy: Policy, **keywords: Unpack[OnpolicyKeywords]) -> None:
        options = options_from(type(self), self.options_class, self.inapplicable, keywords)
        super().__init__(policy, options)
        if options.batch_size == "auto":
            # With memory a row of a minibatch is a whole sequence of steps, so it takes fewer rows. If only some
            # modules have memory it stays at 64: the size counts rows of the module that has most, which is usually one
            # without memory.
            have_memory = all(acting.is_stateful for acting in policy.acting.values())
            self.batch_size = 8 if have_memory else 64
        else:
            self.batch_size = options.batch_size
        self.repeat_per_collect = options.repeat_per_collect

        train_collector = options.train_collector
        self.collector = train_collector
        if train_collector.buffer is None and policy.is_multi_agent:
            train_collector.buffer = EpisodeStore()
        elif train_collector.buffer is None:
            num_envs = train_collector.num_envs
            # Collects of whole episodes have no fixed length: the store grows when it is full.
            num_steps = -(-self.step_per_collect // num_envs) if self.step_per_collect else 128
            train_collector.buffer = RolloutStore(
                num_steps, num_envs, train_collector.observation_space, train_collector.env.action_space
            )
        # A replay buffer is sampled; the stores of rollouts are not.
        if train_collector.buffer.is_sampled:
            raise ValueError("OnpolicyTrainer learns from rollouts, train_collector has a replay buffer; leave it out")
        self.buffer = train_collector.buffer
        """Store of the rollout: a `RolloutStore`, or an `EpisodeStore` for several agents."""

    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Collect a rollout and update the policy with it.

        Afterwards the store is empty. The environments are not reset: the next collect continues their episodes.

        Returns the statistics of the collect, those of the update, and whether the run should stop.

        On a device the update may be launched ahead, in this order:

        1. `collect` launches the steps, then calls `_launch_update`, which launches the update behind them.
        2. `collect` waits for the steps and returns their statistics, which `_count_collect` counts.
        3. `policy_update_fn` calls `policy.update`, which waits for the launched update and returns its statistics.

        Otherwise `policy_update_fn` makes the update.
        """
        try:
            # In this context the policy explores, and `Policy.update` is allowed. Elsewhere it acts for evaluation.
            with policy_within_training_step(self.policy):
                arguments: dict[str, Any] = {"n_step": self.step_per_collect, "n_episode": self.episode_per_collect}
                if self.collector.launches_updates and self.learns_ahead:
                    # The collector calls this function between the launch of its steps and the wait for them. The
                    # learner's `device_update` (`learner/device/rollout_update.py`) remembers the launched update. So
                    # `policy.update` in `policy_update_fn` below takes no second one: through the learner it reaches
                    # `device_update.run`, which waits for the launched update and reports it.
                    arguments["then"] = self._launch_update
                stats = self.collector.collect(**arguments)
            self._count_collect(stats)

            # If a loss or gradient that is not finite stops the run, the rollout is copied to the trainer's attribute
            # `bad_batch`, before the store is cleared below.
            with self._keeping_bad_batch():
                with policy_within_training_step(self.policy):
                    training = self.policy_update_fn(stats)
                self._count_update(training)
        finally:
            self.buffer.clear()
        return stats, training, self.stop_reason is not None

    @property
    def learns_ahead(self) -> bool:
        """Whether the update is launched on the device before the host has read the statistics of the collect.

        The device then does not idle between collect and update.
        """
        # An update that is launched ahead changes the weights before `collect` returns. That is wrong in two cases:
        # 1. A subclass overrides `policy_update_fn`. Its code runs before the update that it makes, reads the policy as
        #    it is then, and may make another update than `_launch_update` would. The methods are compared because a
        #    subclass cannot be expected to declare that it has its own.
        # 2. `test_in_train` may evaluate in `_count_collect`: the policy that collected, not the updated one.
        has_own_update = type(self).policy_update_fn is not OnpolicyTrainer.policy_update_fn
        may_evaluate_between = self.test_in_train and self.stop_fn is not None
        return not has_own_update and not may_evaluate_between

    def _launch_update(self) -> None:
        """Launch the update of the rollout whose steps are launched, without waiting for either.

        The host does not know the numbers in the rollout yet, but it knows that all its rows will be filled:
        `len(self.buffer)` is already the number of its steps. `env_step` does not include them before `_count_collect`.
        So the sum is the number of steps after this collect, which schedules read in the update. Example: with 10,000
        steps before and a rollout of 2,048 it is 12,048.
        """
        self.policy.timesteps[STEPS_SAMPLED] = self.env_step + len(self.buffer)
        shuffle = self.policy.config.training.shuffle_batch_per_epoch
        options = UpdateOptions(self.policy.timesteps, self.repeat_per_collect, self.batch_size, shuffle)
        self.policy.learner_group.learner.device_update.launch(self.buffer, options)

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Update the policy with the rollout in `buffer`: `repeat_per_collect` passes in minibatches."""
        whole_rollout = 0  # the sample size that stands for all of the buffer
        return self.policy.update(whole_rollout, self.buffer, self.batch_size, self.repeat_per_collect)

    def _last_batch(self) -> dict[str, Any]:
        """Return a copy of the rollout's columns."""
        return self.buffer.columns()

    # -- plan of the rest of the run ---

    @property
    def _steps_per_update(self) -> int:
        """Number of environment steps that one update learns from."""
        return self.step_per_collect or self.buffer.num_steps * self.collector.num_envs

    def describe_updates(self) -> dict[str, str]:
        left = self.steps_left
        per_update = self._steps_per_update
        buffer = self.buffer
        num_updates = math.ceil(left / per_update)
        facts = {
            "updates": f"{num_updates:,} of {per_update:,} environment steps, {left:,} in all{self._overshoot_text()}",
            "gradient steps": self._minibatches_text(num_updates, per_update),
        }
        if buffer.num_bytes is not None:
            where = "" if buffer.device is None else f" on {buffer.device}"
            extent = f"{buffer.num_steps:,} x {self.collector.num_envs} steps{where}"
            facts["rollout store"] = f"{extent}, {size_text(buffer.num_bytes)}"
        return facts

    def _minibatches_text(self, num_updates: int, per_update: int) -> str:
        """Return a description of the gradient steps, and of the rows that are left over when minibatches are full.

        Example: a rollout of 1,000 rows fills 15 minibatches of 64 in a pass. The other 40 rows would be a minibatch
        that is not full, and are left out of the pass.
        """
        policy = self.policy
        minibatch = self.batch_size
        passes = f"for each update {count_text(self.repeat_per_collect, 'pass', 'passes')} over"
        if minibatch is not None and (policy.is_multi_agent or policy.is_stateful):
            rows = "rows of the module that has most" if policy.is_multi_agent else "sequences"
            return f"{passes} minibatches of {minibatch:,} {rows}, as many as the episodes fill"

        per_pass = minibatches_per_pass({"": per_update}, minibatch)  # one module, whose id does not matter
        size = min(minibatch or per_update, per_update)
        left_out = per_update - per_pass * size

        number = f"{num_updates * self.repeat_per_collect * per_pass:,}"
        if getattr(policy.config.training, "target_kl", None) is not None:
            number = f"at most {number}"
        elif self._may_overshoot():
            number = f"about {number}"
        text = f"{number}: {passes} {count_text(per_pass, 'minibatch', 'minibatches')} of {size:,}"
        if left_out:
            text += f"; {left_out:,} of {per_update:,} rows fill none and are left out of each pass"
        return text

    def work_left(self) -> tuple[float, float]:
        """Return the numbers of gradient steps in the rest of the run, and of the rows that they read.

        Example: 100,000 steps are left, with 10 passes in minibatches of 64. Then 1,000,000 rows are read, in 15,625
        gradient steps. Both are estimates, since a pass may leave rows out and an update may end early.
        """
        rows = self.steps_left * self.repeat_per_collect
        return rows / (self.batch_size or self._steps_per_update), rows

    def first_and_last_update(self) -> tuple[int, int]:
        """Return the positions of the run, in environment steps, at its next and at its last update.

        An update follows a collect, so the next one is `step_per_collect` steps after the present position. Example: at
        the beginning of a run with collects of 2,048 steps the first update is at 2,048. Collects of whole episodes
        have no length that is known before, and 0 is added.
        """
        start, end = super().first_and_last_update()
        return start + (self.step_per_collect or 0), end
