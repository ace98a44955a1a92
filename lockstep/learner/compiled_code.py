"""The compiler behind `CompiledUpdate`: from a traced gradient step to a function of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

Code = Callable[[list[Tensor]], Sequence[Tensor]]


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor], written: Sequence[Tensor], on_host: bool) -> Code:
    """Compiled code of a graph for inputs like these; those `written` to are as before when this returns.

    On the CPU the code trusts shapes and layout of its inputs. It may empty the list that it is called with.
    """
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
    # writing the other (16 us for 15,360 numbers, else 1 us). Whether inputs are as they were is asked in
    # `CompiledUpdate`, where it costs less than in each call.
    options = {
        "cpp.use_decompose_tanh": True,
        "cpp_wrapper": on_host,
        "memory_planning": on_host,
        "size_asserts": not on_host,
    }
    with inductor_config.patch(options):
        whole: Any = compile_fx(graph, list(inputs), inner_compile=keep)

    def call(given: list[Tensor]) -> Sequence[Tensor]:
        outputs: Sequence[Tensor] = whole(*given)
        return outputs

    if on_host and len(inner) == 1 and _same(call, inner[0], inputs, written):
        code: Code = inner[0]
        return code  # without what stands around it for other kinds of graphs: 6 us for each call
    return call


def _same(left: Code, right: Code, inputs: Sequence[Tensor], written: Sequence[Tensor]) -> bool:
    """Do both give out the same, and leave the same in the inputs that are `written` to?"""
    before = [tensor.clone() for tensor in written]
    found = []
    for code in (left, right):
        outputs = code(list(inputs))
        found.append([tensor.flatten().contiguous().view(torch.uint8).clone() for tensor in (*outputs, *written)])
        for tensor, old in zip(written, before):
            tensor.copy_(old)
    return len(found[0]) == len(found[1]) and all(map(torch.equal, *found))
