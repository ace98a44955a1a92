"""Display of several runs that train side by side, with one row for each seed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from lockstep.state.markup import number_text
from lockstep.trainer.display import REFRESH_SECONDS, Progress

if TYPE_CHECKING:
    from rich.console import Console

TRAINING = "training"
"""State of a seed that trains; its row shows the time left instead of the word."""


class SeedsDisplay:
    """Display of several seeds: one row for each on a terminal, one plain line for each epoch elsewhere.

    Use it as a context manager: a live display is shown while the context is open.

    Args:
        seeds: Seeds to show, in this order.
        console: rich's console that the display is drawn on.
        live: Whether to draw a live display. Defaults to whether the console is a terminal.
        title: Text above the rows of a live display.
    """

    def __init__(self, seeds: Sequence[int], console: Console, *, live: bool | None = None, title: str = "") -> None:
        self.title = title
        self.note = ""
        """Text below the rows of a live display."""
        self._console = console
        self._wants_live = console.is_terminal if live is None else live
        self._rows: dict[int, tuple[Progress | None, str]] = dict.fromkeys(seeds, (None, "waiting"))
        """Progress (None before the first) and state of each seed."""
        self._live: Any = None
        self._last_drawn = 0.0

    @property
    def is_live(self) -> bool:
        """Whether a live display is on the screen."""
        return self._live is not None

    def __enter__(self) -> Self:
        from rich.live import Live

        if self._wants_live:
            # rich's refresh thread would take turns with the training; `show` draws when there is something new.
            self._live = Live(console=self._console, auto_refresh=False, get_renderable=self._render)
            self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is None:
            return
        live = self._live
        self._live = None
        live.refresh()
        live.stop()

    def say(self, text: str) -> None:
        """Print lines, above the rows of a live display."""
        if self._live is not None:
            self._live.console.print(text, soft_wrap=True, highlight=False)
        else:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def show(self, seed: int, progress: Progress | None, state: str = "", line: str = "") -> None:
        """Update the row of a seed, or print its line if the display is not live.

        Args:
            seed: Seed of the row.
            progress: Progress of the run. None keeps the last one.
            state: State of the run in one word. Defaults to `"training"`; a state that is given is drawn at once.
            line: Text of an epoch or evaluation that has ended, for a display that is not live.
        """
        last_progress = self._rows[seed][0]
        self._rows[seed] = (progress or last_progress, state or TRAINING)

        if self._live is None:
            if line:
                self.say(f"seed {seed}  {line}")
        elif state or time.monotonic() - self._last_drawn >= REFRESH_SECONDS:
            self._last_drawn = time.monotonic()
            self._live.refresh()

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for seed, (progress, state) in self._rows.items():
            if progress is None:
                empty_bar = ProgressBar(total=1, completed=0, width=20)
                table.add_row(f"seed {seed}", empty_bar, "", "", "", "", state)
                continue
            table.add_row(
                f"seed {seed}",
                ProgressBar(total=max(1, progress.total), completed=progress.step, width=20),
                f"{progress.step:,}/{progress.total:,} steps",
                f"{progress.speed:,.0f} steps/s",
                _number_cell("return", progress.score),
                _number_cell("best", progress.best),
                f"{progress.left_text()} left" if state == TRAINING else state,
            )

        parts: list[Any] = [table]
        if self.title:
            parts.insert(0, Text(self.title, style="bold"))
        if self.note:
            parts.append(Text(self.note))
        return Group(*parts)


def _number_cell(label: str, number: float | None) -> str:
    """Return a number behind its label; an empty cell for None."""
    return "" if number is None else f"{label} {number_text(number)}"
