"""`BaseTrainer`: the loop over epochs, evaluation, the best score and the times of checkpoints."""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from lockstep.data import MultiAgentBatch
from lockstep.learner.config import PoliciesToTrain, PolicyMapping
from lockstep.learner.learner import STEPS_SAMPLED, Learner
from lockstep.modules import RLModule, RLModuleSpec
from lockstep.options.checks import check_flags, no_copies
from lockstep.policy.policy import Policy
from lockstep.rollout import CollectorLike
from lockstep.state.checkpoint import newest_attempt
from lockstep.state.streams import RandomStreams
from lockstep.tracking import BaseLogger, LazyLogger, RunLock
from lockstep.tracking.metrics import Metrics, named
from lockstep.tracking.statistics import (
    CollectStats,
    CollectStatsBase,
    EpochStats,
    InfoStats,
    TimingStats,
    TrainingStats,
)
from lockstep.tracking.totals import Totals
from lockstep.trainer.callbacks import (
    Callback,
    CheckpointCallback,
    CheckpointSaved,
    CollectEnd,
    EpochEnd,
    EvaluationEnd,
    Event,
    LoggingCallback,
    RunEnd,
    RunStart,
    TrainerView,
    UpdateEnd,
    attach_callbacks,
    tell,
)
from lockstep.trainer.checks import check_collector, check_evaluation, check_policy
from lockstep.trainer.counters import Counter, Counters, EpochStage
from lockstep.trainer.display import ProgressDisplay
from lockstep.trainer.evaluation import (
    Evaluator,
    mean_return,
    score_of,
    warn_endless,
    with_reward_metric,
)
from lockstep.trainer.interrupt import DeferredInterrupt
from lockstep.trainer.options import CollectOptions, RunOptions
from lockstep.trainer.run_state import REPLAY, RunCheckpoint, RunState


class RunPhase(Enum):
    """What the next call of `next(trainer)` does."""

    NEW = auto()
    """It resets the trainer and begins a run."""
    READY = auto()
    """It begins the run after a reset, or continues the one that was restored."""
    RUNNING = auto()
    """It trains the next epoch."""
    OVER = auto()
    """It raises `StopIteration`: the run has ended."""


class BaseTrainer(ABC):
    """The part that all trainers share. Iterate over it epoch by epoch, or call `run()`.

    Order of events: reset, first evaluation, then in each epoch `train_fn`, collect, update (until `step_per_epoch`
    steps are done), evaluation, best score, `stop_fn`, checkpoint, `EpochStats`; at the end one more checkpoint with
    the reason, whatever ended the run. Callbacks see frozen events.

    A subclass changes the run by overriding a step that the loop calls: `training_step()`, which collects and learns,
    `policy_update_fn(collect_stats)`, the learning in it, or `test_step()`, an evaluation.

    Each trainer takes the options of its class as keywords. Those of all trainers are described in `RunOptions`, in
    `lockstep.trainer.options`.

    Raises `ValueError` with the parameter's name, its value and what is allowed.
    """

    options_class: ClassVar[type[RunOptions]] = RunOptions
    """Class of its options."""
    learns_from_rollouts: ClassVar[bool] = False
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Options of other trainers, and what this one does instead."""
    step_per_collect: int | None = None
    episode_per_collect: int | None = None
    buffer: Any = None
    """what is learned from"""
    counters: Counters
    """Progress of the run. Its values can be read and set as attributes of the trainer, too."""
    epoch = Counter[int]()
    epoch_steps = Counter[int]()
    env_step = Counter[int]()
    env_episode = Counter[int]()
    gradient_step = Counter[int]()
    test_env_step = Counter[int]()
    test_episode = Counter[int]()
    last_test_at = Counter[int | None]()
    tested_in_train = Counter[bool]()
    best_score = Counter[float | None]()
    best_epoch = Counter[int | None]()
    stop_reason = Counter[str | None]()
    seconds = Counter[dict[str, float]]()
    steps_learned_from = Counter[int]()
    updates_made = Counter[int]()
    learning_resumes_at = Counter[int]()
    samples_seen = Counter[int]()

    batch_size: int | None
    """Rows of a gradient step; None for all of them."""

    def __init__(self, policy: Policy, options: RunOptions) -> None:
        self.policy = policy
        self.train_collector: CollectorLike | None = None
        self.collects = isinstance(options, CollectOptions)
        """Whether the trainer collects what it learns from."""
        if isinstance(options, CollectOptions):
            self.train_collector = options.train_collector
            self.step_per_collect = options.step_per_collect
            self.episode_per_collect = options.episode_per_collect
        self.test_collector = options.test_collector
        self.max_epoch = options.max_epoch
        self.step_per_epoch = options.step_per_epoch
        self.total_steps = options.total_steps
        self.test_interval = options.test_interval
        self.checkpoint_interval = options.checkpoint_interval
        self.train_fn = options.train_fn
        self.stop_fn = options.stop_fn
        self.compute_score_fn = options.compute_score_fn or mean_return
        self.save_best_fn = options.save_best_fn
        self.save_checkpoint_fn = options.save_checkpoint_fn
        self.reward_metric = options.reward_metric
        self.nan_policy = options.nan_policy
        self.resume_from_log = options.resume_from_log
        self.logger: BaseLogger = options.logger or LazyLogger()
        self.evaluator = Evaluator(policy, options)
        self.episode_per_test = self.evaluator.n_episode
        self.step_per_test = self.evaluator.n_step
        self._check_parts(options)

        self.test_in_train = options.test_in_train and self.stop_fn is not None
        if options.test_in_train and self.stop_fn is None:
            warnings.warn("test_in_train=True is off: it needs a test_collector and a stop_fn", stacklevel=3)

        # A checkpoint holds what the other callbacks have made of the same event.
        savers_last = sorted(options.callbacks, key=lambda callback: isinstance(callback, CheckpointCallback))
        self.callbacks: list[Callback] = [LoggingCallback(self.logger), *savers_last]
        if options.verbose or options.show_progress:
            self.callbacks.append(ProgressDisplay(live=None if options.show_progress else False))
        self._attach_callbacks(policy.config.callbacks.classes)
        self._run_state = RunState(self)
        self.set_seed(options.seed)
        self._interrupt = DeferredInterrupt()
        self._phase = RunPhase.NEW
        self.attempt = 0
        """How often the run has been started; part of a checkpoint's manifest, and raised by each start."""
        self.lock: RunLock | None = None
        """Lock of the run's folder, held from the start of the run to its end."""
        self._holding = ExitStack()
        self.checkpoint_directory: Path | None = None
        """Folder whose checkpoints are those of this run: each start counts after all that are there."""
        self._zero()

    def _check_parts(self, options: RunOptions) -> None:
        evaluator = self.evaluator
        check_policy(self.policy, type(self).__name__, from_rollouts=self.learns_from_rollouts, collects=self.collects)
        if self.train_collector is not None:
            check_collector("train_collector", self.train_collector, self.policy, self.reward_metric)
        if self.test_collector is not None:
            evaluated = None if evaluator.beside_training else self.policy
            check_collector("test_collector", self.test_collector, evaluated, self.reward_metric)
        functions: dict[str, Callable[..., Any] | None] = {
            "stop_fn": self.stop_fn,
            "save_best_fn": self.save_best_fn,
            "compute_score_fn": options.compute_score_fn,
            **evaluator.functions,
        }
        check_evaluation(
            self.test_collector, self.train_collector, functions, evaluator.amounts, evaluator.beside_training
        )

    def _attach_callbacks(self, classes: Sequence[type]) -> None:
        if self.train_collector is not None:
            attach_callbacks(self.callbacks, "train_collector", self.train_collector, classes)
        self.evaluator.attach_callbacks(self.callbacks, classes)

    def _zero(self) -> None:
        self.counters = Counters()
        self.totals = Totals()
        self.best_stats: CollectStats | None = None
        self.last_test: CollectStats | None = None
        self.history: list[EpochStats] = []
        self.metrics = Metrics()
        for callback in self.callbacks:
            callback.metrics = self.metrics
        self.bad_batch: dict[str, Any] | None = None
        """the rollout or sample whose update gave a loss or gradient that is not finite"""
        self._saved_at: tuple[int, ...] | None = None
        self._is_stepping = False
        self._is_torn = False
        """Whether a step has begun to change the state, and has not ended."""
        self._waiting: list[Callable[[], None]] = []
        """changes of modules that were asked for within a training step"""
        self._clock = time.monotonic()

    # -- use ---

    def run(self, reset_collectors: bool = True, reset_buffer: bool = False) -> InfoStats:
        """Run to the end. Ctrl-C ends the run in the same orderly way; any other error is raised after a last
        checkpoint.

        The run begins with `reset(reset_collectors, reset_buffer)`, unless the trainer was just reset or restored.
        """
        if self._phase is not RunPhase.READY:
            self.reset(reset_collectors, reset_buffer)
        with self._ending_in_order():
            self._start()
            while self.stop_reason is None and not self.is_complete:
                self._train_epoch()
            self._end(self.stop_reason or "max_epoch")
        return self.info()

    def __iter__(self) -> Self:
        self._leave()
        return self

    def __next__(self) -> EpochStats:
        if self._phase is RunPhase.OVER:
            raise StopIteration
        if self._phase is RunPhase.NEW:
            self.reset()
        with self._ending_in_order():
            if self._phase is RunPhase.READY:
                self._start()
            if self.stop_reason is None and not self.is_complete:
                return self._train_epoch()
            self._end(self.stop_reason or "max_epoch")
        raise StopIteration

    @contextmanager
    def _ending_in_order(self) -> Iterator[None]:
        """End the run with a last checkpoint at Ctrl-C, and at any other error before it is raised.

        A `KeyboardInterrupt` in the midst of a step (a second Ctrl-C, or one that an environment raises) leaves a state
        from which the run cannot continue with identical results. Then no checkpoint is written, and the run
        continues from the one before.
        """
        try:
            yield
        except KeyboardInterrupt:
            self._end("interrupted", save=self.is_whole)
        except BaseException as error:
            try:
                self._end("error", save=not isinstance(error, SystemExit))
            except Exception as second:
                error.add_note(f"the run could not be ended in order either: {second}")
            if isinstance(error, StopIteration):  # it would end a loop over the epochs without a word
                raise RuntimeError("a function of the run raised StopIteration") from error
            raise

    def reset(self, reset_collectors: bool = True, reset_buffer: bool = False) -> None:
        """Start a new run: reset all counters, statistics and the best score.

        `reset_collectors`: begin new episodes and set the collectors' counters to zero; `reset_buffer`: empty the
        replay buffer.
        """
        check_flags(reset_collectors=reset_collectors, reset_buffer=reset_buffer)
        if reset_buffer and not reset_collectors:
            raise ValueError(
                "reset_buffer=True is not allowed with reset_collectors=False; a buffer is emptied where its collector "
                "begins new episodes"
            )
        if self._phase is RunPhase.READY:
            self._phase = RunPhase.NEW
        self._leave()
        self._zero()
        self.evaluator.forget()
        is_restored = self.resume_from_log and self._run_state.restore_logged()
        self.resume_from_log = False
        if not is_restored:
            self.policy.timesteps[STEPS_SAMPLED] = self.position  # exploration and schedules begin where counters do
            for collector in self._run_state.collectors().values() if reset_collectors else ():
                has_replay = collector.buffer is not None and collector.buffer.is_sampled
                is_rollout = collector is self.train_collector and not has_replay
                collector.reset(reset_buffer=reset_buffer or is_rollout)
        self._phase = RunPhase.READY

    def _leave(self) -> None:
        """End a run that was left before its end; the next iteration begins a new one."""
        if self._phase is RunPhase.RUNNING:
            self._end("interrupted")
        if self._phase is RunPhase.OVER:
            self._phase = RunPhase.NEW

    def close(self) -> None:
        """End the processes and the environments that were made for the run; one that was handed over stays open."""
        if isinstance(self.policy.config.environment.env, str) or callable(self.policy.config.environment.env):
            for collector in self._run_state.collectors().values():
                collector.close()
        if not self.policy.learner_group.is_alone:  # an error ended the run, or its learners are lost
            self.policy.learner_group.shutdown()
        if self.lock is not None:
            self.lock.release()

    # -- the loop ---

    def _train_epoch(self) -> EpochStats:
        """Collect and learn for an epoch, evaluate, write a checkpoint; return the statistics."""
        self.counters.begin_epoch()
        with self._interrupt:
            while self.epoch_steps < self.step_per_epoch and self.stop_reason is None and not self._has_all_steps:
                if self.train_fn is not None:
                    self.train_fn(self.epoch, self.env_step)
                self._is_stepping = True
                try:
                    with self._changing_state():
                        *_, stop = self.training_step()
                finally:
                    self._is_stepping = False
                self._make_changes()
                if stop and self.stop_reason is None:
                    self.stop_reason = "stop_fn"
                self._interrupt.check()
                if self.stop_reason == "interrupted":  # a callback's request: the same as Ctrl-C
                    raise KeyboardInterrupt
            tested = self._test_epoch()
            with self._changing_state():
                stats = self._epoch_stats(tested)
                self.history.append(stats)
                self.counters.end_epoch(self.step_per_epoch)
                self.totals = Totals()
            if self.checkpoint_interval and self.epoch % self.checkpoint_interval == 0:
                self._checkpoint()
            self._end_epoch()
        return stats

    @abstractmethod
    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Collect once and learn once. Return the statistics of both (None: nothing was learned), and whether the run
        is to stop.
        """

    @abstractmethod
    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Learn from what was collected, within a training step of the policy, and return the statistics."""

    @contextmanager
    def _changing_state(self) -> Iterator[None]:
        """Mark the state as torn until the block has ended; an error leaves the mark."""
        self._is_torn = True
        yield
        self._is_torn = False

    @property
    def is_whole(self) -> bool:
        """Whether the run could go on from its present state: no step was left in its midst."""
        return not self._is_torn

    @contextmanager
    def _keeping_bad_batch(self) -> Iterator[None]:
        """Keep the data of a loss or gradient that is not finite as `bad_batch`."""
        try:
            yield
        except FloatingPointError:
            self.bad_batch = self._learned_from()
            raise

    def _learned_from(self) -> dict[str, Any] | None:
        """Return the columns of the policy's last batch, by module where there are several."""
        batch = self.policy.last_batch
        if isinstance(batch, MultiAgentBatch):
            return {module_id: dict(batch[module_id].items()) for module_id in batch}
        return None if batch is None else dict(batch.items())

    def test_step(self) -> tuple[CollectStats, bool]:
        """Evaluate once. Return the statistics, and whether `stop_fn` is satisfied."""
        self._begin_test()
        return self._report_test()

    def _begin_test(self) -> None:
        tell(self.callbacks, "on_evaluate_start")
        self.evaluator.begin(self.counters.where)

    def _report_test(self) -> tuple[CollectStats, bool]:
        """Wait for the evaluation under way, count and score it, and tell callbacks."""
        with self._changing_state():
            found = self.evaluator.finish()
        stats, where = with_reward_metric(self.reward_metric, found.stats).without_values(), found.where
        tell(self.callbacks, "on_evaluate_end", stats)
        self.counters.count_test(stats)
        score = found.metrics["score"] if found.metrics else score_of(self.compute_score_fn, stats)
        is_best = not math.isnan(score) and (self.best_score is None or score > self.best_score)
        self.last_test, self.last_test_at = stats, where[1] or where[2]
        if is_best:
            self.best_score, self.best_stats, self.best_epoch = score, stats, where[0]
        self._emit(EvaluationEnd(*where, stats=stats, score=score, is_best=is_best, metrics=found.metrics))
        if is_best and self.save_best_fn is not None:
            self.save_best_fn(self.evaluator.policy)
        return stats, self.stop_fn is not None and bool(self.stop_fn(score))

    def _test(self) -> CollectStats:
        self._end_test()
        return self._stop_where_enough(*self.test_step())

    def _stop_where_enough(self, stats: CollectStats, stop: bool) -> CollectStats:
        if stop and self.stop_reason is None:
            self.stop_reason = "stop_fn"
        return stats

    def _test_epoch(self) -> CollectStats | None:
        """Evaluate where the epoch asks for it, and return the statistics. Beside training, report what went on
        meanwhile and begin the next evaluation; only the last one is waited for.
        """
        self._end_test()
        is_last = self.stop_reason is not None or self.epoch >= self.max_epoch or self._has_all_steps
        if self.test_collector is None or not (self.epoch % self.test_interval == 0 or is_last):
            return None
        if is_last or not self.evaluator.beside_training:
            return self._test()
        self._begin_test()
        return None

    def _end_test(self) -> None:
        """Report the evaluation that is under way beside training, if one is, with the epoch that it is of."""
        if self.evaluator.pending is None:
            return
        epoch = self.evaluator.pending[0]
        stats = self._stop_where_enough(*self._report_test())
        for i, each in enumerate(self.history):
            if each.epoch == epoch:
                self.history[i] = replace(each, test_collect_stat=stats)

    def _count_collect(self, stats: CollectStats) -> None:
        stats = with_reward_metric(self.reward_metric, stats)
        self.counters.count_collect(stats)
        self.totals.add_collect(stats)
        self.policy.timesteps[STEPS_SAMPLED] = self.env_step
        self._emit(CollectEnd(*self.counters.where, stats=stats))
        if self.test_in_train and not self.tested_in_train and len(stats.returns):
            if self.stop_fn is not None and self.stop_fn(score_of(self.compute_score_fn, stats)):
                self.tested_in_train = True
                self._test()

    def _count_update(self, stats: TrainingStats) -> None:
        self.gradient_step += stats.gradient_steps
        self.totals.add_update(stats)
        self.seconds["update"] += stats.train_time
        self._is_torn = False  # what follows only watches
        self._emit(UpdateEnd(*self.counters.where, stats=stats))
        bad = stats.bad_losses()
        if bad and self.nan_policy == "stop":
            step = self.gradient_step - stats.gradient_steps + (stats.first_bad_step or stats.gradient_steps)
            raise FloatingPointError(
                f"{bad[0]} is not finite at environment step {self.env_step}, gradient step {step}; "
                "lower the learning rate, clip gradients, or check the rewards (nan_policy='ignore' goes on). "
                "The batch is in trainer.bad_batch, which checkpoints hold"
            )

    # -- modules that come and go ---

    def add_module(
        self,
        module_id: str,
        module_spec: RLModuleSpec | RLModule | Mapping[str, Any] | None = None,
        config_overrides: Mapping[str, Any] | None = None,
        init_from: str | Path | None = None,
        *,
        frozen: bool = False,
    ) -> None:
        """Add a module: to the policy and its learners, see `Policy.add_module`, and to the replay buffers.

        This and the next three are for between two epochs, and for callbacks, which call them of the trainer that they
        see. What is asked for within a training step is done at its end.
        """

        def add() -> None:
            self.policy.add_module(module_id, module_spec, config_overrides, init_from, frozen=frozen)
            self._fit_replay()

        self._change(add)

    def remove_module(self, module_id: str) -> None:
        """Remove a module everywhere; episodes under way in which it acts are left, and begun anew.

        `KeyError` for an unknown module, `ValueError` for the last one; nothing is changed then.
        """

        def remove() -> None:
            self.policy.remove_module(module_id)
            for collector in self._run_state.collectors().values():
                if collector.policy is self.policy:  # an evaluation beside training has modules of its own
                    collector.leave_episodes_of(module_id)
            self._fit_replay()

        self._change(remove)

    def set_policies_to_train(self, policies_to_train: PoliciesToTrain) -> None:
        """Let these modules learn from the next update on; as `multi_agent(policies_to_train=)` takes them."""
        self._change(partial(self.policy.set_policies_to_train, policies_to_train))

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMapping) -> None:
        """Map agents so in all episodes that begin from now on; as `multi_agent(policy_mapping_fn=)` takes it.

        A checkpoint does not hold a function: who resumes sets it again (in `on_run_start`), or gives it with the
        configuration.
        """

        def change() -> None:
            self.policy.policy_mapping_fn = policy_mapping_fn
            self._fit_replay()

        self._change(change)

    def _change(self, change: Callable[[], None]) -> None:
        if not self.policy.is_multi_agent:
            raise ValueError(
                "the policy is of one agent, whose module stays; name modules with multi_agent(policies=...)"
            )
        if self._is_stepping:
            self._waiting.append(change)
        else:
            change()

    def _make_changes(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()

    def _fit_replay(self) -> None:
        """Give each module that learns a replay buffer for the agents that it may act for."""
        if self.train_collector is not None:
            self.train_collector.fit_replay()

    # -- beginning and end ---

    def _start(self) -> None:
        """Begin a run, or go on with the one that was restored: `RunStart`, first evaluation."""
        if self.lock is not None:
            self._holding.enter_context(self.lock)
        self._phase = RunPhase.RUNNING
        self._is_torn = False
        before = 0 if self.checkpoint_directory is None else newest_attempt(self.checkpoint_directory)
        self.attempt = 1 + max(self.attempt, before)
        self._clock = time.monotonic() - self.seconds["total"]
        self._emit(RunStart(*self.counters.where, trainer=TrainerView(self)))
        if self.counters.stage is EpochStage.UNREPORTED:
            self._end_epoch()
        is_first = self.max_epoch > 0 and self.epoch == 0 and self.stop_reason != "interrupted"
        self.evaluator.resume()
        if self.test_collector is not None and is_first and self.last_test is None:
            with self._interrupt:
                if not self.evaluator.beside_training:
                    self._test()
                elif not self.evaluator.is_pending:
                    self._begin_test()
        if self.epoch_steps < 0 and not self.counters.in_epoch and not self._has_all_steps:
            # an earlier `total_steps` cut the last epoch short, or a callback did where it was the last of the run
            if self.history[-1].info_stat.stop_reason is None or self.epoch >= self.max_epoch:
                self.counters.continue_epoch(self.step_per_epoch)

    def _end_epoch(self) -> None:
        """Emit `EpochEnd`: after the checkpoint, so a run that goes on from there emits it once more."""
        self.counters.stage = EpochStage.BETWEEN
        stats = self.history[-1]
        if self.train_collector is not None and stats.train_collect_stat is not None and not self.env_episode:
            warn_endless(self.train_collector, self.env_step, stats.train_collect_stat.n_collected_steps)
        self._emit(EpochEnd(*self.counters.where, stats=stats))

    def _end(self, reason: str, save: bool = True) -> None:
        """Write the last checkpoint, emit `RunEnd` to every callback and close the logger; then raise the first failure
        of these. An interrupted checkpoint is tried again.
        """
        if self._phase is RunPhase.OVER:
            return
        self.stop_reason = reason
        self.seconds["total"] = time.monotonic() - self._clock
        failures = []
        try:
            if save:
                # Callbacks that asked for modules within the step which ends here have them in their states.
                self._make_changes()
                if self._saved_at != self.counters.progress:
                    self._checkpoint()
        except Exception as error:
            self.stop_reason = "error"
            failures.append(error)
        self._phase = RunPhase.OVER
        self.evaluator.wait()
        event = RunEnd(*self.counters.where, reason=self.stop_reason, info=self.info())
        try:
            for callback in self.callbacks:
                try:
                    callback.on_event(event)
                except Exception as error:
                    failures.append(error)
        finally:
            try:
                self.logger.finalize()
            finally:
                self._holding.close()
        if failures:
            raise failures[0]

    def _emit(self, event: Event) -> None:
        for callback in self.callbacks:
            reason = callback.on_event(event)
            if reason is not None and not (isinstance(reason, str) and reason):
                raise TypeError(
                    f"{type(callback).__name__} returned {reason!r} for {type(event).__name__}; a callback returns "
                    "None, or a text: the reason for which the run is to stop"
                )
            if reason is not None and self.stop_reason is None:
                self.stop_reason = reason

    def _checkpoint(self) -> None:
        """Write a checkpoint and record it; without one its counters, unless callbacks write and record checkpoints."""
        written = None
        if self.save_checkpoint_fn is not None and self.checkpoint_interval > 0:
            written = self.save_checkpoint_fn(*self.counters.where)
        path = None if written is None else Path(written)
        is_of_error = path is not None and self.stop_reason == "error"
        writes_itself = path is not None or not any(isinstance(each, CheckpointCallback) for each in self.callbacks)
        if writes_itself and not is_of_error:  # a run that goes on from its log must not begin with an error's state
            self.logger.save_data(*self.counters.where, lambda *_: path)
        self._saved_at = self.counters.progress
        if path is not None:
            self._emit(CheckpointSaved(*self.counters.where, path=path))

    # -- reports ---

    @property
    def is_complete(self) -> bool:
        """Whether the run has ended all its epochs, or made all its steps."""
        return not self.counters.in_epoch and (self.epoch >= self.max_epoch or self._has_all_steps)

    @property
    def _has_all_steps(self) -> bool:
        return self.total_steps is not None and self.position >= self.total_steps

    @property
    def position(self) -> int:
        """Environment steps so far; of a run that collects nothing, gradient steps."""
        return self.counters.position

    @property
    def steps_in_all(self) -> int:
        """Steps of the whole run if nothing ends it earlier, in whole collects."""
        limit = self.max_epoch * self.step_per_epoch if self.total_steps is None else self.total_steps
        left, collect = max(0, limit - self.position), self.step_per_collect or 1
        return self.position + -(-left // collect) * collect

    # -- plan ---

    @property
    def steps_left(self) -> int:
        """Steps that the rest of the run makes if nothing ends it earlier."""
        return self.steps_in_all - self.position

    def describe_updates(self) -> dict[str, str]:
        """Return what the rest of the run learns from and how often, in words, by subject."""
        return {}

    def work_left(self) -> tuple[float, float]:
        """Return the number of gradient steps that the rest of the run takes, and of the rows that they read."""
        return 0, 0

    def choose_compiling(self, is_allowed: bool) -> bool:
        """Choose and return whether gradient steps are compiled. The policy's configuration keeps it.

        `is_allowed`: whether the algorithm takes `framework(compile=True)`; else "auto" means eager.
        """
        framework, learners = self.policy.config.framework, self.policy.learner_group
        if learners.is_alone:
            planned = self.work_left() if is_allowed else (0, 0)
            framework.compile = learners.learner.choose_compiling(*planned)
        else:  # several learners step eagerly
            framework.compile = framework.compile is True
        return framework.compile

    def first_and_last_update(self) -> tuple[int, int]:
        """Return the positions of the run at its next and at its last update. Schedules use them."""
        return self.position, self.steps_in_all

    def _collects_more(self) -> bool:
        """Return whether a collect may have more steps than asked for: whole episodes, or rows that only reset."""
        next_step = getattr(getattr(self.train_collector, "env", None), "autoreset_mode", None) == "NEXT_STEP"
        return next_step or self.policy.config.env_runners.collects_whole_episodes

    def _beyond_text(self) -> str:
        """Return words about collects that go beyond the steps asked for."""
        if self.policy.config.env_runners.collects_whole_episodes:
            return " (a collect goes on to the end of its episodes, so it may have more steps)"
        if self.total_steps is None or self.steps_in_all == self.total_steps:
            return ""
        return f" ({self.total_steps:,} were asked for; the last collect is not cut)"

    def info(self, with_history: bool = True) -> InfoStats:
        """Return the run so far: counters, best score, seconds."""
        best = None if self.best_stats is None else self.best_stats.returns_stat
        return InfoStats(
            gradient_step=self.gradient_step,
            best_score=self.best_score,
            best_reward=None if best is None else best.mean,
            best_reward_std=None if best is None else best.std,
            best_epoch=self.best_epoch,
            train_step=self.env_step,
            train_episode=self.env_episode,
            test_step=self.test_env_step,
            test_episode=self.test_episode,
            timing=TimingStats.of_seconds(steps=self.position, **self.seconds),
            stop_reason=self.stop_reason,
            history=tuple(self.history) if with_history else (),
        )

    def _epoch_stats(self, test: CollectStats | None) -> EpochStats:
        self.seconds["total"] = time.monotonic() - self._clock
        collected = None if self.train_collector is None else self.totals.collect_stats().without_values()
        training = self.totals.training_stats()
        metrics = named(self.metrics.report())
        return EpochStats(self.epoch, collected, test, training, self.info(with_history=False), metrics)

    # -- random numbers ---

    def set_seed(self, seed: int | None) -> None:
        """Give environments, exploration, evaluation, samples and minibatches streams of this seed, each by its name.

        The initial weights are drawn when the policy is built and stay as they are. `None`: collectors made by hand
        without a seed get the policy's, so that the run can be repeated; all else has its streams already. Raises
        `ValueError` for env runners, whose environments have the streams of their own configuration.
        """
        streams = RandomStreams(self.policy.config.debugging.seed if seed is None else seed)
        for name, collector in self._run_state.collectors().items():
            if seed is None and collector.is_seeded:
                continue
            if collector.in_runners:
                raise ValueError(
                    f"seed={seed} does not reach the env runners of {name}, which have that of their configuration; "
                    "leave it out and set debugging(seed=...)"
                )
            collector.reseed(streams.child(name))
        if seed is not None:
            if self.train_collector is not None and self.train_collector.buffer is not None:
                self.train_collector.buffer.seed_streams(seed)
            self.policy.learner_group.foreach_learner(_set_seed, seed)
            self.policy.seed(seed)

    # -- state ---

    __reduce__ = no_copies(
        "collectors and loggers", "build another one, or save_trainer(trainer, path) and restore_trainer(other, path)"
    )

    def get_state(self) -> dict[str, Any]:
        """Return counters, statistics, best score, collectors, callbacks and logger. The policy is saved next to it."""
        return self._run_state.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`: the next iteration goes on where that run was. Callbacks are matched by their
        class, in order.

        Raises:
            ValueError: the collectors of the state are of other environments, or of another number of them. Nothing is
                changed then.

        What `set_state` of a callback or of a logger raises comes last, when all else is restored.
        """
        self._leave()
        self._run_state.set_collectors(state)
        self._zero()
        self._run_state.set_records(state)
        self._saved_at = self.counters.progress
        self._phase = RunPhase.READY

    def own_folders(self) -> dict[str, dict[str, Any]]:
        """Return further folders of a checkpoint, for large things: each replay buffer."""
        return self._run_state.replay_folders()

    def set_own_folders(self, folders: Mapping[str, Any]) -> None:
        """Restore what `own_folders` returned, from all folders of a checkpoint.

        Raises:
            ValueError: the folders do not fit this trainer.
        """
        self._run_state.set_replay_folders(folders)

    def save_to_path(
        self, path: str | Path, *, attempt: int | None = None, carried: Mapping[str, Path] | None = None
    ) -> Path:
        """Write a full checkpoint and return its path: policy and all its state in its own folders, the trainer's in
        `trainer`.

        Records that the logger holds back for its next interval are part of the state, so saving changes no record.

        Args:
            path: folder of the checkpoint.
            attempt: number of this start of the run; by default the trainer's own.
            carried: see `write_checkpoint`.
        """
        return self._run_state.save(path, self.attempt if attempt is None else attempt, carried)

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of a full checkpoint."""
        return self._run_state.folders()

    def restore_from_path(self, path: str | Path | None, *, drop_replay: bool = False, trust: bool = False) -> None:
        """Continue a run with identical results from a full checkpoint. Warns where this trainer has other options.

        Args:
            path: folder of the checkpoint.
            drop_replay: leave out the replay buffer of the checkpoint, which may be damaged, and continue with an empty
                one. Nothing is learned until it has filled to `learning_starts` again.
            trust: take all objects that the checkpoint names.

        Raises:
            ValueError: the checkpoint is damaged or of a run of another shape, or `path` is None, which
                `newest_checkpoint` returns where there is no checkpoint. Nothing is changed then.

        What `set_state` of a callback or of a logger raises comes last, when all else is restored. Build another
        trainer then.
        """
        if path is None:
            raise ValueError("path=None: there is no checkpoint to go on from (newest_checkpoint found no intact one)")
        checkpoint = RunCheckpoint.read(path, without=[REPLAY] if drop_replay else ())
        self._run_state.check_algorithm(checkpoint)
        self._leave()
        self._run_state.restore(checkpoint, drop_replay=drop_replay, trust=trust)


def _set_seed(learner: Learner, seed: int) -> None:
    learner.streams.set_state(RandomStreams(seed).child("learner").get_state())
