"""`record`: the operations of a function as a graph.

`make_fx` gives such graphs too, but it first loads torch's compiler, which takes longer than the rest of a start from
compiled code that is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

NOT_HELD = {
    torch.Tag.nondeterministic_seeded: (
        "it draws random numbers, and compiled code would not draw them from their streams"
    ),
    torch.Tag.data_dependent_output: "it reads a tensor's value on the host",
    torch.Tag.dynamic_output_shape: "the shapes of its tensors depend on their values",
}


class NotRecordedError(RuntimeError):
    """A function does what a graph cannot hold; the text says what."""


def record(function: Callable[[], Any], inputs: Sequence[Tensor]) -> tuple[fx.GraphModule, list[Tensor]]:
    """Return what a function computes as a graph of operations (backward passes are in it), and the graph's inputs.

    These are `inputs` and then all tensors that the function reads besides. `NotRecordedError` where it does what a
    graph cannot hold.
    """
    recorder = _Recorder(inputs)
    with recorder:
        outputs = function()
    recorder.graph.output(tree_map_only(Tensor, recorder.node_of, outputs))
    return fx.GraphModule(torch.nn.Module(), recorder.graph), recorder.inputs


class _Recorder(TorchDispatchMode):
    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph, self.inputs = fx.Graph(), list[Tensor]()
        self._nodes: dict[int, fx.Node] = {}
        self._kept: list[Tensor] = []
        """all tensors that have nodes: their ids stay theirs"""
        self._last_input = self.graph._root
        for tensor in inputs:
            self._add_input(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, torch loads it

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Return the node that stands for a tensor; one that no operation gave is one more input."""
        return self._nodes[id(tensor)] if id(tensor) in self._nodes else self._add_input(tensor)

    def _add_input(self, tensor: Tensor) -> fx.Node:
        with self.graph.inserting_after(self._last_input):
            self._last_input = self.graph.placeholder(f"input_{len(self.inputs)}")
        self.inputs.append(tensor)
        return self._name(tensor, self._last_input)

    def _name(self, tensor: Tensor, node: fx.Node) -> fx.Node:
        self._kept.append(tensor)
        self._nodes[id(tensor)] = node
        return node

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Collection[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for tag, reason in NOT_HELD.items():
            if tag in func.tags:
                raise NotRecordedError(f"{reason} ({func})")
        if func is torch.ops.aten.lift_fresh.default:
            return args[0]
        result = func(*args, **kwargs)
        taken, named = tree_map_only(Tensor, self.node_of, (tuple(args), dict(kwargs)))
        node = self.graph.call_function(func, taken, named)
        if isinstance(result, Tensor):
            self._name(result, node)
        elif isinstance(result, tuple | list):
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._name(part, self.graph.call_function(operator.getitem, (node, number)))
        return result
