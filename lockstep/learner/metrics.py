"""What an update reports: metrics are kept on the device and brought to the host once."""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.columns import Columns
from lockstep.learner.minibatches import Indices, TensorColumns
from lockstep.learner.optimizers import ALL_MODULES
from lockstep.learner.reduction import Reducer

Results = dict[str, dict[str, Any]]
Key = tuple[str, str]
"""module id and name of a metric"""
Logged = dict[Key, list[tuple[float, float, int]]]
"""values, with the rows and the gradient step of each"""


class UpdateMetrics:
    """Collects 0-d tensors over the minibatches of one update call; `reduce` makes plain numbers of them."""

    def __init__(self) -> None:
        self._logged: list[tuple[str, Mapping[str, Tensor], int, int]] = []
        """(module id, values by name, rows, step) of each call of `log`; sorted by metric when the update is over"""
        self._vectors: list[tuple[list[tuple[str, str, int]], Tensor, int]] = []
        """(names, values, step) of gradient steps whose metrics come in one tensor"""
        self._fixed: Results = {}
        self._shares: dict[Key, tuple[float, int]] = {}
        self._step = 0
        self._pass_start = self._pass_end = 0
        """of the last pass, in gradient steps"""
        self.series: dict[Key, list[float]] = {}
        """after `reduce`: the value of each metric at each gradient step"""

    def log(self, module_id: str, values: Mapping[str, Tensor], rows: int) -> None:
        """Note values of the present gradient step, with `rows` rows behind them (0: they do not count)."""
        self._logged.append((module_id, values, rows, self._step))

    def log_many(self, names: list[tuple[str, str, int]], values: Tensor) -> None:
        """Note the present gradient step's values as one tensor `[K]`, for `names` (module, metric, rows)."""
        self._vectors.append((names, values, self._step))

    def set(self, module_id: str, **values: Any) -> None:
        """Note numbers that hold for the whole update, the same on all learners."""
        self._fixed.setdefault(module_id, {}).update(values)

    def set_share(self, module_id: str, rows: int, **values: float) -> None:
        """Note numbers that hold for this learner's `rows` rows in the whole update; joined over learners, by rows."""
        self._shares.update({(module_id, name): (value, rows) for name, value in values.items()})

    def items(self) -> ItemsView[Key, list[tuple[Tensor, int, int]]]:
        """Return `((module_id, name), [(value, rows, step)])` of what was logged."""
        found: dict[Key, list[tuple[Tensor, int, int]]] = {}
        for module_id, values, rows, step in self._logged:
            for name, value in values.items():
                found.setdefault((module_id, name), []).append((value, rows, step))
        return found.items()

    def end_step(self, ends_pass: bool) -> None:
        """Mark the end of a gradient step, and of a pass over the batch."""
        self._step += 1
        if ends_pass:
            self._pass_start, self._pass_end = self._pass_end, self._step

    def pass_mean(self, module_id: str, name: str) -> float:
        """Return the mean of a metric over the last pass, on the host; NaN where the module had no row in it.

        The same number on all learners, if what was logged is (as a `masked_mean` is).
        """
        values = []
        for names, vector, step in self._vectors:
            if step >= self._pass_start:
                keys = [(m, n) for m, n, _ in names]
                if (module_id, name) in keys:
                    values.append(vector[keys.index((module_id, name))])
        for logged_id, logged, _, step in self._logged:
            if step >= self._pass_start and logged_id == module_id and name in logged:
                values.append(logged[name])
        return float(torch.stack(values).mean()) if values else float("nan")

    def reduce(self, reducer: Reducer) -> Results:
        """Return `{module_id: {name: number}}`: means over minibatches, weighted by rows, over all learners.

        The same for each learner; one transfer to the host, and one exchange between the learners.
        """
        logged = self._on_host()
        shares: Logged = {key: [(value, rows, 0)] for key, (value, rows) in self._shares.items()}
        if reducer.world_size > 1:
            parts = reducer.gather([_packed(logged), _packed(shares)])
            logged, shares = (_joined([part[kind] for part in parts]) for kind in (0, 1))
        self.series = {key: [value for value, _, _ in entries] for key, entries in logged.items()}
        results: Results = {ALL_MODULES: {}}
        for (module_id, name), entries in logged.items():
            results.setdefault(module_id, {})[name] = _weighted_mean(entries)
        for module_id, fixed in self._fixed.items():
            results.setdefault(module_id, {}).update(fixed)
        for (module_id, name), ((value, *_),) in shares.items():
            results.setdefault(module_id, {})[name] = value
        return results

    def _on_host(self) -> Logged:
        logged: Logged = {}
        vectors = [vector for _, vector, _ in self._vectors]
        numbers = iter(torch.cat(vectors).tolist() if vectors else [])
        for names, _, step in self._vectors:
            for module_id, name, rows in names:
                logged.setdefault((module_id, name), []).append((next(numbers), rows, step))
        singles = dict(self.items())
        tensors = [value for entries in singles.values() for value, _, _ in entries]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])
        for key, entries in singles.items():
            logged.setdefault(key, []).extend((next(numbers), rows, step) for _, rows, step in entries)
        return logged


def _weighted_mean(entries: list[tuple[float, float, int]]) -> float:
    """Return the mean by rows; NaN where there are none."""
    if len(entries) == 1:  # as it is, without rounding
        return entries[0][0] if entries[0][1] else float("nan")
    counted = [(value, rows) for value, rows, _ in entries if rows]
    return sum(value * rows for value, rows in counted) / sum(rows for _, rows in counted) if counted else float("nan")


def _packed(logged: Logged) -> Any:
    """Return what was logged as plain lists and arrays, for the other learners."""
    entries = [(index, *entry) for index, several in enumerate(logged.values()) for entry in several]
    return {"keys": [list(key) for key in logged], "entries": np.array(entries, np.float64).reshape(-1, 4)}


def _joined(parts: list[Any]) -> Logged:
    """Return one value for each metric and gradient step: the mean over the learners, weighted by their rows."""
    sums: dict[Key, dict[int, list[float]]] = {}
    for part in parts:
        keys = [(module_id, name) for module_id, name in part["keys"]]
        for index, value, rows, step in part["entries"].tolist():
            by_step = sums.setdefault(keys[int(index)], {})
            total = by_step.setdefault(int(step), [0.0, 0.0])
            if rows:
                total[0] += value * rows
                total[1] += rows
    return {
        key: [(total / rows, rows, step) for step, (total, rows) in sorted(by_step.items()) if rows]
        for key, by_step in sums.items()
    }


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
