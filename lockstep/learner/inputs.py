"""Table of the columns that losses read, and what reads and checks batches and outputs of networks by it."""

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
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import Tree, has_numbers, leaves, map_tree
from lockstep.learner.config import check_policies_to_train
from lockstep.learner.minibatches import TensorColumns, take_rows
from lockstep.learner.sequences import ToTensor, columns_of_sequences
from lockstep.modules import RLModule

TrainedModules = Collection[str] | Callable[..., bool] | None
Shape = tuple[int, ...]
Space = spaces.Space[Any]
ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, *COMPOSITE)
WHERE = "The page on the learner lists under 'What a network must have' what each algorithm needs (docs/learner.md)"


# -- the table ---


@dataclass(frozen=True)
class LossInput:
    """Column that losses read: its source, the shape of a row, and the values that it may have.

    A learner says in `required_columns` which of them its loss needs. A column that is not in the table may have any
    shape and any values.
    """

    name: str
    from_network: bool = False
    """Whether `forward_train` of the module gives it, where the batch does not."""
    row_shape: Callable[[Space, Space], Shape | None] | None = None
    """Returns the shape of one row for the observation and the action space; None where any shape is allowed."""
    check_rows: Callable[[Tensor, Space, str], None] | None = None
    """Refuses rows `[N, ...]` for the action space and the id of a module; None where all values are allowed."""


def _one_number(obs_space: Space, action_space: Space) -> Shape:
    return ()


def _obs_shape(obs_space: Space, action_space: Space) -> Shape | None:
    """Return the shape of one observation. Trees, and numbers that come in several forms, are not checked."""
    return obs_space.shape if isinstance(obs_space, spaces.Box) else None


def _actions_shape(obs_space: Space, action_space: Space) -> Shape | None:
    return _action_shape(action_space) if isinstance(action_space, ACTION_SPACES) else None


def check_actions(actions: Tensor, space: spaces.Space[Any], module_id: str) -> None:
    """Raise `ValueError` naming module, row, value and what is allowed, for a discrete action out of range.

    `actions`: [N, ...]; they are counted from 0, whatever the `start` of the space is.
    """
    if isinstance(space, spaces.Discrete):
        limits = space.n
    elif isinstance(space, spaces.MultiDiscrete):
        limits = np.reshape(space.nvec, _action_shape(space))
    elif isinstance(space, spaces.MultiBinary):
        limits = np.full(_action_shape(space), 2)
    else:
        if isinstance(space, COMPOSITE) and actions.shape[1:] == _action_shape(space):
            parts = list(action_leaves(space))
            for part, column in zip(parts, actions.split([action_width(part) for part in parts], dim=-1)):
                check_actions(column.reshape(len(column), *_action_shape(part)), part, module_id)
        return
    values = actions.cpu().numpy()
    kind = values.dtype.kind
    # Read as unsigned, a negative number is larger than any limit: one pass finds both kinds of wrong ones.
    unsigned = values.view(_UNSIGNED[values.itemsize]) if kind == "i" else values
    is_right = kind != "f" and values.size and unsigned.max() < (limits.min() if limits.ndim else limits)
    if is_right or values.shape[1:] != limits.shape:
        return  # a wrong shape is refused elsewhere
    wrong = (values < 0) | (values >= limits) | (values != np.round(values))
    if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        limit = f"from 0, below {limits.tolist()}" if limits.ndim else f"0 to {int(limits) - 1}"
        raise ValueError(
            f"module {module_id!r}: column 'actions' has {values[row].tolist()!r} at row {row}; allowed are whole "
            f"numbers {limit} (action space {space})"
        )


_UNSIGNED = {dtype.itemsize: dtype for dtype in map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64))}


def _action_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    """Return the shape of one action as a policy gives it, which is flat (`ActionDist.from_env`)."""
    return () if isinstance(space, spaces.Discrete) else (action_width(space),)


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
"""The table, by name."""


# -- batches ---


def check_batch(batch: object) -> None:
    """Raise `TypeError` for what is no batch."""
    if not isinstance(batch, SampleBatch | MultiAgentBatch):
        raise TypeError(f"batch must be a SampleBatch or a MultiAgentBatch, not {type(batch).__name__}")


def batches_by_module(batch: SampleBatch | MultiAgentBatch, module_ids: Collection[str]) -> Mapping[str, SampleBatch]:
    """Return the batch of each module that has rows. `ValueError` for a `SampleBatch` where there are several."""
    check_batch(batch)
    if isinstance(batch, MultiAgentBatch):
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
    if Columns.SEQ_LENS in batch:  # of no use to a network without memory
        flat = batch.copy(shallow=True).unpad()
        batch = SampleBatch({k: v for k, v in flat.items() if k != Columns.SEQ_LENS and not is_state_column(k)})
    columns: TensorColumns = {}
    for name, value in batch.items():  # one pass without another dict: off-policy, each gradient step comes here
        if name != Columns.INFOS and has_numbers(value):
            columns[name] = map_tree(to_tensor, value) if isinstance(value, dict | tuple) else to_tensor(value)
    if Columns.LOSS_MASK in columns:
        columns[Columns.LOSS_MASK] = columns[Columns.LOSS_MASK].to(torch.bool)
        columns = _without_masked_rows(columns)
    return columns


def check_loss(loss: object, method: str, module_id: str) -> None:
    """Raise `TypeError` or `ValueError`, with the method that gave it, for a loss that is not one number of torch."""
    wanted = "a tensor of one number is needed, shape () (self.masked_mean(values, batch) gives the mean over the rows)"
    if not isinstance(loss, Tensor):
        raise TypeError(f"{method} returned a {type(loss).__name__} for module {module_id!r} ({loss!r}); {wanted}")
    if loss.numel() != 1:
        raise ValueError(f"{method} returned a loss of shape {tuple(loss.shape)} for module {module_id!r}; {wanted}")


def flat_actions(actions: Tree, space: spaces.Space[Any]) -> np.ndarray:
    """Return actions as learned from, for those of the environment where they are trees; others as they are.

    Raises `ValueError` for a tree that is not built like `space`.
    """
    if isinstance(actions, dict | tuple):
        if not isinstance(space, COMPOSITE):
            raise ValueError(f"the actions are a {type(actions).__name__}, and the action space is {space}")
        return from_space(space, map_tree(np.asarray, actions))
    column: np.ndarray = actions
    return column


def recorded_columns(to_tensor: ToTensor, connectors: ModuleConnectors, trajectories: Trajectories) -> TensorColumns:
    """Return what the episodes recorded, `{name: [T * B, ...]}`, observations after the observation pipeline, all after
    the learner connectors.
    """
    truncateds = trajectories.cuts if trajectories.truncateds is None else trajectories.truncateds
    found: dict[str, Any] = {
        Columns.OBS: connectors.obs(trajectories.flat_obs()),
        Columns.ACTIONS: trajectories.flat_actions(),
        Columns.REWARDS: np.ascontiguousarray(connectors.learning_rewards(trajectories)).reshape(-1),
        Columns.NEXT_OBS: connectors.obs(trajectories.next_obs()),
        Columns.TERMINATEDS: trajectories.terminateds.reshape(-1),
        Columns.TRUNCATEDS: truncateds.reshape(-1),
    }
    extras = {Columns.ACTION_LOGP: trajectories.action_logp, **(trajectories.recorded or {})}
    for name, column in extras.items():
        if column is not None and name not in found and has_numbers(column):
            found[name] = map_tree(lambda leaf: np.ascontiguousarray(leaf).reshape(-1, *leaf.shape[2:]), column)
    return connectors.train_columns({name: map_tree(to_tensor, column) for name, column in found.items()})


def _without_masked_rows(columns: TensorColumns) -> TensorColumns:
    """Put a real row in the place of each that is masked out.

    A loss multiplies a masked row by 0 at its end, but NaN times 0 is NaN, and an action out of range has no
    probability. A real row is something that any network can be given.
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
    """Count steps of an older policy whose `action_logp` nobody recorded: a loss takes them for the present one's."""
    is_old, logp = versions < weights_seq_no, trajectories.action_logp
    if not is_old.any() or Columns.ACTION_DIST_INPUTS in (trajectories.recorded or {}):
        return 0
    if logp is not None:
        rows = trajectories.rows()
        unknown = np.isnan(logp.reshape(-1) if rows is None else logp.reshape(-1)[rows])
        is_old = is_old & unknown if len(unknown) == len(is_old) else unknown
    return int(is_old.sum())


def warn_of_unknown_policy(module_id: str, num_steps: int, versions: np.ndarray, weights_seq_no: int) -> None:
    """Warn that a loss takes `num_steps` steps of an older policy for those of the present one."""
    warnings.warn(
        f"module {module_id!r}: {num_steps} of {len(versions)} steps were taken with weights that are up to "
        f"{weights_seq_no - int(versions.min())} updates older than those that learn, and their episodes did not "
        "record action_logp. It is computed with the present weights, so neither clipping nor target_kl sees the "
        "difference. Learn from a rollout once, before the next update, or record 'action_logp' "
        "(extra_model_outputs of episodes, RolloutStore.action_logp)",
        stacklevel=2,
    )


def look_for_forbidden_actions(
    columns: TensorColumns, module: RLModule, module_id: str, is_first_count: Callable[[str, int], bool]
) -> None:
    """Count rows with an action that the mask of their own observation forbids, and warn of the first ones."""
    obs, kept, space = columns.get(Columns.OBS), columns.get(Columns.LOSS_MASK), module.action_space
    if not isinstance(obs, Mapping) or ACTION_MASK not in obs or Columns.ACTIONS not in columns:
        return
    mask = flat_mask(space, map_tree(lambda part: part.cpu().numpy(), obs[ACTION_MASK]))
    if mask.shape[-1] != mask_size(space):
        return  # it means something else to a network of the user's own
    found = forbidden_rows(space, columns[Columns.ACTIONS].cpu().numpy(), mask.reshape(-1, mask.shape[-1]))
    if kept is not None:
        found = found[kept.cpu().numpy().reshape(-1)]
    if is_first_count(f"{module_id}/forbidden_actions", int(found.sum())):
        warnings.warn(
            f"module {module_id!r}: {found.sum():,} of {len(found):,} actions to learn from are forbidden by their "
            f"action masks. Does {type(module).__name__} apply the mask? A module of your own does so itself: "
            "logits.masked_fill(batch['obs']['action_mask'] == 0, -1e9). Otherwise a mask that forbids everything, or "
            "recorded actions, may be the cause",
            stacklevel=4,
        )


@dataclass(frozen=True)
class _KnownInputs:
    """The required columns of a module that are in the table, with the shape of one row (None: any is allowed)."""

    required: tuple[str, ...]
    observation_space: Space
    action_space: Space
    inputs: list[tuple[LossInput, Shape | None]]


_KNOWN_INPUTS: WeakKeyDictionary[RLModule, _KnownInputs] = WeakKeyDictionary()
"""By module. It depends on the module's spaces and on the required columns, and is made again for others of these."""


def _known_inputs(required: Collection[str], module: RLModule) -> list[tuple[LossInput, Shape | None]]:
    """Return those of the `required` columns that are in the table, with the shape of one row."""
    names, obs_space, action_space = tuple(required), module.observation_space, module.action_space
    known = _KNOWN_INPUTS.get(module)
    if (
        known is None
        or known.required != names
        or known.observation_space is not obs_space
        or known.action_space is not action_space
    ):
        found = [LOSS_INPUTS[name] for name in names if name in LOSS_INPUTS]
        shapes = [None if each.row_shape is None else each.row_shape(obs_space, action_space) for each in found]
        known = _KNOWN_INPUTS[module] = _KnownInputs(names, obs_space, action_space, list(zip(found, shapes)))
    return known.inputs


def check_columns(
    columns: TensorColumns, required: Collection[str], module: RLModule, module_id: str, learner: str
) -> None:
    """Check the `required` columns by the table. `learner`: the name of its class, for messages.

    Raises `KeyError` for missing columns and `ValueError` for wrong shapes, naming module, column, shape, expected
    shape, and the method to override.
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
        return  # how long its sequences are is said by the mask alone
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
    """Raise `ValueError` with those of `names` that are not among what a module's `forward_train` returned.

    `module`, `learner`: names of their classes.
    """
    missing = [name for name in names if name not in outputs]
    if missing:
        raise ValueError(
            f"{learner} needs what {module}.forward_train does not return: {', '.join(missing)} (it returns "
            f"{', '.join(map(str, outputs))}); return them too. {WHERE}"
        )


def check_values(values: Tensor, module: str) -> None:
    """Raise `ValueError` where the values of a network are not `[N]`. `module`: the name of its class."""
    if values.ndim != 1:
        raise ValueError(
            f"{module} gives values (vf_preds, compute_values) of the shape {list(values.shape)}; it must be [N], one "
            "number for each row: [N, 1] becomes it by .squeeze(-1)"
        )


def check_read(
    name: object,
    fwd_out: Mapping[str, Any],
    batch: Mapping[str, TensorColumns],
    modules: Mapping[str, str],
    learner: str,
) -> None:
    """Say which module did not return `name`, after a loss looked for it in vain. `modules`: names of their classes.

    Raises `ValueError` as `check_outputs`, `KeyError` with the names that there are where no network returns such.
    """
    for module_id, outputs in fwd_out.items():
        if isinstance(outputs, Tensor) or not isinstance(name, str):
            continue
        if name in LOSS_INPUTS and LOSS_INPUTS[name].from_network and name not in batch[module_id]:
            check_outputs(outputs, [name], modules[module_id], learner)
        if name not in outputs or name not in batch[module_id]:
            near = get_close_matches(name, [*outputs, *batch[module_id]], n=1)
            raise KeyError(
                f"the loss of {learner} looks for {name!r} in vain (module {module_id!r}): the outputs fwd_out are "
                f"{', '.join(map(str, outputs))}; the columns of the batch are {', '.join(map(str, batch[module_id]))}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )


def check_parts(module: object, names: Collection[str], module_id: str, learner: str) -> None:
    """Raise `ValueError` with all of `names` that a module does not have."""
    missing = [name for name in names if getattr(module, name, None) is None]
    if missing:
        raise ValueError(
            f"{learner} needs what {type(module).__name__} (module {module_id!r}) does not have: "
            f"{', '.join(missing)}; define them, or take a subclass of the algorithm's default module. {WHERE}"
        )


def check_trained_modules(policies_to_train: TrainedModules, module_ids: Collection[str]) -> None:
    """Raise `ValueError` for ids that are no module's, `TypeError` for what cannot say who learns."""
    check_policies_to_train(policies_to_train)
    if policies_to_train is None or callable(policies_to_train):
        return
    unknown = sorted(set(policies_to_train) - set(module_ids))
    if unknown:
        raise ValueError(
            f"policies_to_train={list(policies_to_train)} names {unknown}; the modules are {sorted(module_ids)}"
        )


class OutputsWithValues(dict[str, Any]):
    """Outputs of `forward_train` without `vf_preds`: a loss that reads them gets those of `compute_values`."""

    def __init__(self, outputs: dict[str, Any], compute_values: Callable[[], Tensor]) -> None:
        super().__init__(outputs)
        self._compute_values = compute_values

    def __missing__(self, name: str) -> Tensor:
        if name != Columns.VF_PREDS:
            raise KeyError(name)
        self[name] = values = self._compute_values()
        return values


def errors_of_rows(row_errors: Mapping[str, Tensor], module_id: str, learner: str) -> Tensor:
    """Return errors `[N]` of a module's rows in the last gradient step; `ValueError` where the loss leaves none."""
    if module_id not in row_errors:
        raise ValueError(f"{learner} leaves no errors for the priorities; set self.row_errors[module_id] in its loss")
    return row_errors[module_id]
