"""`record`: the operations of a function as a graph.

torch's `make_fx` gives such graphs, too. But it first loads torch's compiler, which takes longer than the rest of a
start with code from the cache.
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

REFUSED = {
    torch.Tag.nondeterministic_seeded: (
        "it draws random numbers, and compiled code would not draw them from their streams"
    ),
    torch.Tag.data_dependent_output: "it reads a tensor's value on the host",
    torch.Tag.dynamic_output_shape: "the shapes of its tensors depend on their values",
}
"""Reasons why a graph cannot hold an operation, by the tag of the operation."""


class NotRecordedError(RuntimeError):
    """A function with an operation that a graph cannot hold. The message names the operation."""


def record(function: Callable[[], Any], inputs: Sequence[Tensor]) -> tuple[fx.GraphModule, list[Tensor]]:
    """Return the graph of all operations of a function, backward passes included, and the inputs of the graph.

    The inputs of the graph are `inputs`, followed by all other tensors that the function reads. Raises
    `NotRecordedError` for an operation that a graph cannot hold.
    """
    recorder = _Recorder(inputs)
    with recorder:
        outputs = function()
    recorder.graph.output(tree_map_only(Tensor, recorder.node_of, outputs))
    return fx.GraphModule(torch.nn.Module(), recorder.graph), recorder.inputs


class _Recorder(TorchDispatchMode):
    """Dispatch mode that adds each operation to a graph while it runs.

    It works below autograd, so it sees the operations of a backward pass as well as those of a forward pass.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.inputs: list[Tensor] = []
        self._nodes: dict[int, fx.Node] = {}
        """Node of each tensor, by `id(tensor)`."""
        self._tensors: list[Tensor] = []
        """All tensors that have a node. Python would give the id of a deleted tensor to another one."""
        self._from_numbers: list[Tensor] = []
        """Tensors that Python code has made from numbers, with `torch.tensor`."""
        self._last_input = self.graph._root
        for tensor in inputs:
            self._add_input(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch load dynamo, which takes a second

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Return the node of a tensor. A tensor that no recorded operation has made becomes one more input."""
        return self._nodes[id(tensor)] if id(tensor) in self._nodes else self._add_input(tensor)

    def _check_written(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `NotRecordedError` if an operation writes to a tensor that was made from numbers, or to a view of it.

        Such a tensor is an input of the graph, so the next call would find in it what this one has written.
        """
        name = func.overloadpacket.__name__
        writes_to_first = name.endswith("_") and not name.endswith("__")  # `add_`, but not `__and__`
        written = args[0] if writes_to_first else kwargs.get("out")
        if not isinstance(written, Tensor):
            return
        places = {tensor.untyped_storage().data_ptr() for tensor in self._from_numbers}
        if written.untyped_storage().data_ptr() in places:
            raise NotRecordedError(
                "it writes to a tensor that was made from numbers, which compiled code would not make again "
                f"({func}); make it with torch.zeros or torch.full"
            )

    def _add_input(self, tensor: Tensor) -> fx.Node:
        # Placeholders have to precede all operations, also those that are found later.
        with self.graph.inserting_after(self._last_input):
            self._last_input = self.graph.placeholder(f"input_{len(self.inputs)}")
        self.inputs.append(tensor)
        return self._register(tensor, self._last_input)

    def _register(self, tensor: Tensor, node: fx.Node) -> fx.Node:
        self._tensors.append(tensor)
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
        for tag, reason in REFUSED.items():
            if tag in func.tags:
                raise NotRecordedError(f"{reason} ({func})")
        # torch calls this on each tensor that Python code has made from a number; the graph needs no copy of it.
        if func is torch.ops.aten.lift_fresh.default:
            self._from_numbers.append(args[0])
            return args[0]
        if self._from_numbers:
            self._check_written(func, args, kwargs)

        result = func(*args, **kwargs)
        node_args, node_kwargs = tree_map_only(Tensor, self.node_of, (tuple(args), dict(kwargs)))
        node = self.graph.call_function(func, node_args, node_kwargs)
        if isinstance(result, Tensor):
            self._register(result, node)
        elif isinstance(result, tuple | list):
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._register(part, self.graph.call_function(operator.getitem, (node, number)))
        return result
