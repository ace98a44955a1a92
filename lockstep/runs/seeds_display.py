"""`SeedsDisplay`: several runs that train side by side, a row for each."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from lockstep.state.markup import number_text
from lockstep.trainer.display import REFRESH_SECONDS, Progress

if TYPE_CHECKING:
    from rich.console import Console


class SeedsDisplay:
    """Shows several seeds: a row for each on a terminal, one plain line for each epoch elsewhere.

    Use it as a context. `console` and `live` are those of `ProgressDisplay`; `title` stands above the rows.
    """

    def __init__(self, seeds: Sequence[int], console: Console, *, live: bool | None = None, title: str = "") -> None:
        self.title, self.note = title, ""
        self._console = console
        self._wanted = console.is_terminal if live is None else live
        self._rows: dict[int, tuple[Progress | None, str]] = dict.fromkeys(seeds, (None, "waiting"))
        self._live: Any = None
        self._drawn = 0.0

    @property
    def is_live(self) -> bool:
        """Whether a live display is on the screen."""
        return self._live is not None

    def __enter__(self) -> Self:
        from rich.live import Live

        if self._wanted:
            self._live = Live(console=self._console, auto_refresh=False, get_renderable=self._render)
            self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.refresh()
            live.stop()

    def say(self, text: str) -> None:
        """Print lines, above the rows."""
        if self._live is not None:
            self._live.console.print(text, soft_wrap=True, highlight=False)
        else:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def show(self, seed: int, progress: Progress | None, state: str = "", line: str = "") -> None:
        """Show where a seed is: how far, in what state (`"training"` without one); elsewhere only its line."""
        before = self._rows[seed][0]
        self._rows[seed] = progress or before, state or "training"
        if self._live is None:
            if line:
                self.say(f"seed {seed}  {line}")
        elif state or time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._live.refresh()

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for seed, (progress, state) in self._rows.items():
            if progress is None:
                table.add_row(f"seed {seed}", ProgressBar(total=1, completed=0, width=20), "", "", "", "", state)
                continue
            table.add_row(
                f"seed {seed}",
                ProgressBar(total=max(1, progress.total), completed=progress.step, width=20),
                f"{progress.step:,}/{progress.total:,} steps",
                f"{progress.speed:,.0f} steps/s",
                "" if progress.score is None else f"return {number_text(progress.score)}",
                "" if progress.best is None else f"best {number_text(progress.best)}",
                state if state != "training" else f"{progress.left_text()} left",
            )
        parts: list[Any] = [Text(self.title, style="bold")] if self.title else []
        return Group(*parts, table, *([Text(self.note)] if self.note else []))
