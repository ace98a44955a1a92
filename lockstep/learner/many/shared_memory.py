"""Sums and exchanges between processes of one machine, through memory that they share.

A meeting over sockets costs as much as a gradient step of a small network: several threads have to be woken on both
sides. Here each learner writes into a segment of its own and looks at the others' until they have come, which takes a
few microseconds. Every learner adds in the same order, so all have the same bits.

A segment is memory without a name (`memfd_create`), which the others open through its owner's process: nothing is left
behind by a process that is killed, and who opened it can tell from its lock whether the owner lives. The order in which
writes are seen is the one that x86 processors guarantee; elsewhere learners meet over sockets.
"""

from __future__ import annotations

import fcntl
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
"""bytes that are exchanged at once; larger tensors go in pieces"""
FEW = 1 << 12
"""bytes up to which adding takes less time than to meet once more"""
HEADER = 64
ARRIVED, LEFT, TOKEN, BYTES = 0, 1, 2, 3
"""header fields: barriers passed, has left, token, and the number of bytes in each of the two pieces"""
LOOKS = 2_000
"""looks at another learner, where each may have a core of its own, before this one lets other processes run"""
PATIENT_S = 0.005
"""seconds of waiting after which it sleeps in between"""
NAP_S = 0.0005


def is_supported() -> bool:
    """Return whether processes of this machine can share memory in this way."""
    there = sys.platform == "linux" and hasattr(os, "memfd_create")  # which some builds of Python lack
    return there and platform.machine() in ("x86_64", "AMD64")


class _Segment:
    """One learner's memory: a header and two pieces that are used in turn."""

    def __init__(self, descriptor: int, memory: mmap.mmap, process_id: int) -> None:
        self.descriptor, self.memory = descriptor, memory
        self.header = memoryview(memory).cast("q")
        self._process = f"/proc/{process_id}/stat"

    def piece(self, which: int, dtype: torch.dtype, numel: int) -> Tensor:
        """Return a view `[numel]`."""
        return torch.frombuffer(self.memory, dtype=dtype, count=numel, offset=HEADER + which * PIECE)

    def is_alive(self) -> bool:
        """Return whether the owner holds its lock, and is there (a process that it forked would hold it, too)."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                return Path(self._process).read_text().rpartition(")")[2].split()[0] not in "ZX"
            except OSError:
                return False
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def __del__(self) -> None:
        os.close(self.descriptor)


class SharedMemory:
    """Where `world_size` learners of one machine meet. All make the same calls in the same order.

    `RuntimeError` where one died, left, or does not come within `timeout_s` seconds.
    """

    def __init__(self, segments: list[_Segment], rank: int, timeout_s: float) -> None:
        self._segments, self._rank, self._timeout_s = segments, rank, timeout_s
        self._others = [(other, segment) for other, segment in enumerate(segments) if other != rank]
        self._looks = LOOKS if len(segments) <= len(os.sched_getaffinity(0)) else 1
        self._meetings = 0
        self._turn = 0

    def sum_(self, tensor: Tensor) -> None:
        """Sum over all learners, in place.

        Of few numbers each learner takes the sum; of more, each adds one part and reads what the others have added.
        """
        for part in _pieces(tensor):
            if part.nbytes <= FEW:
                views = self._written(part)
                torch.add(views[0], views[1], out=part)
                for view in views[2:]:
                    part += view
                continue
            bounds = [rank * len(part) // len(self._segments) for rank in range(len(self._segments) + 1)]
            views = self._written(part)
            begin, end = bounds[self._rank], bounds[self._rank + 1]
            total = views[0][begin:end] + views[1][begin:end]
            for view in views[2:]:
                total += view[begin:end]
            views[self._rank][begin:end] = total
            self._meet()
            for view, begin, end in zip(views, bounds, bounds[1:]):
                part[begin:end] = view[begin:end]

    def gather(self, parts: list[Tensor], tensor: Tensor) -> None:
        """Copy `tensor` of each learner into `parts`; all have the same shape."""
        for places in zip(*map(_pieces, parts), _pieces(tensor)):
            for place, view in zip(places, self._written(places[-1])):
                place.copy_(view)

    def leave(self) -> None:
        """Tell the others that they need not wait."""
        self._segments[self._rank].header[LEFT] = 1

    def _written(self, part: Tensor) -> list[Tensor]:
        """Return what all have written. It may be read until the call after the next: pieces are used in turn."""
        self._turn = 1 - self._turn
        views = [segment.piece(self._turn, part.dtype, len(part)) for segment in self._segments]
        views[self._rank].copy_(part)
        self._segments[self._rank].header[BYTES + self._turn] = part.nbytes
        self._meet()
        for rank, segment in self._others:
            if segment.header[BYTES + self._turn] != part.nbytes:
                raise RuntimeError(f"learner {rank} makes another call")
        return views

    def _meet(self) -> None:
        """Go on when all learners have come here."""
        self._meetings += 1
        self._segments[self._rank].header[ARRIVED] = self._meetings
        for rank, segment in self._others:
            header, meetings = segment.header, self._meetings
            for _ in range(self._looks):
                if header[ARRIVED] >= meetings:
                    break
            else:
                self._wait(rank, segment)

    def _wait(self, rank: int, segment: _Segment) -> None:
        began = time.monotonic()
        while segment.header[ARRIVED] < self._meetings:
            waited = time.monotonic() - began
            if waited < PATIENT_S:
                os.sched_yield()
                time.sleep(0)  # lets other threads run
                continue
            if segment.header[LEFT] or not segment.is_alive():
                if segment.header[ARRIVED] >= self._meetings:
                    return  # it came before it ended
                raise RuntimeError(f"learner {rank} {'left' if segment.header[LEFT] else 'died'}")
            if waited > self._timeout_s:
                raise RuntimeError(f"learner {rank} did not come")
            time.sleep(NAP_S)


def share_memory(
    rank: int, world_size: int, gather: Callable[[Any], list[Any]], timeout_s: float
) -> SharedMemory | None:
    """Join learners that are on one machine; None where they are not, or where the machine has no such memory.

    `gather(value)`: `value` of each learner, by rank, over another way.
    """
    segment, address = _new_segment() if is_supported() else (None, None)
    heard = gather(address)
    segments: list[_Segment | None] = []
    for other, item in enumerate(heard):
        segments.append(segment if other == rank else None if item is None else _opened(*item))
    found = [segment for segment in segments if segment is not None]
    if not all(gather(len(found) == world_size)):
        return None
    return SharedMemory(found, rank, timeout_s)


def _new_segment() -> tuple[_Segment | None, tuple[int, int, int] | None]:
    """Return a new segment, and what others need to find it; nothing where there is no room for it."""
    token, process_id = secrets.randbits(62), os.getpid()
    try:
        descriptor = os.memfd_create("lockstep")
    except OSError:
        return None, None
    try:
        os.posix_fallocate(descriptor, 0, HEADER + 2 * PIECE)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        memory = mmap.mmap(descriptor, HEADER + 2 * PIECE)
    except OSError:
        os.close(descriptor)
        return None, None
    segment = _Segment(descriptor, memory, process_id)
    segment.header[TOKEN] = token
    return segment, (process_id, descriptor, token)


def _opened(process_id: int, number: int, token: int) -> _Segment | None:
    """Return another learner's segment; None where that process is on another machine."""
    try:
        descriptor = os.open(f"/proc/{process_id}/fd/{number}", os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        memory = mmap.mmap(descriptor, HEADER + 2 * PIECE)
    except (OSError, ValueError):  # not a segment
        os.close(descriptor)
        return None
    segment = _Segment(descriptor, memory, process_id)
    return segment if segment.header[TOKEN] == token else None


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield `tensor` flat, in parts that fit into a piece, as views."""
    flat = tensor.view(-1)
    step = PIECE // flat.element_size()
    for begin in range(0, len(flat), step):
        yield flat[begin : begin + step]
