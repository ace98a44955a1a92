"""`BaseTrainer`: counters, evaluation, best tracker, checkpoints and the iterator over epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self

from lockstep.algorithms.multi_agent_policy import AnyPolicy
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.replay import MultiAgentReplayBuffer, ReplayBuffer
from lockstep.rollout import CollectorLike
from lockstep.state.checks import check_choice, check_flags, check_functions, check_whole, check_wholes
from lockstep.state.messages import no_copies
from lockstep.tracking import BaseLogger, LazyLogger
from lockstep.tracking.statistics import (
    CollectStats,
    CollectStatsBase,
    CollectTotals,
    EpochStats,
    InfoStats,
    TrainingStats,
    TrainingTotals,
)
from lockstep.trainer.callbacks import Callback, LoggingCallback, have_saver, savers_last
from lockstep.trainer.checkpoints import resume_from_logger
from lockstep.trainer.checks import (
    can_test_in_train,
    check_evaluation,
    check_observers,
    check_parts,
    check_reset,
)
from lockstep.trainer.display import ProgressDisplay
from lockstep.trainer.evaluation import (
    check_evaluated,
    mean_return,
    run_info,
    score_of,
    tell_endless,
    test_episode,
    with_reward_metric,
)
from lockstep.trainer.events import (
    CheckpointSaved,
    CollectEnd,
    EpochEnd,
    EvaluationEnd,
    Event,
    RunEnd,
    RunStart,
    TrainerView,
    UpdateEnd,
)
from lockstep.trainer.interrupts import DeferredInterrupt
from lockstep.trainer.seeding import seed_run
from lockstep.trainer.state import set_collectors, set_trainer_state, trainer_state

REPLAYS = (ReplayBuffer, MultiAgentReplayBuffer)
SaveCheckpointFn = Callable[[int, int, int], Any]


class BaseTrainer:
    """The part that all trainers share. Iterate over it epoch by epoch, or call `run()`.

    Order of events: reset, first evaluation, then in each epoch `train_fn`, collect, update (until `step_per_epoch`
    steps are done), evaluation, best tracker, `stop_fn`, checkpoint, `EpochStats`; at the end one more checkpoint
    with the reason, whatever ended the run. Callbacks see frozen events.

    A subclass changes the run by overriding a step that the loop calls: `training_step()`, which collects and learns,
    `policy_update_fn(collect_stats)`, the learning in it, or `test_step()`, an evaluation.

    `max_epoch`: upper bound of epochs. `batch_size`: rows of a gradient step (None: all). `step_per_epoch`: environment
    steps. `total_steps`: upper bound of steps: the run ends with the update that reaches them, in a last epoch that may
    be shorter. `episode_per_test`, `test_interval`: episodes of an evaluation, epochs between two.
    `train_fn`/`test_fn(epoch, env_step)`: before each collect and evaluation. `stop_fn(score)`: end the run?
    `compute_score_fn(CollectStats)`: what is compared, by default the mean return. `save_best_fn(policy)`: on a new
    best score. `reward_metric(returns[episode, agent]) -> [episode]`: what is the return of an episode of several
    agents, wherever returns are used (None: the sum over agents). `save_checkpoint_fn(epoch, env_step, gradient_step)
    -> path`: every `checkpoint_interval` epochs and at the end. `test_in_train`: one more evaluation in an epoch once
    the training return satisfies `stop_fn`. `resume_from_log`: the first run goes on from the logger's last save: from
    its full checkpoint with everything, else from its three counters. `seed`: of all random numbers but the initial
    weights, as `debugging(seed=)` of a configuration. `verbose`: a line for each epoch; `show_progress`: a live display
    on a terminal. `nan_policy`: "stop" ends the run at a loss that is not finite, "ignore" goes on.

    Raises `ValueError` with the parameter's name, its value and what is allowed.
    """

    step_per_collect: int | None = None

    def __init__(
        self,
        policy: AnyPolicy,
        max_epoch: int,
        batch_size: int | None,
        train_collector: CollectorLike | None,
        test_collector: CollectorLike | None,
        step_per_epoch: int,
        *,
        total_steps: int | None = None,
        episode_per_test: int | None = None,
        test_interval: int = 1,
        train_fn: Callable[[int, int], None] | None = None,
        test_fn: Callable[[int, int], None] | None = None,
        stop_fn: Callable[[float], bool] | None = None,
        compute_score_fn: Callable[[CollectStats], float] | None = None,
        save_best_fn: Callable[[Any], None] | None = None,
        save_checkpoint_fn: SaveCheckpointFn | None = None,
        checkpoint_interval: int = 1,
        reward_metric: Callable[[Any], Any] | None = None,
        logger: BaseLogger | None = None,
        callbacks: Sequence[Callback] = (),
        seed: int | None = None,
        test_in_train: bool = False,
        resume_from_log: bool = False,
        verbose: bool = False,
        show_progress: bool = False,
        nan_policy: str = "stop",
    ) -> None:
        evaluated: dict[str, Any] = {"test_fn": test_fn, "stop_fn": stop_fn}
        evaluated |= {"compute_score_fn": compute_score_fn, "save_best_fn": save_best_fn}
        flags = {"resume_from_log": resume_from_log, "verbose": verbose, "show_progress": show_progress}
        check_parts(policy, train_collector, test_collector, reward_metric)
        self.max_epoch: int = check_whole("max_epoch", max_epoch, 0)
        self.step_per_epoch, self.test_interval, self.checkpoint_interval = check_wholes(
            step_per_epoch=step_per_epoch, test_interval=test_interval, checkpoint_interval=checkpoint_interval
        )
        self.batch_size: int | None = check_whole("batch_size", batch_size, 1, optional=True)
        self.total_steps: int | None = check_whole("total_steps", total_steps, 1, optional=True)
        seed = check_whole("seed", seed, 0, optional=True)
        check_functions(**evaluated, train_fn=train_fn, save_checkpoint_fn=save_checkpoint_fn)
        self.episode_per_test = check_evaluation(test_collector, train_collector, episode_per_test, evaluated)
        check_observers(logger, callbacks, resume_from_log)
        check_flags(**flags, test_in_train=test_in_train)
        check_choice("nan_policy", nan_policy, ("stop", "ignore"))
        self.policy, self.train_collector, self.test_collector = policy, train_collector, test_collector
        self.train_fn, self.test_fn, self.stop_fn = train_fn, test_fn, stop_fn
        self.compute_score_fn, self.reward_metric = compute_score_fn or mean_return, reward_metric
        self.save_best_fn, self.save_checkpoint_fn = save_best_fn, save_checkpoint_fn
        self.test_in_train, self.logger = can_test_in_train(test_in_train, stop_fn), logger or LazyLogger()
        self.callbacks: list[Callback] = [LoggingCallback(self.logger), *savers_last(callbacks)]
        self.callbacks += [ProgressDisplay(live=None if show_progress else False)] if verbose or show_progress else []
        self.nan_policy, self.resume_from_log = nan_policy, resume_from_log
        seed_run(self, seed)
        self._interrupt = DeferredInterrupt()
        self._iterator: Iterator[EpochStats] | None = None
        self._ready = False  # reset or restored, and not run since
        self._zero()

    def _zero(self) -> None:
        self.epoch = self.env_step = self.gradient_step = self.env_episode = 0
        self.in_epoch = False
        self.epoch_steps = 0
        """steps of the epoch under way"""
        self.carried_steps = 0
        """steps of the last collect beyond `step_per_epoch`, counted in the next epoch; below 0: those that an epoch
        lacks which was cut short"""
        self.under_way = False
        """the run goes on inside an epoch"""
        self.collected, self.updates = CollectTotals(), TrainingTotals()
        self.test_env_step = self.test_episode = 0
        """steps and episodes of all evaluations"""
        self.best_score: float | None = None
        self.best_stats: CollectStats | None = None
        self.best_epoch: int | None = None
        self.last_test: CollectStats | None = None
        self.last_test_at: int | None = None
        """`position` at the last evaluation"""
        self.stop_reason: str | None = None
        self.history: list[EpochStats] = []
        self.epoch_end_due = False
        """the last epoch is saved, but not yet told to the callbacks"""
        self.bad_batch: dict[str, Any] | None = None
        """the rollout whose update gave a loss or gradient that is not finite"""
        self.seconds = dict.fromkeys(("total", "collect", "update", "test", "env", "act"), 0.0)
        self._saved_at: tuple[int, ...] | None = None
        self.tested_in_train = self._over = False
        self._clock = time.monotonic()

    # -- use ---

    def reset(self, reset_collectors: bool = True, reset_buffer: bool = False) -> None:
        """Start a new run: reset all counters, statistics and the best tracker.

        `reset_collectors`: begin new episodes and set the collectors' counters to zero; `reset_buffer`: empty the
        replay buffer.
        """
        check_reset(reset_collectors, reset_buffer)
        self._iterator = None  # ends a run that was left
        self._begin(reset_collectors, reset_buffer)
        self._ready = True

    def _begin(self, reset_collectors: bool = True, reset_buffer: bool = False) -> None:
        self._zero()
        if self.resume_from_log:
            restored = resume_from_logger(self)
            self.resume_from_log = False
            if restored:
                return
        self.policy.timesteps[STEPS_SAMPLED] = self.position  # exploration and schedules begin where the counters do
        if reset_collectors:
            for collector in (self.train_collector, self.test_collector):
                if collector is not None:
                    rollout = collector is self.train_collector and not isinstance(collector.buffer, REPLAYS)
                    collector.reset(reset_buffer=reset_buffer or rollout)

    def run(self, reset_collectors: bool = True, reset_buffer: bool = False) -> InfoStats:
        """Run to the end. Ctrl-C ends the run in the same orderly way; any other error after a last checkpoint, too.

        The run begins with `reset(reset_collectors, reset_buffer)`, unless the trainer was just reset or restored.
        """
        check_reset(reset_collectors, reset_buffer)
        self._iterator = None  # ends a run that was left
        self._iterator = self._epochs(reset_collectors, reset_buffer)
        for _ in self._iterator:
            pass
        return self.info()

    def __iter__(self) -> Self:
        self._iterator = None  # ends a run that was left
        self._iterator = self._epochs()
        return self

    def __next__(self) -> EpochStats:
        if self._iterator is None:
            self._iterator = self._epochs()
        return next(self._iterator)

    def _epochs(self, reset_collectors: bool = True, reset_buffer: bool = False) -> Iterator[EpochStats]:
        if self.resume_from_log and not self._ready:
            self._begin(
                reset_collectors, reset_buffer
            )  # one that cannot go on is no run: nothing is saved in the place of what it was to go on from
            self._ready = True
        try:
            if not self._ready:
                self._begin(reset_collectors, reset_buffer)
            self._ready = False
            self._clock = time.monotonic() - self.seconds["total"]
            self._emit(RunStart(*self._where(), trainer=TrainerView(self)))
            if self.epoch_end_due:
                self._end_epoch()
            begins = self.max_epoch > 0 and self.epoch == 0 and self.stop_reason != "interrupted"
            if self.test_collector is not None and begins and self.last_test is None:
                with self._interrupt:
                    self._test()
            self._reopen_epoch()
            while self.stop_reason is None and not self.is_complete:
                yield self._one_epoch()
            self._finish(self.stop_reason or "max_epoch")
        except (KeyboardInterrupt, GeneratorExit) as interrupt:
            self._finish("interrupted")
            if isinstance(interrupt, GeneratorExit):
                raise
        except BaseException as error:
            try:
                self._finish("error", save=not isinstance(error, SystemExit))
            except Exception as second:
                error.add_note(f"the run could not be ended in order either: {second}")
            raise

    @property
    def is_complete(self) -> bool:
        """Whether the run has made all its epochs, or all its steps."""
        return not self.under_way and (self.epoch >= self.max_epoch or self._has_all_steps())

    def _has_all_steps(self) -> bool:
        return self.total_steps is not None and self.position >= self.total_steps

    def _reopen_epoch(self) -> None:
        """Continue the epoch that an earlier `total_steps` cut short, or a callback if it was the last one."""
        if self.carried_steps >= 0 or self._has_all_steps():
            return
        if self.history[-1].info_stat.stop_reason is None or self.epoch >= self.max_epoch:
            self.epoch -= 1
            self.carried_steps += self.step_per_epoch

    def _one_epoch(self) -> EpochStats:
        self.epoch += 1
        self.in_epoch, self.under_way, self.epoch_steps = True, False, self.carried_steps
        with self._interrupt:
            while self.epoch_steps < self.step_per_epoch and self.stop_reason is None and not self._has_all_steps():
                if self.train_fn is not None:
                    self.train_fn(self.epoch, self.env_step)
                if self.training_step()[2] and self.stop_reason is None:
                    self.stop_reason = "stop_fn"
                self._interrupt.check()
                if self.stop_reason == "interrupted":  # a callback's request: the same as Ctrl-C
                    raise KeyboardInterrupt
            test = None
            last = self.stop_reason is not None or self.is_complete
            if self.test_collector is not None and (self.epoch % self.test_interval == 0 or last):
                test = self._test()
            self._tick()
            info = self.info(with_history=False)
            collected = None if self.train_collector is None else self.collected.stats()
            stats = EpochStats(self.epoch, collected, test, self.updates.stats(), info)
            self.history.append(stats)
            self.in_epoch, self.tested_in_train, self.epoch_end_due = False, False, True
            self.carried_steps = self.epoch_steps - self.step_per_epoch
            self.collected, self.updates = CollectTotals(), TrainingTotals()
            if self.epoch % self.checkpoint_interval == 0:
                self._checkpoint()
            self._end_epoch()
        return stats

    def _end_epoch(self) -> None:
        """After the checkpoint, as the contract orders it; a run that goes on from there tells it once more."""
        self.epoch_end_due = False
        stats = self.history[-1]
        if self.train_collector is not None and stats.train_collect_stat is not None and not self.env_episode:
            tell_endless(self.train_collector, self.env_step, stats.train_collect_stat.n_collected_steps)
        self._emit(EpochEnd(*self._where(), stats=stats))

    # -- the steps that the loop calls ---

    def training_step(self) -> tuple[CollectStatsBase, TrainingStats | None, bool]:
        """Collect once and learn once. Return the statistics of both (None: nothing was learned), and whether the run
        is to stop.
        """
        raise TypeError(
            f"{type(self).__name__} has no training step; use OnpolicyTrainer, OffpolicyTrainer or OfflineTrainer"
        )

    def policy_update_fn(self, collect_stats: CollectStatsBase) -> TrainingStats:
        """Learn from what was collected, within a training step of the policy, and return the statistics."""
        raise TypeError(f"{type(self).__name__} has no update; use OnpolicyTrainer, OffpolicyTrainer or OfflineTrainer")

    def test_step(self) -> tuple[CollectStats, bool]:
        """Evaluate once. Return the statistics, and whether `stop_fn` is satisfied."""
        if self.test_collector is None or self.episode_per_test is None:
            raise ValueError("there is no test_collector to evaluate with")
        stats = test_episode(
            self.test_collector,
            self.test_fn,
            self.epoch,
            self.episode_per_test,
            global_step=self.env_step,
            reward_metric=self.reward_metric,
        )
        self.test_env_step += stats.n_collected_steps
        self.test_episode += stats.n_collected_episodes
        self.seconds["test"] += stats.collect_time
        check_evaluated(stats)
        score = score_of(self.compute_score_fn, stats)
        is_best = not math.isnan(score) and (self.best_score is None or score > self.best_score)
        before = self.last_test, self.last_test_at, self.best_score, self.best_stats, self.best_epoch
        self.last_test, self.last_test_at = stats, self.position
        if is_best:
            self.best_score, self.best_stats, self.best_epoch = score, stats, self.epoch
        try:
            self._emit(EvaluationEnd(*self._where(), stats=stats, score=score, is_best=is_best))
            if is_best and self.save_best_fn is not None:
                self.save_best_fn(self.policy)
        except BaseException:  # it is made again where the run goes on: its score is no best one that was saved
            self.last_test, self.last_test_at, self.best_score, self.best_stats, self.best_epoch = before
            raise
        return stats, self.stop_fn is not None and bool(self.stop_fn(score))

    def _test(self) -> CollectStats:
        stats, stop = self.test_step()
        if stop and self.stop_reason is None:
            self.stop_reason = "stop_fn"
        return stats

    def _count_collect(self, stats: CollectStats) -> None:
        stats = with_reward_metric(self.reward_metric, stats)
        self.env_step += stats.n_collected_steps
        self.epoch_steps += stats.n_collected_steps
        self.env_episode += stats.n_collected_episodes
        self.collected.add(stats)
        self.seconds["collect"] += stats.collect_time
        self.seconds["env"] += stats.env_time
        self.seconds["act"] += stats.act_time
        self.policy.timesteps[STEPS_SAMPLED] = self.env_step
        self._emit(CollectEnd(*self._where(), stats=stats))
        if self.test_in_train and not self.tested_in_train and len(stats.returns):
            if self.stop_fn is not None and self.stop_fn(score_of(self.compute_score_fn, stats)):
                self.tested_in_train = True
                self._test()

    def _count_update(self, stats: TrainingStats) -> None:
        self.gradient_step += stats.gradient_steps
        self.updates.add(stats)
        self.seconds["update"] += stats.train_time
        self._emit(UpdateEnd(*self._where(), stats=stats))
        bad = stats.bad_losses()
        if bad and self.nan_policy == "stop":
            step = self.gradient_step - stats.gradient_steps + (stats.first_bad_step or stats.gradient_steps)
            kept = self.save_checkpoint_fn is not None or have_saver(self.callbacks)
            raise FloatingPointError(
                f"{bad[0]} is not finite at environment step {self.env_step}, gradient step {step}; "
                "lower the learning rate, clip gradients, or check the rewards (nan_policy='ignore' goes on). "
                f"The batch is in trainer.bad_batch{' and in the last checkpoint' if kept else ''}"
            )

    # -- reports ---

    def info(self, with_history: bool = True) -> InfoStats:
        """The run so far."""
        return run_info(self, with_history)

    def _tick(self) -> None:
        self.seconds["total"] = time.monotonic() - self._clock

    @property
    def position(self) -> int:
        """Environment steps so far; of a run that collects nothing, gradient steps."""
        return self.env_step or self.gradient_step

    @property
    def steps_in_all(self) -> int:
        """Steps of the whole run if nothing ends it earlier, in whole collects."""
        limit = self.max_epoch * self.step_per_epoch if self.total_steps is None else self.total_steps
        left, collect = max(0, limit - self.position), self.step_per_collect or 1
        return self.position + -(-left // collect) * collect

    def _where(self) -> tuple[int, int, int]:
        return self.epoch, self.env_step, self.gradient_step

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

    def _emit_to_all(self, event: Event) -> None:
        """To each of them, also where one fails: what is open must be closed. The first failure is raised then."""
        failures: list[Exception] = []
        for callback in self.callbacks:
            try:
                callback.on_event(event)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _checkpoint(self) -> None:
        """Writes one, and records it; without one its counters, unless callbacks write checkpoints and record those."""
        path = None if self.save_checkpoint_fn is None else self.save_checkpoint_fn(*self._where())
        if not isinstance(path, str | PathLike | None):
            raise TypeError(f"save_checkpoint_fn returned {path!r}; it must return the path of what it wrote, or None")
        if path is not None or not have_saver(self.callbacks):
            self.logger.save_data(*self._where(), lambda *_: path)
        self._saved_at = self._position()
        if path is not None:
            self._emit(CheckpointSaved(*self._where(), path=Path(path)))

    def _position(self) -> tuple[int, ...]:
        return (*self._where(), self.test_episode, self.in_epoch)

    def _finish(self, reason: str, save: bool = True) -> None:
        """The last checkpoint and `RunEnd`, once for each run. A checkpoint that is interrupted may be tried again."""
        if self._over:
            return
        self.stop_reason = reason
        self._tick()
        try:
            if save and self._saved_at != self._position():
                self._checkpoint()
        except Exception:
            self.stop_reason = "error"
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        self._over = True
        try:
            self._emit_to_all(RunEnd(*self._where(), reason=str(self.stop_reason), info=self.info()))
        finally:
            self.logger.finalize()

    # -- state ---

    __reduce__ = no_copies(
        "collectors and loggers", "build another one, or save_trainer(trainer, path) and restore_trainer(other, path)"
    )

    def get_state(self) -> dict[str, Any]:
        """Counters, statistics, best tracker, collectors, callbacks and logger (the policy is saved beside it)."""
        return trainer_state(self)

    def own_folders(self) -> dict[str, dict[str, Any]]:
        """Further folders of a checkpoint, for large things: a replay buffer."""
        return {}

    def set_own_folders(self, folders: Mapping[str, Any]) -> None:
        """Restores what `own_folders` gave, from all folders of a checkpoint."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`: the next iteration goes on where that run was. `ValueError`, changing nothing,
        for collectors of other environments or another number of them."""
        set_collectors(self, state)
        self._iterator = None
        self._zero()
        set_trainer_state(self, state)
        self._saved_at = self._position()
        self._ready = True
