"""`lockstep trust`: sign a user's own run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lockstep.cli.terminal import say, say_facts, shown_path
from lockstep.runs.trust import trust_run


@dataclass
class Trust:
    """Sign a run of your own that has no signature, such as a run of version 0.2: `lockstep trust RUN`.

    From then on the functions and classes that its files name are imported and called, as in a run that you have just
    made. Do not sign a run of somebody else, unless you have looked at the names that this command shows.
    """

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Folder of the run, or a checkpoint."""

    def run(self) -> int:
        """Sign the run and show the objects that it names; return the exit code."""
        objects = trust_run(self.folder)
        if objects:
            say_facts(objects)
        else:
            say("It names no object outside of Lockstep.")
        say(f"signed: {shown_path(self.folder)}")
        return 0
