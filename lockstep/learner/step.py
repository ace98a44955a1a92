"""`StepContext`: the present gradient step of a learner, and the results that it leaves for others."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class StepContext:
    """Gradient step of a learner, or the part of one module in it: whose rows it takes, and what it leaves.

    How many rows that are is the weight of the learner's metrics alone, see `Learner.rows_in_step`.

    Outside of gradient steps it describes the whole update, whose hooks may log and reduce, too. It is plain Python
    and creates no tensor, so that neither a CUDA graph nor compiled code depends on which object it is.
    """

    stand_ins: frozenset[str] = frozenset()
    """Ids of the modules whose one row stands in for another learner's and weighs nothing, see `sharding`."""
    modules: tuple[str, ...] | None = None
    """Ids of the modules in the step; None until its losses are computed."""
    errors: dict[str, Tensor] = field(default_factory=dict)
    """By module id: the error `[N]` of each own row, where the loss leaves them for priorities."""
    values: dict[str, Tensor] = field(default_factory=dict)
    """By module id: the value `[N]` of each own row, where the batch has value targets."""

    def within(self, stand_ins: frozenset[str] | None) -> StepContext:
        """Return the context of a step inside this one; `stand_ins` None: those of this one."""
        return StepContext(self.stand_ins if stand_ins is None else stand_ins, self.modules, self.errors, self.values)

    def keep_results_of(self, inner: StepContext) -> None:
        """Keep what a step inside this one has left, so that it can be read until the next one.

        Its stand-ins belong to it: they say whose errors and values are not those of own rows.
        """
        self.stand_ins = inner.stand_ins
        self.errors = inner.errors
        self.values = inner.values
