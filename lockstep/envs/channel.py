"""Message channel between two processes, in which a message is sent or received completely within a deadline."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

_SIZE = struct.Struct("!Q")
"""Header of a message: its number of bytes."""
_EMPTY_MESSAGE = _SIZE.pack(0)
_READ_BYTES = 1 << 16
"""Minimum number of bytes to request from the socket, so that a small message takes one system call."""


class Channel:
    """One end of a pair of connected sockets, which can be passed to a new process.

    The empty message is the cheapest one: it only wakes the other process.

    A deadline is a time of `time.monotonic()`; None waits for ever. It applies to the whole message, so that a process
    is also noticed if it stops in the middle of a message that is larger than the socket's buffer. The pipes of
    `multiprocessing` have no such deadline: `poll` returns at the first byte, and `recv` then waits for ever.

    After a `TimeoutError` part of a message may have been sent or received, so the channel must not be used again.
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
        """Send one message. `TimeoutError`: it was not sent in time. `OSError`: the other end is gone."""
        self._set_deadline(deadline)
        try:
            # One call for header and message: the receiver would wake twice for two.
            data = b"".join((_SIZE.pack(len(message)), message)) if message else _EMPTY_MESSAGE
            self._end.sendall(data)
        except BlockingIOError as error:  # a socket with a time-out of 0 raises this instead of TimeoutError
            raise TimeoutError("the deadline of a message has passed") from error

    def offer(self, message: bytes | memoryview, deadline: float | None = None) -> None:
        """Send one message, ignoring a dead or late receiver: the caller notices it when it waits for the answer."""
        with contextlib.suppress(OSError):
            self.send(message, deadline)

    def receive(self, deadline: float | None = None) -> bytes:
        """Return the next message. `TimeoutError`: it did not arrive in time. `EOFError`: the other end is gone."""
        self._read(_SIZE.size, deadline)
        (size,) = _SIZE.unpack_from(self._received)
        end = _SIZE.size + size
        self._read(end, deadline)
        message = bytes(self._received[_SIZE.size : end])
        del self._received[:end]
        return message

    def _read(self, size: int, deadline: float | None) -> None:
        """Read until at least `size` bytes have been received."""
        while len(self._received) < size:
            self._set_deadline(deadline)
            try:
                part = self._end.recv(max(size - len(self._received), _READ_BYTES))
            except BlockingIOError as error:
                raise TimeoutError("the deadline of a message has passed") from error
            if not part:
                raise EOFError("the other end is gone")
            self._received += part

    def _set_deadline(self, deadline: float | None) -> None:
        # Setting a time-out is a system call, even to the value that it has.
        if deadline is not None or self._end.gettimeout() is not None:
            self._end.settimeout(seconds_until(deadline))

    def fileno(self) -> int:
        """Return the file descriptor, with which `multiprocessing.connection.wait` waits for several channels."""
        return self._end.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._end.fileno() < 0

    def close(self) -> None:
        """Close this end."""
        self._end.close()


def seconds_until(deadline: float | None) -> float | None:
    """Return the seconds until a deadline, at least 0; None without a deadline."""
    if deadline is None:
        return None
    return max(0.0, deadline - time.monotonic())
