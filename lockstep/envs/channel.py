"""`Channel`: messages between two processes, each sent and received whole within a deadline."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

_SIZE = struct.Struct("!Q")
"""How many bytes a message has; sent before them."""
_NOTHING = _SIZE.pack(0)
"""The empty message."""
_READ_AT_ONCE = 1 << 16


class Channel:
    """One end of a pair of connected sockets. It can be handed to a new process.

    The empty message is the cheapest one: it only wakes the other process.

    A deadline is a time of `time.monotonic()`; None waits for ever. It holds for the whole message: a process that
    stops in the middle of a message larger than the socket's buffer is noticed as well.

    After a `TimeoutError` part of a message may be on its way, so the channel must not be used again.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._received = bytearray()

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return the two ends of a new channel."""
        first, second = socket.socketpair()
        return cls(first), cls(second)

    def send(self, message: bytes | memoryview, deadline: float | None = None) -> None:
        """Send one message. `TimeoutError`: it was not taken in time; `OSError`: the other end is gone."""
        self._set_deadline(deadline)
        try:
            self._end.sendall(b"".join((_SIZE.pack(len(message)), message)) if message else _NOTHING)
        except BlockingIOError as error:  # what a time-out of 0 raises
            raise TimeoutError("the deadline of a message has passed") from error

    def offer(self, message: bytes | memoryview, deadline: float | None = None) -> None:
        """Send one message, unless the other end is gone or does not take it in time: a missing answer says so."""
        with contextlib.suppress(OSError):
            self.send(message, deadline)

    def receive(self, deadline: float | None = None) -> bytes:
        """Return the next message. `TimeoutError`: it was not there in time; `EOFError`: the other end is gone."""
        self._read(_SIZE.size, deadline)
        (size,) = _SIZE.unpack_from(self._received)
        end = _SIZE.size + size
        self._read(end, deadline)
        message = bytes(self._received[_SIZE.size : end])
        del self._received[:end]
        return message

    def _read(self, size: int, deadline: float | None) -> None:
        """Read until `size` bytes are there."""
        while len(self._received) < size:
            self._set_deadline(deadline)
            try:
                part = self._end.recv(max(size - len(self._received), _READ_AT_ONCE))
            except BlockingIOError as error:
                raise TimeoutError("the deadline of a message has passed") from error
            if not part:
                raise EOFError("the other end is gone")
            self._received += part

    def _set_deadline(self, deadline: float | None) -> None:
        # Setting a time-out is a system call, also where nothing changes.
        if deadline is not None or self._end.gettimeout() is not None:
            self._end.settimeout(seconds_until(deadline))

    def fileno(self) -> int:
        """Return the descriptor, to wait for several channels at once."""
        return self._end.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._end.fileno() < 0

    def close(self) -> None:
        """Close this end."""
        self._end.close()


def seconds_until(deadline: float | None) -> float | None:
    """Return the seconds that are left, at least 0; None where there is no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
