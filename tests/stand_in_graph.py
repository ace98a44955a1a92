"""`StandInGraph`: what CUDA graphs do to the host, on a machine without a device."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from lockstep.learner.device import replay_update, rollout_update
from lockstep.ops.graphs import EAGER_CALLS, CapturedFunction
from lockstep.rollout import tensor_stepper


class StandInGraph(CapturedFunction[Any]):
    """Calls a function as `CapturedFunction` does on a CUDA device: the third call captures it.

    From then on the operations are done, but the host counts nothing of `learner`, as it does not run the function.
    """

    made: ClassVar[list[StandInGraph]] = []
    """all that were made since `use_stand_ins`"""
    learner: ClassVar[Any] = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.made.append(self)

    @property
    def name(self) -> str:
        """Name of the method that is captured."""
        function: Any = self.function
        return function.func.__name__

    @property
    def is_graph(self) -> bool:
        return self.num_calls > EAGER_CALLS

    def __call__(self) -> Any:
        was_graph = self.is_graph
        self.num_calls += 1
        if not was_graph or self.learner is None or not hasattr(self.learner.device_update, "counts"):
            return self.function()
        counts = self.learner.device_update.counts()
        result = self.function()
        for name, number in counts.items():
            if name in self.learner.registered:
                self.learner.registered[name].num_steps = number
            else:
                self.learner.lifetime[name] = number
        return result


def use_stand_ins(monkeypatch: pytest.MonkeyPatch, learner: Any = None) -> list[StandInGraph]:
    """Let collects and updates on a device be captured by stand-ins; return the list that they come into."""
    made: list[StandInGraph] = []
    monkeypatch.setattr(StandInGraph, "made", made)
    monkeypatch.setattr(StandInGraph, "learner", learner)
    for module in (tensor_stepper, rollout_update, replay_update):
        monkeypatch.setattr(module, "CapturedFunction", StandInGraph)
    return made
