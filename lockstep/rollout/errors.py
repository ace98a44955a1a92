"""Errors of collection, and the check for collected values that are not finite."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import named_leaves

ORIGIN_OFFSETS = {"new_obs": (1, 0), "rewards": (1, 1), "actions": (0, 2)}
"""When the first row of a column was produced, as `(step, order within the step)`: the observation of step 0 comes
first (0, 0), then its action (0, 2), the next observation (1, 0) and the reward (1, 1). Columns that are not listed are
observations, `(0, 0)`."""


class MalformedBufferError(ValueError):
    """Data cannot be learned from; the message names environment, step and column."""


class RunnerLostError(RuntimeError):
    """The process or the node of an env runner has ended, and the result of its request is lost."""


class EnvRunnerError(RuntimeError):
    """An env runner died or hung more often than `fault_tolerance` allows, or the cluster has no free resources for it.
    The message says which."""


class NonFiniteValue(NamedTuple):
    """The first NaN or infinity of a column."""

    origin: tuple[int, int]
    """When the value was produced, as `(step, order within the step)`; see `ORIGIN_OFFSETS`. The earliest value is the
    cause of the others."""
    name: str
    """Name of the column."""
    position: list[int]
    """Index of the value in the column; the first entry is its row."""
    column: np.ndarray


def check_finite(store: RolloutStore, first: int, steps_before: int = 0) -> None:
    """Raise `MalformedBufferError` for the NaN or infinity that came first in the new rows of a store.

    A NaN spreads: one in an observation leads to a NaN action, and that to NaN in all later rows. The message names the
    first one, which is the cause.

    Args:
        store: The store.
        first: Row with which the new rows begin.
        steps_before: Number of vector steps of this collect that are not in the store any more.
    """
    new_rows = slice(first, store.size)
    columns = [(name, leaf[first : store.size + 1]) for name, leaf in named_leaves("obs", store.obs)]
    columns += [("rewards", store.rewards[new_rows]), ("actions", store.actions[new_rows])]
    values = []
    for origin, name, index, column in not_finite(columns):
        t, b = index[:2]
        values.append((origin, name, t, b, column[t, b]))

    # Last observations of episodes are not in the column of observations: its next row is the first observation of the
    # next episode. `final_index` has their flat rows `t * num_envs + b`. As the result of step t such an observation is
    # as old as the observation of step t + 1.
    for rows, obs in zip(store.final_index, store.final_obs):
        for name, leaf in named_leaves("final_obs", obs):
            at = first_not_finite(leaf)
            if at is not None and rows[at[0]] >= first * store.num_envs:
                t, b = divmod(int(rows[at[0]]) - first * store.num_envs, store.num_envs)
                values.append(((t + 1, 0), name, t, b, leaf[at[0]]))
    if values:
        _, name, t, b, value = min(values, key=itemgetter(0))
        refuse_row(name, steps_before + t, b, value)


def not_finite(columns: Iterable[tuple[str, np.ndarray]]) -> list[NonFiniteValue]:
    """Return the first value that is not finite of each column that has one.

    In each step the environment returns an observation and the reward of the last action, and then the policy chooses
    an action. Of observation and reward the observation counts as the first cause.

    Args:
        columns: Names and columns `[T, ...]`; columns of observations are `[T + 1, ...]`.
    """
    values = []
    for name, column in columns:
        index = first_not_finite(column)
        if index is not None:
            step, order = ORIGIN_OFFSETS.get(name.partition("/")[0], (0, 0))
            values.append(NonFiniteValue((int(index[0]) + step, order), name, index.tolist(), column))
    return values


def first_not_finite(column: np.ndarray) -> np.ndarray | None:
    """Return the index of the first NaN or infinity; None if there is none or the values are not floats."""
    if column.dtype.kind != "f":
        return None
    # A finite sum proves that all values are finite, and is faster than looking at each. A sum may also overflow, so
    # that a sum that is not finite proves nothing.
    if np.isfinite(np.add.reduce(column, None)) or np.isfinite(column).all():
        return None
    return np.argwhere(~np.isfinite(column))[0]


def refuse_row(name: str, t: int, b: int, value: Any) -> NoReturn:
    """Raise `MalformedBufferError` for a value of column `name` at step `t` of environment `b`."""
    raise MalformedBufferError(
        f"environment {b} gave a value that is not finite in column {name!r} at step {t} of this collect: {value!r}; "
        "fix the environment (`lockstep doctor` checks it) or pass raise_on_nan_in_buffer=False"
    )
