"""Script that compiles one graph in a process of its own. It reads the graph from standard input.

It imports nothing of Lockstep, so that it starts early.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch.fx import Node

SECOND_ATTEMPT = "carefully"
"""Last argument of a second attempt, which compiles without `QUICK`."""
QUICK = {
    "cpp.vec_isa_ok": True,
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
}
"""Compiler options that halve the time. The compiler does not first compile small programs to find out which vector
instructions it knows, and does not prepare headers for later graphs."""


def main() -> None:
    """Write the library and its checksum to the requested path, each of them completely or not at all."""
    # SIGTERM raises an exception, so that the temporary folder of `make` is deleted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=end_with_parent, args=(int(sys.argv[1]),), daemon=True).start()

    # Read all of the input before torch is loaded: the learner's write blocks until it is read.
    received = sys.stdin.buffer.read()
    code, layouts, options, num_threads, target = json.loads(received)
    if SECOND_ATTEMPT in sys.argv:  # the process that started this one holds the lock
        make(code, layouts, options, num_threads, target, received)
        return

    # Not imported above: the learner imports this file for its path, also on Windows, which has no `fcntl`.
    import fcntl

    # Several runs that start together need the same code: the first one makes it, the others wait for the lock.
    with open(f"{target}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made(Path(target)):
            make(code, layouts, options, num_threads, target, received)
        Path(lock.name).unlink(missing_ok=True)


def is_made(target: Path) -> bool:
    """Return whether the library exists and agrees with its checksum."""
    try:
        return hashlib.sha256(target.read_bytes()).hexdigest() == Path(f"{target}.sha256").read_text(encoding="utf-8")
    except OSError:
        return False


def make(
    code: str, layouts: list[Any], options: dict[str, Any], num_threads: int, target: str, received: bytes
) -> None:
    """Compile a graph for inputs of these layouts, and move library and checksum to `target`.

    `code` is the source of the graph's `forward`. `received` is the whole input of this process, for a second attempt.
    """
    import torch
    from torch._inductor import aot_compile

    torch.set_num_threads(num_threads)
    names: dict[str, Any] = {"torch": torch, "device": torch.device, "NoneType": type(None)}
    names |= {"inf": math.inf, "nan": math.nan}
    exec(code, names)  # defines `forward`
    graph = graph_of(names["forward"])
    inputs = []
    for shape, stride, dtype in layouts:
        inputs.append(torch.empty_strided(shape, stride, dtype=getattr(torch, dtype)).zero_())

    # A folder next to the target is on the same file system, so that `os.replace` is one atomic rename.
    with tempfile.TemporaryDirectory(dir=Path(target).parent, prefix="making-") as folder:
        options["aot_inductor.output_path"] = f"{folder}/step.so"
        is_second = SECOND_ATTEMPT in sys.argv
        try:
            made = aot_compile(graph, tuple(inputs), options=options if is_second else options | QUICK)
        except Exception:  # for example a compiler that does not know all instructions of the processor
            if is_second:
                raise
            # The same command, with this process as the parent (the last argument) of the second attempt.
            command = [*sys.orig_argv[:-1], str(os.getpid()), SECOND_ATTEMPT]
            sys.exit(subprocess.run(command, input=received, check=False).returncode)
        checksum = Path(folder, "step.sha256")
        checksum.write_text(hashlib.sha256(Path(str(made)).read_bytes()).hexdigest(), encoding="utf-8")
        os.replace(str(made), target)
        os.replace(checksum, f"{target}.sha256")


def graph_of(forward: Callable[..., object]) -> Any:
    """Return a function of tensor operations as a `torch.fx.GraphModule`.

    `torch.fx.symbolic_trace` runs an operation without tensor arguments, such as `zeros`, once, and keeps its result as
    a constant. If an operation writes to it, the next call of the graph would find what this one has written. So what
    is written to is made in each call. The others stay constants: compilers round some (`linspace`) otherwise.
    """
    import torch
    from torch._ops import OpOverload
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_leaves

    def traced(made_in_each_call: Container[int]) -> tuple[Any, list[Any]]:
        """Return the graph, and its nodes for results that are made in each call.

        `made_in_each_call` has the numbers of the operations without tensor arguments, in their order.
        """
        nodes: list[Any] = []
        tracer = torch.fx.Tracer()

        class Factories(TorchFunctionMode):
            def __torch_function__(
                self,
                func: Callable[..., object],
                types: Collection[type],
                args: Sequence[object] = (),
                kwargs: Mapping[str, object] | None = None,
            ) -> object:
                kwargs = dict(kwargs or {})
                leaves = tree_leaves((args, kwargs))
                has_tensors = any(isinstance(leaf, torch.Tensor | torch.fx.Proxy) for leaf in leaves)
                if has_tensors or not isinstance(func, OpOverload):  # `torch.device` is called here, too
                    return func(*args, **kwargs)
                number = len(nodes)
                nodes.append(None)
                if number not in made_in_each_call:
                    return func(*args, **kwargs)
                proxy = tracer.create_proxy("call_function", func, tuple(args), kwargs)
                nodes[number] = proxy.node
                return proxy

        with Factories():
            graph = tracer.trace(type("Recorded", (torch.nn.Module,), {"forward": forward})())
        return torch.fx.GraphModule(tracer.root, graph), nodes

    graph, nodes = traced(range(sys.maxsize))
    written = {node for node in map(written_by, graph.graph.nodes) if node is not None}
    return traced([number for number, node in enumerate(nodes) if node in written])[0]


def written_by(node: Node) -> Node | None:
    """Return the node whose memory an operation in place writes to; None for other operations."""
    if not is_in_place(node):
        return None
    owner: Any = node.args[0]
    while is_in_place(owner) or getattr(owner.target, "is_view", False) or owner.target is operator.getitem:
        owner = owner.args[0]
    return cast("Node", owner)


def is_in_place(node: Node) -> bool:
    """Return whether a node writes to its first argument: `add_`, but not `__and__`."""
    packet = getattr(node.target, "overloadpacket", None)
    name = "" if packet is None else str(packet.__name__)
    return name.endswith("_") and not name.endswith("__")


def end_with_parent(parent: int) -> None:
    """End this process and the compilers below it when the process that requested the code has ended.

    `parent` is an argument and not `os.getppid()`: the parent may have ended before this process could ask.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGTERM)  # the process has a session, and so a process group, of its own


if __name__ == "__main__":
    main()
