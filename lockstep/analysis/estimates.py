"""`estimate`: how good a policy is, from episodes that another one has played."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from lockstep.data import SampleBatch
from lockstep.data.columns import Columns
from lockstep.data.episode import SingleAgentEpisode
from lockstep.data.trees import Tree, map_tree, zip_trees
from lockstep.ops.off_policy_estimates import (
    discrete_fitted_q_evaluation,
    effective_number,
    fitted_q_evaluation,
    importance_sampling,
    padded,
    weighted_importance_sampling,
)
from lockstep.options.checks import check_choice, check_number, check_whole
from lockstep.policy.acting import ActingPolicy
from lockstep.policy.policy import Policy
from lockstep.rollout.protocols import sole_part
from lockstep.state.streams import RandomStreams

Method = Literal["is", "wis", "fqe"]
METHODS = ("is", "wis", "fqe")
SAMPLED_ACTIONS = 8
"""actions drawn for each next observation, where actions are continuous"""


@dataclass(frozen=True)
class Estimate:
    """An estimate of the mean discounted return of a policy from its first observation."""

    value: float
    low: float
    """end of the confidence interval: the percentile of estimates from resampled episodes"""
    high: float
    confidence: float
    method: Method
    num_episodes: int
    effective_num_episodes: float | None
    """how many episodes of the policy itself would tell about as much; None for "fqe". Where there are few, do not
    trust the interval"""


def estimate(
    policy: Policy,
    episodes: Sequence[SingleAgentEpisode] | SampleBatch,
    method: Method = "wis",
    *,
    gamma: float | None = None,
    explore: bool = True,
    confidence: float = 0.95,
    num_bootstraps: int = 200,
    num_features: int = 64,
    seed: int = 0,
) -> Estimate:
    """Estimate the mean discounted return that `policy` would have, from whole episodes of another policy.

    "is": per-decision importance sampling (Precup et al. 2000), unbiased and of high variance. "wis": its weighted
    form, consistent. Both need how likely each action was when it was taken, `action_logp` (env runners record it with
    `with_logp=True`). "fqe": fitted Q evaluation (Le et al. 2019), which needs no probabilities: the action values are
    linear in the observation and in `num_features` random features of it (0: in the observation alone, exact for
    one-hot states), for each discrete action, or of observation and continuous action together. An episode that was
    truncated counts as it is for the first two, and goes on for "fqe".

    With N steps, A discrete actions and P features (1, the numbers of an observation, and `num_features`) "fqe" holds
    about `32 N (P + A) + 24 A P^2` bytes: 330 MB for 50,000 steps, 125 actions and 70 features. Continuous actions
    take `40 N P`.

    Args:
        policy: of one agent, without memory.
        episodes: whole episodes, actions as the policy learns from them; a `SampleBatch` is split into its episodes.
        method: "is", "wis" or "fqe".
        gamma: the discount; None: the policy's `training.gamma`.
        explore: the policy draws its actions; False: it takes the most likely ones. One that has action values, or is
            deterministic, always takes the best.
        confidence: share of the interval, by bootstrap over episodes.
        num_bootstraps: number of resamples.
        num_features: of "fqe".
        seed: of resamples and features.

    Raises `ValueError` for episodes that are none, not whole or without `action_logp`, a policy with memory or of
    several agents, and importance sampling of deterministic continuous actions. Warns where "fqe" has not converged.
    """
    gamma = policy.config.training.gamma if gamma is None else gamma
    _check_options(method, gamma, confidence, num_bootstraps, num_features)
    part = sole_part(policy)
    if part.is_stateful:
        raise ValueError("the policy has memory, and its probabilities depend on more than one observation")
    chosen = _whole_episodes(episodes)
    _check_choices(part.action_space, chosen)
    streams = RandomStreams(seed).child("estimate")
    n = len(chosen)
    draws = streams.numpy("bootstrap").multinomial(n, np.full(n, 1.0 / n), num_bootstraps)
    counts = np.concatenate([np.ones((1, n)), draws])  # first the episodes as they are
    target = _Target(part, explore)
    effective = None
    if method == "fqe":
        values = _fitted_values(target, chosen, gamma, counts, num_features, streams)
    else:
        log_ratios = padded([target.logp(e) - _recorded_logp(e) for e in chosen])
        rewards = padded([np.asarray(e.get_rewards(), np.float64) for e in chosen])
        effective = effective_number(log_ratios)
        if method == "is":
            values = counts @ importance_sampling(log_ratios, rewards, gamma) / n
        else:
            values = weighted_importance_sampling(log_ratios, rewards, gamma, counts)
    low, high = np.quantile(values[1:], [(1.0 - confidence) / 2, (1.0 + confidence) / 2]).tolist()
    return Estimate(float(values[0]), low, high, confidence, method, n, effective)


def _check_options(
    method: object, gamma: object, confidence: object, num_bootstraps: object, num_features: object
) -> None:
    check_choice("method", method, METHODS)
    check_number("gamma", gamma, ge=0, le=1)
    check_number("confidence", confidence, gt=0, lt=1)
    check_whole("num_bootstraps", num_bootstraps, 1)
    check_whole("num_features", num_features, 0)


# -- episodes ---


def _whole_episodes(episodes: Any) -> list[SingleAgentEpisode]:
    if isinstance(episodes, SampleBatch):
        episodes = [SingleAgentEpisode.from_sample_batch(part) for part in episodes.split_by_episode()]
    chosen = list(episodes)
    if not chosen or not all(isinstance(episode, SingleAgentEpisode) for episode in chosen):
        raise ValueError(
            f"episodes={episodes!r} is not allowed; it must be a list of SingleAgentEpisode, or a SampleBatch"
        )
    for number, episode in enumerate(chosen):
        if episode.t_started or not episode.is_done or not len(episode):
            raise ValueError(
                f"episode {number} is no whole one (it begins at step {episode.t_started}, is_done={episode.is_done}); "
                "collect whole episodes, with sample(num_episodes=...)"
            )
    return chosen


def _check_choices(space: spaces.Space[Any], episodes: list[SingleAgentEpisode]) -> None:
    """Raise `ValueError` for actions that are not those of a Discrete space as a policy learns from them, from 0."""
    if not isinstance(space, spaces.Discrete):
        return
    for number, episode in enumerate(episodes):
        actions = np.asarray(episode.get_actions())
        if actions.size and not 0 <= actions.min() <= actions.max() < space.n:
            raise ValueError(
                f"episode {number} has actions from {actions.min()} to {actions.max()}; a policy on {space} learns "
                f"from 0 to {space.n - 1}. Give the actions without the space's start (policy.from_env)"
            )


def _recorded_logp(episode: SingleAgentEpisode) -> np.ndarray:
    try:
        logp = np.asarray(episode.get_extra_model_outputs(Columns.ACTION_LOGP), np.float64)
    except KeyError:
        raise ValueError(
            f"episode {episode.id_} has no {Columns.ACTION_LOGP!r} of the policy that acted; record it "
            "(build_env_runner_group(with_logp=True)), or use method='fqe'"
        ) from None
    if not np.isfinite(logp).all():
        raise ValueError(f"episode {episode.id_} has values of {Columns.ACTION_LOGP!r} that are not finite")
    return logp


def _observations(episode: SingleAgentEpisode) -> Any:
    """Return `[T + 1, ...]`, the last one included."""
    return map_tree(np.asarray, episode.get_observations())


# -- the policy that is evaluated ---


class _Target:
    """What a policy does for given observations, as probabilities where actions are discrete."""

    def __init__(self, part: ActingPolicy, explore: bool) -> None:
        self.part, space = part, part.action_space
        self.num_actions = int(space.n) if isinstance(space, spaces.Discrete) else None
        self.draws = explore and (part.exploration is None or part.exploration.keeps_density)

    def logp(self, episode: SingleAgentEpisode) -> np.ndarray:
        """Return the log-probability `[T]` of the actions that were taken."""
        obs = map_tree(lambda leaf: leaf[: len(episode)], _observations(episode))
        actions = np.asarray(episode.get_actions())
        if self.draws:
            return np.asarray(self.part.action_logp(obs, actions), np.float64)
        if actions.dtype.kind not in "iub":
            raise ValueError("actions that are continuous and not drawn have no probabilities; use method='fqe'")
        same = np.asarray(self.part.act(obs, None) == actions).reshape(len(actions), -1).all(1)
        return np.where(same, 0.0, -np.inf)

    def probabilities(self, obs: Tree, rows: int) -> np.ndarray:
        """Return `[rows, A]` of discrete actions, which are learned from as numbers from 0."""
        numbers = np.arange(self.num_actions or 0)
        if not self.draws:
            return np.asarray(np.asarray(self.part.act(obs, None))[:, None] == numbers, np.float64)
        found = np.empty((rows, len(numbers)))
        for number in numbers:
            found[:, number] = np.exp(self.part.action_logp(obs, np.full(rows, number)).astype(np.float64))
        return found

    def sampled(self, obs: Tree, rows: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Return several draws of actions `[rows, size]`, as the environment takes them."""
        act, number = self.part.act, SAMPLED_ACTIONS if self.draws else 1
        noises = [self.part.draw_noise(rng, (rows,)) if self.draws else None for _ in range(number)]
        return [self.in_env(act(obs, noise)) for noise in noises]

    def in_env(self, actions: np.ndarray) -> np.ndarray:
        """Return continuous actions `[N, size]` as the environment takes them, for actions as learned from."""
        return np.array(self.part.to_env(np.asarray(actions)), np.float64).reshape(len(actions), -1)


# -- fitted Q evaluation ---


def _fitted_values(
    target: _Target,
    episodes: list[SingleAgentEpisode],
    gamma: float,
    counts: np.ndarray,
    num_features: int,
    streams: RandomStreams,
) -> np.ndarray:
    """Return an estimate `[B]` from each sample of the episodes."""
    lengths = np.array([len(episode) for episode in episodes])
    starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])  # rows of observations, the last ones included
    observations = [_observations(episode) for episode in episodes]
    obs = zip_trees(np.concatenate, observations, "observations")
    rows = int(lengths.sum()) + len(episodes)
    is_last = np.zeros(rows, bool)
    is_last[starts + lengths] = True
    here = np.flatnonzero(~is_last)
    actions = np.concatenate([np.asarray(episode.get_actions()) for episode in episodes])
    rewards = np.concatenate([np.asarray(episode.get_rewards(), np.float64) for episode in episodes])
    terminated = np.zeros(rows, bool)
    terminated[starts + lengths] = [episode.is_terminated for episode in episodes]
    pipeline = target.part.connectors.obs
    seen = _flat(pipeline.observation_space or target.part.seen_space, pipeline(obs))
    rng = streams.numpy("features")
    goes_on = ~terminated[here + 1][:, None]
    fit: Callable[[np.ndarray], tuple[np.ndarray, bool]]
    value: Callable[[np.ndarray], np.ndarray]
    if target.num_actions is not None:
        states = _Features(seen, num_features, rng)(seen)
        shares = target.probabilities(obs, rows)
        taken = actions.reshape(-1).astype(np.int64)
        seen_here, seen_next, shares_next = states[here], states[here + 1] * goes_on, shares[here + 1]
        fit = partial(discrete_fitted_q_evaluation, seen_here, taken, seen_next, shares_next, rewards, gamma)
        value = partial(_first_values, states[starts], shares[starts])
    else:
        flat = target.in_env(actions)
        make = _Features(np.concatenate([seen[here], flat], 1), num_features, rng)
        features = make(np.concatenate([seen[here], flat], 1))
        drawn = target.sampled(obs, rows, streams.numpy("actions"))
        expected = make(np.concatenate([seen, drawn[0]], 1))
        for each in drawn[1:]:
            expected += make(np.concatenate([seen, each], 1))
        expected /= len(drawn)
        fit = partial(fitted_q_evaluation, features, expected[here + 1] * goes_on, rewards, gamma)
        value = partial(np.matmul, expected[starts])
    values, converged = [], True
    for count in counts:
        coefficients, ended = fit(np.repeat(count, lengths))
        converged &= ended
        values.append(float(count @ value(coefficients) / count.sum()))
    if not converged:
        warnings.warn(
            "fitted Q evaluation has not converged: its action values still change, or grow without bound. Use a "
            "smaller gamma, fewer features (num_features), or more episodes",
            RuntimeWarning,
            stacklevel=3,
        )
    return np.array(values)


class _Features:
    """A constant, the numbers themselves, standardised, and cosines of random sums of them (Rahimi & Recht 2007)."""

    def __init__(self, like: np.ndarray, number: int, rng: np.random.Generator) -> None:
        self.mean, deviation = like.mean(0), like.std(0)
        self.scale = np.where(deviation > 1e-8, deviation, 1.0)
        self.weights = rng.normal(size=(like.shape[1], number)) / math.sqrt(max(1, like.shape[1]))
        self.phases = rng.uniform(0.0, 2.0 * math.pi, number)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return `[N, 1 + size + number]`."""
        standard = (rows - self.mean) / self.scale
        return np.concatenate([np.ones((len(rows), 1)), standard, np.cos(standard @ self.weights + self.phases)], 1)


def _first_values(states: np.ndarray, shares: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return the value `[n]` of states `[n, P]` whose actions have the probabilities `shares` `[n, A]`."""
    values: np.ndarray = ((states @ coefficients.T) * shares).sum(1)
    return values


def _flat(space: spaces.Space[Any], obs: Tree) -> np.ndarray:
    """Return observations as numbers `[N, size]`, discrete ones as one-hot."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([_flat(each, obs[key]) for key, each in space.spaces.items()], 1)
    if isinstance(space, spaces.Tuple):
        return np.concatenate([_flat(each, part) for each, part in zip(space.spaces, obs)], 1)
    rows = np.asarray(obs)
    if isinstance(space, spaces.Discrete):
        return np.asarray(rows.reshape(-1, 1) == np.arange(space.n) + space.start, np.float64)
    if isinstance(space, spaces.MultiDiscrete):
        parts = zip(rows.reshape(len(rows), -1).T, space.nvec.reshape(-1))
        return np.concatenate([np.asarray(part[:, None] == np.arange(n), np.float64) for part, n in parts], 1)
    return rows.reshape(len(rows), -1).astype(np.float64)
