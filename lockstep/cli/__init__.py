"""The command `lockstep`. Loads nothing heavy: each command imports what it needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lockstep.cli.early import EarlyInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, 2 for wrong input, 1 for a failed run, 130 after Ctrl-C.

    `arguments`: those after the program's name; `None`: of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with EarlyInterrupt():
            from lockstep.cli.app import run_command

            return run_command(given)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


__all__ = ["main"]
