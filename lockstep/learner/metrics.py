"""Results of an update: metrics by module over all learners, and the explained variance of values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.minibatches import RowIndices, TensorColumns
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.tracking.metrics import Metrics

Results = dict[str, dict[str, Any]]
"""Results of an update: numbers by module id and name. Those of all modules together are under `ALL_MODULES`."""
Series = dict[tuple[str, str], list[float]]
"""Values of a metric in each gradient step, by module id and name. A metric of the whole update has one value."""


def report_metrics(
    metrics: Metrics, reducer: Reducer, module_ids: Collection[str], lags: Mapping[str, tuple[float, int]]
) -> tuple[Results, Series]:
    """Return the metrics over all learners, and their series; both are the same on each learner.

    Metrics whose keys do not begin with a module id are under `ALL_MODULES`. This takes one transfer to the host, and
    one exchange between the learners.

    Args:
        metrics: Metrics of this learner, which are cleared.
        reducer: Connection to the other learners.
        module_ids: Ids of all modules.
        lags: By module id: mean age of the weights that acted, in updates, and the number of rows it is the mean over.
    """
    for module_id, (num_updates, num_rows) in lags.items():
        metrics.log_value((module_id, "diff_num_grad_updates_vs_sampler_policy"), num_updates, weight=num_rows)
    is_alone = reducer.world_size == 1
    # Alone, `report` reads the learner's own entries. Several learners have each logged a mean over their own rows for
    # every step, and `by_step` first joins these to one mean for each step.
    numbers = metrics.report(None if is_alone else reducer.gather(metrics.take()), by_step=not is_alone)

    results: Results = {ALL_MODULES: {}}
    series: Series = {}
    for key, number in numbers.items():
        module_id, *path = key
        if not path or (module_id not in module_ids and module_id != ALL_MODULES):
            module_id = ALL_MODULES
            path = [*key]
        name = path[0] if len(path) == 1 else "/".join(path)
        results.setdefault(module_id, {})[name] = number
        series[module_id, name] = metrics.series[key]
    return results, series


class FirstValues:
    """Values of the rows in the first pass over a batch, for the metric `vf_explained_var`.

    The metric compares the outputs of the value function with the value targets of the batch. In the first pass each
    row's value is computed before the network is trained on that row.
    """

    def __init__(self, columns: Mapping[str, TensorColumns]) -> None:
        self._columns = {module_id: part for module_id, part in columns.items() if Columns.VALUE_TARGETS in part}
        self._values: dict[str, list[tuple[Tensor, np.ndarray | None]]] = {}
        """By module id: values of some rows, and the indices of these rows (None for all rows)."""

    def add(self, values: Mapping[str, Tensor], rows: RowIndices, stand_ins: Collection[str]) -> None:
        """Add the `values` `[N]` that a gradient step computed for its `rows`, both by module id."""
        for module_id, value in values.items():
            if module_id in self._columns:
                # The entry is made for stand-ins, too: all learners have to reduce the same modules.
                entries = self._values.setdefault(module_id, [])
                if module_id not in stand_ins:
                    entries.append((value, rows[module_id]))

    def explained_variances(self, reducer: Reducer) -> Iterator[tuple[str, float]]:
        """Yield for each module id the share of the targets' variance that the values explain, over all learners."""
        for module_id, entries in self._values.items():
            columns = self._columns[module_id]
            all_targets = columns[Columns.VALUE_TARGETS]
            mask = columns.get(Columns.LOSS_MASK)

            # A learner that had only stand-ins takes part without rows.
            values = all_targets.new_empty(0)
            targets = all_targets[:0]
            if entries:
                indices = [np.arange(len(all_targets)) if index is None else index for _, index in entries]
                rows = torch.from_numpy(np.concatenate(indices)).to(all_targets.device)
                values = torch.cat([value for value, _ in entries])
                targets = all_targets[rows]
                if values.shape != targets.shape:
                    continue  # a user's own loss may use `vf_preds` and `value_targets` for something else
                if mask is not None:
                    values = values[mask[rows]]
                    targets = targets[mask[rows]]

            predictions = values.cpu().numpy().reshape(-1)
            wanted = targets.cpu().numpy().reshape(-1)
            yield module_id, reducer.explained_variance(predictions, wanted, counts=len(predictions) > 0)
