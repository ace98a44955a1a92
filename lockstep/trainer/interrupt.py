"""`DeferredInterrupt`: delays Ctrl-C until the state of a run is consistent."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class DeferredInterrupt:
    """Context in which the first Ctrl-C is only noted, until `check()` raises it. A second Ctrl-C is raised at once.

    A run that ends at a `check()` has a consistent state and can continue with identical results. The context does
    nothing outside the main thread, or if the program has installed its own handler of SIGINT.
    """

    _pending = False
    _previous_handler: Any = None

    def __enter__(self) -> None:
        self._pending = False
        # Python lets only the main thread set handlers. A handler that is not Python's own belongs to the program.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous_handler = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._restore_handler()
        if kind is None:  # an error of the block must not be replaced by the interrupt
            self.check()

    def check(self) -> None:
        """Raise the noted `KeyboardInterrupt`, if there is one."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Note the signal, and let the next one interrupt at once."""
        self._pending = True
        self._restore_handler()

    def _restore_handler(self) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
            self._previous_handler = None
