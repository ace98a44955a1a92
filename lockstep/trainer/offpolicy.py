"""`OffpolicyTrainer`: collect some steps, learn from samples of all that is remembered."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from lockstep.algorithms.build import build_replay_buffer
from lockstep.algorithms.build_agents import build_replay_buffers
from lockstep.algorithms.config import AlgorithmConfig
from lockstep.algorithms.multi_agent_policy import AnyPolicy, MultiAgentPolicy
from lockstep.algorithms.offline import check_numbers
from lockstep.algorithms.policy import Policy, policy_within_training_step
from lockstep.data import MultiAgentBatch, SampleBatch
from lockstep.replay import MultiAgentReplayBuffer, ReplayBuffer
from lockstep.replay.transfer import join
from lockstep.rollout import CollectorLike, MultiAgentCollector
from lockstep.rollout.errors import MalformedBufferError
from lockstep.state.checks import check_whole, is_number
from lockstep.tracking.statistics import CollectStatsBase, TrainingStats
from lockstep.trainer.base import REPLAYS, BaseTrainer
from lockstep.trainer.checks import check_amount, check_discounts, check_foreign, check_online, check_stacks
from lockstep.trainer.seeding import seed_buffer

ELSEWHERE = {
    "repeat_per_collect": "makes gradient steps by the number of collected steps; set update_per_step",
}
"""parameters of other trainers, and what this one does instead"""


class OffpolicyTrainer(BaseTrainer):
    """Trains a policy on what it remembers.

    After each collect of `step_per_collect` environment steps (or `episode_per_collect` whole episodes: exactly one of
    the two) come `update_per_step` gradient steps for each collected step, each on a fresh sample of `batch_size`
    transitions (`None`: on all of them, once each). Fractions are carried over to the next collect. The first
    `learning_starts` steps take random actions and are not learned from at once. `buffer`: transitions to begin with.
    The replay buffer is the train collector's and part of the checkpoint; where it has none, one is made as the
    policy's configuration says. Other parameters: `BaseTrainer`.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        *,
        max_epoch: int,
        batch_size: int | None,
        train_collector: CollectorLike,
        test_collector: CollectorLike | None = None,
        step_per_epoch: int,
        update_per_step: float = 1.0,
        step_per_collect: int | None = None,
        episode_per_collect: int | None = None,
        learning_starts: int = 0,
        buffer: ReplayBuffer | None = None,
        **options: Any,
    ) -> None:
        check_foreign(type(self), ELSEWHERE, options)
        check_online("OffpolicyTrainer", policy, train_collector, from_rollouts=False)
        self.step_per_collect, self.episode_per_collect = check_amount(step_per_collect, episode_per_collect)
        self.learning_starts: int = check_whole("learning_starts", learning_starts, 0)
        if not is_number(update_per_step) or not 0 < update_per_step < math.inf:
            raise ValueError(f"update_per_step={update_per_step!r} is not allowed; it must be a number above 0")
        if train_collector.buffer is not None and not isinstance(train_collector.buffer, REPLAYS):
            raise ValueError(
                "OffpolicyTrainer learns from a replay buffer, train_collector has a rollout store; give "
                f"Collector(..., buffer=VectorReplayBuffer(size, {train_collector.num_envs}))"
            )
        super().__init__(policy, max_epoch, batch_size, train_collector, test_collector, step_per_epoch, **options)
        self.collector = train_collector
        self.update_per_step = float(update_per_step)
        if train_collector.buffer is None:
            train_collector.buffer = _new_buffer(policy.config, train_collector)
            seed_buffer(train_collector.buffer, options.get("seed"))
        self.buffer: Any = train_collector.buffer
        """a `ReplayBuffer`; of several agents a `MultiAgentReplayBuffer`"""
        if isinstance(policy, Policy) and isinstance(self.buffer, ReplayBuffer):
            check_stacks(train_collector, self.buffer)
            check_discounts(policy, self.buffer)
        if max_epoch and learning_starts >= self.steps_in_all:
            warnings.warn(
                f"learning_starts={learning_starts} is not below the {self.steps_in_all} steps of the run: nothing "
                "will be learned",
                stacklevel=2,
            )
        if buffer is not None:
            self._begin_with(buffer)

    def _zero(self) -> None:
        super()._zero()
        self.steps_learned_from = 0
        """collected steps that gradient steps are made for"""
        self.updates_due = 0
        """gradient steps still to make for them: a hook that fails after a collect leaves them to the next one"""
        self.updates_now = 0
        """gradient steps that `policy_update_fn` makes"""

    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Collect once, and make the gradient steps that are due for it, where there are any."""
        random = self.env_step < self.learning_starts
        with policy_within_training_step(self.policy):
            stats = self.collector.collect(
                n_step=self.step_per_collect, n_episode=self.episode_per_collect, random=random
            )
        if not random:
            before = self._num_due(self.steps_learned_from)
            self.steps_learned_from += stats.n_collected_steps
            self.updates_due += self._num_due(self.steps_learned_from) - before
        self._count_collect(stats)
        self.updates_now, self.updates_due = self.updates_due, 0
        training = None
        if self.updates_now:
            try:
                with policy_within_training_step(self.policy):
                    training = self.policy_update_fn(stats)
                self._count_update(training)
            except FloatingPointError:
                self.bad_batch = _columns_of(self.policy.last_batch)
                raise
        return stats, training, self.stop_reason is not None

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Make `updates_now` gradient steps, each on a fresh sample of `buffer`."""
        return self.policy.update(self.batch_size or 0, self.buffer, repeat=self.updates_now)

    def _num_due(self, steps: int) -> int:
        """Return the gradient steps due for so many steps; one product, so that no fraction is lost to rounding."""
        return math.floor(self.update_per_step * steps + 1e-9)

    @property
    def gradient_steps_left(self) -> int:
        """Gradient steps that the rest of the run makes if nothing ends it earlier."""
        collect, left = self.step_per_collect or 1, self.steps_in_all - self.env_step
        random = min(left, -(-max(0, self.learning_starts - self.env_step) // collect) * collect)
        learned = self.steps_learned_from
        return self.updates_due + self._num_due(learned + left - random) - self._num_due(learned)

    def _begin_with(self, given: Any) -> None:
        if isinstance(self.policy, MultiAgentPolicy):
            raise ValueError("buffer is not allowed with several agents, who begin with nothing; leave it out")
        if not isinstance(given, ReplayBuffer) or len(given) == 0:
            what = "an empty replay buffer" if isinstance(given, ReplayBuffer) else f"a {type(given).__name__}"
            raise MalformedBufferError(f"buffer is {what}; give a ReplayBuffer with transitions, or leave it out")
        check_numbers(given, "the transitions of buffer")
        prepared = self.policy.process_buffer(given)
        if prepared is self.buffer:
            return
        if not isinstance(prepared, ReplayBuffer):
            raise MalformedBufferError(
                f"process_buffer gave a {type(prepared).__name__}; OffpolicyTrainer needs a ReplayBuffer of it"
            )
        try:
            join(self.buffer, prepared, replace=given is self.buffer)  # what was made of it takes its place
        except (KeyError, ValueError) as error:
            raise MalformedBufferError(f"buffer does not fit the train collector's: {error}") from error

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """As `BaseTrainer.get_state`, and the steps learned from; the buffer is a folder of its own."""
        own = {"steps_learned_from": self.steps_learned_from, "updates_due": self.updates_due}
        return {**super().get_state(), **own}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`."""
        super().set_state(state)
        self.steps_learned_from = int(state["steps_learned_from"])
        self.updates_due = int(state.get("updates_due", 0))

    def own_folders(self) -> dict[str, dict[str, Any]]:
        """The replay buffer, of several agents that of each module."""
        return {folder: buffer.checkpoint_state() for folder, buffer in self._replays().items()}

    def set_own_folders(self, folders: Mapping[str, Any]) -> None:
        """Restores the replay buffer. `ValueError`, changing nothing, where there is none or it does not fit."""
        replays = self._replays()
        if not set(replays) <= set(folders):
            raise ValueError(f"the checkpoint has no replay buffer, only {sorted(folders)}; a run needs its own")
        before = {folder: buffer.get_state() for folder, buffer in replays.items()} if len(replays) > 1 else {}
        try:
            for folder, buffer in replays.items():
                buffer.set_state(folders[folder])
        except BaseException:
            for folder, state in before.items():
                replays[folder].set_state(state)
            raise

    def _replays(self) -> dict[str, ReplayBuffer]:
        """By their folders in a checkpoint."""
        if isinstance(self.buffer, MultiAgentReplayBuffer):
            return {f"replay/{module_id}": own for module_id, own in self.buffer.buffers.items()}
        return {"replay": self.buffer}


def _new_buffer(config: AlgorithmConfig, collector: CollectorLike) -> ReplayBuffer | MultiAgentReplayBuffer:
    """As the policy's configuration has it, for what the collector collects."""
    if isinstance(collector, MultiAgentCollector):
        return build_replay_buffers(config, collector)
    return build_replay_buffer(config, collector.num_envs)


def _columns_of(batch: SampleBatch | MultiAgentBatch | None) -> dict[str, Any] | None:
    """As plain columns, by module where there are several."""
    if isinstance(batch, MultiAgentBatch):
        return {module_id: dict(batch[module_id].items()) for module_id in batch}
    return None if batch is None else dict(batch.items())
