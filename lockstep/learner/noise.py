"""Random numbers that a loss reads, as columns of the batch: each row has its own, whoever learns from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.data.trajectories import num_rows_of
from lockstep.learner.plan import UpdatePlan

if TYPE_CHECKING:
    from lockstep.learner.learner import Learner


def with_noise(learner: Learner, columns: dict[str, Any], plan: UpdatePlan) -> dict[str, Any]:
    """`columns` by module with those that `learner.noise_columns` asks for, `[N, width]` standard normal.

    Every learner draws the numbers of all global rows and keeps those of its own, so that n learners equal one.
    """
    wanted = {mid: widths for mid in columns if (widths := learner.noise_columns(mid))}
    if not wanted:
        return columns
    filled = dict(columns)
    for module_id, widths in wanted.items():
        # All numbers of a row side by side: the same whether rows come in one call or in several.
        size = plan.num_rows[module_id], sum(widths.values())
        numbers = learner.streams.numpy(f"noise/{module_id}").standard_normal(size, np.float32)
        lookup = plan.own.get(module_id)
        if lookup is not None:
            everyone = numbers
            numbers = np.zeros((num_rows_of(next(iter(columns[module_id].values()))), size[1]), np.float32)
            numbers[lookup[lookup >= 0]] = everyone[lookup >= 0]
        drawn, end = dict(columns[module_id]), 0
        for name, width in widths.items():
            begin, end = end, end + width
            drawn[name] = learner.to_tensor(np.ascontiguousarray(numbers[:, begin:end]))
        filled[module_id] = drawn
    return filled
