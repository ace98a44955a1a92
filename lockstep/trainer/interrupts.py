"""`DeferredInterrupt`: Ctrl-C takes effect between two steps of a run instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class DeferredInterrupt:
    """Within the context the first Ctrl-C only waits for `check()`, which raises it; a second one is raised at once.

    So a run ends where its state is whole, and goes on from there bit by bit. Other handlers of SIGINT than Python's
    own, and other threads than the main one, are left alone.
    """

    def __init__(self) -> None:
        self._pending = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._pending = False
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if error is None:
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
