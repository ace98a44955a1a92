"""From a batch that somebody hands in to the tensors that a learner trains on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.data.columns import Columns
from lockstep.data.multi_agent_batch import MultiAgentBatch
from lockstep.data.sample_batch import SampleBatch
from lockstep.data.trees import map_tree

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns


def tensors_of_batch(learner: Learner, batch: SampleBatch | MultiAgentBatch) -> dict[str, TensorColumns]:
    """Columns by module id, as tensors on the learner's device; only of modules that have rows and are to learn.

    Raises `TypeError` for something that is no batch, `ValueError` for a `SampleBatch` where there are several
    modules, `KeyError` for unknown modules and missing columns.
    """
    columns: dict[str, TensorColumns] = {}
    parts = _by_module(learner, batch)
    unknown = sorted(module_id for module_id, part in parts.items() if len(part) and module_id not in learner.module)
    if unknown:
        raise KeyError(f"the batch has rows for {unknown}; this learner's modules are {sorted(learner.module)}")
    for module_id, part in parts.items():
        if len(part) and learner.should_module_be_updated(module_id):
            tensors: dict[str, Any] = {
                name: map_tree(learner.to_tensor, value) for name, value in part.items() if name != Columns.INFOS
            }
            _check_columns(learner, module_id, tensors)
            columns[module_id] = tensors
    return columns


def _by_module(learner: Learner, batch: SampleBatch | MultiAgentBatch) -> Mapping[str, SampleBatch]:
    if isinstance(batch, MultiAgentBatch):
        return batch.policy_batches
    if not isinstance(batch, SampleBatch):
        raise TypeError(f"batch must be a SampleBatch or a MultiAgentBatch, not {type(batch).__name__}")
    if len(learner.module) != 1:
        raise ValueError(
            f"a SampleBatch fits one module only, this learner has {sorted(learner.module)}; give a MultiAgentBatch"
        )
    return {next(iter(learner.module)): batch}


def _check_columns(learner: Learner, module_id: str, columns: TensorColumns) -> None:
    missing = [name for name in learner.required_columns(module_id) if name not in columns]
    if missing:
        raise KeyError(
            f"the batch of module {module_id!r} lacks {missing} (it has {sorted(columns)}); add them, or override "
            f"{type(learner).__name__}.compute_loss_for_module"
        )
