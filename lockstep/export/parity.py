"""The proof before an artefact is handed over: 10,000 observations through the policy and through the artefact."""

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

OBSERVATIONS, ENVIRONMENTS, ROWS = 10_000, 8, 64
MEASURED = 500
"""observations for which the policy's own rounding is measured in any case"""
TOLERANCE = 1e-6
"""of continuous actions; of those above 1 in size, times the size: float32 has no finer numbers"""
ROUNDING = 32 * float(np.finfo(np.float32).eps)
"""Two choices whose scores differ by less than this share of the largest score are a tie in float32."""
OWN_ERRORS = 4.0
"""An artefact's number may be this many times as far from the exact one as the policy's own number is."""
FORBIDDEN = -1e8
"""Scores below this one are those of actions that a mask forbids (`mask_logits`)."""
SEED, RANDOM_ENDS, LARGEST = 0, 0.02, 100.0
Frame = tuple[Any, np.ndarray, np.ndarray]
"""observations `[B, ...]`, the rows `[B]` where an episode begins, the rewards `[B]` of the step before"""
Frames = Generator[Frame, Any, None]
"""yields frames, and is sent the actions"""


class Acting(Protocol):
    """The policy as the proof needs it; it is of the proof's own, for what it remembers moves on."""

    is_stateful: bool
    rng: np.random.Generator

    def compute_actions(
        self, obs: Tree, state: Mapping[str, np.ndarray] | None, explore: bool | None, rewards: np.ndarray | None
    ) -> Any:
        """Return actions, and the state after them where there is one."""

    def get_initial_state(self, num_rows: int) -> dict[str, np.ndarray]:
        """Return the state where episodes begin."""

    def reset(self, env_index: np.ndarray | None = None) -> None:
        """Begin episodes in these rows."""


@dataclass
class Parity:
    """What the proof found."""

    observations: int = 0
    source: str = "environment"
    """`environment`, or `random` where none could be made"""
    largest_difference: float = 0.0
    """of continuous actions"""
    ties: int = 0
    """discrete actions that differ because float32 does not tell the two best ones apart"""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the card."""
        return asdict(self)


class Proof:
    """Sends observations through a policy and through its artefact, and compares the actions."""

    def __init__(self, policy: Acting, exported: ExportedPolicy, graph: ActingGraph) -> None:
        self.policy, self.exported, self.graph = policy, exported, graph
        self.found = Parity()
        self._rng = np.random.default_rng(SEED)
        self._state: Any = None
        self._exact: ActingGraph | None = None
        """the graph in float64"""
        self._own_error = 0.0
        """how far the policy's own continuous actions are from the exact ones, at most"""
        self._own_score_error = 0.0
        """Largest distance of a score in float32 from the exact one. The mean of a distribution is a sum of terms that
        may be far larger than itself, so its size says nothing about its rounding."""

    def run(self, make_envs: Callable[[int], VectorBoundary] | None) -> Parity:
        """Return how the two compare, over `OBSERVATIONS`. `ExportError` where the artefact acts otherwise."""
        with _frames(self.graph.observation_space, make_envs, self.found) as frames:
            obs, begins, rewards = next(frames)
            number = len(begins)
            self._state = self.policy.get_initial_state(number) if self.policy.is_stateful else None
            while True:
                self._begin(begins)
                known = np.where(begins, 0.0, rewards).astype(np.float32) if self.found.observations else None
                actions, differing = self.step(obs, known)
                self.found.observations += number
                if self.found.observations >= OBSERVATIONS:
                    return self.found
                obs, begins, rewards = frames.send(actions)
                begins = begins | differing

    def step(self, obs: Tree, rewards: np.ndarray | None) -> tuple[Any, np.ndarray]:
        """Return the policy's actions `[B, ...]`, and the rows `[B]` whose memories may differ from here on."""
        noise = None
        if self.graph.draws:  # both sides draw the same numbers
            noise = self.graph.dist.draw_noise(copy.deepcopy(self._rng), (len(next(leaves(obs))),))
            self.policy.rng = self._rng
        expected = self.policy.compute_actions(obs, self._state, self.graph.draws, rewards)
        if self.policy.is_stateful:
            expected, self._state = expected
        inputs = self.exported.inputs_of(obs, rewards, noise)
        actions = self.exported.compute_actions(obs, rewards, noise)
        rows = _differing(expected, actions)
        floats = [float(np.abs(a - b).max()) for a, b in _pairs(expected, actions) if a.dtype.kind == "f"]
        self.found.largest_difference = max([self.found.largest_difference, *floats])
        if rows.any() or self.found.observations < MEASURED:
            self.judge(inputs, expected, actions, rows)
        return expected, rows

    def _begin(self, begins: np.ndarray) -> None:
        """Begin episodes in these rows, on both sides."""
        if not begins.any():
            return
        rows = None if begins.all() else np.flatnonzero(begins)
        self.policy.reset(rows)
        self.exported.reset(rows)
        if self._state is not None:
            for name, leaf in self.policy.get_initial_state(1).items():
                self._state[name][begins] = leaf

    def judge(self, inputs: Mapping[str, Any], expected: Tree, actions: Tree, rows: np.ndarray) -> None:
        """Count rows that differ by float32's rounding alone. `ExportError` for all others.

        The same graph in float64 decides: two choices whose exact scores are nearer to each other than the policy's own
        rounding are a tie, and continuous actions may be at most `OWN_ERRORS` times as far from the exact ones as the
        policy's own actions are.
        """
        try:
            ties, outputs = self._exactly(inputs, expected, actions)
        except Exception as error:  # a network that takes float32 only
            if not rows.any():
                return
            raise self._mismatch(expected, actions, rows) from error
        fine = np.ones(len(rows), bool)
        for (a, b), exact in zip(_pairs(expected, actions), outputs):
            if a.dtype.kind == "f":
                self._own_error = max(self._own_error, float(np.abs(a - exact).max()))
                near = np.abs(b - exact) <= max(TOLERANCE, OWN_ERRORS * self._own_error)
                fine &= near.reshape(len(a), -1).all(1)
            else:
                fine &= ties | (a == b).reshape(len(a), -1).all(1)
        if not fine[rows].all():
            raise self._mismatch(expected, actions, rows & ~fine)
        self.found.ties += int((rows & ties).sum())

    @torch.no_grad()
    def _exactly(self, inputs: Mapping[str, Any], expected: Tree, actions: Tree) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the rows `[B]` in which both sides' actions are as likely, and what the graph gives in float64."""
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
        allowed = scores > FORBIDDEN
        errors = torch.where(allowed, (rounded - scores).abs(), 0.0)
        self._own_score_error = max(self._own_score_error, float(errors.max()))

        dist = graph.dist.from_inputs(scores)
        space = graph.dist.action_space
        first = dist.log_prob(torch.from_numpy(from_space(space, expected)))
        second = dist.log_prob(torch.from_numpy(from_space(space, actions)))
        largest = torch.where(allowed, scores.abs(), 0.0).amax(-1)
        # Both of two equal scores may be off, in opposite directions.
        rounding = (ROUNDING * largest).clamp(min=2 * OWN_ERRORS * self._own_score_error)
        return ((first - second).abs() <= rounding).numpy(), outputs

    def _mismatch(self, expected: Tree, actions: Tree, rows: np.ndarray) -> ExportError:
        row = int(np.flatnonzero(rows)[0])
        theirs, ours = (map_tree(lambda leaf: np.asarray(leaf)[row].tolist(), each) for each in (actions, expected))
        return ExportError(
            f"the exported {type(self.graph.module).__name__} acts otherwise than the policy: {theirs} instead of "
            f"{ours} for {int(rows.sum())} of {len(rows)} observations; a network or connector of your own that reads "
            "the values of tensors, draws random numbers or depends on the number of rows cannot be exported. Nothing "
            "was written"
        )


def _pairs(expected: Tree, actions: Tree) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for a, b in zip(leaves(expected), leaves(actions), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            raise ExportError(f"the artefact gives actions of the shape {b.shape}, the policy {a.shape}; report this")
        yield a, b


def _differing(expected: Tree, actions: Tree) -> np.ndarray:
    """Return the rows `[B]` in which the two sides differ."""
    rows: list[np.ndarray] = []
    for a, b in _pairs(expected, actions):
        equal = np.abs(a - b) <= TOLERANCE * np.maximum(1.0, np.abs(a)) if a.dtype.kind == "f" else a == b
        rows.append(~equal.reshape(len(a), -1).all(1))
    return np.any(rows, axis=0)


# -- observations ---


@contextmanager
def _frames(space: Space[Any], make_envs: Callable[[int], VectorBoundary] | None, found: Parity) -> Iterator[Frames]:
    """Give frames of the environment, or random ones where it cannot be made."""
    envs: Any = None
    if make_envs is not None:
        try:
            envs = make_envs(ENVIRONMENTS)
        except Exception:
            envs = None
    if envs is None:
        found.source = "random"
        yield _random(space)
        return
    with envs:
        yield _played(envs)


def _played(envs: VectorBoundary) -> Frames:
    """Play with the actions that are sent."""
    obs = envs.reset(list(range(SEED, SEED + envs.num_envs)))
    begins, rewards = np.ones(envs.num_envs, bool), np.zeros(envs.num_envs)
    while True:
        actions = yield map_tree(np.copy, obs), begins, rewards
        step = envs.step(actions)
        obs, rewards = step.obs, step.rewards.copy()
        begins = np.zeros(envs.num_envs, bool)
        if step.valid is not None:
            begins |= ~step.valid
        if step.final_obs is not None:
            begins[step.final_obs[0]] = True


def _random(space: Space[Any]) -> Frames:
    """Draw from the space; numbers of an unbounded one are not larger than float32 can square."""
    batched, rng = batch_space(space, ROWS), np.random.default_rng(SEED)
    batched.seed(SEED)
    begins = np.ones(ROWS, bool)
    while True:
        obs = map_tree(_tamed, batched.sample())
        yield obs, begins, rng.standard_normal(ROWS)
        begins = rng.random(ROWS) < RANDOM_ENDS


def _tamed(leaf: np.ndarray) -> np.ndarray:
    return (
        np.where(np.abs(leaf) > LARGEST, np.fmod(leaf, LARGEST), leaf).astype(leaf.dtype)
        if leaf.dtype.kind == "f"
        else leaf
    )
