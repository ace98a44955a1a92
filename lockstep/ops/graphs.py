"""CUDA graphs: repeated calls of one function, captured and replayed as a single launch."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
EAGER_CALLS = 2
"""Number of calls before the capture. In these, libraries choose their algorithms and allocate their memory, which a
graph cannot record."""


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Collect garbage first, and none until the block ends.

    A graph that is freed while another one is captured breaks the capture.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CapturedFunction(Generic[T]):
    """Function that does the same operations on the same memory in each call, as a CUDA graph where there is a device.

    On a CUDA device the first two calls run the function, the third one captures its operations in a graph, and from
    then on a call is one launch. Its result is then memory of the graph, which each call overwrites. On other devices
    every call runs the function.

    The function must not wait for the device (`.item()`, `.cpu()`), and no shape may depend on values.

    Args:
        function: Function without arguments.
        device: Device that the function computes on.
        generators: Generators of the device whose random numbers the function draws.
        can_capture: False if the function does something that a graph cannot hold. Then every call runs it.
    """

    def __init__(
        self,
        function: Callable[[], T],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        *,
        can_capture: bool = True,
    ) -> None:
        self.function = function
        self.device = device
        self.generators = generators
        self.num_calls = 0
        """Number of calls up to the one that captured the graph."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: T
        self._stream: torch.cuda.Stream | None = None
        self._seconds = 0.0
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            if can_capture:
                self._stream = torch.cuda.Stream(device)

    @property
    def seconds(self) -> float:
        """Duration of the last call on the device. Read it only once the device has finished the call."""
        if not self._events:
            return self._seconds
        begin, end = self._events
        return 1e-3 * begin.elapsed_time(end)

    @property
    def is_graph(self) -> bool:
        """Whether the graph is captured, so that a call is one launch."""
        return self._graph is not None

    def __call__(self) -> T:
        """Return the function's result. On a CUDA device it may not be computed yet: the host does not wait."""
        started = time.perf_counter()
        for event in self._events[:1]:
            event.record()
        result = self._call()
        for event in self._events[1:]:
            event.record()
        self._seconds = time.perf_counter() - started
        return result

    def _call(self) -> T:
        """Run the function or replay its graph. The call that captures the graph also replays it."""
        if self._stream is None:
            return self.function()
        if self._graph is not None:
            self._graph.replay()
            return self._result

        self.num_calls += 1
        caller_stream = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(caller_stream)
        # One stream for all calls before the capture: autograd runs a backward pass on the stream of its forward pass.
        with torch.cuda.stream(self._stream):
            if self.num_calls <= EAGER_CALLS:
                self._result = self.function()
            else:
                self._graph = self._capture(self._stream)
        caller_stream.wait_stream(self._stream)

        # A capture records operations and does not run them, so the graph is replayed for this call's result.
        return self._call() if self._graph is not None else self._result

    def _capture(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """Return the captured graph, and keep the result of the function: memory that replays will fill."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            # A replay draws new numbers only from the generators that its graph knows.
            graph.register_generator_state(generator)
        with _garbage_collection_paused(), torch.cuda.graph(graph, stream=stream):
            self._result = self.function()
        return graph
