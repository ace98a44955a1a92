"""`lockstep cache`: show or delete the compiled code that is kept between runs."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.cli.terminal import say, say_facts, shown_path
from lockstep.learner.compile.code_folder import MAX_BYTES, cache_path, cache_size, empty


@dataclass
class Cache:
    """Show how much compiled code is kept between runs, or delete it."""

    empty: bool = False
    """Delete the code. A running training keeps the code that it has loaded; later runs compile again."""

    def run(self) -> int:
        """Print what is kept, or delete it; return the exit code."""
        folder = cache_path()
        if self.empty:
            deleted = empty(folder)
            say(f"deleted {_size_text(deleted.num_libraries, deleted.num_bytes)} in {shown_path(folder)}")
            return 0

        size = cache_size(folder)
        say_facts(
            {
                "folder": shown_path(folder),
                "kept": _size_text(size.num_libraries, size.num_bytes),
                "limit": f"{MAX_BYTES / 2**20:,.0f} MiB; what was not used for the longest time is deleted first",
            }
        )
        return 0


def _size_text(pieces: int, num_bytes: int) -> str:
    return f"{pieces:,} compiled graphs, {num_bytes / 2**20:,.1f} MiB"
