"""Ctrl-C before a run has begun. Loads nothing heavy."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, ClassVar, Self


class EarlyInterrupt:
    """While entered, SIGINT raises `KeyboardInterrupt`, as always, and is remembered.

    Where Python drops the exception (in a destructor, in an extension that is being imported), a run still sees
    `EarlyInterrupt.came` and does not begin.
    """

    came: ClassVar[bool] = False

    def __init__(self) -> None:
        self._before: Any = None

    def __enter__(self) -> Self:
        EarlyInterrupt.came = False
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        EarlyInterrupt.came = True
        raise KeyboardInterrupt
