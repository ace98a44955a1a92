"""The command `lockstep`. What its commands need is imported when one is called."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for wrong input, 1 for a failed run, 130 after Ctrl-C.

    `arguments`: those after the program's name; `None`: of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with EarlyInterrupt():
            from lockstep.cli.commands import run_command

            return run_command(words)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


__all__ = ["EarlyInterrupt", "main"]
