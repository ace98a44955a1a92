"""Off-policy estimates of a policy's return, from episodes of another policy.

Importance sampling reweights the episodes' rewards; fitted Q evaluation learns the policy's action values from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

MAX_STEP_SIZE = 1 << 22
"""Largest number of entries of the matrix that does one iteration of fitted Q evaluation: 32 MiB."""
MAX_CHUNK_SIZE = 1 << 22
"""Number of expected features that are computed at a time, for the same memory."""


def padded(rows: list[np.ndarray]) -> np.ndarray:
    """Return `n` arrays of up to `T` numbers as one float64 array `[n, T]`, padded with zeros on the right."""
    out = np.zeros((len(rows), max(map(len, rows))), np.float64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def importance_sampling(log_ratios: np.ndarray, rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Return an estimate of the return from each episode, by per-decision importance sampling.

    `sum_t gamma^t rho_t r_t`, where `rho_t` is the product of the ratios of both policies' probabilities up to step `t`
    (Precup et al. 2000, section 4). The mean of the estimates is unbiased if the other policy may take every action
    that this one takes.

    Args:
        log_ratios: `[n, T]`, log-probability of each action under the policy minus its log-probability under the policy
            that acted. 0 after the end of an episode.
        rewards: `[n, T]`, 0 after the end of an episode.
        gamma: Discount in [0, 1].

    Returns:
        `[n]`.
    """
    discounts = gamma ** np.arange(rewards.shape[1])
    estimates: np.ndarray = (np.exp(np.cumsum(log_ratios, 1)) * rewards) @ discounts
    return estimates


def weighted_importance_sampling(
    log_ratios: np.ndarray, rewards: np.ndarray, gamma: float, counts: np.ndarray
) -> np.ndarray:
    """Return an estimate of the return from each sample of the episodes, by weighted per-decision importance sampling.

    As `importance_sampling`, but at each step the products of ratios are divided by their mean over the episodes
    (Precup et al. 2000). That makes the estimate consistent instead of unbiased, with far smaller variance. An episode
    that has ended keeps its product.

    Args:
        log_ratios: `[n, T]`, as in `importance_sampling`.
        rewards: `[n, T]`, 0 after the end of an episode.
        gamma: Discount in [0, 1].
        counts: `[B, n]`, how often each episode occurs in each of B samples (bootstrap samples, or one row of ones).

    Returns:
        `[B]`.
    """
    log_products = np.cumsum(log_ratios, 1)
    # The largest product of a step cancels in the quotient of sums; taken out first, no product overflows.
    highest = log_products.max(0)
    products = np.exp(log_products - np.where(np.isfinite(highest), highest, 0.0))
    sums = counts @ products
    means = np.divide(counts @ (products * rewards), sums, out=np.zeros_like(sums), where=sums > 0)
    estimates: np.ndarray = means @ gamma ** np.arange(rewards.shape[1])
    return estimates


def effective_number(log_ratios: np.ndarray) -> float:
    """Return the effective sample size of the episodes: the number of equally weighted ones with the same variance.

    `(sum w)^2 / sum w^2` of the products `w` of whole episodes' ratios (Kish 1965). `log_ratios` is `[n, T]`.
    """
    log_products = log_ratios.sum(1)
    highest = log_products.max()
    weights = np.exp(log_products - highest) if np.isfinite(highest) else np.zeros(len(log_products))
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
    """Return a policy's action values as coefficients of features, by fitted Q evaluation.

    Each iteration regresses `r + gamma Q(s', policy)` on the features, by weighted least squares (Le et al. 2019,
    algorithm 3).

    Args:
        features: `[N, D]`, features of the state and of the action that was taken.
        next_features: `[N, D]`, their expectation in the next state over the policy's actions. 0 where the episode
            terminated.
        rewards: `[N]`.
        gamma: Discount in [0, 1].
        weights: `[N]`, weights of the rows in the regression.
        num_iterations: Limit of the number of iterations.
        ridge: Ridge of the regression, as a share of the mean square of the features.
        tolerance: The iteration has converged when no coefficient changes by more, as a share of the largest one.

    Returns:
        The coefficients `[D]`, and whether the iteration has converged.
    """
    weighted = features * weights[:, None]
    gram = weighted.T @ features
    gram += np.eye(len(gram)) * ridge * max(float(np.trace(gram)) / len(gram), 1e-12)

    # The regression is linear in its targets `r + gamma next_features @ coefficients`, so it is solved once: for `r`
    # and for each next feature. An iteration is then an affine map of the coefficients.
    solved = np.linalg.solve(gram, np.column_stack([weighted.T @ rewards, weighted.T @ next_features]))
    offset = solved[:, 0]
    step = gamma * solved[:, 1:]
    return _fixed_point(lambda coefficients: offset + step @ coefficients, offset.shape, num_iterations, tolerance)


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
    max_step_size: int = MAX_STEP_SIZE,
) -> tuple[np.ndarray, bool]:
    """Return a policy's values of discrete actions, as coefficients of the state's features for each action.

    The result is that of `fitted_q_evaluation` for features `[N, A * P]` which are the state's features in the place of
    the action and zeros elsewhere. Those are never stored. The memory needed is that of the arguments, of `[A, P, P]`,
    and of `[N, A]` or up to `max_step_size` numbers.

    Args:
        states: `[N, P]`, features of the states.
        actions: `[N]`, the actions taken there, counted from 0.
        next_states: `[N, P]`, features of the next states. 0 where the episode terminated.
        probabilities: `[N, A]`, probabilities of the policy's actions in the next state.
        rewards, gamma, weights, num_iterations, ridge, tolerance: As for `fitted_q_evaluation`.
        max_step_size: Largest number of entries of the matrix that does a whole iteration. If it would have more, each
            iteration goes over the rows instead.

    Returns:
        The coefficients `[A, P]`, and whether the iteration has converged.
    """
    num_actions = probabilities.shape[1]
    num_features = states.shape[1]
    size = num_actions * num_features
    order = np.argsort(actions, kind="stable")
    ends = np.searchsorted(actions[order], np.arange(num_actions + 1))
    rows_of_action = [order[start:end] for start, end in itertools.pairwise(ends)]

    # The regression falls apart into one for each action. The ridge is the same for all, as in the regression of the
    # long features.
    weighted = states * weights[:, None]
    grams = np.stack([weighted[rows].T @ states[rows] for rows in rows_of_action])
    trace = float(np.trace(grams, axis1=1, axis2=2).sum())
    grams += np.eye(num_features) * ridge * max(trace / size, 1e-12)
    inverses = np.linalg.inv(grams)

    def regress(targets: np.ndarray) -> np.ndarray:
        """Return the coefficients `[A, P]` that fit `targets` `[N]`."""
        sides = np.stack([targets[rows] @ weighted[rows] for rows in rows_of_action])
        return np.einsum("apq,aq->ap", inverses, sides)

    offset = regress(rewards)
    if size**2 > max_step_size:

        def iterate(coefficients: np.ndarray) -> np.ndarray:
            next_values = np.einsum("na,na->n", probabilities, next_states @ coefficients.T)
            return offset + gamma * regress(next_values)

    else:
        # An iteration as one matrix `[A * P, A * P]`, which is faster than going over N rows each time.
        step = np.empty((num_actions, num_features, size))
        for action, rows in enumerate(rows_of_action):
            sides = np.zeros((num_features, size))
            num_chunks = len(rows) * size // MAX_CHUNK_SIZE + 1
            for chunk in np.array_split(rows, num_chunks):
                expected = probabilities[chunk, :, None] * next_states[chunk, None, :]
                sides += weighted[chunk].T @ expected.reshape(len(chunk), size)
            step[action] = gamma * inverses[action] @ sides
        flat_step = step.reshape(size, size)

        def iterate(coefficients: np.ndarray) -> np.ndarray:
            return offset + (flat_step @ coefficients.reshape(-1)).reshape(offset.shape)

    return _fixed_point(iterate, offset.shape, num_iterations, tolerance)


def _fixed_point(
    iterate: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], num_iterations: int, tolerance: float
) -> tuple[np.ndarray, bool]:
    """Return the limit of repeated calls of `iterate`, from zeros, and whether they have converged.

    If the coefficients grow beyond all numbers, the last finite ones are returned.
    """
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
