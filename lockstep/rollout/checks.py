"""What is refused of collected data."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import named_leaves
from lockstep.rollout.errors import MalformedBufferError
from lockstep.state.checks import check_flags, check_functions, check_whole
from lockstep.state.messages import no_copies
from lockstep.state.streams import RandomStreams

LONG, NEVER_ENDS = 50_000, 1_000_000
"""steps after which a collect by episodes tells of an episode, and gives up on it"""
LIMIT_THEM = "limit the episodes' length (gymnasium.wrappers.TimeLimit, gymnasium.make(id, max_episode_steps=...))"
no_copies_of_collectors = no_copies(
    "environments and random generators",
    "make another one on environments of its own, then other.set_state(collector.get_state())",
)

LATER = {"rewards": (1, 1), "actions": (0, 2)}
"""column -> when row 0 of it came to be, counted from the first observation: step, order within the step"""


def check_collector(policy: Any, flags: Mapping[str, Any], hooks: Mapping[str, Any]) -> None:
    """Raises `ValueError` for something that cannot act, that is neither True nor False, or that is no function."""
    if not callable(getattr(policy, "act", None)) or not callable(getattr(policy, "check_spaces", None)):
        raise ValueError(f"policy={policy!r} is not allowed; it must be a lockstep.Policy (config.build_policy())")
    check_flags(**flags)
    check_functions(**hooks)


def chosen_streams(seed: int | None, streams: RandomStreams | None) -> RandomStreams:
    """The random streams of a collector; without a seed they are others each time, as gymnasium's are.

    `ValueError` where both are given.
    """
    if streams is None:
        return RandomStreams(secrets.randbits(63) if seed is None else seed)
    if seed is not None:
        raise ValueError(f"seed={seed} and streams are not allowed together; the streams have a seed of their own")
    return streams


def checked_epsilon(epsilon: float) -> float:
    """`epsilon` itself; `ValueError` for what is no probability."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float | np.number) or not 0.0 <= epsilon <= 1.0:
        raise ValueError(f"epsilon={epsilon!r} is not allowed; it must be between 0 and 1")
    return float(epsilon)


def checked_amount(n_step: int | None, n_episode: int | None, num_envs: int, *, depth: int) -> int:
    """The one of the two that is given; a warning where `n_step` is no multiple of the number of environments, with
    `depth` as its `stacklevel`.

    Raises `ValueError` unless exactly one is given, a whole number of at least 1.
    """
    given = [(name, n) for name, n in (("n_step", n_step), ("n_episode", n_episode)) if n is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of n_step and n_episode, not n_step={n_step} and n_episode={n_episode}")
    name, amount = given[0]
    check_whole(name, amount, 1)
    if name == "n_step" and amount % num_envs:
        rounded = -(-amount // num_envs) * num_envs
        warnings.warn(
            f"{amount} steps for each collect (a collector's n_step, a trainer's step_per_collect) are no multiple of "
            f"the {num_envs} environments: {rounded} are collected",
            stacklevel=depth,
        )
    return int(amount)


def check_ends(longest: int, at_once: int = 1) -> None:
    """Of the longest episode that a collect by episodes waits for, looked at every `at_once` steps: a warning once it
    has `LONG` steps, `RuntimeError` beyond `NEVER_ENDS`.
    """
    if longest > NEVER_ENDS:
        raise RuntimeError(f"an episode has not ended in {longest} steps, and {NEVER_ENDS} are the limit; {LIMIT_THEM}")
    if LONG <= longest < LONG + at_once:
        warnings.warn(
            f"an episode has not ended in {longest} steps; if it never does, the collect gives up after {NEVER_ENDS}: "
            f"{LIMIT_THEM}",
            stacklevel=2,
        )


def check_finite(store: RolloutStore, first: int, steps_before: int = 0) -> None:
    """Raises `MalformedBufferError` naming environment, step and column of what came first; looks at the new rows only.

    `steps_before`: vector steps of this collect that are not in the store any more.
    """
    new = slice(first, store.size)
    columns = [(name, leaf[first : store.size + 1]) for name, leaf in named_leaves("obs", store.obs)]
    columns += [("rewards", store.rewards[new]), ("actions", store.actions[new])]
    found = [(when, name, *where[:2], column[where[0], where[1]]) for when, name, where, column in not_finite(columns)]
    for index, obs in zip(store.final_index, store.final_obs):
        for name, leaf in named_leaves("final_obs", obs):
            at = first_not_finite(leaf)
            if at is not None and index[at[0]] >= first * store.num_envs:
                t, b = divmod(int(index[at[0]]) - first * store.num_envs, store.num_envs)
                found.append(((t + 1, 0), name, t, b, leaf[at[0]]))
    if found:
        _, name, t, b, value = min(found, key=itemgetter(0))
        refuse_row(name, steps_before + t, b, value)


def not_finite(
    columns: Iterable[tuple[str, np.ndarray]],
) -> list[tuple[tuple[int, int], str, list[int], np.ndarray]]:
    """Of each column `[T, ...]` (of observations `[T + 1, ...]`) with a value that is not finite: when it came to be,
    its name, where the value is, and the column. At each step first the reward of the last action and the observation
    came from the environment, of which the observation is the first cause, then the policy's action.
    """
    found = []
    for name, column in columns:
        where = first_not_finite(column)
        if where is not None:
            later, order = LATER.get(name, (0, 0))
            found.append(((int(where[0]) + later, order), name, where.tolist(), column))
    return found


def first_not_finite(column: np.ndarray) -> np.ndarray | None:
    """Where the first NaN or infinity is; the sum tells quickly that there is none."""
    if column.dtype.kind != "f" or np.isfinite(np.add.reduce(column, None)) or np.isfinite(column).all():
        return None
    return np.argwhere(~np.isfinite(column))[0]


def refuse_row(name: str, t: int, b: int, value: Any) -> NoReturn:
    """Raises `MalformedBufferError` for column `name` at step `t` of environment `b`."""
    raise MalformedBufferError(
        f"environment {b} gave a value that is not finite in column {name!r} at step {t} of this collect: {value!r}; "
        "mend the environment (`lockstep doctor` checks it) or pass raise_on_nan_in_buffer=False"
    )
