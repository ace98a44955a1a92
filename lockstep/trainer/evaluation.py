"""Evaluation: `Evaluator`, scores and the reward metric, and functions for training loops that users write."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.policy.policy import Policy
from lockstep.rollout import CollectorLike
from lockstep.rollout.base_collector import EPISODE_LIMIT_ADVICE
from lockstep.rollout.callbacks import overridden_events, states_of
from lockstep.tracking import BaseLogger
from lockstep.tracking.statistics import CollectStats, InfoStats, TimingStats
from lockstep.trainer.callbacks import Callback, attach_callbacks
from lockstep.trainer.counters import StepCounts
from lockstep.trainer.options import EvaluatorOptions

FEW_STEPS = 100
"""Number of steps after which `warn_endless` warns if the environment has no `max_episode_steps`."""
SNAPSHOT = "evaluation/"
"""Prefix of the folders in a checkpoint that contain the policy under evaluation."""


@dataclass(frozen=True)
class EvaluationResult:
    """Result of an evaluation."""

    step_counts: StepCounts
    """Epoch and steps of the training at which the evaluation began."""
    stats: CollectStats
    """Statistics of the evaluation's episodes."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that a custom evaluation function returned, including its "score"."""


class Evaluator:
    """Evaluation of a policy with a `test_collector`, as `EvaluatorOptions` describes it.

    With `evaluation_parallel_to_training` an evaluation runs in a thread while the policy is trained. The collector
    then acts with its own copy of the policy, which takes over the state of the trained one when an evaluation begins.
    The two share nothing, so training does not depend on when an evaluation ends.
    """

    def __init__(self, policy: Policy, options: EvaluatorOptions) -> None:
        self.collector = options.test_collector
        self.is_parallel = options.evaluation_parallel_to_training
        self.n_episode = options.episode_per_test
        self.n_step = options.step_per_test
        self.custom_function = options.custom_evaluation_function
        self.test_fn = options.test_fn
        self._trained_policy = policy
        self.policy: Policy = policy
        """The policy under evaluation. In a parallel evaluation it keeps the state of the evaluation's beginning."""
        if self.collector is not None and self.is_parallel:
            self.policy = getattr(self.collector, "policy", policy)
        self.callbacks: list[Callback] = []
        """Instances of the callback classes that a parallel evaluation calls for its environments."""

        self.pending: StepCounts | None = None
        """Epoch and steps of the evaluation that has begun and was not reported yet."""
        self._has_snapshot = False
        """Whether `policy` already has the state of the pending evaluation, for example from a checkpoint."""
        # The states before the pending evaluation. A checkpoint contains these, because a run that continues from it
        # evaluates again from the beginning.
        self._collector_state_before: dict[str, Any] = {}
        self._callback_states_before: list[Any] = []
        self._executor: ThreadPoolExecutor | None = None
        self._future: Future[EvaluationResult] | None = None

    @property
    def durations(self) -> dict[str, int | None]:
        """The two lengths of an evaluation, by parameter name."""
        return {"episode_per_test": self.n_episode, "step_per_test": self.n_step}

    @property
    def functions(self) -> dict[str, Callable[..., Any] | None]:
        """The user's functions that an evaluation calls, by parameter name."""
        return {"test_fn": self.test_fn, "custom_evaluation_function": self.custom_function}

    def attach_callbacks(self, callbacks: Sequence[Callback], classes: Sequence[type]) -> None:
        """Register with the collector the callbacks that handle events of environments.

        A parallel evaluation makes its own instances of the callback classes.

        Args:
            callbacks: the trainer's callbacks.
            classes: callback classes of the configuration.

        Raises:
            ValueError: a parallel evaluation would call an object that training calls at the same time, or the
                collector has env runners for evaluation, which do not know during an episode whether it will count.
        """
        if self.collector is None:
            return
        handlers = [callback for callback in callbacks if overridden_events(callback)]
        if handlers and self.collector.counts_afterwards:
            raise ValueError(
                f"callbacks={handlers!r} handle {overridden_events(handlers[0])}, which is not allowed with "
                "evaluation_num_env_runners above 0: env runners play episodes that turn out not to count. Set it to "
                "0, or leave the methods out"
            )
        if self.is_parallel:
            shared = [callback for callback in handlers if type(callback) not in classes]
            if shared:
                raise ValueError(
                    f"callbacks={shared!r} handle {overridden_events(shared[0])}, which training and evaluation would "
                    "call at once with evaluation_parallel_to_training=True; give the class, of which evaluation makes "
                    "an instance of its own: config.callbacks(...)"
                )
            handler_classes = [type(callback) for callback in handlers]
            self.callbacks = [make() for make in classes if make in handler_classes]
            handlers = self.callbacks
        attach_callbacks(handlers, "test_collector", self.collector, classes)

    def begin(self, step_counts: StepCounts) -> None:
        """Begin an evaluation of the policy's present state, or of the state that a checkpoint has restored.

        Raises:
            ValueError: there is no collector.
        """
        if self.collector is None:
            raise ValueError("there is no test_collector to evaluate with")
        self.pending = step_counts
        if self.test_fn is not None:
            self.test_fn(*step_counts[:2])
        if not self.is_parallel:
            return  # `finish` evaluates

        self._take_snapshot(step_counts)
        self._collector_state_before = self.collector.get_state()
        self._callback_states_before = states_of(self.callbacks)
        if self._executor is None:
            # torch keeps the number of its threads for each thread that calls it: without this, evaluation would use
            # all cores and slow training down.
            set_threads = partial(torch.set_num_threads, torch.get_num_threads())
            self._executor = ThreadPoolExecutor(1, "evaluation", initializer=set_threads)
        self._future = self._executor.submit(self._evaluate, step_counts)

    def _take_snapshot(self, step_counts: StepCounts) -> None:
        """Give the evaluated policy the state of the trained one, unless it has the state of a checkpoint."""
        if self._has_snapshot and set(self.policy.acting) != set(self._trained_policy.acting):
            warnings.warn(
                f"an evaluation of epoch {step_counts[0]} was running, of a policy with the modules "
                f"{sorted(self.policy.acting)}; now there are {sorted(self._trained_policy.acting)}: who acted for "
                "whom is not known any more, and the present policy is evaluated instead",
                RuntimeWarning,
                stacklevel=3,
            )
            self._has_snapshot = False
        if not self._has_snapshot:
            self.policy.set_state(self._trained_policy.get_state())
            self._has_snapshot = True
        if self.policy.is_multi_agent:  # a function, which is not part of the state
            self.policy.policy_mapping_fn = self._trained_policy.policy_mapping_fn

    def finish(self) -> EvaluationResult:
        """Return the result of the pending evaluation, and wait for it if necessary.

        Raises every exception of the evaluation.
        """
        assert self.pending is not None
        if self.is_parallel:
            self.resume()  # an evaluation that was restored from a checkpoint may not have begun
            assert self._future is not None
            result = self._future.result()
        else:
            step_counts = self.pending
            self.pending = None  # an evaluation that fails is not tried again
            result = self._evaluate(step_counts)
        self.pending = None
        self._future = None
        self._has_snapshot = False

        reducer = self._trained_policy.learner_group.reducer
        if reducer.world_size == 1:
            return result
        # Every rank has evaluated. All take the first one's result, so that they make the same decisions.
        state, metrics = reducer.first([result.stats.get_state(), dict(result.metrics)])
        return replace(result, stats=CollectStats.from_state(state), metrics=metrics)

    def wait(self) -> None:
        """Wait for the running evaluation and drop its result. It is repeated when the run continues."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        self._future = None

    def _evaluate(self, step_counts: StepCounts) -> EvaluationResult:
        """Play the episodes or steps of an evaluation, or call the custom function."""
        assert self.collector is not None
        if self.custom_function is None:
            if self.n_step is None:
                return EvaluationResult(step_counts, self.collector.collect(n_episode=self.n_episode))
            # Every evaluation begins with new episodes: a collect of episodes does by itself, one of steps does not.
            self.collector.reset(reset_buffer=False, reset_stats=False)
            return EvaluationResult(step_counts, self.collector.collect(n_step=self.n_step))

        num_steps, num_episodes, seconds = _counts_of(self.collector)
        result = self.custom_function(self.policy, self.collector)
        if isinstance(result, CollectStats):
            return EvaluationResult(step_counts, result)

        # The function returned numbers. Its steps and episodes are those that the collector has counted meanwhile.
        steps_after, episodes_after, seconds_after = _counts_of(self.collector)
        stats = CollectStats(episodes_after - num_episodes, steps_after - num_steps, seconds_after - seconds)
        return EvaluationResult(step_counts, stats, _numbers_in(result))

    # -- state ---

    @property
    def is_pending(self) -> bool:
        """Whether a parallel evaluation has begun and was not reported yet."""
        return self.is_parallel and self.pending is not None

    def pending_state(self) -> list[int] | None:
        """Return epoch and steps of the pending parallel evaluation, for a checkpoint."""
        if not self.is_parallel or self.pending is None:
            return None
        return list(self.pending)

    def collector_state(self) -> dict[str, Any] | None:
        """Return the state of the collector. During a parallel evaluation it is the state before its beginning."""
        if self.collector is None:
            return None
        return self._collector_state_before if self.is_pending else self.collector.get_state()

    def callback_states(self) -> list[Any]:
        """Return the states of `callbacks`. During a parallel evaluation they are the states before its beginning."""
        return self._callback_states_before if self.is_pending else states_of(self.callbacks)

    def set_state(self, pending: Sequence[int] | None) -> None:
        """Restore a pending evaluation from its epoch and steps; `resume` begins it.

        Raises:
            ValueError: this evaluator does not evaluate in parallel to training.
        """
        if pending is not None and not self.is_parallel:
            raise ValueError(
                f"an evaluation of epoch {pending[0]} was running in parallel to training; continue with "
                "evaluation_parallel_to_training=True"
            )
        self.pending = None if pending is None else (pending[0], pending[1], pending[2])

    def forget(self) -> None:
        """Drop a pending evaluation, because a new run begins."""
        self.wait()
        self.pending = None
        self._has_snapshot = False

    def resume(self) -> None:
        """Begin a pending evaluation that was restored from a checkpoint."""
        if self.is_parallel and self.pending is not None and self._future is None:
            self.begin(self.pending)

    def folders(self, step_counts: StepCounts) -> dict[str, dict[str, Any]]:
        """Return the checkpoint folders with the policy of the pending evaluation.

        The checkpoint already contains the trained policy, at `step_counts`. If the evaluated policy is equal to it,
        there are no such folders.
        """
        is_same = self.pending == step_counts and self.policy.weights_seq_no == self._trained_policy.weights_seq_no
        if is_same or not self.is_pending:
            return {}
        return {f"{SNAPSHOT}{name}": folder for name, folder in self.policy.checkpoint_folders().items()}

    def set_folders(
        self, folders: Mapping[str, dict[str, Any]], *, trust: bool = False, file: str | Path = "the checkpoint"
    ) -> None:
        """Restore the policy of a pending evaluation from a checkpoint.

        Args:
            folders: all folders of the checkpoint, by name. If those of a pending evaluation (see the method `folders`)
                are not among them, nothing is restored.
            trust: see `BaseTrainer.restore_from_path`.
            file: name of the checkpoint, for messages.
        """
        snapshot = {}
        for name, folder in folders.items():
            if name.startswith(SNAPSHOT):
                snapshot[name.removeprefix(SNAPSHOT)] = folder
        self._has_snapshot = self.is_parallel and bool(snapshot)
        if self._has_snapshot:
            self.policy.set_checkpoint_folders(snapshot, trust=trust, file=file)

    def make_undo(self) -> Callable[[], None]:
        """Return a function that undoes a later `set_state` and `set_folders`."""
        pending = self.pending
        has_snapshot = self._has_snapshot
        # Without a snapshot the policy is overwritten before its next use, so its state need not be kept.
        snapshot = self.policy.get_state() if has_snapshot else {}

        def undo() -> None:
            self.pending = pending
            self._has_snapshot = has_snapshot
            if has_snapshot:
                self.policy.set_state(snapshot)

        return undo


def _numbers_in(result: object) -> dict[str, float]:
    """Return the metrics in the result of a custom evaluation function. A plain number becomes the "score".

    Raises:
        TypeError: the result contains something other than numbers.
        ValueError: it is a dict without a "score".
    """
    metrics: dict[Any, Any] = dict(result) if isinstance(result, Mapping) else {"score": result}
    words = f"custom_evaluation_function returned {result!r}"
    if "score" not in metrics:
        raise ValueError(f'{words}; a dict needs a "score", which is compared for the best policy')
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError):
        raise TypeError(f"{words}; it must return CollectStats, a number or a dict of numbers") from None


def mean_return(stats: CollectStats) -> float:
    """Return the mean return of the episodes, which is the default score."""
    return sum(stats.returns.tolist()) / len(stats.returns)


def score_of(compute_score_fn: Callable[[CollectStats], float], stats: CollectStats) -> float:
    """Return the score of an evaluation as a float. Warns if it is NaN, which is never the best score.

    Raises:
        ValueError: no episode ended in the evaluation.
        TypeError: `compute_score_fn` did not return a number.
    """
    if not len(stats.returns):
        raise ValueError(
            "the evaluation has no finished episode; raise episode_per_test (step_per_test, evaluation_duration), or "
            "limit the episodes' length"
        )
    score: Any = compute_score_fn(stats)
    try:
        number = float(score)
    except (TypeError, ValueError):
        raise TypeError(f"compute_score_fn returned {score!r}; it must return a number") from None
    if math.isnan(number):
        warnings.warn(
            f"compute_score_fn returned {score!r} for {len(stats.returns)} episodes; such a score is never the "
            "best one, return a number that can be compared",
            stacklevel=2,
        )
    return number


def warn_endless(collector: CollectorLike, num_steps: int, num_new: int) -> None:
    """Warn that episodes may never end, because none ended in the first steps of a run.

    Warns once, when every environment has made as many steps as its longest episode may have (`FEW_STEPS` if that is
    not known).

    Args:
        collector: collector of the training data.
        num_steps: number of environment steps so far, in which no episode ended.
        num_new: number of these that are new since the last call.
    """
    steps_per_env = getattr(collector.env, "max_episode_steps", None) or FEW_STEPS
    threshold = collector.num_envs * steps_per_env
    if num_steps - num_new < threshold <= num_steps:
        warnings.warn(
            f"no training episode ended in the first {num_steps} steps of {collector.num_envs} environments; if "
            f"episodes never end, {EPISODE_LIMIT_ADVICE}",
            stacklevel=3,
        )


def with_reward_metric(reward_metric: Callable[[Any], Any] | None, stats: CollectStats) -> CollectStats:
    """Return the statistics with the returns that `reward_metric` computes from the agents' returns.

    The metric receives float64 returns of shape [episode, agent]. Without a metric, or if no episode ended, the
    statistics are returned unchanged.

    Raises:
        TypeError: the metric did not return numbers.
        ValueError: it did not return one number per episode.
    """
    if reward_metric is None or not stats.agent_returns:
        return stats
    returns = np.array(stats.agent_returns, np.float64)
    num_episodes = len(returns)
    result = reward_metric(returns)
    words = f"reward_metric was given returns of shape {returns.shape}, [episode, agent], and returned"
    try:
        values = np.asarray(result)
    except (TypeError, ValueError):  # such as a list of lists of different lengths: refused below as "not numbers"
        values = np.empty((), object)
    if values.dtype.kind not in "fiub":  # float, integer, unsigned integer, bool
        raise TypeError(f"{words} {result!r}; it must return numbers, one for each episode: shape ({num_episodes},)")
    if values.shape != (num_episodes,):
        raise ValueError(f"{words} shape {values.shape}; it must return one number for each episode: ({num_episodes},)")
    return replace(stats, returns=values.astype(np.float64))


def test_episode(
    collector: CollectorLike,
    test_fn: Callable[[int, Any], None] | None,
    epoch: int,
    n_episode: int,
    logger: BaseLogger | None = None,
    global_step: int | None = None,
    reward_metric: Callable[[Any], Any] | None = None,
) -> CollectStats:
    """Play new episodes and return their statistics, for a training loop that a user writes.

    Args:
        collector: collector of the evaluation.
        test_fn: called as `test_fn(epoch, global_step)` before the episodes.
        epoch: number of the epoch, for `test_fn`.
        n_episode: number of episodes.
        logger: receives the statistics in its scope `test/` if `global_step` is given.
        global_step: environment step of the training.
        reward_metric: see the option of this name in `RunOptions`.
    """
    if test_fn is not None:
        test_fn(epoch, global_step)
    stats = with_reward_metric(reward_metric, collector.collect(n_episode=n_episode))
    if logger is not None and global_step is not None:
        logger.log_test_data(stats.to_dict(), global_step)
    return stats


def gather_info(
    start_time: float,
    policy_update_time: float,
    gradient_step: int,
    best_score: float,
    best_reward: float,
    best_reward_std: float,
    train_collector: CollectorLike | None = None,
    test_collector: CollectorLike | None = None,
) -> InfoStats:
    """Return the statistics of a training loop that a user writes. A trainer returns its own with `trainer.info()`.

    Args:
        start_time: `time.time()` at the beginning of the loop.
        policy_update_time: seconds of all updates.
        gradient_step: number of gradient steps.
        best_score: highest score of an evaluation.
        best_reward: mean return of that evaluation.
        best_reward_std: standard deviation of the returns of that evaluation.
        train_collector: collector of the training data.
        test_collector: collector of the evaluations.
    """
    train_step, train_episode, collect_time = _counts_of(train_collector)
    test_step, test_episodes, test_time = _counts_of(test_collector)
    timing = TimingStats.of_seconds(
        steps=train_step or gradient_step,
        total=max(0.0, time.time() - start_time),
        collect=collect_time,
        update=policy_update_time,
        test=test_time,
    )
    return InfoStats(
        gradient_step=gradient_step,
        best_score=best_score,
        best_reward=best_reward,
        best_reward_std=best_reward_std,
        best_epoch=None,
        train_step=train_step,
        train_episode=train_episode,
        test_step=test_step,
        test_episode=test_episodes,
        timing=timing,
    )


def _counts_of(collector: Any) -> tuple[int, int, float]:
    """Return the collector's steps, episodes and seconds since its last reset; zeros without a collector."""
    if collector is None:
        return 0, 0, 0.0
    return collector.collect_step, collector.collect_episode, collector.collect_time
