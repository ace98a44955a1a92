"""The compiler behind `CompiledUpdate`: from a traced gradient step to a function of its inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

Outputs = Sequence[Tensor]


class CompiledCode:
    """What the compiler gives out, `inner`, behind the wrappers that PyTorch puts around it.

    The wrappers, which take 6 us of a call, order inputs and join those that share memory. Where a call shows that they
    hand on all as it is, later ones go past them (and leave the version counters of what they write to as they are).
    """

    def __init__(self, wrapped: Callable[..., Outputs], inner: Any) -> None:
        self._wrapped, self._inner = wrapped, inner
        self._direct: Callable[[list[Tensor]], Outputs] | None = None

    def __call__(self, inputs: list[Tensor]) -> Outputs:
        """What the graph gives out; inputs that it writes to are written to. The list may be emptied.

        Raises `RuntimeError` for inputs of other shapes, layouts or dtypes than those it was compiled for.
        """
        if self._direct is not None:
            with torch.no_grad():
                return self._direct(inputs)
        if self._inner is None or len(set(map(id, inputs))) < len(inputs):  # one given twice would hide an order
            return self._wrapped(*inputs)
        return self._watched(inputs)

    def _watched(self, inputs: list[Tensor]) -> Outputs:
        """Once: what goes in and out behind the wrappers?"""
        inner, self._inner = self._inner, None
        code, heard = inner.current_callable, []

        def listen(given: list[Tensor]) -> Outputs:
            heard.append(list(given))
            heard.append(code(given))
            return heard[-1]

        inner.current_callable = listen
        try:
            outputs = self._wrapped(*inputs)
        finally:
            inner.current_callable = code
        pairs = zip(heard, (inputs, outputs))
        same = [len(there) == len(here) and all(map(operator.is_, there, here)) for there, here in pairs]
        if same == [True, True]:
            self._direct = code
        return outputs


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor], on_host: bool) -> CompiledCode:
    """Compiled code of a graph for inputs of these shapes and layouts."""
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    for node in graph.graph.nodes:
        node.meta.clear()  # the trace's own shapes: the C++ wrapper would take them for the compiler's
    inner: list[Any] = []

    def keep(*args: Any, **kwargs: Any) -> Any:
        inner.append(compile_fx_inner(*args, **kwargs))
        return inner[-1]

    # tanh as 2 sigmoid(2x) - 1: its vector form is six times as fast, at an absolute error of 1e-7. The calls between
    # kernels are C++ too, which saves 45 us of 350 for each step. What lies between two kernels is in one piece of
    # memory: pieces of their own often stand 64 bytes beside a whole number of pages, where reading one waits for
    # writing the other (16 us for 15,360 numbers, else 1 us).
    options = {"cpp.use_decompose_tanh": True, "cpp_wrapper": on_host, "memory_planning": on_host}
    with inductor_config.patch(options):
        wrapped: Any = compile_fx(graph, list(inputs), inner_compile=keep)
    known = on_host and len(inner) == 1 and hasattr(inner[0], "current_callable")
    return CompiledCode(wrapped, inner[0] if known else None)
