"""`BaseTrainer`: the loop over epochs, with evaluations, the best score and checkpoints."""

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
    notify_callbacks,
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
    """Phase of a trainer's run, which decides what `next(trainer)` does."""

    NEW = auto()
    """No run: the next call resets the trainer and begins one."""
    READY = auto()
    """The trainer was reset or restored: the next call begins or continues the run."""
    RUNNING = auto()
    """The next call trains an epoch."""
    OVER = auto()
    """The run has ended: the next call raises `StopIteration`."""


class BaseTrainer(ABC):
    """Base class of all trainers. Iterate over it epoch by epoch, or call `run()`.

    A run begins with a reset and a first evaluation. Each epoch then repeats `train_fn`, collect and update until
    `step_per_epoch` steps are done, and ends with the evaluation, best score, `stop_fn`, checkpoint and `EpochStats`.
    Whatever ends the run, a last checkpoint with the reason follows. Callbacks receive frozen events.

    A subclass changes the run by overriding a step that the loop calls: `training_step()`, which collects and learns;
    `policy_update_fn(collect_stats)`, which is the learning in it; or `test_step()`, an evaluation.

    Each trainer takes the options of its `options_class` as keywords. Those of all trainers are described in
    `RunOptions`, in `lockstep.trainer.options`.

    Raises:
        ValueError: an option is wrong. The message contains its name, its value and what is allowed.
    """

    options_class: ClassVar[type[RunOptions]] = RunOptions
    """Class of the trainer's options."""
    learns_from_rollouts: ClassVar[bool] = False
    """Whether the trainer learns from whole rollouts. Otherwise it learns from samples of a buffer."""
    inapplicable: ClassVar[Mapping[str, str]] = {}
    """Options of other trainers, each with the reason why this trainer has no use for it. The reason continues a
    sentence that begins with "it"."""
    step_per_collect: int | None = None
    """Number of environment steps in a collect. None for trainers that collect whole episodes or nothing."""
    episode_per_collect: int | None = None
    """Number of episodes in a collect. None for trainers that collect steps or nothing."""
    buffer: Any = None
    """Rollout store, replay buffer or recorded data that the policy learns from."""
    counters: Counters
    """Progress of the run. Each of its values is also an attribute of the trainer."""
    # `Counters` documents each of these.
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
    """Number of rows in a gradient step. None takes all."""

    def __init__(self, policy: Policy, options: RunOptions) -> None:
        self.policy = policy
        self.train_collector: CollectorLike | None = None
        self.collects = False
        """Whether the trainer collects its data."""
        if isinstance(options, CollectOptions):
            self.collects = True
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

        # Callbacks that write checkpoints receive each event last. For example, an epoch's checkpoint is written after
        # all other callbacks have counted that epoch, so their state in it is not one event behind.
        savers_last = sorted(options.callbacks, key=lambda callback: callback.writes_checkpoints)
        self.callbacks: list[Callback] = [LoggingCallback(self.logger), *savers_last]
        if options.verbose or options.show_progress:
            # None redraws one display if the console is a terminal. False prints a line for each epoch.
            self.callbacks.append(ProgressDisplay(live=None if options.show_progress else False))
        self._attach_callbacks(policy.config.callbacks.classes)
        self._run_state = RunState(self)
        self.set_seed(options.seed)
        self._interrupt = DeferredInterrupt()
        self._phase = RunPhase.NEW
        self.attempt = 0
        """Number of times that the run was started: 1 for a new run, 2 after it was resumed once.

        Each checkpoint's manifest has the number of the start that wrote it. The newest checkpoint of a folder is the
        one with the highest number and, among these, the most steps.
        """
        self.lock: RunLock | None = None
        """Lock of the run's folder, held from the start of the run to its end."""
        self._held_lock = ExitStack()
        """Context of the lock while the run holds it."""
        self.checkpoint_directory: Path | None = None
        """Folder of the run's checkpoints. `_start` sets `attempt` higher than the attempt of each checkpoint in it, so
        new checkpoints always count as newer."""
        self._reset_records()

    def _check_parts(self, options: RunOptions) -> None:
        """Raise `ValueError` if policy, collectors and functions do not fit each other."""
        evaluator = self.evaluator
        check_policy(self.policy, type(self).__name__, from_rollouts=self.learns_from_rollouts, collects=self.collects)
        if self.train_collector is not None:
            check_collector("train_collector", self.train_collector, self.policy, self.reward_metric)
        if self.test_collector is not None:
            # A parallel evaluation acts with a copy of the policy.
            expected_policy = None if evaluator.is_parallel else self.policy
            check_collector("test_collector", self.test_collector, expected_policy, self.reward_metric)
        functions: dict[str, Callable[..., Any] | None] = {
            "stop_fn": self.stop_fn,
            "save_best_fn": self.save_best_fn,
            "compute_score_fn": options.compute_score_fn,
            **evaluator.functions,
        }
        check_evaluation(
            self.test_collector, self.train_collector, functions, evaluator.durations, evaluator.is_parallel
        )

    def _attach_callbacks(self, classes: Sequence[type]) -> None:
        if self.train_collector is not None:
            attach_callbacks(self.callbacks, "train_collector", self.train_collector, classes)
        self.evaluator.attach_callbacks(self.callbacks, classes)

    def _reset_records(self) -> None:
        """Set counters, statistics and everything else that belongs to one run to the values of a new run."""
        self.counters = Counters()
        self.totals = Totals()
        """Statistics of the running epoch."""
        self.best_stats: CollectStats | None = None
        """Statistics of the evaluation with the best score."""
        self.last_test: CollectStats | None = None
        """Statistics of the last evaluation."""
        self.history: list[EpochStats] = []
        """Statistics of all finished epochs."""
        self.metrics = Metrics()
        """Metrics that callbacks log in the trainer's process, reported with each epoch."""
        for callback in self.callbacks:
            callback.metrics = self.metrics
        self.bad_batch: dict[str, Any] | None = None
        """Rollout or sample whose update gave a loss or gradient that is not finite."""
        self._saved_at: tuple[int, ...] | None = None
        """`counters.progress` at the last checkpoint."""
        self._is_stepping = False
        """Whether a training step is running. Modules are then added and removed at the end of the step only."""
        self._is_torn = False
        """Whether a step has begun to change the state and has not finished changing it. A run cannot continue from
        such a state with identical results."""
        self._pending_changes: list[Callable[[], None]] = []
        """Changes such as `add_module` that were requested during a training step, in order."""
        self._clock = time.monotonic()
        """Time on the monotonic clock from which the run's seconds are counted.

        In a resumed run it is earlier than the time of resuming by the seconds that the run had already taken. If a run
        took 60 seconds and is resumed a day later, it continues at 60 seconds.
        """

    # -- use ---

    def run(self, reset_collectors: bool = True, reset_buffer: bool = False) -> InfoStats:
        """Run to the end and return the statistics of the run.

        After Ctrl-C the run ends as it would after its last epoch, and the statistics so far are returned. Any other
        exception is raised after a last checkpoint.
        The run begins with `reset(reset_collectors, reset_buffer)`, unless the trainer was just reset or restored.
        """
        if self._phase is not RunPhase.READY:
            self.reset(reset_collectors, reset_buffer)
        with self._orderly_end():
            self._start()
            while self.stop_reason is None and not self.is_complete:
                self._train_epoch()
            self._end(self.stop_reason or "max_epoch")
        return self.info()

    def __iter__(self) -> Self:
        self._end_abandoned_run()
        return self

    def __next__(self) -> EpochStats:
        if self._phase is RunPhase.OVER:
            raise StopIteration
        if self._phase is RunPhase.NEW:
            self.reset()
        with self._orderly_end():
            if self._phase is RunPhase.READY:
                self._start()
            if self.stop_reason is None and not self.is_complete:
                return self._train_epoch()
            self._end(self.stop_reason or "max_epoch")
        raise StopIteration

    @contextmanager
    def _orderly_end(self) -> Iterator[None]:
        """End the run with a last checkpoint after Ctrl-C, and before any other exception is raised.

        A `KeyboardInterrupt` in the middle of a step (a second Ctrl-C, or one that an environment raises) leaves a
        state from which the run cannot continue with identical results. No checkpoint is written then, and the run
        continues from the previous one.
        """
        try:
            yield
        except KeyboardInterrupt:
            self._end("interrupted", save=self.is_whole)
        except BaseException as error:
            # SystemExit, too, must close the logger and release the lock. It is raised again below.
            try:
                self._end("error", save=not isinstance(error, SystemExit))
            except Exception as second:
                error.add_note(f"the run could not be ended in order either: {second}")
            if isinstance(error, StopIteration):  # `for stats in trainer` would end without an error
                raise RuntimeError("a function of the run raised StopIteration") from error
            raise

    def reset(self, reset_collectors: bool = True, reset_buffer: bool = False) -> None:
        """Start a new run: reset all counters, statistics and the best score.

        Args:
            reset_collectors: begin new episodes and set the collectors' counters to 0.
            reset_buffer: empty the replay buffer.

        Raises:
            ValueError: `reset_buffer` without `reset_collectors`.
        """
        check_flags(reset_collectors=reset_collectors, reset_buffer=reset_buffer)
        if reset_buffer and not reset_collectors:
            raise ValueError(
                "reset_buffer=True is not allowed with reset_collectors=False; a buffer is emptied where its collector "
                "begins new episodes"
            )
        if self._phase is RunPhase.READY:
            self._phase = RunPhase.NEW  # if a line below fails, the next call resets again
        self._end_abandoned_run()
        self._reset_records()
        self.evaluator.forget()
        is_restored = self.resume_from_log and self._run_state.restore_logged()
        self.resume_from_log = False
        if not is_restored:
            # Exploration and schedules depend on the number of steps. It is 0, unless `resume_from_log` has found a log
            # without a full checkpoint: then only epoch, environment steps and gradient steps were read from the log.
            self.policy.timesteps[STEPS_SAMPLED] = self.position
            if reset_collectors:
                self._reset_collectors(reset_buffer)
        self._phase = RunPhase.READY

    def _reset_collectors(self, reset_buffer: bool) -> None:
        for collector in self._run_state.collectors().values():
            has_replay = collector.buffer is not None and collector.buffer.is_sampled
            # A rollout of the last run must not be learned from in this one; a replay buffer may be.
            has_rollout = collector is self.train_collector and not has_replay
            collector.reset(reset_buffer=reset_buffer or has_rollout)

    def _end_abandoned_run(self) -> None:
        """End a run whose iteration was abandoned. The next iteration begins a new one."""
        if self._phase is RunPhase.RUNNING:
            self._end("interrupted")
        if self._phase is RunPhase.OVER:
            self._phase = RunPhase.NEW

    def close(self) -> None:
        """End the run's processes, and close the environments that were made for it.

        An environment object that the user has put into the configuration stays open.
        """
        env = self.policy.config.environment.env
        if isinstance(env, str) or callable(env):
            for collector in self._run_state.collectors().values():
                collector.close()
        if not self.policy.learner_group.is_alone:
            self.policy.learner_group.shutdown()
        if self.lock is not None:
            self.lock.release()

    # -- the loop ---

    def _train_epoch(self) -> EpochStats:
        """Train for an epoch, evaluate, write a checkpoint, and return the statistics of the epoch."""
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
                self._apply_pending_changes()

                if stop and self.stop_reason is None:
                    self.stop_reason = "stop_fn"
                # Between two steps the state is consistent, so a deferred Ctrl-C is raised here.
                self._interrupt.check()
                if self.stop_reason == "interrupted":
                    # A callback has returned this reason: the run ends as after Ctrl-C, without a last evaluation.
                    raise KeyboardInterrupt

            test_stats = self._evaluate_epoch()
            with self._changing_state():
                stats = self._epoch_stats(test_stats)
                self.history.append(stats)
                self.counters.end_epoch(self.step_per_epoch)
                self.totals = Totals()
            if self.checkpoint_interval and self.epoch % self.checkpoint_interval == 0:
                self._checkpoint()
            self._end_epoch()
        return stats

    @abstractmethod
    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Collect once and update the policy once.

        Returns the statistics of the collect, those of the update (None without one), and whether the run should stop.
        """

    @abstractmethod
    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Update the policy with the collected data, and return the statistics of the update.

        It is called within `policy_within_training_step(policy)`.

        Args:
            collect_stats: statistics of the collect before the update.
        """

    @contextmanager
    def _changing_state(self) -> Iterator[None]:
        """Mark the state as torn until the block has finished. After an exception the mark remains."""
        self._is_torn = True
        yield
        self._is_torn = False

    @property
    def is_whole(self) -> bool:
        """Whether the run can continue from its present state, because no step was interrupted."""
        return not self._is_torn

    @contextmanager
    def _keeping_bad_batch(self) -> Iterator[None]:
        """Store the data of a loss or gradient that is not finite in `bad_batch`."""
        try:
            yield
        except FloatingPointError:
            self.bad_batch = self._last_batch()
            raise

    def _last_batch(self) -> dict[str, Any] | None:
        """Return the columns of the last update's batch, or for several agents the columns by module."""
        batch = self.policy.last_batch
        if batch is None:
            return None
        if batch.is_by_module:
            return {module_id: dict(batch[module_id].items()) for module_id in batch}
        return dict(batch.items())

    def test_step(self) -> tuple[CollectStats, bool]:
        """Evaluate once. Return the statistics and whether `stop_fn` is satisfied."""
        self._begin_evaluation()
        return self._report_evaluation()

    def _begin_evaluation(self) -> None:
        notify_callbacks(self.callbacks, "on_evaluate_start")
        self.evaluator.begin(self.counters.step_counts)

    def _report_evaluation(self) -> tuple[CollectStats, bool]:
        """Wait for the pending evaluation, compare its score, and notify the callbacks.

        Returns the statistics and whether `stop_fn` is satisfied.
        """
        with self._changing_state():
            result = self.evaluator.finish()
        # The history keeps these statistics for the whole run. So the single values that callbacks logged
        # (`CollectStats.logged`) are left out: they would make it large. Their reduced metrics remain.
        stats = with_reward_metric(self.reward_metric, result.stats).without_values()
        notify_callbacks(self.callbacks, "on_evaluate_end", stats)
        self.counters.count_test(stats)

        # Only a `custom_evaluation_function` that returned numbers gives metrics. They always have a "score", and there
        # may be no returns from which `compute_score_fn` could compute one.
        score = result.metrics["score"] if result.metrics else score_of(self.compute_score_fn, stats)
        is_best = not math.isnan(score) and (self.best_score is None or score > self.best_score)
        epoch, env_step, gradient_step = result.step_counts
        self.last_test = stats
        self.last_test_at = env_step or gradient_step
        if is_best:
            self.best_score = score
            self.best_stats = stats
            self.best_epoch = epoch
        event = EvaluationEnd(
            epoch, env_step, gradient_step, stats=stats, score=score, is_best=is_best, metrics=result.metrics
        )
        self._emit(event)

        if is_best and self.save_best_fn is not None:
            self.save_best_fn(self.evaluator.policy)
        is_satisfied = self.stop_fn is not None and bool(self.stop_fn(score))
        return stats, is_satisfied

    def _evaluate_now(self) -> CollectStats:
        """Evaluate, wait for the result, and return the statistics."""
        self._report_pending_evaluation()
        stats, is_satisfied = self.test_step()
        self._stop_if(is_satisfied)
        return stats

    def _stop_if(self, is_satisfied: bool) -> None:
        """Request the end of the run if `stop_fn` is satisfied. An earlier reason remains."""
        if is_satisfied and self.stop_reason is None:
            self.stop_reason = "stop_fn"

    def _evaluate_epoch(self) -> CollectStats | None:
        """Evaluate at the end of an epoch, and return the statistics. None if no evaluation is due.

        A parallel evaluation is only begun here, and None is returned. The end of the next epoch reports it. The last
        one of a run is waited for, and its statistics are returned.
        """
        self._report_pending_evaluation()
        is_last = self.stop_reason is not None or self.epoch >= self.max_epoch or self._has_all_steps
        is_due = self.epoch % self.test_interval == 0 or is_last
        if self.test_collector is None or not is_due:
            return None
        if is_last or not self.evaluator.is_parallel:
            return self._evaluate_now()
        self._begin_evaluation()
        return None

    def _report_pending_evaluation(self) -> None:
        """Report the pending parallel evaluation, if there is one, and add its statistics to those of its epoch."""
        if self.evaluator.pending is None:
            return
        epoch = self.evaluator.pending[0]
        stats, is_satisfied = self._report_evaluation()
        self._stop_if(is_satisfied)
        for i, epoch_stats in enumerate(self.history):
            if epoch_stats.epoch == epoch:
                self.history[i] = replace(epoch_stats, test_collect_stat=stats)

    def _count_collect(self, stats: CollectStats) -> None:
        """Count a collect, notify the callbacks, and evaluate if `test_in_train` asks for it."""
        stats = with_reward_metric(self.reward_metric, stats)
        self.counters.count_collect(stats)
        self.totals.add_collect(stats)
        self.policy.timesteps[STEPS_SAMPLED] = self.env_step
        self._emit(CollectEnd(*self.counters.step_counts, stats=stats))
        if self.test_in_train and not self.tested_in_train and len(stats.returns):
            if self.stop_fn is not None and self.stop_fn(score_of(self.compute_score_fn, stats)):
                self.tested_in_train = True
                self._evaluate_now()

    def _count_update(self, stats: TrainingStats) -> None:
        """Count an update and notify the callbacks.

        Raises:
            FloatingPointError: a loss is not finite, and `nan_policy` is "stop".
        """
        self.gradient_step += stats.gradient_steps
        self.totals.add_update(stats)
        self.seconds["update"] += stats.train_time
        # A step makes one update, which is its last change of the state; the rest only reports. So the state is whole
        # again before the block of `_changing_state` ends, and a callback that stops the run at `UpdateEnd` gets a
        # checkpoint.
        self._is_torn = False
        self._emit(UpdateEnd(*self.counters.step_counts, stats=stats))

        bad = stats.bad_losses()
        if bad and self.nan_policy == "stop":
            steps_before = self.gradient_step - stats.gradient_steps
            step = steps_before + (stats.first_bad_step or stats.gradient_steps)
            raise FloatingPointError(
                f"{bad[0]} is not finite at environment step {self.env_step}, gradient step {step}; "
                "lower the learning rate, clip gradients, or check the rewards (nan_policy='ignore' continues). "
                "The batch is in trainer.bad_batch, which checkpoints hold"
            )

    # -- changes of modules ---

    def add_module(
        self,
        module_id: str,
        module_spec: RLModuleSpec | RLModule | Mapping[str, Any] | None = None,
        config_overrides: Mapping[str, Any] | None = None,
        init_from: str | Path | None = None,
        *,
        frozen: bool = False,
    ) -> None:
        """Add a module to the policy, its learners and the replay buffers. See `Policy.add_module` for the arguments.

        This and the next three methods may be called between two epochs and by callbacks. During a training step the
        change is delayed to its end.
        """

        def add() -> None:
            self.policy.add_module(module_id, module_spec, config_overrides, init_from, frozen=frozen)
            self._update_replay_buffers()

        self._apply_between_steps(add)

    def remove_module(self, module_id: str) -> None:
        """Remove a module from the policy, its learners and the replay buffers.

        Running episodes in which it acts are abandoned and restarted.

        Raises:
            KeyError: there is no such module. Nothing is changed then.
            ValueError: it is the only module. Nothing is changed then.
        """

        def remove() -> None:
            self.policy.remove_module(module_id)
            for collector in self._run_state.collectors().values():
                if collector.policy is self.policy:  # a parallel evaluation has its own modules
                    collector.leave_episodes_of(module_id)
            self._update_replay_buffers()

        self._apply_between_steps(remove)

    def set_policies_to_train(self, policies_to_train: PoliciesToTrain) -> None:
        """Set which modules learn, beginning with the next update, in the form of `multi_agent(policies_to_train=)`."""
        # Replay buffers stay as they are: a module that pauses keeps its buffer, which continues to be filled.
        self._apply_between_steps(partial(self.policy.set_policies_to_train, policies_to_train))

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMapping) -> None:
        """Set the function that returns which module acts for an agent, for all new episodes.

        Its form is that of `multi_agent(policy_mapping_fn=)`. A checkpoint does not contain functions: after a restore
        set it again (in `on_run_start`), or put it into the configuration.
        """

        def change() -> None:
            self.policy.policy_mapping_fn = policy_mapping_fn
            self._update_replay_buffers()

        self._apply_between_steps(change)

    def _apply_between_steps(self, change: Callable[[], None]) -> None:
        """Make a change of modules now, or at the end of the training step if one is running.

        A policy for one agent has a single module, which can be neither removed nor joined by others.
        """
        if not self.policy.is_multi_agent:
            raise ValueError(
                "the policy is of one agent, whose module stays; name modules with multi_agent(policies=...)"
            )
        if self._is_stepping:
            self._pending_changes.append(change)
        else:
            change()

    def _apply_pending_changes(self) -> None:
        while self._pending_changes:  # a change may request another one
            change = self._pending_changes.pop(0)
            change()

    def _update_replay_buffers(self) -> None:
        """Let the collector make or remove replay buffers, so that each module that can learn has one.

        A module cannot learn if it was built with `inference_only`. Whether `policies_to_train` selects a module does
        not matter here.
        A module's buffer contains the transitions of all agents for which the module may act.
        """
        if self.train_collector is not None:
            self.train_collector.fit_replay()

    # -- beginning and end ---

    def _start(self) -> None:
        """Begin or continue a run: emit `RunStart` and make the first evaluation."""
        if self.lock is not None:
            self._held_lock.enter_context(self.lock)
        self._phase = RunPhase.RUNNING
        self._is_torn = False
        newest = 0 if self.checkpoint_directory is None else newest_attempt(self.checkpoint_directory)
        self.attempt = 1 + max(self.attempt, newest)
        self._clock = time.monotonic() - self.seconds["total"]
        self._emit(RunStart(*self.counters.step_counts, trainer=TrainerView(self)))

        if self.counters.stage is EpochStage.UNREPORTED:  # the run was stopped between a checkpoint and `EpochEnd`
            self._end_epoch()
        self.evaluator.resume()
        self._evaluate_first()
        if self._lacks_steps:
            self.counters.continue_epoch(self.step_per_epoch)

    def _evaluate_first(self) -> None:
        """Evaluate the initial policy in a new run."""
        is_first = self.max_epoch > 0 and self.epoch == 0 and self.stop_reason != "interrupted"
        if self.test_collector is None or not is_first or self.last_test is not None:
            return
        with self._interrupt:
            if not self.evaluator.is_parallel:
                self._evaluate_now()
            elif not self.evaluator.is_pending:  # a restored run may have this evaluation pending
                self._begin_evaluation()

    @property
    def _lacks_steps(self) -> bool:
        """Whether the last epoch was cut short and should be continued.

        An example: with `step_per_epoch=1000` the last epoch ended after 400 steps, so `epoch_steps` is -600.

        - If the run reached its `total_steps` there and is now resumed with more, the epoch makes the 600 steps.
        - If something stopped the run there (a callback, `stop_fn`), a resumed run makes the 600 steps only if this was
          the last of `max_epoch` epochs, since no other epoch follows. Otherwise the epoch stays short, and the run
          continues with the next one.
        """
        is_short = self.epoch_steps < 0  # `end_epoch` has subtracted the epoch's length
        if not is_short or self.counters.in_epoch or self._has_all_steps:
            return False
        # The statistics of an epoch have the stop reason of that time. `total_steps` ends a run without a reason.
        ended_by_total_steps = self.history[-1].info_stat.stop_reason is None
        return ended_by_total_steps or self.epoch >= self.max_epoch

    def _end_epoch(self) -> None:
        """Emit `EpochEnd`.

        The event comes after the epoch's checkpoint. So a run that is restored from that checkpoint emits it again.
        """
        self.counters.stage = EpochStage.BETWEEN
        stats = self.history[-1]
        # If no episode has ended since the run began, the environment may have no end at all (and no time limit).
        if self.train_collector is not None and stats.train_collect_stat is not None and not self.env_episode:
            warn_endless(self.train_collector, self.env_step, stats.train_collect_stat.n_collected_steps)
        self._emit(EpochEnd(*self.counters.step_counts, stats=stats))

    def _end(self, reason: str, save: bool = True) -> None:
        """Write the last checkpoint, emit `RunEnd` to every callback and close the logger.

        A failure of one part does not keep the others from being done. The first exception is raised at the end.

        Args:
            reason: reason for which the run ends.
            save: whether to write a checkpoint.
        """
        if self._phase is RunPhase.OVER:
            return
        self.stop_reason = reason
        self.seconds["total"] = time.monotonic() - self._clock
        failures = []
        try:
            if save:
                # If the run ends within a step, changes that callbacks have requested in it are still pending. They
                # are made before the checkpoint: a callback that has requested a new module may have the module's id in
                # its saved state, and then the checkpoint must contain the module.
                self._apply_pending_changes()
                if self._saved_at != self.counters.progress:
                    self._checkpoint()
        except Exception as error:
            self.stop_reason = "error"
            failures.append(error)
        self._phase = RunPhase.OVER
        self.evaluator.wait()
        event = RunEnd(*self.counters.step_counts, reason=self.stop_reason, info=self.info())
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
                self._held_lock.close()
        if failures:
            raise failures[0]

    def _emit(self, event: Event) -> None:
        """Pass an event to every callback. The first reason that one returns becomes the `stop_reason`."""
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
        """Write a checkpoint, and record its path and the counters in the log."""
        written = None
        if self.save_checkpoint_fn is not None and self.checkpoint_interval > 0:
            written = self.save_checkpoint_fn(*self.counters.step_counts)
        path = None if written is None else Path(written)

        # There are two writers of checkpoints: `save_checkpoint_fn` above, and callbacks with `writes_checkpoints`. The
        # latter record their own checkpoints in the log. `resume_from_log` uses the log's last record only, so:
        # - a checkpoint of `save_checkpoint_fn` is recorded with its path;
        # - without one the counters are recorded alone, but not if callbacks record: a record without a path would
        #   replace theirs, which has one;
        # - the checkpoint of an error is not recorded, because a run must not be resumed from such a state.
        callbacks_record = any(callback.writes_checkpoints for callback in self.callbacks)
        is_error = path is not None and self.stop_reason == "error"
        if (path is not None or not callbacks_record) and not is_error:
            # `save_data` calls a function that writes the checkpoint. It is written already, so this returns its path.
            self.logger.save_data(*self.counters.step_counts, lambda *_: path)
        self._saved_at = self.counters.progress
        if path is not None:
            self._emit(CheckpointSaved(*self.counters.step_counts, path=path))

    # -- reports ---

    @property
    def is_complete(self) -> bool:
        """Whether the run has finished all its epochs or made all its steps."""
        return not self.counters.in_epoch and (self.epoch >= self.max_epoch or self._has_all_steps)

    @property
    def _has_all_steps(self) -> bool:
        return self.total_steps is not None and self.position >= self.total_steps

    @property
    def position(self) -> int:
        """Number of environment steps; in a run that collects nothing, number of gradient steps."""
        return self.counters.position

    @property
    def steps_in_all(self) -> int:
        """Number of steps in the whole run if nothing ends it earlier.

        The missing steps are rounded up to whole collects: 1,000 steps in collects of 300 are 1,200 in the end.
        """
        limit = self.max_epoch * self.step_per_epoch if self.total_steps is None else self.total_steps
        steps_left = max(0, limit - self.position)
        steps_per_collect = self.step_per_collect or 1
        return self.position + -(-steps_left // steps_per_collect) * steps_per_collect

    # -- plan of the rest of the run ---

    @property
    def steps_left(self) -> int:
        """Number of steps in the rest of the run if nothing ends it earlier."""
        return self.steps_in_all - self.position

    def describe_updates(self) -> dict[str, str]:
        """Return a description of the data and the updates in the rest of the run, by subject."""
        return {}

    def work_left(self) -> tuple[float, float]:
        """Return the numbers of gradient steps in the rest of the run, and of the rows that they read."""
        return 0, 0

    def choose_compiling(self, is_allowed: bool) -> bool:
        """Choose whether gradient steps are compiled, store the choice in the policy's configuration, and return it.

        Args:
            is_allowed: whether the algorithm supports `framework(compile=True)`. If not, "auto" chooses eager.
        """
        framework = self.policy.config.framework
        learners = self.policy.learner_group
        if learners.is_alone:
            num_steps, num_rows = self.work_left() if is_allowed else (0, 0)
            framework.compile = learners.learner.choose_compiling(num_steps, num_rows)
        else:  # "auto" chooses eager for several learners
            framework.compile = framework.compile is True
        return framework.compile

    def first_and_last_update(self) -> tuple[int, int]:
        """Return the positions (in steps) of the run at its next and at its last update.

        Schedules of training options, such as a learning rate, are read at updates only: between these two positions.
        """
        return self.position, self.steps_in_all

    def _may_overshoot(self) -> bool:
        """Return whether a collect may have more steps than requested.

        This is so for collects of whole episodes, and for environments with NEXT_STEP autoreset, where a row that only
        resets an environment does not count as a step. An example with 8 environments: 16 steps are requested, and two
        vector steps have 2 such rows among their 16. The third vector step adds 8 steps to the 14: 22 in all.
        """
        next_step = getattr(getattr(self.train_collector, "env", None), "autoreset_mode", None) == "NEXT_STEP"
        return next_step or self.policy.config.env_runners.collects_whole_episodes

    def _overshoot_text(self) -> str:
        """Return a remark about collects with more steps than requested, or an empty string."""
        if self.policy.config.env_runners.collects_whole_episodes:
            return " (a collect continues to the end of its episodes, so it may have more steps)"
        if self.total_steps is None or self.steps_in_all == self.total_steps:
            return ""
        return f" ({self.total_steps:,} were asked for; the last collect is not cut)"

    def info(self, with_history: bool = True) -> InfoStats:
        """Return the statistics of the run so far: counters, best score and seconds."""
        best_reward: float | None = None
        best_reward_std: float | None = None
        if self.best_stats is not None and self.best_stats.returns_stat is not None:
            best_reward = self.best_stats.returns_stat.mean
            best_reward_std = self.best_stats.returns_stat.std

        return InfoStats(
            gradient_step=self.gradient_step,
            best_score=self.best_score,
            best_reward=best_reward,
            best_reward_std=best_reward_std,
            best_epoch=self.best_epoch,
            train_step=self.env_step,
            train_episode=self.env_episode,
            test_step=self.test_env_step,
            test_episode=self.test_episode,
            timing=TimingStats.of_seconds(steps=self.position, **self.seconds),
            stop_reason=self.stop_reason,
            history=tuple(self.history) if with_history else (),
        )

    def _epoch_stats(self, test_stats: CollectStats | None) -> EpochStats:
        """Return the statistics of the epoch, with the metrics that callbacks have logged since the last report."""
        self.seconds["total"] = time.monotonic() - self._clock
        collected = None if self.train_collector is None else self.totals.collect_stats().without_values()
        training = self.totals.training_stats()
        metrics = named(self.metrics.report())
        return EpochStats(self.epoch, collected, test_stats, training, self.info(with_history=False), metrics)

    # -- random numbers ---

    def set_seed(self, seed: int | None) -> None:
        """Seed the named random streams of environments, exploration, evaluation, samples and minibatches.

        The initial weights do not change: they are drawn when the policy is built.

        Args:
            seed: the seed. None keeps the seeds of collectors that were made with one. The other collectors get the
                policy's seed, so that the run can be repeated.

        Raises:
            ValueError: a collector has env runners, whose environments take the seed from their configuration.
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

    # `copy` and `pickle` raise a `TypeError` with this advice.
    __reduce__ = no_copies(
        "collectors and loggers", "build another one, or save_trainer(trainer, path) and restore_trainer(other, path)"
    )

    def get_state(self) -> dict[str, Any]:
        """Return the state of counters, statistics, collectors, callbacks and logger, but not of the policy."""
        return self._run_state.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` returned. The next iteration continues that run.

        Callbacks are matched by class, in order. An exception of a callback's or logger's `set_state` is raised last,
        after everything else was restored.

        Raises:
            ValueError: the collectors of the state have other environments, or another number of them. Nothing is
                changed then.
        """
        self._end_abandoned_run()
        self._run_state.set_collectors(state)
        self._reset_records()
        self._run_state.set_records(state)
        self._saved_at = self.counters.progress
        self._phase = RunPhase.READY

    def own_folders(self) -> dict[str, dict[str, Any]]:
        """Return additional checkpoint folders for large data: one for each replay buffer."""
        return self._run_state.replay_folders()

    def set_own_folders(self, folders: Mapping[str, Any]) -> None:
        """Restore the data that `own_folders` has returned.

        Args:
            folders: all folders of a checkpoint, among them those of `own_folders`.

        Raises:
            ValueError: the folders do not fit this trainer.
        """
        self._run_state.set_replay_folders(folders)

    def save_to_path(
        self, path: str | Path, *, attempt: int | None = None, carried: Mapping[str, Path] | None = None
    ) -> Path:
        """Write a full checkpoint and return its path.

        The policy has its own folders in it, the trainer's state is in the folder `trainer`. Records that the logger
        holds back until its next interval are part of the state, so saving does not change what is logged.

        Args:
            path: folder of the checkpoint.
            attempt: number of this start of the run. Defaults to the trainer's `attempt`.
            carried: other checkpoints of the run by name, such as the one of the best policy so far, which are kept
                inside this one. See `write_checkpoint`.
        """
        if attempt is None:
            attempt = self.attempt
        return self._run_state.save(path, attempt, carried)

    def checkpoint_folders(self) -> dict[str, dict[str, Any]]:
        """Return the folders of a full checkpoint."""
        return self._run_state.folders()

    def restore_from_path(self, path: str | Path | None, *, drop_replay: bool = False, trust: bool = False) -> None:
        """Restore a run from a full checkpoint, so that it continues with identical results.

        Warns if this trainer has other options than the run. An exception of a callback's or logger's `set_state` is
        raised last, after everything else was restored; build another trainer then.

        Args:
            path: folder of the checkpoint.
            drop_replay: ignore the replay buffer of the checkpoint, which may be damaged, and continue with an empty
                one. Nothing is learned until it has filled to `learning_starts` again.
            trust: allow all classes and functions that the checkpoint names. See the documentation of checkpoints.

        Raises:
            ValueError: the checkpoint is damaged or does not fit this trainer, or `path` is None, which
                `newest_checkpoint` returns if there is no checkpoint. Nothing is changed then.
        """
        if path is None:
            raise ValueError(
                "path=None: there is no checkpoint to continue from (newest_checkpoint found no intact one)"
            )
        checkpoint = RunCheckpoint.read(path, without=[REPLAY] if drop_replay else ())
        self._run_state.check_algorithm(checkpoint)
        self._end_abandoned_run()
        self._run_state.restore(checkpoint, drop_replay=drop_replay, trust=trust)


def _set_seed(learner: Learner, seed: int) -> None:
    learner.streams.set_state(RandomStreams(seed).child("learner").get_state())
