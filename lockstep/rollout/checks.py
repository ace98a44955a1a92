"""What is refused of collected data."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from lockstep.data.rollout import RolloutStore
from lockstep.data.trees import named_leaves
from lockstep.rollout.errors import MalformedBufferError


def check_finite(store: RolloutStore, first: int, steps_before: int = 0) -> None:
    """Raises `MalformedBufferError` naming environment, step and column; looks at the new rows only.

    `steps_before`: vector steps of this collect that are not in the store any more.
    """
    new = slice(first, store.size)
    columns = [("rewards", store.rewards[new]), ("actions", store.actions[new])]
    columns += [(name, leaf[first : store.size + 1]) for name, leaf in named_leaves("obs", store.obs)]
    for name, column in columns:
        where = _not_finite(column)
        if where is not None:
            t, b = (int(i) for i in where[:2])
            refuse_row(name, steps_before + t, b, column[t, b])
    for index, obs in zip(store.final_index, store.final_obs):
        for name, leaf in named_leaves("final_obs", obs):
            where = _not_finite(leaf)
            if where is not None and index[where[0]] >= first * store.num_envs:
                t, b = divmod(int(index[where[0]]), store.num_envs)
                refuse_row(name, steps_before + t - first, b, leaf[where[0]])


def _not_finite(column: np.ndarray) -> np.ndarray | None:
    """Where the first NaN or infinity is; the sum tells quickly that there is none."""
    if column.dtype.kind != "f" or np.isfinite(column.sum()) or np.isfinite(column).all():
        return None
    return np.argwhere(~np.isfinite(column))[0]


def refuse_row(name: str, t: int, b: int, value: Any) -> NoReturn:
    """Raises `MalformedBufferError` for column `name` at step `t` of environment `b`."""
    raise MalformedBufferError(
        f"environment {b} gave a value that is not finite in column {name!r} at step {t} of this collect: {value!r}; "
        "mend the environment (`lockstep doctor` checks it) or pass raise_on_nan_in_buffer=False"
    )
