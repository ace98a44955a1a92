"""Metrics of an update: kept on the device, brought to the host once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lockstep.learner.optimizers import ALL_MODULES

Results = dict[str, dict[str, Any]]


class UpdateMetrics:
    """Collects 0-d tensors over the minibatches of one update call; `reduce` makes plain numbers of them."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[Tensor]] = {}
        self._rows: dict[tuple[str, str], list[int]] = {}
        self._fixed: Results = {}
        self._pass_size = 1
        self._vectors: list[tuple[list[tuple[str, str, int]], Tensor]] = []
        self._weights: dict[tuple[str, str], list[int]] = {}
        self.series: dict[tuple[str, str], list[float]] = {}
        """after `reduce`: the value of each metric at each gradient step"""

    def log(self, module_id: str, name: str, value: Tensor, rows: int) -> None:
        """One value of one minibatch with `rows` rows."""
        key = (module_id, name)
        if key not in self._values:
            self._values[key], self._rows[key] = [], []
        self._values[key].append(value)
        self._rows[key].append(rows)

    def log_many(self, names: list[tuple[str, str, int]], values: Tensor) -> None:
        """One minibatch's values as one tensor `[K]`, for `names` (module, metric, rows)."""
        self._vectors.append((names, values))

    def set(self, module_id: str, **values: Any) -> None:
        """Numbers that hold for the whole update."""
        self._fixed.setdefault(module_id, {}).update(values)

    def defaults(self, module_id: str, **values: Any) -> None:
        """As `set`, for those that nobody has set."""
        self._fixed[module_id] = {**values, **self._fixed.get(module_id, {})}

    def items(self) -> Iterator[tuple[tuple[str, str], list[tuple[Tensor, int]]]]:
        """`((module_id, name), [(value, rows)])` of what was logged."""
        for key, values in self._values.items():
            yield key, list(zip(values, self._rows[key]))

    def end_pass(self, count: int) -> None:
        """Marks the last `count` gradient steps as one pass over the batch."""
        self._pass_size = count

    def pass_mean(self, module_id: str, name: str) -> float:
        """Mean of a metric over the last pass, on the host; NaN where the module had no row in it."""
        values = []
        for names, vector in self._vectors[-self._pass_size :]:
            keys = [(m, n) for m, n, _ in names]
            if (module_id, name) in keys:
                values.append(vector[keys.index((module_id, name))])
        values += self._values.get((module_id, name), [])[-self._pass_size :]
        return float(torch.stack(values[-self._pass_size :]).mean()) if values else float("nan")

    def reduce(self) -> Results:
        """`{module_id: {name: number}}`: means over minibatches weighted by rows. One transfer to the host."""
        for (names, _), numbers in zip(self._vectors, _to_host([values for _, values in self._vectors])):
            for (module_id, name, rows), number in zip(names, numbers):
                self._add(module_id, name, number, rows)
        singles = [value for values in self._values.values() for value in values]
        remaining = iter(_to_host([torch.stack(singles)])[0] if singles else [])
        for (module_id, name), rows_of_values in self._rows.items():
            for rows in rows_of_values:
                self._add(module_id, name, next(remaining), rows)
        results: Results = {ALL_MODULES: {}}
        for (module_id, name), series in self.series.items():
            weights = self._weights[module_id, name]
            total = sum(weights)
            mean = sum(v * w for v, w in zip(series, weights)) / total if total else float("nan")
            results.setdefault(module_id, {})[name] = mean
        for module_id, values in self._fixed.items():
            results.setdefault(module_id, {}).update(values)
        return results

    def _add(self, module_id: str, name: str, number: float, rows: int) -> None:
        key = (module_id, name)
        if key not in self.series:
            self.series[key], self._weights[key] = [], []
        self.series[key].append(number)
        self._weights[key].append(rows)


def _to_host(vectors: list[Tensor]) -> list[list[float]]:
    """Vectors of one length as lists, in one transfer; of several lengths, one by one."""
    if len({len(vector) for vector in vectors}) == 1:
        return torch.stack(vectors).tolist()
    return [vector.tolist() for vector in vectors]
