"""`lockstep cache`: the compiled code that is kept between runs."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.cli.terminal import say, say_facts, shown_path
from lockstep.learner.compile.code_folder import MAX_BYTES, cache_path, cache_size, empty


@dataclass
class Cache:
    """Show the compiled code that is kept between runs, and how large it is; empty it."""

    empty: bool = False
    """Delete it. A run that has loaded its code keeps it; later runs compile again."""

    def run(self) -> int:
        """Print what is kept, or delete it; return the exit code."""
        folder = cache_path()
        if self.empty:
            gone = empty(folder)
            say(f"deleted {_in_words(gone.pieces, gone.num_bytes)} in {shown_path(folder)}")
            return 0
        size = cache_size(folder)
        say_facts(
            {
                "folder": shown_path(folder),
                "kept": _in_words(size.pieces, size.num_bytes),
                "limit": f"{MAX_BYTES / 2**20:,.0f} MiB; what was not used for the longest time goes first",
            }
        )
        return 0


def _in_words(pieces: int, num_bytes: int) -> str:
    return f"{pieces:,} compiled graphs, {num_bytes / 2**20:,.1f} MiB"
