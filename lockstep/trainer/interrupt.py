"""`DeferredInterrupt`: Ctrl-C, at a moment at which the state of a run is whole."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class DeferredInterrupt:
    """Within the context the first Ctrl-C only waits for `check()`, which raises it; a second one is raised at once.

    So a run ends where its state is whole, and continues from there with identical results. Other handlers of SIGINT
    than Python's own, and other threads than the main one, are left alone.
    """

    _pending = False
    _before: Any = None

    def __enter__(self) -> None:
        self._pending = False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._restore()
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the `KeyboardInterrupt` that came meanwhile, if one did."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
