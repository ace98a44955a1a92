"""One CUDA graph in the place of many launches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
EAGER_CALLS = 2
"""calls before the capture: libraries choose their algorithms and take their memory in them"""


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Free nothing in between that is garbage already: a graph that is freed while another is captured breaks it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class CapturedFunction(Generic[T]):
    """Calls a function again and again that does the same operations on the same memory each time.

    On a CUDA device the third call captures them in a graph, and from then on a call is one launch. What the function
    returns is the graph's own memory then, written anew by each call. Elsewhere each call runs the function.

    The function must not wait for the device (`.item()`, `.cpu()`), nor depend in its shapes on values.

    Args:
        function: without arguments.
        device: that it computes on.
        generators: whose random numbers it draws, on that device.
        can_capture: False where the function does what a graph cannot hold.
    """

    def __init__(
        self,
        function: Callable[[], T],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        *,
        can_capture: bool = True,
    ) -> None:
        self.function, self.device, self.generators = function, device, generators
        self.num_calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and can_capture else None
        self._result: T
        self._seconds = 0.0
        options = {"enable_timing": True}
        self._events = [torch.cuda.Event(**options) for _ in range(2)] if device.type == "cuda" else []

    @property
    def seconds(self) -> float:
        """What the last call took on its device; to be asked once the device has done it."""
        return 1e-3 * self._events[0].elapsed_time(self._events[1]) if self._events else self._seconds

    @property
    def is_graph(self) -> bool:
        """Whether a call is one launch by now."""
        return self._graph is not None

    def __call__(self) -> T:
        """Return what the function returns; on a device that is not waited for."""
        started = time.perf_counter()
        for event in self._events[:1]:
            event.record()
        result = self._call()
        for event in self._events[1:]:
            event.record()
        self._seconds = time.perf_counter() - started
        return result

    def _call(self) -> T:
        if self._stream is None:
            return self.function()
        if self._graph is not None:
            self._graph.replay()
            return self._result
        self.num_calls += 1
        present = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(present)
        # One stream for all calls: autograd runs a backward pass where its forward pass ran.
        with torch.cuda.stream(self._stream):
            if self.num_calls <= EAGER_CALLS:
                self._result = self.function()
            else:
                graph = torch.cuda.CUDAGraph()
                for generator in self.generators:
                    graph.register_generator_state(generator)
                with _no_garbage(), torch.cuda.graph(graph, stream=self._stream):
                    self._result = self.function()
                self._graph = graph
        present.wait_stream(self._stream)
        return self._call() if self._graph is not None else self._result
