"""`BaseTrainer`: counters, evaluation, best tracker, checkpoints and the iterator over epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from lockstep.algorithms.policy import Policy
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.rollout.collector import Collector
from lockstep.tracking import BaseLogger, LazyLogger
from lockstep.tracking.statistics import (
    CollectStats,
    EpochStats,
    InfoStats,
    TimingStats,
    TrainingStats,
    merge_training_stats,
)
from lockstep.trainer.callbacks import Callback, LoggingCallback
from lockstep.trainer.events import (
    CheckpointSaved,
    CollectEnd,
    EpochEnd,
    EvaluationEnd,
    Event,
    RunEnd,
    RunStart,
    UpdateEnd,
)

SaveCheckpointFn = Callable[[int, int, int], Any]


class BaseTrainer:
    """The part that all trainers share. Iterate over it epoch by epoch, or call `run()`.

    Order of events: reset, first evaluation, then in each epoch `train_fn`, collect, update (until `step_per_epoch`
    steps are done), evaluation, best tracker, `stop_fn`, checkpoint, `EpochStats`; at the end one more checkpoint
    with the reason, whatever ended the run. Callbacks see frozen events.
    """

    def __init__(
        self,
        policy: Policy,
        max_epoch: int,
        batch_size: int | None,
        train_collector: Collector | None,
        test_collector: Collector | None,
        step_per_epoch: int,
        *,
        episode_per_test: int | None = None,
        test_interval: int = 1,
        train_fn: Callable[[int, int], None] | None = None,
        test_fn: Callable[[int, int], None] | None = None,
        stop_fn: Callable[[float], bool] | None = None,
        compute_score_fn: Callable[[CollectStats], float] | None = None,
        save_best_fn: Callable[[Policy], None] | None = None,
        save_checkpoint_fn: SaveCheckpointFn | None = None,
        checkpoint_interval: int = 1,
        logger: BaseLogger | None = None,
        callbacks: Sequence[Callback] = (),
        nan_policy: str = "stop",
    ) -> None:
        _at_least("max_epoch", max_epoch, 0)
        _at_least("step_per_epoch", step_per_epoch, 1)
        _at_least("test_interval", test_interval, 1)
        if batch_size is not None:
            _at_least("batch_size", batch_size, 1)
        if test_collector is not None:
            if episode_per_test is None:
                raise ValueError("episode_per_test is needed where there is a test_collector; say how many episodes")
            _at_least("episode_per_test", episode_per_test, 1)
        if nan_policy not in ("stop", "ignore"):
            raise ValueError(f"nan_policy={nan_policy!r} is not allowed; choose 'stop' or 'ignore'")
        self.policy, self.max_epoch, self.batch_size = policy, max_epoch, batch_size
        self.train_collector, self.test_collector = train_collector, test_collector
        self.step_per_epoch, self.episode_per_test, self.test_interval = (
            step_per_epoch,
            episode_per_test,
            test_interval,
        )
        self.train_fn, self.test_fn, self.stop_fn = train_fn, test_fn, stop_fn
        self.compute_score_fn = compute_score_fn or mean_return
        self.save_best_fn, self.save_checkpoint_fn = save_best_fn, save_checkpoint_fn
        self.checkpoint_interval = checkpoint_interval
        self.logger = logger or LazyLogger()
        self.callbacks: list[Callback] = [LoggingCallback(self.logger), *callbacks]
        self.nan_policy = nan_policy
        self._restored: Mapping[str, Any] | None = None
        self._iterator: Iterator[EpochStats] | None = None
        self._zero()

    def _zero(self) -> None:
        self.epoch = self.env_step = self.gradient_step = self.env_episode = 0
        self.carried_steps = 0
        """steps of the last collect beyond `step_per_epoch`, counted in the next epoch"""
        self.test_step = self.test_episode = 0
        self.best_score: float | None = None
        self.best_stats: CollectStats | None = None
        self.best_epoch: int | None = None
        self.stop_reason: str | None = None
        self.history: list[EpochStats] = []
        self.last_test: CollectStats | None = None
        self._seconds = dict.fromkeys(("total", "collect", "update", "test", "env", "act"), 0.0)

    # -- use ---

    def reset(self, reset_collectors: bool = True, reset_buffer: bool = False) -> None:
        """A new run: all counters, statistics and the best tracker; collectors begin new episodes."""
        self._iterator = None
        self._begin(reset_collectors, reset_buffer)

    def _begin(self, reset_collectors: bool = True, reset_buffer: bool = False) -> None:
        self._zero()
        if reset_collectors:
            for collector in (self.train_collector, self.test_collector):
                if collector is not None:
                    collector.reset(reset_buffer=reset_buffer or collector is self.train_collector)

    def run(self) -> InfoStats:
        """Runs to the end. Ctrl-C ends it in the same orderly way; any other error after a last checkpoint, too."""
        for _ in iter(self):
            pass
        return self.info()

    def __iter__(self) -> Self:
        self._iterator = self._epochs()
        return self

    def __next__(self) -> EpochStats:
        if self._iterator is None:
            self._iterator = self._epochs()
        return next(self._iterator)

    def _epochs(self) -> Iterator[EpochStats]:
        reason = "error"
        started = time.monotonic() - (self._seconds["total"] if self._restored is not None else 0.0)
        try:
            if self._restored is None:
                self._begin()
            self._restored = None
            self._clock = started
            self._emit(RunStart(*self._where(), trainer=self))
            if self.epoch == 0 and not self.history and self.test_collector is not None and self.max_epoch > 0:
                self._evaluate()
            while self.stop_reason is None and self.epoch < self.max_epoch:
                yield self._one_epoch()
            reason = self.stop_reason or "max_epoch"
        except KeyboardInterrupt:
            reason = "interrupted"
        except GeneratorExit:
            reason = "interrupted"
            raise
        finally:
            self.stop_reason = reason
            self._tick()
            self._finish(reason)

    def _one_epoch(self) -> EpochStats:
        self.epoch += 1
        collected, updates = CollectStats(), []
        steps = self.carried_steps
        while steps < self.step_per_epoch and self.stop_reason is None:
            if self.train_fn is not None:
                self.train_fn(self.epoch, self.env_step)
            stats, training = self._training_step()
            collected += stats
            steps += stats.n_collected_steps
            updates.append(training)
        self.carried_steps = max(0, steps - self.step_per_epoch)
        test = None
        last = self.stop_reason is not None or self.epoch >= self.max_epoch
        if self.test_collector is not None and (self.epoch % self.test_interval == 0 or last):
            test = self._evaluate()
        self._tick()
        info = self.info(with_history=False)
        epoch_stats = EpochStats(self.epoch, collected, test, merge_training_stats(updates), info)
        self.history.append(epoch_stats)
        self._emit(EpochEnd(*self._where(), stats=epoch_stats))
        if self.epoch % self.checkpoint_interval == 0:
            self._checkpoint()
        return epoch_stats

    def _training_step(self) -> tuple[CollectStats, TrainingStats]:
        """One collect and one update."""
        raise TypeError(f"{type(self).__name__} has no training step; use OnpolicyTrainer")

    def _count_collect(self, stats: CollectStats) -> None:
        self.env_step += stats.n_collected_steps
        self.env_episode += stats.n_collected_episodes
        self._seconds["collect"] += stats.collect_time
        self._seconds["env"] += stats.env_time
        self._seconds["act"] += stats.act_time
        self.policy.timesteps[STEPS_SAMPLED] = self.env_step
        self._emit(CollectEnd(*self._where(), stats=stats))

    def _count_update(self, stats: TrainingStats) -> None:
        self.gradient_step += stats.gradient_steps
        self._seconds["update"] += stats.train_time
        self._emit(UpdateEnd(*self._where(), stats=stats))
        bad = [name for name, mean in stats.get_loss_stats_dict().items() if "loss" in name and not _finite(mean)]
        if bad and self.nan_policy == "stop":
            raise FloatingPointError(
                f"{bad[0]} is not finite at environment step {self.env_step}, gradient step {self.gradient_step}; "
                "lower the learning rate, clip gradients, or check the rewards (nan_policy='ignore' goes on)"
            )

    def _evaluate(self) -> CollectStats:
        collector = self.test_collector
        if collector is None or self.episode_per_test is None:
            raise ValueError("there is no test_collector to evaluate with")
        if self.test_fn is not None:
            self.test_fn(self.epoch, self.env_step)
        stats = collector.collect(n_episode=self.episode_per_test)
        self.test_step += stats.n_collected_steps
        self.test_episode += stats.n_collected_episodes
        self._seconds["test"] += stats.collect_time
        score = float(self.compute_score_fn(stats))
        is_best = self.best_score is None or score > self.best_score
        self.last_test = stats
        if is_best:
            self.best_score, self.best_stats, self.best_epoch = score, stats, self.epoch
        self._emit(EvaluationEnd(*self._where(), stats=stats, score=score, is_best=is_best))
        if is_best and self.save_best_fn is not None:
            self.save_best_fn(self.policy)
        if self.stop_fn is not None and self.stop_fn(score):
            self.stop_reason = "stop_fn"
        return stats

    # -- reports ---

    def info(self, with_history: bool = True) -> InfoStats:
        """The run so far."""
        seconds = self._seconds
        train = seconds["collect"] + seconds["update"]
        best = None if self.best_stats is None else self.best_stats.returns_stat
        timing = TimingStats(
            seconds["total"],
            train,
            seconds["collect"],
            seconds["update"],
            seconds["test"],
            self.env_step / train if train else 0.0,
            seconds["env"],
            seconds["act"],
        )
        return InfoStats(
            self.gradient_step,
            self.best_score,
            None if best is None else best.mean,
            None if best is None else best.std,
            self.best_epoch,
            self.env_step,
            self.env_episode,
            self.test_step,
            self.test_episode,
            timing,
            self.stop_reason,
            tuple(self.history) if with_history else (),
        )

    def _tick(self) -> None:
        self._seconds["total"] = time.monotonic() - self._clock

    def _where(self) -> tuple[int, int, int]:
        return self.epoch, self.env_step, self.gradient_step

    def _emit(self, event: Event) -> None:
        for callback in self.callbacks:
            reason = callback.on_event(event)
            if isinstance(reason, str) and self.stop_reason is None:
                self.stop_reason = reason

    def _checkpoint(self) -> None:
        if self.save_checkpoint_fn is None:
            return
        saved: list[Any] = []

        def save(epoch: int, env_step: int, gradient_step: int) -> Any:
            saved.append(self.save_checkpoint_fn(epoch, env_step, gradient_step) if self.save_checkpoint_fn else None)
            return saved[-1]

        self.logger.save_data(*self._where(), save)
        if saved and saved[-1] is not None:
            self._emit(CheckpointSaved(*self._where(), path=Path(saved[-1])))

    def _finish(self, reason: str) -> None:
        try:
            if reason != "error":
                self._checkpoint()
        finally:
            self._emit(RunEnd(*self._where(), reason=reason, info=self.info()))
            self.logger.finalize()

    # -- state ---

    def get_state(self) -> dict[str, Any]:
        """Counters, best tracker, collectors, callbacks and logger (the policy is saved beside it)."""
        names = (
            "epoch",
            "env_step",
            "gradient_step",
            "env_episode",
            "carried_steps",
            "test_step",
            "test_episode",
            "best_score",
            "best_epoch",
        )
        best = self.best_stats
        return {
            "counters": {name: getattr(self, name) for name in names},
            "seconds": dict(self._seconds),
            "best_returns": None if best is None else [list(best.returns), list(best.lens)],
            "train_collector": None if self.train_collector is None else self.train_collector.get_state(),
            "test_collector": None if self.test_collector is None else self.test_collector.get_state(),
            "callbacks": [[type(c).__name__, dict(c.get_state())] for c in self.callbacks],
            "logger": self.logger.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state`: the next iteration goes on where that run was."""
        self._zero()
        for name, value in state["counters"].items():
            setattr(self, name, value)
        self._seconds = dict(state["seconds"])
        if state["best_returns"] is not None:
            returns, lens = state["best_returns"]
            self.best_stats = CollectStats(len(returns), sum(lens), returns=tuple(returns), lens=tuple(lens))
        for name in ("train_collector", "test_collector"):
            collector = getattr(self, name)
            if collector is not None and state[name] is not None:
                collector.set_state(state[name])
        saved = dict(state["callbacks"])
        for callback in self.callbacks:
            if type(callback).__name__ in saved:
                callback.set_state(saved[type(callback).__name__])
        self.logger.set_state(state["logger"])
        self._restored = state


def mean_return(stats: CollectStats) -> float:
    """The default score. `ValueError` for an evaluation in which no episode ended."""
    if stats.returns_stat is None or stats.returns_stat.mean is None:
        raise ValueError(
            "the evaluation has no finished episode; raise episode_per_test, or limit the episodes' length"
        )
    return stats.returns_stat.mean


def test_episode(policy: Policy, collector: Collector, n_episode: int) -> CollectStats:
    """Evaluates a policy on `n_episode` whole episodes."""
    del policy
    return collector.collect(n_episode=n_episode)


def gather_info(trainer: BaseTrainer, *, best_score: float | None = None) -> InfoStats:
    """The run so far, as `trainer.info()`; a given best score takes the tracked one's place."""
    info = trainer.info()
    return info if best_score is None else replace(info, best_score=best_score)


def _at_least(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} is not allowed; it must be a whole number, at least {least}")


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")
