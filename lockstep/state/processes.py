"""Whether a process of this machine is running, and the signal that ends it at once, on every system."""

from __future__ import annotations

import os
import signal
import sys

KILL_SIGNAL: int = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Signal that ends a process without calling its handlers. Windows has no SIGKILL; there SIGTERM does that."""


def is_running(process_id: int) -> bool:
    """Return whether a process of this machine is running. A process of another user counts as well."""
    if sys.platform == "win32":
        return _is_running_on_windows(process_id)
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    return True


def _is_running_on_windows(process_id: int) -> bool:
    """Return whether a process is running, without `os.kill`: signal 0 is Ctrl-C on Windows, and would be sent."""
    import ctypes

    query_limited_information = 0x1000
    access_denied = 5
    still_active = 259

    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined, unused-ignore]
    handle = kernel.OpenProcess(query_limited_information, False, process_id)
    if not handle:
        return bool(ctypes.get_last_error() == access_denied)  # type: ignore[attr-defined, unused-ignore]
    exit_code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(exit_code))
    kernel.CloseHandle(handle)
    return exit_code.value == still_active
