"""Evaluation: `Evaluator`, and functions that score episodes, apply `reward_metric`, sum up a loop of your own."""

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
from lockstep.trainer.options import EvaluatorOptions

FEW_STEPS = 100
"""steps in which an episode may well go on, where the environment is registered with no limit of its length"""


Where = tuple[int, int, int]
"""epoch, environment steps, gradient steps"""
SNAPSHOT = "evaluation/"
"""prefix of the folders of a checkpoint with the policy that is evaluated"""


@dataclass(frozen=True)
class Evaluated:
    """Result of an evaluation."""

    where: Where
    """Epoch and steps at which the evaluated policy was taken."""
    stats: CollectStats
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that a custom evaluation function returned, with its "score"."""


class Evaluator:
    """Evaluates a policy with its `test_collector`, as `EvaluatorOptions` say.

    Beside training an evaluation runs in a thread while the policy is trained. The collector then acts with a policy of
    its own, which takes the state of the trained one when an evaluation begins; nothing is shared between the two, so
    that training does not depend on when an evaluation ends.
    """

    def __init__(self, policy: Policy, options: EvaluatorOptions) -> None:
        collector = options.test_collector
        self.collector = collector
        self.beside_training = options.evaluation_parallel_to_training
        self.n_episode = options.episode_per_test
        self.n_step = options.step_per_test
        self.custom_function = options.custom_evaluation_function
        self.test_fn = options.test_fn
        self._trained = policy
        beside = collector is not None and self.beside_training
        self.policy: Policy = getattr(collector, "policy", policy) if beside else policy
        """the policy that is evaluated; beside training it stays as it was when the evaluation began"""
        self.pending: Where | None = None
        """Epoch and steps at which the policy was taken whose evaluation is running; None between evaluations."""
        self._has_snapshot = False
        self._state_before: dict[str, Any] = {}
        self.callbacks: list[Callback] = []
        """instances of its own, that are called for the environments of an evaluation beside training"""
        self._callbacks_before: list[Any] = []
        self._threads: ThreadPoolExecutor | None = None
        self._result: Future[Evaluated] | None = None

    @property
    def amounts(self) -> dict[str, int | None]:
        """How long an evaluation is, by parameter."""
        return {"episode_per_test": self.n_episode, "step_per_test": self.n_step}

    @property
    def functions(self) -> dict[str, Callable[..., Any] | None]:
        """What is called, by parameter."""
        return {"test_fn": self.test_fn, "custom_evaluation_function": self.custom_function}

    def attach_callbacks(self, callbacks: Sequence[Callback], classes: Sequence[type]) -> None:
        """Have the collector call the callbacks that handle events of environments; beside training instances of its
        own, of the `classes` of the configuration.

        Raises `ValueError` for an object that training calls at the same time, and for evaluation's own env runners:
        which of their episodes count is known only when all have played on.
        """
        if self.collector is None:
            return
        told = [callback for callback in callbacks if overridden_events(callback)]
        if told and self.collector.counts_afterwards:
            raise ValueError(
                f"callbacks={told!r} handle {overridden_events(told[0])}, which is not allowed with "
                "evaluation_num_env_runners above 0: env runners play episodes that turn out not to count. Set it to "
                "0, or leave the methods out"
            )
        if self.beside_training:
            shared = [callback for callback in told if type(callback) not in classes]
            if shared:
                raise ValueError(
                    f"callbacks={shared!r} handle {overridden_events(shared[0])}, which training and evaluation would "
                    "call at once with evaluation_parallel_to_training=True; give the class, of which evaluation makes "
                    "an instance of its own: config.callbacks(...)"
                )
            self.callbacks = told = [make() for make in classes if make in map(type, told)]
        attach_callbacks(told, "test_collector", self.collector, classes)

    def begin(self, where: Where) -> None:
        """Begin to evaluate the policy as it is. `ValueError` without a collector."""
        if self.collector is None:
            raise ValueError("there is no test_collector to evaluate with")
        self.pending = where
        if self.test_fn is not None:
            self.test_fn(*where[:2])
        if not self.beside_training:
            return
        if self._has_snapshot and set(self.policy.acting) != set(self._trained.acting):
            warnings.warn(
                f"an evaluation of epoch {where[0]} was under way, of a policy with the modules "
                f"{sorted(self.policy.acting)}; now there are {sorted(self._trained.acting)}: who acted for whom is "
                "not known any more, and the present policy is evaluated in its place",
                RuntimeWarning,
                stacklevel=2,
            )
            self._has_snapshot = False
        if not self._has_snapshot:
            self.policy.set_state(self._trained.get_state())
            self._has_snapshot = True
        if self.policy.is_multi_agent:
            self.policy.policy_mapping_fn = self._trained.policy_mapping_fn
        self._state_before, self._callbacks_before = self.collector.get_state(), states_of(self.callbacks)
        if self._threads is None:  # torch counts its threads for each thread that calls it
            set_threads = partial(torch.set_num_threads, torch.get_num_threads())
            self._threads = ThreadPoolExecutor(1, "evaluation", initializer=set_threads)
        self._result = self._threads.submit(self._evaluate, where)

    def finish(self) -> Evaluated:
        """Return what the evaluation under way found, when it has ended. Raises what it raised."""
        assert self.pending is not None
        if self.beside_training:
            self.resume()
            assert self._result is not None
            found = self._result.result()
        else:
            where, self.pending = self.pending, None
            found = self._evaluate(where)
        self.pending, self._result, self._has_snapshot = None, None, False
        reducer = self._trained.learner_group.reducer
        if reducer.world_size == 1:
            return found
        state, metrics = reducer.first([found.stats.get_state(), dict(found.metrics)])  # each rank has evaluated
        return replace(found, stats=CollectStats.from_state(state), metrics=metrics)

    def wait(self) -> None:
        """Wait until nothing is under way. What was found is dropped; the next `begin` evaluates anew."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._result = None

    def _evaluate(self, where: Where) -> Evaluated:
        assert self.collector is not None
        if self.custom_function is None:
            if self.n_step is None:
                return Evaluated(where, self.collector.collect(n_episode=self.n_episode))
            self.collector.reset(reset_buffer=False, reset_stats=False)
            return Evaluated(where, self.collector.collect(n_step=self.n_step))
        num_steps, num_episodes, seconds = _counts_of(self.collector)
        result = self.custom_function(self.policy, self.collector)
        if isinstance(result, CollectStats):
            return Evaluated(where, result)
        now = _counts_of(self.collector)
        stats = CollectStats(now[1] - num_episodes, now[0] - num_steps, now[2] - seconds)
        return Evaluated(where, stats, _numbers_in(result))

    # -- state ---

    def under_way(self) -> list[int] | None:
        """Return epoch and steps of the evaluation that runs beside training, for a checkpoint."""
        return list(self.pending) if self.beside_training and self.pending is not None else None

    @property
    def is_pending(self) -> bool:
        """Whether an evaluation is under way beside training."""
        return self.beside_training and self.pending is not None

    def collector_state(self) -> dict[str, Any] | None:
        """Return the collector's state, before the evaluation that is under way: it is to be made anew."""
        if self.collector is None:
            return None
        return self._state_before if self.is_pending else self.collector.get_state()

    def callback_states(self) -> list[Any]:
        """Return the states of its own callbacks, before the evaluation that is under way."""
        return self._callbacks_before if self.is_pending else states_of(self.callbacks)

    def set_state(self, pending: Sequence[int] | None) -> None:
        """Take over epoch and steps of an evaluation that was under way; `resume` begins it.

        `ValueError` where this one does not evaluate beside training.
        """
        if pending is not None and not self.beside_training:
            raise ValueError(
                f"an evaluation of epoch {pending[0]} was under way beside training; go on with "
                "evaluation_parallel_to_training=True"
            )
        self.pending = None if pending is None else (pending[0], pending[1], pending[2])

    def forget(self) -> None:
        """Drop what is under way: a new run begins."""
        self.wait()
        self.pending, self._has_snapshot = None, False

    def resume(self) -> None:
        """Begin anew what was under way when the state was taken."""
        if self.beside_training and self.pending is not None and self._result is None:
            self.begin(self.pending)

    def folders(self, where: Where) -> dict[str, dict[str, Any]]:
        """Return the folders of a checkpoint at `where` with the policy whose evaluation is under way, if it is
        another one than the policy of the checkpoint."""
        is_the_same = self.pending == where and self.policy.weights_seq_no == self._trained.weights_seq_no
        if is_the_same or not self.is_pending:
            return {}
        return {f"{SNAPSHOT}{name}": folder for name, folder in self.policy.checkpoint_folders().items()}

    def take_folders(
        self, folders: Mapping[str, dict[str, Any]], *, trust: bool = False, file: str | Path = "the checkpoint"
    ) -> None:
        """Take over the policy that `folders` returned, if there is one. `trust`, `file`: as `restore_from_path`."""
        found = {name.removeprefix(SNAPSHOT): each for name, each in folders.items() if name.startswith(SNAPSHOT)}
        self._has_snapshot = self.beside_training and bool(found)
        if self._has_snapshot:
            self.policy.set_checkpoint_folders(found, trust=trust, file=file)

    def undo(self) -> Callable[[], None]:
        """Return a function that undoes a later `set_state` and `take_folders`."""
        pending = self.pending
        has_snapshot = self._has_snapshot
        # Without a snapshot the policy is overwritten before it is used.
        snapshot = self.policy.get_state() if has_snapshot else {}

        def put_back() -> None:
            self.pending = pending
            self._has_snapshot = has_snapshot
            if has_snapshot:
                self.policy.set_state(snapshot)

        return put_back


def _numbers_in(result: object) -> dict[str, float]:
    """Return the metrics that a custom evaluation function returned, its score among them.

    Raises `TypeError` for something else than numbers, `ValueError` for a dict without a score.
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
    """Return the default score."""
    return sum(stats.returns.tolist()) / len(stats.returns)


def score_of(compute_score_fn: Callable[[CollectStats], float], stats: CollectStats) -> float:
    """Return the score as a plain number. `ValueError` where no episode ended, `TypeError` for no number."""
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
    """Warn of episodes that may never end, where none ended in `num_steps` steps.

    Warns once: when the newest `num_new` steps reach the limit of an episode's length in each environment, or
    `FEW_STEPS` where none is known.
    """
    enough = collector.num_envs * (getattr(collector.env, "max_episode_steps", None) or FEW_STEPS)
    if num_steps - num_new < enough <= num_steps:
        warnings.warn(
            f"no training episode ended in the first {num_steps} steps of {collector.num_envs} environments; if "
            f"episodes never end, {EPISODE_LIMIT_ADVICE}",
            stacklevel=3,
        )


def with_reward_metric(reward_metric: Callable[[Any], Any] | None, stats: CollectStats) -> CollectStats:
    """Return the statistics with the returns that `reward_metric` makes of those of the agents, float64
    [episode, agent]; unchanged without a metric, or where no episode ended.

    Raises `TypeError` unless it returns numbers, `ValueError` unless it returns one for each episode.
    """
    if reward_metric is None or not stats.agent_returns:
        return stats
    returns = np.array(stats.agent_returns, np.float64)
    num_episodes = len(returns)
    result = reward_metric(returns)
    words = f"reward_metric was given returns of shape {returns.shape}, [episode, agent], and returned"
    try:
        values = np.asarray(result)
    except (TypeError, ValueError):
        values = np.empty((), object)
    if values.dtype.kind not in "fiub":
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
    """Call `test_fn(epoch, global_step)`, play `n_episode` new episodes and return their statistics.

    `logger`: gets them in its scope `test/`, where `global_step` is given. `reward_metric`: as in `BaseTrainer`.
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
    """Return the statistics of a loop of your own, from its counts and those of its collectors (of a trainer:
    `trainer.info()`).

    `start_time`: `time.time()` when it began. `policy_update_time`: seconds that its updates took.
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
    best = best_score, best_reward, best_reward_std
    return InfoStats(gradient_step, *best, None, train_step, train_episode, test_step, test_episodes, timing)


def _counts_of(collector: Any) -> tuple[int, int, float]:
    """Return steps, episodes and seconds since the collector was reset."""
    if collector is None:
        return 0, 0, 0.0
    return collector.collect_step, collector.collect_episode, collector.collect_time
