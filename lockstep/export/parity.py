"""Proof that an artefact acts like its policy: 10,000 observations go through both, and the actions are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space

from lockstep.data.actions import from_space
from lockstep.data.trees import Tree, leaves, map_tree
from lockstep.envs import VectorBoundary
from lockstep.export.exported import ExportedPolicy
from lockstep.export.graph import ActingGraph, ExportError

NUM_OBSERVATIONS = 10_000
NUM_ENVS = 8
"""Number of environments that the observations come from."""
NUM_RANDOM_ROWS = 64
"""Number of rows of random observations, without an environment."""
NUM_MEASURED = 500
"""Number of observations for which the policy's rounding errors are always measured."""
TOLERANCE = 1e-6
"""Allowed difference of continuous actions. It grows with the size of actions above 1: float32 has no finer numbers."""
ROUNDING = 32 * float(np.finfo(np.float32).eps)
"""Two choices whose scores differ by less than this share of the largest score are a tie in float32."""
OWN_ERRORS = 4.0
"""The artefact's actions may be this many times as far from the exact ones as the policy's own actions are."""
FORBIDDEN = -1e8
"""Scores below this value belong to actions that a mask forbids (`mask_logits`)."""
SEED = 0
EPISODE_END_RATE = 0.02
"""Probability that an episode of random observations ends in a step."""
LARGEST_RANDOM_VALUE = 100.0

Frame = tuple[Any, np.ndarray, np.ndarray]
"""Observations `[B, ...]`, whether an episode begins in each row `[B]`, and the rewards `[B]` of the step before."""
Frames = Generator[Frame, Any, None]
"""Generator that yields frames and is sent the actions for them."""


class Acting(Protocol):
    """Protocol of the policy in the proof. The proof changes its memory, so it must not be shared."""

    is_stateful: bool
    rng: np.random.Generator

    def compute_actions(
        self, obs: Tree, state: Mapping[str, np.ndarray] | None, explore: bool | None, rewards: np.ndarray | None
    ) -> Any:
        """Return actions, or (actions, next state) for a stateful policy."""

    def initial_acting_state(self, num_rows: int) -> dict[str, np.ndarray]:
        """Return the state at the start of an episode, for a number of rows."""

    def reset(self, env_index: np.ndarray | None = None) -> None:
        """Begin new episodes in the given rows, or in all rows."""


@dataclass
class Parity:
    """Result of a proof."""

    observations: int = 0
    """Number of observations that were compared."""
    source: str = "environment"
    """Source of the observations: `environment`, or `random` if no environment could be made."""
    largest_difference: float = 0.0
    """Largest difference of a continuous action."""
    ties: int = 0
    """Number of discrete actions that differ because the two best choices are equal in float32."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for the card."""
        return asdict(self)


class Proof:
    """Comparison of a policy and its artefact on the same observations.

    Both compute in float32, in a different order, so their numbers differ by rounding. What counts is whether they
    differ by more: the same graph in float64 gives the exact numbers (see `judge`).
    """

    def __init__(self, policy: Acting, exported: ExportedPolicy, graph: ActingGraph) -> None:
        self.policy = policy
        self.exported = exported
        self.graph = graph
        self.parity = Parity()
        self._rng = np.random.default_rng(SEED)
        self._state: Any = None
        """Recurrent state of the policy."""
        self._exact: ActingGraph | None = None
        """The graph in float64."""
        self._own_error = 0.0
        """Largest distance of the policy's own continuous actions from the exact ones."""
        self._own_score_error = 0.0
        """Largest distance of a score in float32 from the exact one. The mean of a distribution is a sum of terms that
        may be far larger than itself, so its size says nothing about its rounding."""

    def run(self, make_envs: Callable[[int], VectorBoundary] | None) -> Parity:
        """Compare `NUM_OBSERVATIONS` observations, and return the result.

        Raises:
            ExportError: the artefact acts differently from the policy.
        """
        with self._frames(make_envs) as frames:
            obs, begins, rewards = next(frames)
            num_rows = len(begins)
            self._state = self.policy.initial_acting_state(num_rows) if self.policy.is_stateful else None
            while True:
                self._begin_episodes(begins)
                # The first frame has no rewards: both sides must take the default.
                last_rewards = np.where(begins, 0.0, rewards).astype(np.float32) if self.parity.observations else None
                actions, differing = self.step(obs, last_rewards)
                self.parity.observations += num_rows
                if self.parity.observations >= NUM_OBSERVATIONS:
                    return self.parity
                obs, begins, rewards = frames.send(actions)
                # After a tie both sides have taken different actions, and would remember them.
                begins = begins | differing

    def step(self, obs: Tree, rewards: np.ndarray | None) -> tuple[Any, np.ndarray]:
        """Compare one frame. Return the policy's actions `[B, ...]`, and a mask `[B]` of the rows that differ."""
        noise = None
        if self.graph.draws:
            # Both sides get the same noise: the policy draws it from the generator that it is copied from.
            noise = self.graph.dist.draw_noise(copy.deepcopy(self._rng), (len(next(leaves(obs))),))
            self.policy.rng = self._rng
        expected = self.policy.compute_actions(obs, self._state, self.graph.draws, rewards)
        if self.policy.is_stateful:
            expected, self._state = expected

        inputs = self.exported.inputs_of(obs, rewards, noise)
        actions = self.exported.compute_actions(obs, rewards, noise)
        rows = _differing(expected, actions)
        for a, b in _pairs(expected, actions):
            if a.dtype.kind == "f":
                difference = float(np.abs(a - b).max())
                self.parity.largest_difference = max(self.parity.largest_difference, difference)
        if rows.any() or self.parity.observations < NUM_MEASURED:
            self.judge(inputs, expected, actions, rows)
        return expected, rows

    def _begin_episodes(self, begins: np.ndarray) -> None:
        """Begin episodes on both sides, in the rows of the mask `begins` `[B]`."""
        if not begins.any():
            return
        rows = None if begins.all() else np.flatnonzero(begins)
        self.policy.reset(rows)
        self.exported.reset(rows)
        if self._state is not None:
            for name, leaf in self.policy.initial_acting_state(1).items():
                self._state[name][begins] = leaf

    def judge(self, inputs: Mapping[str, Any], expected: Tree, actions: Tree, rows: np.ndarray) -> None:
        """Check that the given rows differ by rounding alone, and count ties.

        The same graph in float64 decides. Two choices are a tie if their exact scores differ by less than the policy's
        own rounding. Continuous actions may be at most `OWN_ERRORS` times as far from the exact ones as the policy's
        own actions are.

        Args:
            inputs: Inputs of the artefact by name.
            expected: Actions of the policy `[B, ...]`.
            actions: Actions of the artefact `[B, ...]`.
            rows: Mask `[B]` of the rows that differ.

        Raises:
            ExportError: a row differs by more.
        """
        try:
            is_tie, exact_outputs = self._compare_exactly(inputs, expected, actions)
        except Exception as error:  # a network that takes float32 only
            if not rows.any():
                return
            raise self._mismatch(expected, actions, rows) from error

        is_fine = np.ones(len(rows), bool)
        for (a, b), exact in zip(_pairs(expected, actions), exact_outputs):
            if a.dtype.kind == "f":
                self._own_error = max(self._own_error, float(np.abs(a - exact).max()))
                is_near = np.abs(b - exact) <= max(TOLERANCE, OWN_ERRORS * self._own_error)
                is_fine &= is_near.reshape(len(a), -1).all(1)
            else:
                is_fine &= is_tie | (a == b).reshape(len(a), -1).all(1)
        if not is_fine[rows].all():
            raise self._mismatch(expected, actions, rows & ~is_fine)
        self.parity.ties += int((rows & is_tie).sum())

    @torch.no_grad()
    def _compare_exactly(
        self, inputs: Mapping[str, Any], expected: Tree, actions: Tree
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return a mask `[B]` of the rows in which both sides' actions are a tie, and the outputs in float64."""
        if self._exact is None:
            self._exact = self.graph.in_float64()
        graph = self._exact
        tensors = graph.inputs_from(inputs)
        outputs = [out.numpy() for out in graph(*tensors)]
        scores = graph.scores(*tensors)
        if scores is None or not graph.dist.num_choices:
            return np.zeros(len(next(leaves(expected))), bool), outputs

        rounded = self.graph.scores(*self.graph.inputs_from(inputs))
        assert rounded is not None
        is_allowed = scores > FORBIDDEN
        errors = torch.where(is_allowed, (rounded - scores).abs(), 0.0)
        self._own_score_error = max(self._own_score_error, float(errors.max()))

        dist = graph.dist.from_inputs(scores)
        space = graph.dist.action_space
        first = dist.log_prob(torch.from_numpy(from_space(space, expected)))
        second = dist.log_prob(torch.from_numpy(from_space(space, actions)))
        largest = torch.where(is_allowed, scores.abs(), 0.0).amax(-1)
        # Twice: both scores may be off, in opposite directions.
        rounding = (ROUNDING * largest).clamp(min=2 * OWN_ERRORS * self._own_score_error)
        return ((first - second).abs() <= rounding).numpy(), outputs

    def _mismatch(self, expected: Tree, actions: Tree, rows: np.ndarray) -> ExportError:
        row = int(np.flatnonzero(rows)[0])

        def value(leaf: object) -> Any:
            return np.asarray(leaf)[row].tolist()

        return ExportError(
            f"the exported {type(self.graph.module).__name__} acts otherwise than the policy: "
            f"{map_tree(value, actions)} instead of {map_tree(value, expected)} for {int(rows.sum())} of {len(rows)} "
            "observations; a network or connector of your own that reads the values of tensors, draws random numbers "
            "or depends on the number of rows cannot be exported. Nothing was written"
        )

    # -- observations ---

    @contextmanager
    def _frames(self, make_envs: Callable[[int], VectorBoundary] | None) -> Iterator[Frames]:
        """Yield frames of the environment, or random frames if no environment can be made. The result says which."""
        envs: Any = None
        if make_envs is not None:
            try:
                envs = make_envs(NUM_ENVS)
            except Exception:  # the user's own environment, on a machine where it may not run
                envs = None
        if envs is None:
            self.parity.source = "random"
            yield _random_frames(self.graph.observation_space)
            return
        with envs:
            yield self._environment_frames(envs)

    @staticmethod
    def _environment_frames(envs: VectorBoundary) -> Frames:
        """Yield the frames of environments that take the actions that are sent."""
        obs = envs.reset(list(range(SEED, SEED + envs.num_envs)))
        begins = np.ones(envs.num_envs, bool)
        rewards = np.zeros(envs.num_envs)
        while True:
            # Copies, since environments may reuse their arrays.
            actions = yield map_tree(np.copy, obs), begins, rewards
            step = envs.step(actions)
            obs = step.obs
            rewards = step.rewards.copy()
            begins = np.zeros(envs.num_envs, bool)
            if step.valid is not None:
                begins |= ~step.valid
            if step.final_obs is not None:
                begins[step.final_obs[0]] = True


def _random_frames(space: Space[Any]) -> Frames:
    """Yield samples of a space with random rewards and ends of episodes."""
    batched = batch_space(space, NUM_RANDOM_ROWS)
    batched.seed(SEED)
    rng = np.random.default_rng(SEED)
    begins = np.ones(NUM_RANDOM_ROWS, bool)
    while True:
        obs = map_tree(_limited, batched.sample())
        yield obs, begins, rng.standard_normal(NUM_RANDOM_ROWS)
        begins = rng.random(NUM_RANDOM_ROWS) < EPISODE_END_RATE


def _limited(leaf: np.ndarray) -> np.ndarray:
    """Return samples with floats of at most `LARGEST_RANDOM_VALUE`. A space with huge bounds samples huge numbers."""
    if leaf.dtype.kind != "f":
        return leaf
    is_large = np.abs(leaf) > LARGEST_RANDOM_VALUE
    return np.where(is_large, np.fmod(leaf, LARGEST_RANDOM_VALUE), leaf).astype(leaf.dtype)


def _pairs(expected: Tree, actions: Tree) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over (policy's leaf, artefact's leaf) of actions; `ExportError` if the shapes differ."""
    for expected_leaf, leaf in zip(leaves(expected), leaves(actions), strict=True):
        a = np.asarray(expected_leaf)
        b = np.asarray(leaf)
        if a.shape != b.shape:
            raise ExportError(f"the artefact gives actions of the shape {b.shape}, the policy {a.shape}; report this")
        yield a, b


def _differing(expected: Tree, actions: Tree) -> np.ndarray:
    """Return a mask `[B]` of the rows in which the two sides differ."""
    rows: list[np.ndarray] = []
    for a, b in _pairs(expected, actions):
        if a.dtype.kind == "f":
            is_equal = np.abs(a - b) <= TOLERANCE * np.maximum(1.0, np.abs(a))
        else:
            is_equal = a == b
        rows.append(~is_equal.reshape(len(a), -1).all(1))
    return np.any(rows, axis=0)
