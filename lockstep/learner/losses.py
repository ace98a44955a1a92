"""The forward pass and the losses of one gradient step, whoever computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.data.trajectories import num_rows_of
from lockstep.learner.module_checks import check_read
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.modules import RLModule

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner, TensorColumns


def rows_of_module(learner: Learner, module_id: str, part: TensorColumns) -> int:
    """By how many rows of a module what it logs is weighted: none where it only keeps in step with other learners."""
    return 0 if module_id in learner.stand_ins else num_rows_of(next(iter(part.values())))


class _WithValues(dict[str, Any]):
    """Outputs of `forward_train` without `vf_preds`: a loss that reads them gets those of `compute_values`."""

    def __init__(
        self, outputs: dict[str, Any], learner: Learner, module_id: str, batch: dict[str, TensorColumns]
    ) -> None:
        super().__init__(outputs)
        self._source = learner, module_id, batch

    def __missing__(self, name: str) -> Tensor:
        learner, module_id, batch = self._source
        module = learner.module[module_id]
        if name != Columns.VF_PREDS or type(module).compute_values is RLModule.compute_values or module.is_stateful():
            raise KeyError(name)
        with learner.mixed_precision():
            values = module.compute_values(batch[module_id])
        self[name] = values = learner.to_tensor(values)
        return values


def losses_of(learner: Learner, batch: dict[str, TensorColumns]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Forward outputs and losses by module. The losses are logged as `total_loss` here, so that no hook that is
    overridden can keep one that is not finite from those who look for it.
    """
    fwd_out = learner.forward_train(batch)
    for module_id, outputs in fwd_out.items():
        if isinstance(outputs, dict) and Columns.VF_PREDS not in outputs:
            fwd_out[module_id] = _WithValues(outputs, learner, module_id, batch)
    try:
        losses = learner.compute_losses(fwd_out=fwd_out, batch=batch)
    except KeyError as error:
        check_read(learner, fwd_out, batch, error.args[0] if error.args else None)
        raise
    learner.modules_in_step = tuple(batch)
    learner.row_values = {
        module_id: outputs[Columns.VF_PREDS].detach()
        for module_id, outputs in fwd_out.items()
        if Columns.VALUE_TARGETS in batch.get(module_id, ())
        and isinstance(outputs, dict)
        and Columns.VF_PREDS in outputs
    }
    rows_in_all = learner.rows_in_step
    for module_id, loss in losses.items():
        if module_id not in batch and module_id != ALL_MODULES and module_id not in learner.module:
            raise ValueError(
                f"compute_losses gave a loss for {module_id!r}; there are the modules {sorted(learner.module)}, and "
                f"{ALL_MODULES!r} for one loss of all"
            )
        if module_id in batch:
            learner.rows_in_step = rows_of_module(learner, module_id, batch[module_id])
        learner.log(module_id, total_loss=loss)
        learner.rows_in_step = rows_in_all
    return fwd_out, losses
