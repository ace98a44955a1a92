"""`ProgressDisplay`: one live display of a run on a terminal, one plain line for each epoch elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.state.markup import number_text
from lockstep.tracking.statistics import CollectStats, EpochStats, TrainingStats
from lockstep.trainer.callbacks import Callback, CollectEnd, EpochEnd, EvaluationEnd, RunEnd, RunStart, UpdateEnd

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_SECONDS = 0.1
"""least time between two drawings: watching costs nothing that can be measured"""


class Progress(NamedTuple):
    """How far a run has come."""

    step: int
    total: int
    speed: float
    """steps per second, evaluations included"""
    score: float | None = None
    """mean return of the last evaluation"""
    best: float | None = None

    def left_text(self) -> str:
        """Return the time that is left, `"0:42"`, or `"?"`."""
        return "?" if self.speed <= 0 else clock_text(max(0, self.total - self.step) / self.speed)


class ProgressDisplay(Callback):
    """Shows steps, steps per second, return, length, losses and the time left.

    `console`: rich's console; `None` makes one on stdout. `live`: `None` means live on a terminal, else one line for
    each epoch with its evaluation, and one for each evaluation besides. `title` stands above the live display. rich is
    loaded when the run begins.
    """

    def __init__(self, console: Console | None = None, *, live: bool | None = None, title: str = "") -> None:
        self.title, self.note = title, ""
        self._console, self._wanted = console, live
        self._live: Any = None
        self._total, self._is_offline = 0, False
        self._started, self._first_step, self._step, self._drawn = 0.0, 0, 0, 0.0
        self._train, self._updates = CollectStats(), TrainingStats()
        self._test: CollectStats | None = None
        self._best: tuple[float, int] | None = None
        self._line_due = ""
        """the line of an evaluation, until it is printed or an epoch's line has it"""

    @property
    def is_live(self) -> bool:
        """Whether a live display is on the screen."""
        return self._live is not None

    @property
    def seconds(self) -> float:
        """Since the run began or went on in this process."""
        return time.monotonic() - self._started

    @property
    def progress(self) -> Progress:
        """How far the run has come."""
        stats = None if self._test is None else self._test.returns_stat
        best = None if self._best is None else self._best[0]
        return Progress(self._step, self._total, self._speed(), None if stats is None else stats.mean, best)

    # -- events ---

    def on_run_start(self, event: RunStart) -> None:
        from rich.console import Console
        from rich.live import Live

        trainer = event.trainer
        self._total = trainer.steps_in_all
        self._is_offline = trainer.train_collector is None
        self._started, self._first_step, self._step = time.monotonic(), event.position, event.position
        self._console = self._console or Console(markup=False, highlight=False, emoji=False)
        if self._console.is_terminal if self._wanted is None else self._wanted:
            self._live = Live(console=self._console, auto_refresh=False, get_renderable=self._render)
            self._live.start(refresh=True)

    def on_collect_end(self, event: CollectEnd) -> None:
        self._step = event.position
        if len(event.stats.returns):
            self._train = event.stats
        self._draw()

    def on_update_end(self, event: UpdateEnd) -> None:
        self._step = event.position
        self._updates = event.stats
        self._say_line_due()
        self._draw()

    def on_evaluation_end(self, event: EvaluationEnd) -> None:
        """Keep the returns; a plain line shows those of an evaluation before or inside an epoch."""
        self._say_line_due()
        self._test = event.stats
        if event.is_best:
            self._best = (event.score, event.position)
        self._draw()
        self._line_due = f"{self._steps_text(event.position)}  evaluation {_episodes_text(event.stats)}"
        if event.epoch == 0:
            self._say_line_due()

    def on_epoch_end(self, event: EpochEnd) -> None:
        self._line_due = ""
        if self._live is None:
            self.say(self.line(event.stats))

    def on_run_end(self, event: RunEnd) -> None:
        self._say_line_due()
        if self._live is not None:
            live, self._live = self._live, None
            live.refresh()
            live.stop()

    # -- text ---

    def line(self, epoch: EpochStats) -> str:
        """Return one epoch as plain text."""
        info, train = epoch.info_stat, epoch.train_collect_stat
        parts = [self._steps_text(info.train_step or info.gradient_step)]
        if epoch.test_collect_stat is not None:
            parts.append(f"evaluation {_episodes_text(epoch.test_collect_stat)}")
        if train is not None and train.n_collected_steps:
            parts.append(f"training {_episodes_text(train)}")
            parts.append(_metrics_text(train))
        if epoch.training_stat is not None:
            parts.append(_losses_text(epoch.training_stat))
        parts += [f"{info.timing.update_speed:,.0f} steps/s", f"{self._left_text()} left"]
        return "  ".join(part for part in parts if part)

    def _say_line_due(self) -> None:
        if self._line_due and self._live is None:
            self.say(self._line_due)
        self._line_due = ""

    def say(self, text: str) -> None:
        """Print a line."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _steps_text(self, step: int) -> str:
        total = f"{self._total:,}"
        return f"{step:>{len(total)},}/{total} steps"

    def _speed(self) -> float:
        """Return the steps per second of this process since the run began or went on, evaluations included."""
        return (self._step - self._first_step) / self.seconds if self.seconds > 0 else 0.0

    def _left_text(self) -> str:
        return self.progress.left_text()

    def _draw(self) -> None:
        if self._live is not None and time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._live.refresh()

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=max(1, self._total), completed=self._step, width=30),
            self._steps_text(self._step),
            f"{self._speed():,.0f} steps/s",
            f"{self._left_text()} left",
        )
        body = Table.grid(padding=(0, 2))
        if self._test is not None:
            best = "" if self._best is None else f"best {number_text(self._best[0])} at {self._best[1]:,}"
            body.add_row("evaluation", _episodes_text(self._test), best)
        if not self._is_offline:
            body.add_row("training", _episodes_text(self._train), _metrics_text(self._train))
        losses = Table.grid(padding=(0, 2))
        losses.add_row("update    ", _losses_text(self._updates) or "none yet")
        parts: list[Any] = [Text(self.title, style="bold")] if self.title else []
        return Group(*parts, head, body, losses, *([Text(self.note)] if self.note else []))


def clock_text(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _episodes_text(stats: CollectStats) -> str:
    returns, lens = stats.returns_stat, stats.lens_stat
    if returns is None or lens is None or returns.mean is None or returns.std is None:
        return "no episode ended yet"
    return f"return {number_text(returns.mean)} ± {number_text(returns.std, 3)}, length {number_text(lens.mean)}"


def _metrics_text(stats: CollectStats) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in stats.metrics.items())


def _losses_text(stats: TrainingStats) -> str:
    shown = {n: v for n, v in stats.get_loss_stats_dict().items() if n == "entropy" or "loss" in n}
    if len(shown) > 1:
        shown.pop("total_loss", None)  # the sum of the others
    return "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
