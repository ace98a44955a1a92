"""What an update reports: metrics by module over all learners, and what the first pass found."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.learner.many.reduction import Reducer
from lockstep.learner.minibatches import Indices, TensorColumns
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.tracking.metrics import Metrics

Results = dict[str, dict[str, Any]]
Series = dict[tuple[str, str], list[float]]
"""by module id and name: the value of a metric in each gradient step, or the one of a whole update"""


def report_metrics(
    metrics: Metrics, reducer: Reducer, module_ids: Collection[str], lags: Mapping[str, tuple[float, int]]
) -> tuple[Results, Series]:
    """Return `{module_id: {name: number}}` over all learners, and the series behind the numbers; the same for each.

    Metrics whose keys begin with no module stand under `ALL_MODULES`. `lags`: by module, how many updates the weights
    that acted are behind, and the rows that say so. One transfer to the host, and one exchange between the learners.
    """

    for module_id, (ago, rows) in lags.items():
        metrics.log_value((module_id, "diff_num_grad_updates_vs_sampler_policy"), ago, weight=rows)
    is_alone = reducer.world_size == 1
    numbers = metrics.report(None if is_alone else reducer.gather(metrics.take()), by_step=not is_alone)
    results: Results = {ALL_MODULES: {}}
    series: Series = {}
    for key, number in numbers.items():
        module_id, *rest = key
        if not rest or (module_id not in module_ids and module_id != ALL_MODULES):
            module_id, rest = ALL_MODULES, [*key]
        name = rest[0] if len(rest) == 1 else "/".join(rest)
        results.setdefault(module_id, {})[name] = number
        series[module_id, name] = metrics.series[key]
    return results, series


class FirstValues:
    """The values that the first pass over a batch finds, each row's before it is trained on: for `vf_explained_var`."""

    def __init__(self, columns: Mapping[str, TensorColumns]) -> None:
        self._columns = {module_id: part for module_id, part in columns.items() if Columns.VALUE_TARGETS in part}
        self._found: dict[str, list[tuple[Tensor, np.ndarray | None]]] = {}
        """by module: the values of some rows, and which these are (None: all)"""

    def add(self, values: Mapping[str, Tensor], rows: Indices, stand_ins: Collection[str]) -> None:
        """Take the values by module that a gradient step found for its `rows`."""
        for module_id, found in values.items():
            if module_id in self._columns:
                entries = self._found.setdefault(module_id, [])
                if module_id not in stand_ins:
                    entries.append((found, rows[module_id]))

    def explained_variances(self, reducer: Reducer) -> Iterator[tuple[str, float]]:
        """Yield by module the share of the targets' variance that the values explain, over the rows of all learners."""
        for module_id, entries in self._found.items():
            columns = self._columns[module_id]
            targets, mask = columns[Columns.VALUE_TARGETS], columns.get(Columns.LOSS_MASK)
            values, target = targets.new_empty(0), targets[:0]
            if entries:
                indices = [np.arange(len(targets)) if index is None else index for _, index in entries]
                rows = torch.from_numpy(np.concatenate(indices)).to(targets.device)
                values, target = torch.cat([found for found, _ in entries]), targets[rows]
                if values.shape != target.shape:
                    continue  # a loss of the user's may mean anything by these names
                if mask is not None:
                    values, target = values[mask[rows]], target[mask[rows]]
            pred, target = (tensor.cpu().numpy().reshape(-1) for tensor in (values, target))
            yield module_id, reducer.explained_variance(pred, target, counts=len(pred) > 0)
