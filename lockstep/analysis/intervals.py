"""Scores of several runs in few numbers: interquartile mean, probability of improvement, performance profile.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. Each number comes
with a percentile interval from one stratified bootstrap: runs are drawn with replacement within each task.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lockstep.state.markup import number_text

Strata = np.ndarray | Sequence[np.ndarray]
"""Scores of one task `[runs, ...]`, or of several: runs may differ, trailing axes are the same."""
_CHUNK = 64  # resamples at once: enough to spare Python's time, few enough to spare memory


class Interval(NamedTuple):
    """A number and the ends of its confidence interval; floats, or arrays over points."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __str__(self) -> str:
        return f"{number_text(self.value)} ({number_text(self.low)} to {number_text(self.high)})"


def iqm(scores: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the interquartile mean along an axis: the mean of what is left without a quarter at each end.

    Of n scores n // 4 are dropped at each end, as SciPy's `trim_mean(scores, 0.25)` and rliable do.

    Raises `ValueError`: no scores, or NaN among them.
    """
    values = np.sort(np.moveaxis(np.asarray(scores, dtype=np.float64), axis, 0), axis=0)
    n = values.shape[0]
    if n == 0 or np.isnan(values).any():
        raise ValueError("the interquartile mean needs at least one score and no NaN")
    mean: np.ndarray = values[n // 4 : n - n // 4].mean(0)
    return mean


def iqm_bootstrap(strata: Strata, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0) -> Interval:
    """Return the interquartile mean of the scores of all tasks together, for each point of the trailing axes.

    A run is drawn whole, so the points of a curve belong together. The other arguments are those of `bootstrap`.
    """
    return bootstrap(_pooled_iqm, strata, confidence=confidence, num_resamples=num_resamples, seed=seed)


def probability_of_improvement(first: Strata, second: Strata) -> float:
    """Return how probable it is that a run of `first` scores above one of `second`, as a mean over tasks.

    Equal scores count half: this is the Mann-Whitney U statistic divided by the number of pairs.

    Raises `ValueError`: the two have different numbers of tasks.
    """
    return float(_improvement([run_scores[None] for run_scores in _pairs(first, second)])[0])


def improvement_bootstrap(
    first: Strata, second: Strata, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return `probability_of_improvement` with its interval; the runs of each side are drawn on their own."""
    pairs = _pairs(first, second)
    return bootstrap(_improvement, pairs, confidence=confidence, num_resamples=num_resamples, seed=seed)


def iqm_difference_bootstrap(
    first: Strata, second: Strata, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return the interquartile mean of `first` less that of `second`; the runs of each side are drawn on their own."""

    def difference(drawn: Sequence[np.ndarray]) -> np.ndarray:
        return _pooled_iqm(drawn[0::2]) - _pooled_iqm(drawn[1::2])

    pairs = _pairs(first, second)
    return bootstrap(difference, pairs, confidence=confidence, num_resamples=num_resamples, seed=seed)


def performance_profile(
    strata: Strata, thresholds: np.ndarray, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return the share of runs of all tasks that score above each of the thresholds `[P]`, pointwise intervals."""
    marks = np.asarray(thresholds, np.float64)
    above = [(np.asarray(scores, np.float64)[:, None] > marks).astype(np.float64) for scores in _tasks(strata)]

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
        statistic: takes one array `[R, runs, ...]` for each stratum and returns `[R, ...]`, a value for each resample.
        strata: the scores. Runs are drawn with replacement within each stratum.
        confidence: share of the resampled values inside the interval.
        num_resamples: how many resamples.
        seed: of the draws; equal arguments give equal results.

    Raises `ValueError`: a stratum without runs, NaN, trailing axes that differ.
    """
    arrays = _tasks(strata)
    rng = np.random.default_rng(seed)
    center = statistic([array[None] for array in arrays])[0]
    values = np.empty((num_resamples, *center.shape))
    for start in range(0, num_resamples, _CHUNK):
        chunk = values[start : start + _CHUNK]
        chunk[...] = statistic([array[rng.integers(0, len(array), (len(chunk), len(array)))] for array in arrays])
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return Interval(center, low, high)


def _tasks(strata: Strata) -> list[np.ndarray]:
    arrays = [np.asarray(scores, np.float64) for scores in ([strata] if isinstance(strata, np.ndarray) else strata)]
    if not arrays or any(len(array) == 0 or np.isnan(array).any() for array in arrays):
        raise ValueError("each task needs at least one score and no NaN")
    return arrays


def _pairs(first: Strata, second: Strata) -> list[np.ndarray]:
    """Return the tasks of both sides in turn."""
    ours, theirs = _tasks(first), _tasks(second)
    if len(ours) != len(theirs):
        raise ValueError(f"the two sides have {len(ours)} and {len(theirs)} tasks; give the same tasks in one order")
    return [scores for pair in zip(ours, theirs) for scores in pair]


def _pooled_iqm(drawn: Sequence[np.ndarray]) -> np.ndarray:
    return iqm(np.concatenate(drawn, axis=1), axis=1)


def _improvement(drawn: Sequence[np.ndarray]) -> np.ndarray:
    """Return the probability for each resample; the tasks of both sides come in turn, each `[R, runs]`."""
    tasks = [
        np.sign(ours[:, :, None] - theirs[:, None, :]).mean((1, 2)) / 2 + 0.5
        for ours, theirs in zip(drawn[0::2], drawn[1::2])
    ]
    mean: np.ndarray = np.mean(tasks, axis=0)
    return mean
