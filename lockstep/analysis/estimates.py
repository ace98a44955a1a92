"""`estimate`: off-policy estimates of the return of a policy, from episodes of another policy."""

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
"""Number of continuous actions that are drawn for each next observation."""
Regression = tuple[Callable[[np.ndarray], tuple[np.ndarray, bool]], Callable[[np.ndarray], np.ndarray]]
"""Two functions of fitted Q evaluation.

The first takes the weights `[N]` of steps; it returns coefficients, and whether they have converged. The second takes
coefficients; it returns the values `[n]` of the first observations of the episodes."""


@dataclass(frozen=True)
class Estimate:
    """Estimate of the mean discounted return of a policy from its first observation."""

    value: float
    """The estimate."""
    low: float
    """Low end of the confidence interval: a percentile of estimates from resampled episodes."""
    high: float
    """High end of the confidence interval."""
    confidence: float
    """Share of the resampled estimates inside the interval."""
    method: Method
    """Method of the estimate."""
    num_episodes: int
    """Number of episodes that it is made from."""
    effective_num_episodes: float | None
    """Number of episodes of the policy itself that would say about as much; None for "fqe". If there are few, the
    interval cannot be trusted."""


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
    """Estimate the mean discounted return of `policy`, from whole episodes of another policy.

    The methods, with ratios `rho_t` of the two policies' probabilities of the actions up to step t:

    - "is": per-decision importance sampling (Precup et al. 2000), the mean of `sum_t gamma^t rho_t r_t`. It is unbiased
      and has a high variance.
    - "wis": its weighted form, in which the ratios of each step are divided by their mean over episodes. It is
      consistent.
    - "fqe": fitted Q evaluation (Le et al. 2019), which needs no probabilities. The action values are linear in the
      observation and in `num_features` random features of it: with one set of coefficients for each discrete action,
      or with continuous actions as part of the observation. Without features they are linear in the observation alone,
      which is exact for one-hot states.

    Both forms of importance sampling need the probability with which each action was taken, `action_logp`, which env
    runners record with `with_logp=True`. A truncated episode ends there for them; for "fqe" it continues.

    With N steps, A discrete actions and P features (1, the numbers of an observation, and `num_features`) "fqe" takes
    about `32 N (P + A) + 24 A P^2` bytes: 330 MB for 50,000 steps, 125 actions and 70 features. With continuous actions
    it takes `40 N P`.

    Args:
        policy: policy of one agent, without memory.
        episodes: whole episodes, with actions in the form that the policy learns from. A `SampleBatch` is split into
            its episodes.
        method: "is", "wis" or "fqe".
        gamma: discount of a step. None: the policy's `training.gamma`.
        explore: whether the policy draws its actions; otherwise it takes the most likely ones. A policy with action
            values and a deterministic one always take the best action.
        confidence: share of the confidence interval, which is a bootstrap over episodes.
        num_bootstraps: number of resamples.
        num_features: number of random features of "fqe".
        seed: seed of resamples and features.

    Raises:
        ValueError: there are no episodes, or some are not whole or lack `action_logp`; the policy has memory or several
            agents; or importance sampling is asked for deterministic continuous actions.

    Warns if "fqe" has not converged.
    """
    gamma = policy.config.training.gamma if gamma is None else gamma
    _check_options(method, gamma, confidence, num_bootstraps, num_features)
    part = sole_part(policy)
    if part.is_stateful:
        raise ValueError("the policy has memory, and its probabilities depend on more than one observation")
    checked = _whole_episodes(episodes)
    _check_discrete_actions(part.action_space, checked)

    # A resample is a number of times for each episode. The first row counts each episode once: the estimate itself.
    streams = RandomStreams(seed).child("estimate")
    n = len(checked)
    draws = streams.numpy("bootstrap").multinomial(n, np.full(n, 1.0 / n), num_bootstraps)
    counts = np.concatenate([np.ones((1, n)), draws])

    target = _Target(part, explore)
    effective = None
    if method == "fqe":
        values = _fitted_values(target, checked, gamma, counts, num_features, streams)
    else:
        log_ratios = padded([target.logp(episode) - _recorded_logp(episode) for episode in checked])
        rewards = padded([np.asarray(episode.get_rewards(), np.float64) for episode in checked])
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
    """Check the options of `estimate`. `ValueError` for one that is not allowed."""
    check_choice("method", method, METHODS)
    check_number("gamma", gamma, ge=0, le=1)
    check_number("confidence", confidence, gt=0, lt=1)
    check_whole("num_bootstraps", num_bootstraps, 1)
    check_whole("num_features", num_features, 0)


# -- episodes ---


def _whole_episodes(episodes: Any) -> list[SingleAgentEpisode]:
    """Return the episodes of a list or a batch. `ValueError` for anything else, and for parts of episodes."""
    if isinstance(episodes, SampleBatch):
        episodes = [SingleAgentEpisode.from_sample_batch(part) for part in episodes.split_by_episode()]
    checked = list(episodes)
    if not checked or not all(isinstance(episode, SingleAgentEpisode) for episode in checked):
        raise ValueError(
            f"episodes={episodes!r} is not allowed; it must be a list of SingleAgentEpisode, or a SampleBatch"
        )
    for number, episode in enumerate(checked):
        if episode.t_started or not episode.is_done or not len(episode):
            raise ValueError(
                f"episode {number} is not whole (it begins at step {episode.t_started}, is_done={episode.is_done}); "
                "collect whole episodes, with sample(num_episodes=...)"
            )
    return checked


def _check_discrete_actions(space: spaces.Space[Any], episodes: list[SingleAgentEpisode]) -> None:
    """Check that discrete actions are in the form that a policy learns from, counted from 0. `ValueError` if not."""
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
    """Return the recorded log-probabilities `[T]` of the actions. `ValueError` if they are missing or not finite."""
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
    """Return the observations `[T + 1, ...]` of an episode, including the last one."""
    return map_tree(np.asarray, episode.get_observations())


@dataclass(frozen=True)
class _RecordedSteps:
    """Steps of all episodes. Their observations are rows of one array, including the last one of each episode."""

    obs: Tree
    """Observations `[rows, ...]`."""
    starts: np.ndarray
    """Row of the first observation of each episode, `[n]`."""
    lengths: np.ndarray
    """Number of steps of each episode, `[n]`."""
    here: np.ndarray
    """Rows from which an action was taken, `[N]`. The next observations are in the rows `here + 1`."""
    actions: np.ndarray
    """Actions `[N, ...]`."""
    rewards: np.ndarray
    """Rewards `[N]`, float64."""
    bootstraps: np.ndarray
    """Whether the next observation has a value, bool `[N, 1]`: False after a step that terminated the episode."""

    @classmethod
    def of(cls, episodes: list[SingleAgentEpisode]) -> _RecordedSteps:
        """Return the steps of whole episodes."""
        lengths = np.array([len(episode) for episode in episodes])
        starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
        ends = starts + lengths  # rows of the last observations
        rows = int(lengths.sum()) + len(episodes)
        is_last = np.zeros(rows, bool)
        is_last[ends] = True
        is_terminated = np.zeros(rows, bool)
        is_terminated[ends] = [episode.is_terminated for episode in episodes]
        here = np.flatnonzero(~is_last)
        return cls(
            obs=zip_trees(np.concatenate, [_observations(episode) for episode in episodes], "observations"),
            starts=starts,
            lengths=lengths,
            here=here,
            actions=np.concatenate([np.asarray(episode.get_actions()) for episode in episodes]),
            rewards=np.concatenate([np.asarray(episode.get_rewards(), np.float64) for episode in episodes]),
            bootstraps=~is_terminated[here + 1][:, None],
        )


# -- the policy that is evaluated ---


class _Target:
    """The policy that is evaluated: its probabilities of actions, or draws of continuous ones."""

    def __init__(self, part: ActingPolicy, explore: bool) -> None:
        space = part.action_space
        self.part = part
        self.num_actions = int(space.n) if isinstance(space, spaces.Discrete) else None
        """Number of discrete actions, None for other spaces."""
        self.draws = explore and (part.exploration is None or part.exploration.keeps_density)
        """Whether the policy draws its actions from a distribution with known probabilities."""

    def logp(self, episode: SingleAgentEpisode) -> np.ndarray:
        """Return this policy's log-probabilities `[T]` of the actions in an episode."""
        obs = map_tree(lambda leaf: leaf[: len(episode)], _observations(episode))
        actions = np.asarray(episode.get_actions())
        if self.draws:
            return np.asarray(self.part.action_logp(obs, actions), np.float64)
        if actions.dtype.kind not in "iub":
            raise ValueError("actions that are continuous and not drawn have no probabilities; use method='fqe'")
        # A policy that does not draw has probability 1 for its own action, and 0 for every other.
        same = np.asarray(self.part.act(obs, None) == actions).reshape(len(actions), -1).all(1)
        return np.where(same, 0.0, -np.inf)

    def probabilities(self, obs: Tree, rows: int) -> np.ndarray:
        """Return the probabilities `[rows, A]` of discrete actions, in the order of their numbers from 0."""
        numbers = np.arange(self.num_actions or 0)
        if not self.draws:
            return np.asarray(np.asarray(self.part.act(obs, None))[:, None] == numbers, np.float64)
        probabilities = np.empty((rows, len(numbers)))
        for number in numbers:
            probabilities[:, number] = np.exp(self.part.action_logp(obs, np.full(rows, number)).astype(np.float64))
        return probabilities

    def sampled(self, obs: Tree, rows: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Return several draws of actions `[rows, size]` in the environment's form; one for a policy without noise."""
        if not self.draws:
            return [self.in_env(self.part.act(obs, None))]
        noises = [self.part.draw_noise(rng, (rows,)) for _ in range(SAMPLED_ACTIONS)]
        return [self.in_env(self.part.act(obs, noise)) for noise in noises]

    def discrete_regression(
        self, steps: _RecordedSteps, inputs: np.ndarray, gamma: float, num_features: int, streams: RandomStreams
    ) -> Regression:
        """Return fitted Q evaluation for discrete actions, with coefficients for each action.

        Args:
            steps: recorded steps.
            inputs: inputs of the network as numbers, `[rows, size]`.
            gamma: discount of a step.
            num_features: number of random features.
            streams: random numbers of the features.
        """
        states = _Features(inputs, num_features, streams.numpy("features"))(inputs)
        probabilities = self.probabilities(steps.obs, len(inputs))
        fit = partial(
            discrete_fitted_q_evaluation,
            states[steps.here],
            steps.actions.reshape(-1).astype(np.int64),
            states[steps.here + 1] * steps.bootstraps,
            probabilities[steps.here + 1],
            steps.rewards,
            gamma,
        )
        return fit, partial(_first_values, states[steps.starts], probabilities[steps.starts])

    def continuous_regression(
        self, steps: _RecordedSteps, inputs: np.ndarray, gamma: float, num_features: int, streams: RandomStreams
    ) -> Regression:
        """Return fitted Q evaluation for continuous actions, with features of observation and action together.

        The arguments are as in `discrete_regression`; `streams` also draws actions.
        """
        pairs = np.concatenate([inputs[steps.here], self.in_env(steps.actions)], 1)
        features_of = _Features(pairs, num_features, streams.numpy("features"))
        features = features_of(pairs)

        # Action values are linear in the features: their mean over actions is the value of the mean features.
        drawn = self.sampled(steps.obs, len(inputs), streams.numpy("actions"))
        expected = features_of(np.concatenate([inputs, drawn[0]], 1))
        for each in drawn[1:]:
            expected += features_of(np.concatenate([inputs, each], 1))
        expected /= len(drawn)

        next_features = expected[steps.here + 1] * steps.bootstraps
        fit = partial(fitted_q_evaluation, features, next_features, steps.rewards, gamma)
        return fit, partial(np.matmul, expected[steps.starts])

    def in_env(self, actions: np.ndarray) -> np.ndarray:
        """Return continuous actions `[N, size]` in the environment's form, from the form that is learned from."""
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
    """Return an estimate by fitted Q evaluation from each resample of the episodes.

    Args:
        target: policy that is evaluated.
        episodes: n whole episodes.
        gamma: discount of a step.
        counts: number of times that each episode is in a resample, `[B, n]`.
        num_features: number of random features.
        streams: random numbers of the features and of continuous actions.

    Returns:
        `[B]`.
    """
    steps = _RecordedSteps.of(episodes)
    # Features are computed from observations as the network gets them, for instance normalised.
    pipeline = target.part.connectors.obs
    inputs = _flat(pipeline.observation_space or target.part.stored_observation_space, pipeline(steps.obs))
    if target.num_actions is not None:
        fit, value = target.discrete_regression(steps, inputs, gamma, num_features, streams)
    else:
        fit, value = target.continuous_regression(steps, inputs, gamma, num_features, streams)

    values = []
    all_converged = True
    for count in counts:
        coefficients, converged = fit(np.repeat(count, steps.lengths))
        all_converged &= converged
        values.append(float(count @ value(coefficients) / count.sum()))
    if not all_converged:
        warnings.warn(
            "fitted Q evaluation has not converged: its action values still change, or grow without bound. Use a "
            "smaller gamma, fewer features (num_features), or more episodes",
            RuntimeWarning,
            stacklevel=3,
        )
    return np.array(values)


class _Features:
    """Features of rows: a constant, the standardised numbers x, and random features `cos(w x + b)`.

    Random features approximate a Gaussian kernel (Rahimi & Recht 2007).
    """

    def __init__(self, like: np.ndarray, number: int, rng: np.random.Generator) -> None:
        """Draw `number` random features. Numbers are standardised with the moments of the rows `like`, `[N, size]`."""
        size = like.shape[1]
        deviation = like.std(0)
        self.mean = like.mean(0)
        self.scale = np.where(deviation > 1e-8, deviation, 1.0)
        self.weights = rng.normal(size=(size, number)) / math.sqrt(max(1, size))
        self.phases = rng.uniform(0.0, 2.0 * math.pi, number)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return the features `[N, 1 + size + number]` of rows `[N, size]`."""
        standard = (rows - self.mean) / self.scale
        return np.concatenate([np.ones((len(rows), 1)), standard, np.cos(standard @ self.weights + self.phases)], 1)


def _first_values(states: np.ndarray, probabilities: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return the values `[n]` of states `[n, P]` whose actions have the probabilities `[n, A]`."""
    values: np.ndarray = ((states @ coefficients.T) * probabilities).sum(1)
    return values


def _flat(space: spaces.Space[Any], obs: Tree) -> np.ndarray:
    """Return observations as numbers `[N, size]`, with discrete ones as one-hot vectors."""
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
