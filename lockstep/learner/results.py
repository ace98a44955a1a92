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
        self.series: dict[tuple[str, str], list[float]] = {}
        """after `reduce`: the value of each metric at each gradient step"""

    def log(self, module_id: str, name: str, value: Tensor, rows: int) -> None:
        """One value of one minibatch with `rows` rows."""
        key = (module_id, name)
        if key not in self._values:
            self._values[key], self._rows[key] = [], []
        self._values[key].append(value)
        self._rows[key].append(rows)

    def set(self, module_id: str, **values: Any) -> None:
        """Numbers that hold for the whole update."""
        self._fixed.setdefault(module_id, {}).update(values)

    def items(self) -> Iterator[tuple[tuple[str, str], list[tuple[Tensor, int]]]]:
        """`((module_id, name), [(value, rows)])` of what was logged."""
        for key, values in self._values.items():
            yield key, list(zip(values, self._rows[key]))

    def end_pass(self, count: int) -> None:
        """Marks the last `count` gradient steps as one pass over the batch."""
        self._pass_size = count

    def pass_mean(self, module_id: str, name: str) -> float:
        """Mean of a metric over the last pass, on the host."""
        return float(torch.stack(self._values[module_id, name][-self._pass_size :]).mean())

    def reduce(self) -> Results:
        """`{module_id: {name: number}}`: means over minibatches weighted by rows."""
        results: Results = {ALL_MODULES: {}}
        if self._values:
            flat = torch.stack([v.detach().reshape(()).to(torch.float64) for vs in self._values.values() for v in vs])
            numbers = flat.tolist()
            position = 0
            for (module_id, name), rows in self._rows.items():
                part = numbers[position : position + len(rows)]
                position += len(rows)
                self.series[module_id, name] = part
                total = sum(rows)
                mean = sum(v * r for v, r in zip(part, rows)) / total if total else float("nan")
                results.setdefault(module_id, {})[name] = mean
        for module_id, values in self._fixed.items():
            results.setdefault(module_id, {}).update(values)
        return results
