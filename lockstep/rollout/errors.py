"""Errors of collection, and the search for collected values that are not finite."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import named_leaves

LATER = {"new_obs": (1, 0), "rewards": (1, 1), "actions": (0, 2)}
"""column -> when row 0 of it came to be, counted from the first observation: step, order within the step"""


class MalformedBufferError(ValueError):
    """Collected or given data cannot be learned from; the message names environment, step and column."""


class RunnerLostError(RuntimeError):
    """The process of an env runner ended, or its node did; what it was asked for is lost."""


class EnvRunnerError(RuntimeError):
    """An env runner died or hung more often than it may, or there is no room for it; the message says which."""


def check_finite(store: RolloutStore, first: int, steps_before: int = 0) -> None:
    """Raise `MalformedBufferError` naming environment, step and column of what came first; look at new rows only.

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
    """Return for each column with a value that is not finite: when it came to be, its name, its index, the column.

    Columns are `[T, ...]`, those of observations `[T + 1, ...]`. At each step first the reward of the last action and
    the observation came from the environment, of which the observation is the first cause, then the policy's action.
    """
    found = []
    for name, column in columns:
        where = first_not_finite(column)
        if where is not None:
            later, order = LATER.get(name, (0, 0))
            found.append(((int(where[0]) + later, order), name, where.tolist(), column))
    return found


def first_not_finite(column: np.ndarray) -> np.ndarray | None:
    """Return the index of the first NaN or infinity; the sum tells quickly that there is none."""
    if column.dtype.kind != "f" or np.isfinite(np.add.reduce(column, None)) or np.isfinite(column).all():
        return None
    return np.argwhere(~np.isfinite(column))[0]


def refuse_row(name: str, t: int, b: int, value: Any) -> NoReturn:
    """Raise `MalformedBufferError` for column `name` at step `t` of environment `b`."""
    raise MalformedBufferError(
        f"environment {b} gave a value that is not finite in column {name!r} at step {t} of this collect: {value!r}; "
        "fix the environment (`lockstep doctor` checks it) or pass raise_on_nan_in_buffer=False"
    )
