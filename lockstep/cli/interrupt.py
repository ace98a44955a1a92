"""Ctrl-C: the first ends the run at the next update, in order and resumable; the second at once."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Self

from lockstep.cli.early import EarlyInterrupt
from lockstep.trainer import Callback
from lockstep.trainer.callbacks import Stop
from lockstep.trainer.display import ProgressDisplay
from lockstep.trainer.events import CollectEnd, EvaluationEnd, RunStart, UpdateEnd

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption(Callback):
    """While entered, SIGINT and SIGTERM ask the run to stop where it can go on bit by bit: after an update.

    Before the run has begun they end the process as usual; where Python drops the exception (in a destructor, say), the
    run stops as it begins. A second signal ends the run without a new checkpoint.
    """

    def __init__(self, display: ProgressDisplay | None = None) -> None:
        self.signal: int | None = None
        self._display = display
        self._running = False
        self._owner = os.getpid()
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell counts; 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        if EarlyInterrupt.came:
            self.signal = int(signal.SIGINT)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return  # processes of environments are ended by their owner
        if self.signal is not None:
            raise SystemExit(128 + number)
        self.signal = number
        if not self._running:
            raise KeyboardInterrupt
        note = "stopping after this update; once more stops at once"
        if self._display is not None and self._display.is_live:
            self._display.note = note
        else:
            os.write(2, f"{note}\n".encode())  # a handler must not enter a buffered stream a second time

    def _reason(self) -> Stop:
        return None if self.signal is None else "interrupted"

    def on_run_start(self, event: RunStart) -> Stop:
        """Asks to stop where a signal came before; from now on one waits for the end of the update."""
        self._running = True
        return self._reason()

    def on_collect_end(self, event: CollectEnd) -> Stop:
        """Asks to stop; the update that belongs to the collected data is still made."""
        return self._reason()

    def on_update_end(self, event: UpdateEnd) -> Stop:
        """Asks to stop."""
        return self._reason()

    def on_evaluation_end(self, event: EvaluationEnd) -> Stop:
        """Asks to stop."""
        return self._reason()
