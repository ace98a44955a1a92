"""Sums and exchanges between learner processes of one Linux machine, through shared memory.

An exchange over sockets takes as long as a gradient step of a small network, because several threads on both sides have
to be woken. Here each learner writes into a memory segment of its own, and polls the segments of the others until they
have written, too. That takes a few microseconds. Every learner adds in the same order, so all get the same bits.

A segment is memory without a name (`memfd_create`), which the other learners open through `/proc` of its owner. So a
process that is killed leaves nothing behind, and a lock on the segment tells whether its owner is alive.

The code relies on the memory model of x86: other processors see writes in the order in which they were made. On other
machines learners communicate over sockets. `fcntl` is imported when it is used, because Windows does not have it.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PIECE = 1 << 20
"""Number of bytes that are exchanged at once. Larger tensors are exchanged in pieces."""
SMALL_BYTES = 1 << 12
"""Size of a tensor in bytes up to which each learner adds all of it itself. Another barrier would take longer."""
HEADER = 64
"""Size of a segment's header in bytes: one cache line."""
BARRIERS, LEFT, TOKEN, BYTES = 0, 1, 2, 3
"""Indices of the header's fields: number of barriers reached, whether the owner has left, a random token of the
segment, and the number of bytes in each of its two pieces."""
POLLS = 2_000
"""Number of times a learner polls another one before it lets other processes run, if there is a core for each
learner."""
PATIENT_S = 0.005
"""Waiting time in seconds after which a learner sleeps between two polls."""
NAP_S = 0.0005
"""Duration of such a sleep in seconds."""


def is_supported() -> bool:
    """Return whether processes of this machine can share memory in this way."""
    has_memfd = sys.platform == "linux" and hasattr(os, "memfd_create")  # some builds of Python lack it
    return has_memfd and platform.machine() in ("x86_64", "AMD64")


class _Segment:
    """Memory of one learner: a header, and two pieces that are used in turn."""

    def __init__(self, descriptor: int, memory: mmap.mmap, process_id: int) -> None:
        self.descriptor = descriptor
        self.memory = memory
        self.header = memoryview(memory).cast("q")
        self._process_status = f"/proc/{process_id}/stat"

    def piece(self, number: int, dtype: torch.dtype, numel: int) -> Tensor:
        """Return a view `[numel]` of piece 0 or 1."""
        return torch.frombuffer(self.memory, dtype=dtype, count=numel, offset=HEADER + number * PIECE)

    def is_alive(self) -> bool:
        """Return whether the owner is alive.

        The owner holds an exclusive lock on the segment as long as it lives. But processes that it has forked hold the
        lock, too, so its own process is looked up as well.
        """
        import fcntl

        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                # The field after the name in parentheses is the state of the process: Z and X are those of dead ones.
                return Path(self._process_status).read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
            except OSError:
                return False
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def __del__(self) -> None:
        os.close(self.descriptor)


class SharedMemory:
    """Sums and exchanges between `world_size` learners of one machine. All make the same calls in the same order.

    Calls raise `RuntimeError` if another learner has died, has left, or does not answer within `timeout_s` seconds.
    """

    def __init__(self, segments: list[_Segment], rank: int, timeout_s: float) -> None:
        self._segments = segments
        self._rank = rank
        self._timeout_s = timeout_s
        self._peers = [(peer, segment) for peer, segment in enumerate(segments) if peer != rank]
        # Without a core for each learner, polling takes processor time from the learners that are waited for.
        self._polls = POLLS if len(segments) <= len(os.sched_getaffinity(0)) else 1
        self._num_barriers = 0
        self._turn = 0
        """Number of the piece that the present exchange uses."""

    def sum_(self, tensor: Tensor) -> None:
        """Sum over all learners, in place.

        If the tensor is small, each learner adds all of it. Otherwise each learner adds one part of it, and after
        another barrier reads the parts that the others have added.
        """
        for part in _pieces(tensor):
            if part.nbytes <= SMALL_BYTES:
                views = self._exchange(part)
                torch.add(views[0], views[1], out=part)
                for view in views[2:]:
                    part += view
                continue

            bounds = [rank * len(part) // len(self._segments) for rank in range(len(self._segments) + 1)]
            views = self._exchange(part)
            begin, end = bounds[self._rank], bounds[self._rank + 1]
            total = views[0][begin:end] + views[1][begin:end]
            for view in views[2:]:
                total += view[begin:end]
            # Nobody else reads this part of the own piece, so the sum may replace it.
            views[self._rank][begin:end] = total
            self._barrier()
            for view, begin, end in zip(views, bounds, bounds[1:]):
                part[begin:end] = view[begin:end]

    def gather(self, parts: list[Tensor], tensor: Tensor) -> None:
        """Copy the `tensor` of each learner into `parts`, by rank. All have the same shape."""
        for *places, own_piece in zip(*map(_pieces, parts), _pieces(tensor)):
            for place, view in zip(places, self._exchange(own_piece)):
                place.copy_(view)

    def leave(self) -> None:
        """Tell the other learners not to wait for this one."""
        self._segments[self._rank].header[LEFT] = 1

    def _exchange(self, part: Tensor) -> list[Tensor]:
        """Write `part` into the own segment, and return views of the parts of all learners.

        The views may be read until this learner makes its next exchange. Another learner may already write its part of
        that exchange, but into the other one of its two pieces. It comes back to the piece that is read here one
        exchange later, which it can begin only when this learner has reached the barrier of the next exchange.
        """
        self._turn = 1 - self._turn
        views = [segment.piece(self._turn, part.dtype, len(part)) for segment in self._segments]
        views[self._rank].copy_(part)
        self._segments[self._rank].header[BYTES + self._turn] = part.nbytes
        self._barrier()
        for rank, segment in self._peers:
            if segment.header[BYTES + self._turn] != part.nbytes:
                raise RuntimeError(f"learner {rank} makes another call")
        return views

    def _barrier(self) -> None:
        """Return when all learners have made this call. Everything that they wrote before it can then be read."""
        self._num_barriers += 1
        self._segments[self._rank].header[BARRIERS] = self._num_barriers
        for rank, segment in self._peers:
            header = segment.header
            num_barriers = self._num_barriers
            for _ in range(self._polls):
                if header[BARRIERS] >= num_barriers:
                    break
            else:
                self._wait(rank, segment)

    def _wait(self, rank: int, segment: _Segment) -> None:
        """Wait for learner `rank` at the barrier, and let other threads and processes run meanwhile."""
        began = time.monotonic()
        while segment.header[BARRIERS] < self._num_barriers:
            waited = time.monotonic() - began
            if waited < PATIENT_S:
                os.sched_yield()
                time.sleep(0)  # lets other threads of this process run
                continue
            if segment.header[LEFT] or not segment.is_alive():
                if segment.header[BARRIERS] >= self._num_barriers:
                    return  # it reached the barrier before it ended
                raise RuntimeError(f"learner {rank} {'left' if segment.header[LEFT] else 'died'}")
            if waited > self._timeout_s:
                raise RuntimeError(f"learner {rank} did not come")
            time.sleep(NAP_S)


def share_memory(
    rank: int, world_size: int, gather: Callable[[Any], list[Any]], timeout_s: float
) -> SharedMemory | None:
    """Connect learners that are on one machine. Return None if they are not, or cannot share memory.

    `gather(value)` returns the `value` of each learner by rank, over another connection.
    """
    segment, address = _new_segment() if is_supported() else (None, None)
    segments: list[_Segment | None] = []
    for peer, peer_address in enumerate(gather(address)):
        if peer == rank:
            segments.append(segment)
        else:
            segments.append(None if peer_address is None else _open_segment(*peer_address))

    # Either all learners use shared memory or none does.
    opened = [segment for segment in segments if segment is not None]
    if not all(gather(len(opened) == world_size)):
        return None
    return SharedMemory(opened, rank, timeout_s)


def _new_segment() -> tuple[_Segment | None, tuple[int, int, int] | None]:
    """Return a new segment and its address for other processes; `(None, None)` if there is no memory for it.

    The address is the id of this process, the number of the file descriptor, and a token.
    """
    import fcntl

    token = secrets.randbits(62)
    process_id = os.getpid()
    try:
        descriptor = os.memfd_create("lockstep")
    except OSError:
        return None, None
    try:
        # Without this, memory is only missing when it is written to, which ends the process with SIGBUS.
        os.posix_fallocate(descriptor, 0, HEADER + 2 * PIECE)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        memory = mmap.mmap(descriptor, HEADER + 2 * PIECE)
    except OSError:
        os.close(descriptor)
        return None, None
    segment = _Segment(descriptor, memory, process_id)
    segment.header[TOKEN] = token
    return segment, (process_id, descriptor, token)


def _open_segment(process_id: int, number: int, token: int) -> _Segment | None:
    """Return the segment of another learner; None if it is on another machine.

    On this machine another process may have the same id, and a file with the same number. The token tells.
    """
    try:
        descriptor = os.open(f"/proc/{process_id}/fd/{number}", os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        memory = mmap.mmap(descriptor, HEADER + 2 * PIECE)
    except (OSError, ValueError):  # another kind of file, or a smaller one
        os.close(descriptor)
        return None
    segment = _Segment(descriptor, memory, process_id)
    return segment if segment.header[TOKEN] == token else None


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield views of the flat tensor that each fit into a piece of a segment."""
    flat = tensor.view(-1)
    step = PIECE // flat.element_size()
    for begin in range(0, len(flat), step):
        yield flat[begin : begin + step]
