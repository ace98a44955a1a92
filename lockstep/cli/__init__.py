"""Command line of Lockstep. A command's dependencies are imported only when the command is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for wrong input, 1 for a failed run, 130 after Ctrl-C.

    `arguments`: words after the program's name. Defaults to those of this process.
    """
    try:
        from lockstep.cli.commands import run_command

        # Not `list(...)`: once `list.py` is imported, `list` is the module of that name in this package.
        words = sys.argv[1:] if arguments is None else arguments
        return run_command([*words])
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


__all__ = ["main"]
