"""The compiler behind `CompiledUpdate`: from a traced gradient step to a function of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx

Code = Callable[..., Any]


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor], on_host: bool) -> Code:
    """Compiled code of a graph for inputs of these shapes and layouts."""
    from torch._inductor import compile as inductor_compile
    from torch._inductor import config as inductor_config

    for node in graph.graph.nodes:
        node.meta.clear()  # the trace's own shapes: the C++ wrapper would take them for the compiler's
    # tanh as 2 sigmoid(2x) - 1: its vector form is six times as fast, at an absolute error of 1e-7. The calls between
    # kernels are C++ too, which saves 45 us of 350 for each step. What lies between two kernels is in one piece of
    # memory: pieces of their own often stand 64 bytes beside a whole number of pages, where reading one waits for
    # writing the other (16 us for 15,360 numbers, else 1 us).
    options = {"cpp.use_decompose_tanh": True, "cpp_wrapper": on_host, "memory_planning": on_host}
    with inductor_config.patch(options):
        return inductor_compile(graph, list(inputs))
