"""`StepContext`: the present gradient step of a learner, and the results that the step leaves for other code."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class StepContext:
    """Modules that take part in a gradient step, and the results of the step.

    There is one context for the whole step, and a nested one for the part of each module. Outside of gradient steps the
    context describes the whole update, since its hooks log metrics and reduce over learners as steps do. The number of
    rows is not part of it: that is the weight of the learner's metrics, see `Learner.rows_in_step`.

    It is plain Python and creates no tensor. So neither a CUDA graph nor compiled code depends on which object it is.
    """

    stand_ins: frozenset[str] = frozenset()
    """Ids of the modules whose one row was copied from another learner and has no weight, see `many/sharding.py`."""
    modules: tuple[str, ...] | None = None
    """Ids of the modules in the step; None until its losses are computed."""
    errors: dict[str, Tensor] = field(default_factory=dict)
    """By module id: the error `[N]` of each own row of this learner. Only losses for replay buffers set it, where rows
    with larger errors are drawn more often (priorities)."""
    values: dict[str, Tensor] = field(default_factory=dict)
    """By module id: the value `[N]` of each own row, if the batch has value targets."""

    def nested(self, stand_ins: frozenset[str] | None) -> StepContext:
        """Return the context of a step inside this one. `stand_ins=None` takes the stand-ins of this one.

        Both contexts share their results until one of them replaces a dict.
        """
        return StepContext(self.stand_ins if stand_ins is None else stand_ins, self.modules, self.errors, self.values)

    def keep_results_of(self, inner: StepContext) -> None:
        """Take over the results of a step inside this one, so that they can be read until the next step.

        The stand-ins are taken over too: a reader of the errors and values needs to know which of them are not from
        own rows.
        """
        self.stand_ins = inner.stand_ins
        self.errors = inner.errors
        self.values = inner.values
