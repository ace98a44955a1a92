"""Statistics of the scores of several runs: interquartile mean, probability of improvement, performance profile.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. All have a
percentile interval from a stratified bootstrap: runs are drawn with replacement within each task.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lockstep.state.markup import number_text

Strata = np.ndarray | Sequence[np.ndarray]
"""Scores of one task, `[runs, ...]`, or of several tasks, which may differ in the number of runs only."""
_CHUNK = 64
"""Number of resamples that are computed at once: enough to save Python's time, few enough to save memory."""


class Interval(NamedTuple):
    """A number and the ends of its confidence interval, as floats or as arrays over points."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __str__(self) -> str:
        return f"{number_text(self.value)} ({number_text(self.low)} to {number_text(self.high)})"


def iqm(scores: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the interquartile mean along an axis: the mean without the lowest and the highest quarter.

    Of n scores n // 4 are dropped at each end, as by SciPy's `trim_mean(scores, 0.25)` and by rliable.

    Raises `ValueError`: there are no scores, or there is a NaN among them.
    """
    values = np.sort(np.moveaxis(np.asarray(scores, dtype=np.float64), axis, 0), axis=0)
    n = values.shape[0]
    if n == 0 or np.isnan(values).any():
        raise ValueError("the interquartile mean needs at least one score and no NaN")
    mean: np.ndarray = values[n // 4 : n - n // 4].mean(0)
    return mean


def iqm_bootstrap(strata: Strata, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0) -> Interval:
    """Return the interquartile mean of the scores of all tasks together, for each point of the trailing axes.

    Runs are drawn as a whole, because the points of one run's curve depend on each other. The other arguments are those
    of `bootstrap`.
    """
    return bootstrap(_pooled_iqm, strata, confidence=confidence, num_resamples=num_resamples, seed=seed)


def probability_of_improvement(first: Strata, second: Strata) -> float:
    """Return the probability that a run of `first` scores above a run of `second`, as a mean over tasks.

    Equal scores count half: this is the Mann-Whitney U statistic divided by the number of pairs.

    Raises `ValueError`: the two sides have different numbers of tasks.
    """
    without_resampling = [scores[None] for scores in _pairs(first, second)]
    return float(_improvement(without_resampling)[0])


def improvement_bootstrap(
    first: Strata, second: Strata, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return `probability_of_improvement` with its interval. Runs are drawn for each side separately."""
    pairs = _pairs(first, second)
    return bootstrap(_improvement, pairs, confidence=confidence, num_resamples=num_resamples, seed=seed)


def iqm_difference_bootstrap(
    first: Strata, second: Strata, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return the difference of the interquartile means. Runs are drawn for each side separately."""

    def difference(drawn: Sequence[np.ndarray]) -> np.ndarray:
        return _pooled_iqm(drawn[0::2]) - _pooled_iqm(drawn[1::2])

    pairs = _pairs(first, second)
    return bootstrap(difference, pairs, confidence=confidence, num_resamples=num_resamples, seed=seed)


def performance_profile(
    strata: Strata, thresholds: np.ndarray, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return the share of runs of all tasks that score above each of the thresholds `[P]`, with pointwise intervals."""
    points = np.asarray(thresholds, np.float64)
    above = [(np.asarray(scores, np.float64)[:, None] > points).astype(np.float64) for scores in _tasks(strata)]

    def share(drawn: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(drawn, axis=1).mean(1)

    return bootstrap(share, above, confidence=confidence, num_resamples=num_resamples, seed=seed)


def bootstrap(
    statistic: Callable[[Sequence[np.ndarray]], np.ndarray],
    strata: Strata,
    *,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return a statistic of all runs, with a percentile interval from a stratified bootstrap.

    Args:
        statistic: function of one array `[R, runs, ...]` for each stratum that returns `[R, ...]`, a value for each of
            R resamples.
        strata: scores. Runs are drawn with replacement within each stratum.
        confidence: share of the resampled values inside the interval.
        num_resamples: number of resamples.
        seed: seed of the draws. Equal arguments give equal results.

    Raises:
        ValueError: a stratum has no runs, or there is a NaN, or trailing axes differ.
    """
    arrays = _tasks(strata)
    rng = np.random.default_rng(seed)
    center = statistic([array[None] for array in arrays])[0]
    values = np.empty((num_resamples, *center.shape))
    for start in range(0, num_resamples, _CHUNK):
        chunk = values[start : start + _CHUNK]
        drawn = [array[rng.integers(0, len(array), (len(chunk), len(array)))] for array in arrays]
        chunk[...] = statistic(drawn)
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return Interval(center, low, high)


def _tasks(strata: Strata) -> list[np.ndarray]:
    """Return the scores of each task as float64. `ValueError` for a task without scores, or with a NaN."""
    tasks = [strata] if isinstance(strata, np.ndarray) else strata
    arrays = [np.asarray(scores, np.float64) for scores in tasks]
    if not arrays or any(len(array) == 0 or np.isnan(array).any() for array in arrays):
        raise ValueError("each task needs at least one score and no NaN")
    return arrays


def _pairs(first: Strata, second: Strata) -> list[np.ndarray]:
    """Return the scores of both sides alternately: first task of both sides, second task of both, and so on."""
    ours = _tasks(first)
    theirs = _tasks(second)
    if len(ours) != len(theirs):
        raise ValueError(f"the two sides have {len(ours)} and {len(theirs)} tasks; give the same tasks in one order")
    return list(itertools.chain.from_iterable(zip(ours, theirs)))


def _pooled_iqm(drawn: Sequence[np.ndarray]) -> np.ndarray:
    """Return the interquartile mean of all tasks together for each resample; tasks are `[R, runs, ...]` each."""
    return iqm(np.concatenate(drawn, axis=1), axis=1)


def _improvement(drawn: Sequence[np.ndarray]) -> np.ndarray:
    """Return the probability of improvement for each resample; tasks are in the order of `_pairs`, `[R, runs]` each."""
    # With s = -1, 0 or 1 for each pair of runs, P(first > second) + P(equal) / 2 = E[s] / 2 + 1 / 2.
    tasks = [
        np.sign(ours[:, :, None] - theirs[:, None, :]).mean((1, 2)) / 2 + 0.5
        for ours, theirs in zip(drawn[0::2], drawn[1::2])
    ]
    mean: np.ndarray = np.mean(tasks, axis=0)
    return mean
