"""The proof before an artefact is handed over: 10,000 observations through the policy and through the artefact."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space

from lockstep.data.actions import from_space
from lockstep.data.trees import leaves, map_tree
from lockstep.envs import VectorBoundary
from lockstep.export.exported import ExportedPolicy
from lockstep.export.formats import inputs_for
from lockstep.export.graph import ActingGraph, ExportError

OBSERVATIONS, ENVIRONMENTS, ROWS = 10_000, 8, 64
TOLERANCE = 1e-6
"""of continuous actions; of those above 1 in size, times the size: float32 has no finer numbers"""
ROUNDING = 32 * float(np.finfo(np.float32).eps)
"""how near two choices must be, as a share of the largest score, for float32 not to tell them apart"""
SEED, RANDOM_ENDS, LARGEST = 0, 0.02, 100.0
Frame = tuple[Any, np.ndarray, np.ndarray]
"""observations `[B, ...]`, the rows `[B]` where an episode begins, the rewards `[B]` of the step before"""
Frames = Generator[Frame, Any, None]
"""yields frames, and is sent the actions"""


class Acting(Protocol):
    """The policy as the proof needs it; it is of the proof's own, for what it remembers moves on."""

    is_stateful: bool
    rng: np.random.Generator

    def compute_actions(self, obs: Any, state: Any, explore: bool | None, rewards: Any) -> Any:
        """Return actions, and the state after them where there is one."""

    def get_initial_state(self, num_rows: int) -> dict[str, np.ndarray]:
        """Return the state where episodes begin."""

    def reset(self, env_index: Any = None) -> None:
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


def prove(
    policy: Acting, exported: ExportedPolicy, graph: ActingGraph, make_envs: Callable[[int], VectorBoundary] | None
) -> Parity:
    """Return how the artefact compares with the policy. `ExportError` where it acts otherwise."""
    found = Parity()
    rng, ends = np.random.default_rng(SEED), None
    with _frames(graph.observation_space, make_envs, found) as frames:
        obs, begins, rewards = next(frames)
        number = len(begins)
        state = policy.get_initial_state(number) if policy.is_stateful else None
        while True:
            begins = begins if ends is None else begins | ends
            _begin(policy, exported, state, begins)
            noise = graph.dist.draw_noise(copy.deepcopy(rng), (number,)) if graph.draws else None
            policy.rng = rng
            known = None if not found.observations else np.where(begins, 0.0, rewards).astype(np.float32)
            expected = policy.compute_actions(obs, state, graph.draws, known)
            if policy.is_stateful:
                expected, state = expected
            inputs = exported.inputs_of(obs, known, noise)
            actions = exported.compute_actions(obs, known, noise)
            ends = _differing(graph, expected, actions)
            if ends.any():
                _judge(graph, inputs, expected, actions, ends, found)
            floats = [np.abs(a - b).max() for a, b in _pairs(expected, actions) if a.dtype.kind == "f"]
            found.largest_difference = max([found.largest_difference, *map(float, floats)])
            found.observations += number
            if found.observations >= OBSERVATIONS:
                return found
            obs, begins, rewards = frames.send(expected)


def _begin(policy: Acting, exported: ExportedPolicy, state: Any, begins: np.ndarray) -> None:
    """Begin episodes in these rows, on both sides."""
    if not begins.any():
        return
    whole = bool(begins.all())
    policy.reset(None if whole else np.flatnonzero(begins))
    exported.reset(None if whole else np.flatnonzero(begins))
    if policy.is_stateful:
        for name, leaf in policy.get_initial_state(1).items():
            state[name][begins] = leaf


# -- comparing ---


def _pairs(expected: Any, actions: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for a, b in zip(leaves(expected), leaves(actions), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            raise ExportError(f"the artefact gives actions of the shape {b.shape}, the policy {a.shape}; report this")
        yield a, b


def _differing(graph: ActingGraph, expected: Any, actions: Any) -> np.ndarray:
    """Return the rows `[B]` in which the two sides differ."""
    rows: list[np.ndarray] = []
    for a, b in _pairs(expected, actions):
        equal = np.abs(a - b) <= TOLERANCE * np.maximum(1.0, np.abs(a)) if a.dtype.kind == "f" else a == b
        rows.append(~equal.reshape(len(a), -1).all(1))
    return np.any(rows, axis=0)


def _judge(
    graph: ActingGraph, inputs: dict[str, Any], expected: Any, actions: Any, rows: np.ndarray, found: Parity
) -> None:
    """Count rows that differ by float32's rounding alone. `ExportError` for all others.

    The same graph in float64 tells: two choices whose scores are the same up to rounding are a tie, and continuous
    actions may be no farther from the exact ones than twice as far as the policy's own are.
    """
    exact = copy.deepcopy(graph).double()
    try:
        with torch.no_grad():
            tensors = inputs_for(graph, inputs)
            scores, outputs = exact.scores(*tensors), exact(*tensors)
    except Exception as error:  # a network that takes float32 only
        raise _mismatch(graph, expected, actions, rows) from error
    ties = np.zeros(len(rows), bool)
    if scores is not None and graph.dist.num_choices:
        ties = _are_ties(graph, scores, expected, actions)
    fine = np.ones(len(rows), bool)
    for (a, b), truth in zip(_pairs(expected, actions), outputs):
        if a.dtype.kind == "f":
            far = np.abs(a - truth.numpy()).max() if len(a) else 0.0
            fine &= (np.abs(b - truth.numpy()) <= max(TOLERANCE, 2.0 * far)).reshape(len(a), -1).all(1)
        else:
            fine &= ties | (a == b).reshape(len(a), -1).all(1)
    if not fine[rows].all():
        raise _mismatch(graph, expected, actions, rows & ~fine)
    found.ties += int((rows & ties).sum())


def _are_ties(graph: ActingGraph, scores: torch.Tensor, expected: Any, actions: Any) -> np.ndarray:
    """Return the rows `[B]` in which both sides' actions are as likely, up to float32's rounding."""
    dist = graph.dist.from_inputs(scores)
    likely = [dist.log_prob(torch.from_numpy(np.asarray(_learned(graph, each)))) for each in (expected, actions)]
    near = (likely[0] - likely[1]).abs() <= ROUNDING * scores.abs().amax(-1)
    return near.numpy()


def _learned(graph: ActingGraph, actions: Any) -> np.ndarray:
    """Return the actions as the distribution has them: parts that connectors have changed do not count."""
    return from_space(graph.dist.action_space, actions)


def _mismatch(graph: ActingGraph, expected: Any, actions: Any, rows: np.ndarray) -> ExportError:
    row = int(np.flatnonzero(rows)[0])
    first = map_tree(lambda leaf: np.asarray(leaf)[row].tolist(), expected)
    other = map_tree(lambda leaf: np.asarray(leaf)[row].tolist(), actions)
    return ExportError(
        f"the exported {type(graph.module).__name__} acts otherwise than the policy: {other} instead of {first} for "
        f"{int(rows.sum())} of {len(rows)} observations; a network or connector of your own that reads the values of "
        "tensors, draws random numbers or depends on the number of rows cannot be exported. Nothing was written"
    )


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
        obs = map_tree(_tamed, _as_dict(batched.sample()))
        yield obs, begins, rng.standard_normal(ROWS)
        begins = rng.random(ROWS) < RANDOM_ENDS


def _as_dict(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _as_dict(part) for key, part in tree.items()}
    return tuple(map(_as_dict, tree)) if isinstance(tree, tuple) else tree


def _tamed(leaf: np.ndarray) -> np.ndarray:
    return (
        np.where(np.abs(leaf) > LARGEST, np.fmod(leaf, LARGEST), leaf).astype(leaf.dtype)
        if leaf.dtype.kind == "f"
        else leaf
    )
