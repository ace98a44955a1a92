"""Columns that a loss needs: there, and of the shape that the module's spaces say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.trees import leaves

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns

NUMBERS = (Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS, Columns.VF_PREDS, Columns.REWARDS)
"""columns with one number for each row"""
ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_columns(learner: Learner, module_id: str, columns: TensorColumns) -> None:
    """Looks at the columns that `learner.required_columns(module_id)` names, and the mask.

    Raises `KeyError` for missing columns and `ValueError` for wrong shapes, naming module, column, given shape,
    expected shape, and the method to override.
    """
    required = learner.required_columns(module_id)
    missing = [name for name in required if name not in columns]
    method = f"{type(learner).__name__}.compute_loss_for_module"
    if missing:
        raise KeyError(
            f"the batch of module {module_id!r} lacks {missing} (it has {sorted(columns)}); add them, or override "
            f"{method}"
        )
    mask = columns.get(Columns.LOSS_MASK)
    if Columns.ACTIONS in required:
        actions = columns[Columns.ACTIONS]
        check_actions(learner, module_id, actions if mask is None else actions[mask])
    rows: tuple[int, ...] = tuple(next(leaves(columns)).shape[:1]) if mask is None else tuple(mask.shape)
    module = learner.module[module_id]
    if mask is None and module.is_stateful():
        return  # how long its sequences are is said by the mask alone
    for name in required:
        expected = _expected(module, name, rows)
        given = columns[name]
        if expected is not None and isinstance(given, Tensor) and given.shape != expected:
            raise ValueError(
                f"the batch of module {module_id!r}: column {name!r} has shape {tuple(given.shape)}, expected "
                f"{expected}; reshape it, or override {type(learner).__name__}.required_columns and {method}"
            )


def check_actions(learner: Learner, module_id: str, actions: Tensor) -> None:
    """Raises `ValueError` naming module, row, what was given and what is allowed, for a discrete action out of range.

    `actions`: [N, ...]; they are counted from 0, whatever the `start` of the space is.
    """
    space: Any = learner.module[module_id].action_space
    if isinstance(space, spaces.Discrete) and actions.ndim == 1 and len(actions) and not actions.is_floating_point():
        if actions.device.type == "cpu":
            on_host = actions.numpy()
            least, most = on_host.min(), on_host.max()
        else:
            least, most = torch.stack(actions.aminmax()).tolist()  # one transfer
        if least >= 0 and most < space.n:
            return
    if isinstance(space, spaces.MultiBinary):
        numbers = torch.full(_action_shape(space), 2)
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        numbers = torch.as_tensor(counts.reshape(_action_shape(space)))
    else:
        return
    if tuple(actions.shape[1:]) != tuple(numbers.shape) or not len(actions):
        return  # its shape is refused elsewhere
    wrong = (actions < 0) | (actions >= numbers.to(actions.device))
    if actions.is_floating_point():
        wrong |= actions != actions.round()
    if bool(wrong.any()):
        row = int(wrong.reshape(len(actions), -1).any(1).nonzero()[0, 0])
        limit = f"0 to {int(numbers) - 1}" if not numbers.ndim else f"from 0, below {numbers.tolist()}"
        raise ValueError(
            f"module {module_id!r}: column 'actions' has {actions[row].tolist()!r} at row {row}; allowed are whole "
            f"numbers {limit} (action space {space})"
        )


def _expected(module: Any, name: str, rows: tuple[int, ...]) -> tuple[int, ...] | None:
    if name in NUMBERS:
        return rows
    if name == Columns.OBS and isinstance(module.observation_space, spaces.Box):
        return (*rows, *module.observation_space.shape)  # not of trees, nor numbers that come in several forms
    if name == Columns.ACTIONS and isinstance(module.action_space, ARRAY_SPACES):
        return (*rows, *_action_shape(module.action_space))
    return None


def _action_shape(space: Any) -> tuple[int, ...]:
    """Of one action as a policy gives it, which is flat (`ActionDist.from_env`)."""
    return () if isinstance(space, spaces.Discrete) else (math.prod(space.shape),)
