"""From what somebody hands in, batches or episodes, to what a learner trains on, module by module."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lockstep.data.columns import Columns, is_state_column
from lockstep.data.sample_batch import MultiAgentBatch, SampleBatch
from lockstep.data.trajectories import Trajectories
from lockstep.data.trees import is_numeric, leaves, map_tree
from lockstep.learner.argument_checks import check_batch
from lockstep.learner.batch_checks import check_actions, check_columns
from lockstep.learner.minibatches import take_rows
from lockstep.learner.recurrent import columns_of_sequences
from lockstep.learner.shards import EpisodeParts, parts_of_episodes

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns


def tensors_of_batch(learner: Learner, batch: SampleBatch | MultiAgentBatch) -> dict[str, TensorColumns]:
    """Columns by module id, as tensors on the learner's device; only of modules that have rows and are to learn.

    Raises `TypeError` for something that is no batch, `ValueError` for a `SampleBatch` where there are several
    modules and for columns of wrong shapes, `KeyError` for unknown modules and missing columns.
    """
    columns: dict[str, TensorColumns] = {}
    parts = {module_id: part for module_id, part in _by_module(learner, batch).items() if len(part)}
    for module_id in _to_train(learner, parts, batch):
        tensors = _columns_of(learner, module_id, parts[module_id])
        check_columns(learner, module_id, tensors)
        if Columns.WEIGHTS_SEQ_NO in tensors:
            numbers, mask = tensors[Columns.WEIGHTS_SEQ_NO], tensors.get(Columns.LOSS_MASK)
            _note_sampler(learner, module_id, numbers if mask is None else numbers[mask])
        columns[module_id] = tensors
    return columns


def trajectories_by_module(learner: Learner, episodes: Sequence[Any]) -> tuple[dict[str, Trajectories], int]:
    """Trajectories of the modules that have steps and are to learn, in the learner's order, and the environment steps.

    `episodes` and errors: see `parts_of_episodes`; and `KeyError` for unknown modules.
    """
    given: Any = episodes  # of a group: the learner's share as arrays
    parts = (
        given
        if isinstance(given, EpisodeParts)
        else parts_of_episodes(given, learner.module, lambda ids: _to_train(learner, ids))
    )
    ids = _to_train(learner, parts.trajectories)
    for module_id in ids:
        check_actions(learner, module_id, torch.as_tensor(parts.trajectories[module_id].flat_actions()))
    for module_id, versions in parts.versions.items():
        if module_id in learner.module and learner.should_module_be_updated(module_id):
            _note_sampler(learner, module_id, versions)
            _tell_unknown_policy(learner, module_id, versions, parts.trajectories[module_id])
    return {mid: parts.trajectories[mid] for mid in ids}, parts.env_steps


def _note_sampler(learner: Learner, module_id: str, versions: np.ndarray | torch.Tensor) -> None:
    """How many updates ago the weights that acted were the learner's; `versions` of these weights, for each row."""
    ago = learner.weights_seq_no - float(versions.sum()) / len(versions)
    learner.metrics.set_share(module_id, len(versions), diff_num_grad_updates_vs_sampler_policy=ago)


def _tell_unknown_policy(learner: Learner, module_id: str, versions: np.ndarray, trajectories: Trajectories) -> None:
    """Warn, once in a learner's life, that a loss takes steps of an older policy for those of the present one."""
    is_old, logp = versions < learner.weights_seq_no, trajectories.action_logp
    known = not is_old.any() or Columns.ACTION_DIST_INPUTS in (trajectories.recorded or {})
    if known or Columns.ACTION_LOGP not in learner.required_columns(module_id):
        return
    if logp is not None:
        rows = trajectories.rows()
        unknown = np.isnan(logp.reshape(-1) if rows is None else logp.reshape(-1)[rows])
        is_old = is_old & unknown if len(unknown) == len(is_old) else unknown
    old = int(is_old.sum())
    if old and learner.count(f"{module_id}/steps_of_unknown_policy", old) == old and learner.reducer.rank == 0:
        ago = learner.weights_seq_no - int(versions.min())
        warnings.warn(
            f"module {module_id!r}: {old} of {len(versions)} steps were taken with weights that are up to {ago} "
            "updates older than those that learn, and their episodes did not record action_logp. It is computed with "
            "the present weights, so neither clipping nor target_kl sees the difference. Learn from a rollout once, "
            "before the next update, or record 'action_logp' (extra_model_outputs of episodes, "
            "RolloutStore.action_logp)",
            stacklevel=2,
        )


def _to_train(learner: Learner, parts: Collection[str], batch: Any = None) -> list[str]:
    """Ids of the modules that have a part and are to learn, in the learner's order; `KeyError` for unknown ones."""
    modules = learner.module.keys()
    unknown = sorted(mid for mid in parts if mid not in modules)
    if unknown:
        raise KeyError(f"there are rows for {unknown}; this learner's modules are {sorted(modules)}")
    return [mid for mid in modules if mid in parts and learner.should_module_be_updated(mid, batch)]


def _columns_of(learner: Learner, module_id: str, batch: SampleBatch) -> TensorColumns:
    module = learner.module[module_id]
    if module.is_stateful():
        return columns_of_sequences(learner, module, batch, module_id)
    if Columns.SEQ_LENS in batch:  # of no use to a network without memory
        flat = batch.copy(shallow=True).unpad()
        batch = SampleBatch({k: v for k, v in flat.items() if k != Columns.SEQ_LENS and not is_state_column(k)})
    given = {
        name: value for name, value in batch.items() if name != Columns.INFOS and all(map(is_numeric, leaves(value)))
    }
    columns: TensorColumns = map_tree(learner.to_tensor, given)
    if Columns.LOSS_MASK in columns:
        columns[Columns.LOSS_MASK] = columns[Columns.LOSS_MASK].to(torch.bool)
        columns = _without_masked_rows(columns)
    return columns


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


def _by_module(learner: Learner, batch: SampleBatch | MultiAgentBatch) -> Mapping[str, SampleBatch]:
    if isinstance(batch, MultiAgentBatch):
        return batch.policy_batches
    check_batch(batch)
    if len(learner.module) != 1:
        raise ValueError(
            f"a SampleBatch fits one module only, this learner has {sorted(learner.module)}; give a MultiAgentBatch"
        )
    return {next(iter(learner.module)): batch}
