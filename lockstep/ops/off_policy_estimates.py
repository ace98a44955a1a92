"""Estimates of a policy's return from episodes of another policy: importance sampling and fitted Q evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

LARGEST_STEP = 1 << 22
"""Numbers of the matrix that takes one iteration of fitted Q evaluation: 32 MiB."""
LARGEST_CHUNK = 1 << 22
"""Numbers of expected features that are made at once."""


def padded(rows: list[np.ndarray]) -> np.ndarray:
    """Return `[n, T]` float64 of n arrays of up to T numbers, filled up with zeros."""
    out = np.zeros((len(rows), max(map(len, rows))), np.float64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def importance_sampling(log_ratios: np.ndarray, rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Return an estimate `[n]` from each episode: `sum_t gamma^t rho_t r_t`, where `rho_t` is the product of the ratios
    of both policies' probabilities up to step t (per-decision importance sampling, Precup et al. 2000, section 4).

    Their mean is unbiased where the other policy may take every action that this one takes.

    Args:
        log_ratios: `[n, T]` log-probability of each action under the policy less that under the one that acted; 0 after
            the end of an episode.
        rewards: `[n, T]`, 0 after the end.
        gamma: the discount.
    """
    discounts = gamma ** np.arange(rewards.shape[1])
    estimates: np.ndarray = (np.exp(np.cumsum(log_ratios, 1)) * rewards) @ discounts
    return estimates


def weighted_importance_sampling(
    log_ratios: np.ndarray, rewards: np.ndarray, gamma: float, counts: np.ndarray
) -> np.ndarray:
    """Return an estimate `[B]` from each sample of the episodes: as `importance_sampling`, but at each step the
    products of ratios are divided by their mean over the episodes (weighted per-decision importance sampling, Precup et
    al. 2000; consistent, and of far smaller variance). An episode that has ended keeps its product.

    `counts` `[B, n]`: how often each episode is in each sample.
    """
    products = np.cumsum(log_ratios, 1)
    highest = products.max(0)
    ratios = np.exp(products - np.where(np.isfinite(highest), highest, 0.0))
    sums = counts @ ratios
    means = np.divide(counts @ (ratios * rewards), sums, out=np.zeros_like(sums), where=sums > 0)
    estimates: np.ndarray = means @ gamma ** np.arange(rewards.shape[1])
    return estimates


def effective_number(log_ratios: np.ndarray) -> float:
    """Return the number of episodes, equally weighted, that tell as much: `(sum w)^2 / sum w^2` of the products `w` of
    whole episodes (Kish 1965)."""
    products = log_ratios.sum(1)
    weights = np.exp(products - products.max()) if np.isfinite(products.max()) else np.zeros(len(products))
    total = float(weights.sum())
    return total**2 / float((weights**2).sum()) if total else 0.0


def fitted_q_evaluation(
    features: np.ndarray,
    next_features: np.ndarray,
    rewards: np.ndarray,
    gamma: float,
    weights: np.ndarray,
    *,
    num_iterations: int = 1000,
    ridge: float = 1e-6,
    tolerance: float = 1e-9,
) -> tuple[np.ndarray, bool]:
    """Return the coefficients `[D]` of the policy's action values, linear in the features, and whether they have
    converged.

    Each iteration regresses `r + gamma Q(s', policy)` on the features, by weighted least squares (fitted Q evaluation,
    Le et al. 2019, algorithm 3).

    Args:
        features: `[N, D]` of the state and the action that was taken.
        next_features: `[N, D]` of the next state, expected over the policy's actions; 0 where the episode terminated.
        rewards: `[N]`.
        gamma: the discount.
        weights: `[N]` of the rows.
        num_iterations: at most so many.
        ridge: of the regression, as a share of the mean square of the features.
        tolerance: the iteration ends where coefficients change by no more, as a share of the largest.
    """
    weighted = features * weights[:, None]
    gram = weighted.T @ features
    gram += np.eye(len(gram)) * ridge * max(float(np.trace(gram)) / len(gram), 1e-12)
    solved = np.linalg.solve(gram, np.column_stack([weighted.T @ rewards, weighted.T @ next_features]))
    first, step = solved[:, 0], gamma * solved[:, 1:]
    return _fixed_point(lambda coefficients: first + step @ coefficients, first.shape, num_iterations, tolerance)


def discrete_fitted_q_evaluation(
    states: np.ndarray,
    actions: np.ndarray,
    next_states: np.ndarray,
    probabilities: np.ndarray,
    rewards: np.ndarray,
    gamma: float,
    weights: np.ndarray,
    *,
    num_iterations: int = 1000,
    ridge: float = 1e-6,
    tolerance: float = 1e-9,
    largest_step: int = LARGEST_STEP,
) -> tuple[np.ndarray, bool]:
    """Return the coefficients `[A, P]` of the policy's action values, linear in the state's features for each action,
    and whether they have converged.

    The regression of `fitted_q_evaluation`, whose features would be those of the state in the place of the action and
    zeros elsewhere: rows `[N, A * P]` that are not made here. Memory is that of the arguments, of `[A, P, P]`, and of
    `[N, A]` or of up to `largest_step` numbers.

    Args:
        states: `[N, P]` features.
        actions: `[N]` taken there, from 0.
        next_states: `[N, P]`, 0 where the episode terminated.
        probabilities: `[N, A]` of the policy's actions in the next state.
        rewards, gamma, weights, num_iterations, ridge, tolerance: as for `fitted_q_evaluation`.
        largest_step: the most numbers of the matrix that takes a whole iteration at once, where it is small.
    """
    num_actions, num_features = probabilities.shape[1], states.shape[1]
    order = np.argsort(actions, kind="stable")
    ends = np.searchsorted(actions[order], np.arange(num_actions + 1))
    rows_of = [order[start:end] for start, end in itertools.pairwise(ends)]

    # Each action has a regression of its own; the ridge is the same for all, as if they were one.
    weighted = states * weights[:, None]
    grams = np.stack([weighted[rows].T @ states[rows] for rows in rows_of])
    trace = float(np.trace(grams, axis1=1, axis2=2).sum())
    size = num_actions * num_features
    grams += np.eye(num_features) * ridge * max(trace / size, 1e-12)
    inverses = np.linalg.inv(grams)

    def regressed(targets: np.ndarray) -> np.ndarray:
        """Return the coefficients `[A, P]` that fit `targets` `[N]`."""
        sides = np.stack([targets[rows] @ weighted[rows] for rows in rows_of])
        return np.einsum("apq,aq->ap", inverses, sides)

    first = regressed(rewards)
    if size**2 > largest_step:

        def iterate(coefficients: np.ndarray) -> np.ndarray:
            following = np.einsum("na,na->n", probabilities, next_states @ coefficients.T)
            return first + gamma * regressed(following)

    else:
        step = np.empty((num_actions, num_features, size))
        for action, rows in enumerate(rows_of):
            sides = np.zeros((num_features, size))
            for some in np.array_split(rows, len(rows) * size // LARGEST_CHUNK + 1):
                expected = probabilities[some, :, None] * next_states[some, None, :]
                sides += weighted[some].T @ expected.reshape(len(some), size)
            step[action] = gamma * inverses[action] @ sides
        flat_step = step.reshape(size, size)

        def iterate(coefficients: np.ndarray) -> np.ndarray:
            return first + (flat_step @ coefficients.reshape(-1)).reshape(first.shape)

    return _fixed_point(iterate, first.shape, num_iterations, tolerance)


def _fixed_point(
    iterate: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], num_iterations: int, tolerance: float
) -> tuple[np.ndarray, bool]:
    """Return what repeated calls converge to, from zeros, and whether they have."""
    coefficients = np.zeros(shape)
    for _ in range(num_iterations):
        before = coefficients
        coefficients = iterate(coefficients)
        largest = np.abs(coefficients).max()
        if not np.isfinite(largest):
            return before, False
        if np.abs(coefficients - before).max() <= tolerance * max(largest, 1e-12):
            return coefficients, True
    return coefficients, False
