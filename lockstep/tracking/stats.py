"""Robust statistics over runs: interquartile mean with a stratified bootstrap interval.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_CHUNK = 64  # resamples at once: enough to spare Python's time, few enough to spare memory


class IqmInterval(NamedTuple):
    """Interquartile mean and the ends of its confidence interval; floats, or arrays over points."""

    iqm: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(scores: np.ndarray, axis: int = 0) -> np.ndarray:
    """The interquartile mean along an axis: a quarter of the weight is cut at each end.

    With n scores, n/4 of them are dropped at each end; where that is no whole number the ones at the border
    count in part, so that one or two scores give their mean and three already lean to the middle one. Equal
    to scipy's `trim_mean(scores, 0.25)` where n is a multiple of 4.

    Raises:
        ValueError: no scores, or NaN among them.
    """
    values = np.sort(np.moveaxis(np.asarray(scores, dtype=np.float64), axis, 0), axis=0)
    n = values.shape[0]
    if n == 0 or np.isnan(values).any():
        raise ValueError("the interquartile mean needs at least one score and no NaN")
    edges = np.arange(n + 1, dtype=np.float64)
    inside = np.clip(edges, n / 4, 3 * n / 4)
    weights = np.diff(inside)
    # Unweighted ends are cut before the product: an infinite outlier times zero would be NaN.
    kept = weights > 0
    return np.tensordot(weights[kept], values[kept], axes=(0, 0)) / (n / 2)


def iqm_bootstrap(
    strata: np.ndarray | Sequence[np.ndarray],
    *,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> IqmInterval:
    """Interquartile mean of all scores, with a percentile interval from a stratified bootstrap.

    Args:
        strata: one array `[runs, ...]`, or several (one for each task, runs may differ, trailing axes the
            same). Runs are drawn with replacement within each stratum; the mean is over all together,
            separately for each point of the trailing axes (evaluation steps, say). A run is drawn whole, so
            the points of a curve belong together.
        confidence: share of the resampled means inside the interval.
        num_resamples: how many resamples.
        seed: of the draws; equal arguments give equal results.

    Returns:
        `IqmInterval(iqm, low, high)`, each with the trailing shape.

    Raises:
        ValueError: an empty stratum, NaN, trailing axes that differ, a confidence outside (0, 1).
    """
    arrays = [strata] if isinstance(strata, np.ndarray) else list(strata)
    arrays = [np.asarray(array, dtype=np.float64) for array in arrays]
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence!r}")
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples!r}")
    if not arrays or any(array.ndim == 0 or array.shape[0] == 0 for array in arrays):
        raise ValueError("every stratum needs at least one run")
    if len({array.shape[1:] for array in arrays}) != 1:
        raise ValueError(f"strata differ in their points: {[array.shape[1:] for array in arrays]}")
    rng = np.random.default_rng(seed)
    center = iqm(np.concatenate(arrays))
    means = np.empty((num_resamples, *center.shape))
    for start in range(0, num_resamples, _CHUNK):
        chunk = means[start : start + _CHUNK]
        drawn = [array[rng.integers(0, len(array), (len(chunk), len(array)))] for array in arrays]
        chunk[...] = iqm(np.concatenate(drawn, axis=1), axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return IqmInterval(center, low, high)
