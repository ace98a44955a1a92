"""`lockstep trust`: sign a run of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lockstep.cli.terminal import say, say_facts, shown_path
from lockstep.runs.trust import trust_run


@dataclass
class Trust:
    """Sign a run of your own that has no signature, as runs of version 0.2: `lockstep trust RUN`.

    The functions and classes that its files name are then imported and called as in a run that you have just made. Do
    not sign what you got from somebody else, unless you have looked at the names that this command shows.
    """

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """The run's folder, or a checkpoint."""

    def run(self) -> int:
        """Sign the run and show what it names; return the exit code."""
        found = trust_run(self.folder)
        if found:
            say_facts(found)
        else:
            say("It names no object outside of Lockstep.")
        say(f"signed: {shown_path(self.folder)}")
        return 0
