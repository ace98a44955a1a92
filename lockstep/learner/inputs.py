"""Table of the columns that losses read, and functions that read and check batches and network outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from lockstep.connectors import ModuleConnectors
from lockstep.data.actions import (
    ACTION_MASK,
    COMPOSITE,
    action_leaves,
    action_width,
    flat_mask,
    forbidden_rows,
    from_space,
    mask_size,
)
from lockstep.data.columns import Columns, is_state_column
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.data.tensor_rollout import TensorRollout
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, has_numbers, leaves, map_tree
from lockstep.learner.config import check_policies_to_train
from lockstep.learner.minibatches import TensorColumns, take_rows
from lockstep.learner.sequences import ToTensor, columns_of_sequences
from lockstep.modules import RLModule

TrainedModules = Collection[str] | Callable[..., bool] | None
"""Modules that an update trains: their ids, a function `f(module_id)` or `f(module_id, batch)`, or None for all."""
Shape = tuple[int, ...]
Space = spaces.Space[Any]
ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, *COMPOSITE)
"""Action spaces whose actions have a known shape."""
HINT = "The page on the learner lists under 'What a network must have' what each algorithm needs (docs/learner.md)"


# -- the table ---


@dataclass(frozen=True)
class LossInput:
    """Column that losses read: its source, the shape of a row, and the values that it may have.

    A learner names the columns that its loss needs in `required_columns`. A column that is not in the table may have
    any shape and any values.
    """

    name: str
    from_network: bool = False
    """Whether `forward_train` of the module returns it, if it is not in the batch."""
    row_shape: Callable[[Space, Space], Shape | None] | None = None
    """Function from the observation and the action space to the shape of one row; None if any shape is allowed."""
    check_rows: Callable[[Tensor, Space, str], None] | None = None
    """Function `f(rows, action_space, module_id)` that raises an error for rows `[N, ...]` with illegal values; None if
    all values are allowed."""


def _one_number(obs_space: Space, action_space: Space) -> Shape:
    return ()


def _obs_shape(obs_space: Space, action_space: Space) -> Shape | None:
    """Return the shape of one observation; None for spaces other than a `Box`, whose columns have several forms."""
    return obs_space.shape if isinstance(obs_space, spaces.Box) else None


def _actions_shape(obs_space: Space, action_space: Space) -> Shape | None:
    return _action_shape(action_space) if isinstance(action_space, ACTION_SPACES) else None


def check_actions(actions: Tensor, space: spaces.Space[Any], module_id: str) -> None:
    """Check that discrete actions `[N, ...]` are in range; `ValueError` naming module, row, value and range otherwise.

    Actions are counted from 0, whatever the `start` of the space is.
    """
    if isinstance(space, COMPOSITE):
        if actions.shape[1:] == _action_shape(space):
            parts = list(action_leaves(space))
            for part, column in zip(parts, actions.split([action_width(part) for part in parts], dim=-1)):
                check_actions(column.reshape(len(column), *_action_shape(part)), part, module_id)
        return
    limits = _action_limits(space)
    if limits is None:
        return

    values = actions.cpu().numpy()
    kind = values.dtype.kind
    # Read as an unsigned number, a negative one is larger than any limit. So one pass finds both kinds of illegal
    # numbers.
    unsigned = values.view(_UNSIGNED[values.itemsize]) if kind == "i" else values
    smallest_limit = limits.min() if limits.ndim else limits
    is_legal = kind != "f" and values.size and unsigned.max() < smallest_limit
    if is_legal or values.shape[1:] != limits.shape:
        return  # `check_columns` refuses a wrong shape

    wrong = (values < 0) | (values >= limits) | (values != np.round(values))
    if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        limit = f"from 0, below {limits.tolist()}" if limits.ndim else f"0 to {int(limits) - 1}"
        raise ValueError(
            f"module {module_id!r}: column 'actions' has {values[row].tolist()!r} at row {row}; allowed are whole "
            f"numbers {limit} (action space {space})"
        )


def _action_limits(space: Space) -> Any:
    """Return the numbers of choices of a discrete action, in the shape of an action; None for a continuous one."""
    if isinstance(space, spaces.Discrete):
        return space.n
    if isinstance(space, spaces.MultiDiscrete):
        return np.reshape(space.nvec, _action_shape(space))
    if isinstance(space, spaces.MultiBinary):
        return np.full(_action_shape(space), 2)
    return None


_UNSIGNED = {dtype.itemsize: dtype for dtype in map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64))}
"""Unsigned dtypes by their size in bytes."""


def _action_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    """Return the shape of one action in a train batch, which is flat (`ActionDist.from_env`)."""
    return () if isinstance(space, spaces.Discrete) else (action_width(space),)


# The columns of the losses: `action_logp` is the log-probability of the action under the policy that acted. `vf_preds`
# are outputs of the value function, and `value_targets` what they are trained towards. `advantages` say how much better
# the return was than `vf_preds`. `action_dist_inputs` are the parameters of the action distribution.
LOSS_INPUTS = {
    each.name: each
    for each in (
        LossInput(Columns.OBS, row_shape=_obs_shape),
        LossInput(Columns.ACTIONS, row_shape=_actions_shape, check_rows=check_actions),
        LossInput(Columns.ACTION_LOGP, row_shape=_one_number),
        LossInput(Columns.REWARDS, row_shape=_one_number),
        LossInput(Columns.ADVANTAGES, row_shape=_one_number),
        LossInput(Columns.VALUE_TARGETS, row_shape=_one_number),
        LossInput(Columns.VF_PREDS, from_network=True, row_shape=_one_number),
        LossInput(Columns.ACTION_DIST_INPUTS, from_network=True),
        LossInput("q_values", from_network=True),
        LossInput("value_outputs", from_network=True),
    )
}
"""Table of the columns that losses read, by name."""


# -- batches ---


def check_batch(batch: object) -> None:
    """Check that `batch` is a batch; `TypeError` otherwise."""
    if not isinstance(batch, SampleBatch | MultiAgentBatch):
        raise TypeError(f"batch must be a SampleBatch or a MultiAgentBatch, not {type(batch).__name__}")


def batches_by_module(batch: SampleBatch | MultiAgentBatch, module_ids: Collection[str]) -> Mapping[str, SampleBatch]:
    """Return the batch of each module that has rows; `ValueError` for a `SampleBatch` if there are several modules."""
    check_batch(batch)
    if batch.is_by_module:
        return {module_id: part for module_id, part in batch.policy_batches.items() if len(part)}
    if len(module_ids) != 1:
        raise ValueError(
            f"a SampleBatch fits one module only, this learner has {sorted(module_ids)}; give a MultiAgentBatch"
        )
    return {next(iter(module_ids)): batch} if len(batch) else {}


def columns_of_batch(to_tensor: ToTensor, module: RLModule, batch: SampleBatch, module_id: str) -> TensorColumns:
    """Return the numeric columns of a batch as tensors; sequences `[S, L, ...]` for a module with memory."""
    if Columns.ACTIONS in batch and isinstance(batch[Columns.ACTIONS], dict | tuple):
        batch = batch.copy(shallow=True)
        batch[Columns.ACTIONS] = flat_actions(batch[Columns.ACTIONS], module.action_space)
    if module.is_stateful():
        return columns_of_sequences(to_tensor, module, batch, module_id)
    if Columns.SEQ_LENS in batch:  # a network without memory learns from single rows
        flat = batch.copy(shallow=True).unpad()
        batch = SampleBatch({k: v for k, v in flat.items() if k != Columns.SEQ_LENS and not is_state_column(k)})
    columns: TensorColumns = {}
    # One pass and no second dict: off-policy algorithms call this function for every gradient step.
    for name, value in batch.items():
        if name != Columns.INFOS and has_numbers(value):
            columns[name] = map_tree(to_tensor, value) if isinstance(value, dict | tuple) else to_tensor(value)
    if Columns.LOSS_MASK in columns:
        columns[Columns.LOSS_MASK] = columns[Columns.LOSS_MASK].to(torch.bool)
        columns = _without_masked_rows(columns)
    return columns


def check_loss(loss: object, method: str, module_id: str) -> None:
    """Check that a loss is a tensor of one number; `TypeError` or `ValueError` naming the `method` that returned it."""
    wanted = "a tensor of one number is needed, shape () (self.masked_mean(values, batch) gives the mean over the rows)"
    if not isinstance(loss, Tensor):
        raise TypeError(f"{method} returned a {type(loss).__name__} for module {module_id!r} ({loss!r}); {wanted}")
    if loss.numel() != 1:
        raise ValueError(f"{method} returned a loss of shape {tuple(loss.shape)} for module {module_id!r}; {wanted}")


def flat_actions(actions: Tree, space: spaces.Space[Any]) -> np.ndarray:
    """Return actions `[N, ...]` in the flat form of train batches.

    Actions that are not a tree are in this form already. Raises `ValueError` for a tree whose structure is not that of
    `space`.
    """
    if isinstance(actions, dict | tuple):
        if not isinstance(space, COMPOSITE):
            raise ValueError(f"the actions are a {type(actions).__name__}, and the action space is {space}")
        return from_space(space, map_tree(np.asarray, actions))
    column: np.ndarray = actions
    return column


def recorded_columns(to_tensor: ToTensor, connectors: ModuleConnectors, trajectories: Trajectories) -> TensorColumns:
    """Return the recorded columns of episodes as a train batch, `{name: [T * B, ...]}`.

    Observations have passed the observation connectors, and all columns the learner connectors.
    """
    # Cuts include truncations. They have their own column only if episodes were also cut at the end of the data.
    truncateds = trajectories.cuts if trajectories.truncateds is None else trajectories.truncateds
    columns: dict[str, Any] = {
        Columns.OBS: connectors.obs(trajectories.flat_obs()),
        Columns.ACTIONS: trajectories.flat_actions(),
        Columns.REWARDS: np.ascontiguousarray(connectors.learning_rewards(trajectories)).reshape(-1),
        Columns.NEXT_OBS: connectors.obs(trajectories.next_obs()),
        Columns.TERMINATEDS: trajectories.terminateds.reshape(-1),
        Columns.TRUNCATEDS: truncateds.reshape(-1),
    }
    if connectors.symmetry is not None:
        stored = {Columns.OBS: trajectories.flat_obs(), Columns.NEXT_OBS: trajectories.next_obs()}
        columns |= connectors.images({**stored, Columns.ACTIONS: columns[Columns.ACTIONS]})
    extras = {Columns.ACTION_LOGP: trajectories.action_logp, **(trajectories.recorded or {})}
    for name, column in extras.items():
        if column is not None and name not in columns and has_numbers(column):
            columns[name] = map_tree(lambda leaf: np.ascontiguousarray(leaf).reshape(-1, *leaf.shape[2:]), column)
    return connectors.train_columns({name: map_tree(to_tensor, column) for name, column in columns.items()})


def recorded_columns_on_device(
    to_tensor: ToTensor, connectors: ModuleConnectors, rollout: TensorRollout
) -> TensorColumns:
    """Return the columns of a rollout on a device as a train batch; see `recorded_columns`. The host does not wait."""

    def flat(obs: Tree) -> Tree:
        return map_tree(lambda leaf: leaf.flatten(0, 1), obs)

    obs = flat(rollout.obs)
    columns: dict[str, Any] = {
        Columns.OBS: connectors.obs(obs),
        Columns.ACTIONS: rollout.actions.flatten(0, 1),
        Columns.REWARDS: connectors.learning_rewards_on_device(rollout).flatten(),
        Columns.NEXT_OBS: connectors.obs(flat(rollout.next_obs)),
        Columns.TERMINATEDS: rollout.terminateds.flatten(),
        Columns.TRUNCATEDS: rollout.cuts.flatten(),
    }
    if connectors.symmetry is not None:
        columns |= connectors.images({Columns.OBS: obs, Columns.ACTIONS: columns[Columns.ACTIONS]})
    return connectors.train_columns({name: map_tree(to_tensor, column) for name, column in columns.items()})


def _without_masked_rows(columns: TensorColumns) -> TensorColumns:
    """Return the columns with a real row in place of each masked row.

    A loss multiplies masked rows by 0 in the end. But NaN times 0 is NaN, and an action out of range has no
    probability. A real row is an input that any network can take.
    """
    mask = columns[Columns.LOSS_MASK]
    if mask.dim() != 1 or bool(mask.all()):
        return columns
    if not bool(mask.any()):
        return {name: value if value is mask else map_tree(torch.zeros_like, value) for name, value in columns.items()}
    rows = torch.arange(len(mask), device=mask.device)
    index = torch.where(mask, rows, mask.to(torch.uint8).argmax())
    return {**take_rows(columns, index), Columns.LOSS_MASK: mask}


def steps_of_unknown_policy(versions: np.ndarray, weights_seq_no: int, trajectories: Trajectories) -> int:
    """Return the number of steps by an older policy without a recorded `action_logp`.

    A loss compares the present log-probability of an action with that of the policy that acted (`action_logp`). Without
    a record it computes the latter with the present weights, as if the present policy had acted.
    """
    is_old = versions < weights_seq_no
    logp = trajectories.action_logp
    # Recorded distributions give the log-probabilities, too.
    if not is_old.any() or Columns.ACTION_DIST_INPUTS in (trajectories.recorded or {}):
        return 0
    if logp is not None:
        rows = trajectories.rows()
        unknown = np.isnan(logp.reshape(-1) if rows is None else logp.reshape(-1)[rows])
        # The lengths differ if only some of the episodes have recorded versions. All unknown steps then count as old.
        is_old = is_old & unknown if len(unknown) == len(is_old) else unknown
    return int(is_old.sum())


def warn_of_unknown_policy(module_id: str, num_steps: int, versions: np.ndarray, weights_seq_no: int) -> None:
    """Warn that a loss treats `num_steps` steps of an older policy as steps of the present one."""
    warnings.warn(
        f"module {module_id!r}: {num_steps} of {len(versions)} steps were taken with weights that are up to "
        f"{weights_seq_no - int(versions.min())} updates older than those that learn, and their episodes did not "
        "record action_logp. It is computed with the present weights, so neither clipping nor target_kl sees the "
        "difference. Learn from a rollout once, before the next update, or record 'action_logp' "
        "(extra_model_outputs of episodes, RolloutStore.action_logp)",
        stacklevel=2,
    )


def look_for_forbidden_actions(
    columns: TensorColumns, module: RLModule, module_id: str, count_and_should_warn: Callable[[str, int], bool]
) -> None:
    """Count the rows whose action is forbidden by the mask in their observation, and warn if they are the first.

    `count_and_should_warn(name, amount)` adds to a lifetime counter, and returns whether to warn.
    """
    obs = columns.get(Columns.OBS)
    loss_mask = columns.get(Columns.LOSS_MASK)
    space = module.action_space
    if not isinstance(obs, Mapping) or ACTION_MASK not in obs or Columns.ACTIONS not in columns:
        return
    mask = flat_mask(space, map_tree(lambda part: part.cpu().numpy(), obs[ACTION_MASK]))
    if mask.shape[-1] != mask_size(space):
        return  # a user's own network may give this name another meaning
    is_forbidden = forbidden_rows(space, columns[Columns.ACTIONS].cpu().numpy(), mask.reshape(-1, mask.shape[-1]))
    if loss_mask is not None:
        is_forbidden = is_forbidden[loss_mask.cpu().numpy().reshape(-1)]
    if count_and_should_warn(f"{module_id}/forbidden_actions", int(is_forbidden.sum())):
        warnings.warn(
            f"module {module_id!r}: {is_forbidden.sum():,} of {len(is_forbidden):,} actions to learn from are "
            f"forbidden by their action masks. Does {type(module).__name__} apply the mask? A module of your own does "
            "so itself: "
            "logits.masked_fill(batch['obs']['action_mask'] == 0, -1e9). Otherwise a mask that forbids everything, or "
            "recorded actions, may be the cause",
            stacklevel=5,  # the caller of `update_from_batch` or `update_from_episodes`
        )


@dataclass(frozen=True)
class _KnownInputs:
    """Required columns of a module that are in the table, with the shapes of their rows.

    The shapes are valid as long as the module has the same spaces.
    """

    required: tuple[str, ...]
    observation_space: Space
    action_space: Space
    inputs: list[tuple[LossInput, Shape | None]]
    """Columns and the shapes of one row; None if any shape is allowed."""


_KNOWN_INPUTS: WeakKeyDictionary[RLModule, _KnownInputs] = WeakKeyDictionary()
"""Known inputs by module. Batches are checked in every update, and working out the shapes each time would take longer
than the check itself."""


def _known_inputs(required: Collection[str], module: RLModule) -> list[tuple[LossInput, Shape | None]]:
    """Return the `required` columns that are in the table, with the shapes of their rows."""
    names = tuple(required)
    obs_space = module.observation_space
    action_space = module.action_space
    known = _KNOWN_INPUTS.get(module)
    if (
        known is None
        or known.required != names
        or known.observation_space is not obs_space
        or known.action_space is not action_space
    ):
        table_rows = [LOSS_INPUTS[name] for name in names if name in LOSS_INPUTS]
        shapes = [None if each.row_shape is None else each.row_shape(obs_space, action_space) for each in table_rows]
        known = _KnownInputs(names, obs_space, action_space, list(zip(table_rows, shapes)))
        _KNOWN_INPUTS[module] = known
    return known.inputs


def check_columns(
    columns: TensorColumns, required: Collection[str], module: RLModule, module_id: str, learner: str
) -> None:
    """Check the `required` columns against the table.

    Raises `KeyError` for missing columns and `ValueError` for wrong shapes, naming module, column, shape, expected
    shape, and the method to override. `learner` is the name of the learner's class, for messages.
    """
    missing = [name for name in required if name not in columns]
    if missing:
        raise KeyError(
            f"the batch of module {module_id!r} lacks {missing} (it has {sorted(columns)}); add them, or override "
            f"{learner}.compute_loss_for_module"
        )
    mask = columns.get(Columns.LOSS_MASK)
    known = _known_inputs(required, module)
    for each, _ in known:
        if each.check_rows is not None:
            values = columns[each.name]
            each.check_rows(values if mask is None else values[mask], module.action_space, module_id)
    if mask is None and module.is_stateful():
        return  # without a mask the length L of its sequences `[S, L, ...]` is not known
    rows: Shape = tuple(next(leaves(columns)).shape[:1]) if mask is None else tuple(mask.shape)
    for each, row_shape in known:
        column = columns[each.name]
        if row_shape is None or not isinstance(column, Tensor):
            continue
        expected = (*rows, *row_shape)
        if column.shape != expected:
            raise ValueError(
                f"the batch of module {module_id!r}: column {each.name!r} has shape {tuple(column.shape)}, expected "
                f"{expected}; reshape it, or override {learner}.required_columns and {learner}.compute_loss_for_module"
            )


# -- networks ---


def check_outputs(outputs: Collection[str], names: Collection[str], module: str, learner: str) -> None:
    """Check that a module's `forward_train` has returned all `names`; `ValueError` with the missing ones otherwise.

    `module` and `learner` are the names of their classes, for messages.
    """
    missing = [name for name in names if name not in outputs]
    if missing:
        raise ValueError(
            f"{learner} needs what {module}.forward_train does not return: {', '.join(missing)} (it returns "
            f"{', '.join(map(str, outputs))}); return them too. {HINT}"
        )


def check_values(values: Tensor, module: str) -> None:
    """Check that the values of a network are `[N]`; `ValueError` with the name of the `module`'s class otherwise."""
    if values.ndim != 1:
        raise ValueError(
            f"{module} gives values (vf_preds, compute_values) of the shape {list(values.shape)}; it must be [N], one "
            "number for each row; .squeeze(-1) changes [N, 1] into that"
        )


def check_read(
    name: object,
    fwd_out: Mapping[str, Any],
    batch: Mapping[str, TensorColumns],
    modules: Mapping[str, str],
    learner: str,
) -> None:
    """Explain a `KeyError` of a loss that has read the missing key `name`.

    Raises the `ValueError` of `check_outputs` if a network should have returned it. For another name that the outputs
    or the batch lack it raises `KeyError` with the names that exist. It returns if both have the name, or if it is not
    a text: then the error has another cause. `modules` and `learner` are names of classes.
    """
    for module_id, outputs in fwd_out.items():
        if isinstance(outputs, Tensor) or not isinstance(name, str):
            continue
        if name in LOSS_INPUTS and LOSS_INPUTS[name].from_network and name not in batch[module_id]:
            check_outputs(outputs, [name], modules[module_id], learner)
        if name not in outputs or name not in batch[module_id]:
            near = get_close_matches(name, [*outputs, *batch[module_id]], n=1)
            suggestion = f"; did you mean {near[0]!r}?" if near else ""
            raise KeyError(
                f"the loss of {learner} looks for {name!r} in vain (module {module_id!r}): the outputs fwd_out are "
                f"{', '.join(map(str, outputs))}; the columns of the batch are {', '.join(map(str, batch[module_id]))}"
                + suggestion
            )


def check_parts(module: object, names: Collection[str], module_id: str, learner: str) -> None:
    """Check that a module has all attributes in `names`; `ValueError` with the missing ones otherwise."""
    missing = [name for name in names if getattr(module, name, None) is None]
    if missing:
        raise ValueError(
            f"{learner} needs what {type(module).__name__} (module {module_id!r}) does not have: "
            f"{', '.join(missing)}; define them, or take a subclass of the algorithm's default module. {HINT}"
        )


def check_trained_modules(policies_to_train: TrainedModules, module_ids: Collection[str]) -> None:
    """Check `policies_to_train`: `ValueError` for an unknown module id, `TypeError` for other values."""
    check_policies_to_train(policies_to_train)
    if policies_to_train is None or callable(policies_to_train):
        return
    unknown = sorted(set(policies_to_train) - set(module_ids))
    if unknown:
        raise ValueError(
            f"policies_to_train={list(policies_to_train)} names {unknown}; the modules are {sorted(module_ids)}"
        )


class OutputsWithValues(dict[str, Any]):
    """Outputs of `forward_train` without `vf_preds`, which are computed by `compute_values` when a loss reads them."""

    def __init__(self, outputs: dict[str, Any], compute_values: Callable[[], Tensor]) -> None:
        super().__init__(outputs)
        self._compute_values = compute_values

    def __missing__(self, name: str) -> Tensor:
        if name != Columns.VF_PREDS:
            raise KeyError(name)
        self[name] = values = self._compute_values()
        return values


def errors_of_rows(row_errors: Mapping[str, Tensor], module_id: str, learner: str) -> Tensor:
    """Return the errors `[N]` of a module's rows in the last gradient step; `ValueError` if the loss has set none."""
    if module_id not in row_errors:
        raise ValueError(f"{learner} leaves no errors for the priorities; set self.row_errors[module_id] in its loss")
    return row_errors[module_id]
