"""`ProgressDisplay`: progress of a run as a live display on a terminal or in a notebook, or as one line per epoch."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lockstep.state.markup import number_text
from lockstep.tracking.statistics import CollectStats, EpochStats, TrainingStats
from lockstep.trainer.callbacks import Callback, CollectEnd, EpochEnd, EvaluationEnd, RunEnd, RunStart, UpdateEnd
from lockstep.trainer.notebook import NotebookScreen, ReturnPicture, is_notebook

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_SECONDS = 0.1
"""Shortest time between two redraws, so that the display costs no measurable time."""


class Progress(NamedTuple):
    """Progress of a run."""

    step: int
    """Number of steps so far."""
    total: int
    """Number of steps in the whole run."""
    speed: float
    """Steps per second, including the time of evaluations."""
    score: float | None = None
    """Mean return of the last evaluation."""
    best: float | None = None
    """Best score of an evaluation."""

    def left_text(self) -> str:
        """Return the estimated remaining time, such as `"0:42"`, or `"?"` if the speed is unknown."""
        if self.speed <= 0:
            return "?"
        steps_left = max(0, self.total - self.step)
        return clock_text(steps_left / self.speed)


class Screen(Protocol):
    """Live display that is being shown."""

    def refresh(self) -> None:
        """Redraw the display."""

    def stop(self) -> None:
        """Draw the display for the last time, and leave it."""


class ProgressDisplay(Callback):
    """Callback that shows steps, steps per second, returns, episode lengths, losses and the remaining time.

    A notebook also gets a picture of the returns, if matplotlib is installed.

    Args:
        console: console of the library rich. By default one on stdout is made; in a notebook, the cell's output is
            used.
        live: whether to redraw one display. If not, a line is printed for each epoch, and for each evaluation that is
            not the one at the end of an epoch. Defaults to whether the console is a terminal, or the program runs in a
            notebook.
        title: text above the live display.
    """

    def __init__(self, console: Console | None = None, *, live: bool | None = None, title: str = "") -> None:
        self.title = title
        self.note = ""
        """Text below the live display."""
        self._console = console
        self._live_option = live
        self._live: Screen | None = None
        """The live display, while it is on the screen."""
        self._total = 0
        self._is_offline = False
        self._started = 0.0
        self._first_step = 0
        """Step at which the run began or continued in this process."""
        self._step = 0
        self._drawn_at = 0.0
        self._train = CollectStats()
        self._updates = TrainingStats()
        self._test: CollectStats | None = None
        self._best: tuple[float, int] | None = None
        """Best score, and the step of its evaluation."""
        self._pending_line = ""
        """Line of the last evaluation. It is dropped if the line of its epoch follows, which contains the same."""
        self._picture = ReturnPicture()

    @property
    def is_live(self) -> bool:
        """Whether a live display is on the screen."""
        return self._live is not None

    @property
    def seconds(self) -> float:
        """Seconds since the run began or continued in this process."""
        return time.monotonic() - self._started

    @property
    def progress(self) -> Progress:
        """Progress of the run."""
        returns = None if self._test is None else self._test.returns_stat
        score = None if returns is None else returns.mean
        best = None if self._best is None else self._best[0]
        return Progress(self._step, self._total, self._speed(), score, best)

    # -- events ---

    def on_run_start(self, event: RunStart) -> None:
        trainer = event.trainer
        self._total = trainer.steps_in_all
        self._is_offline = trainer.train_collector is None
        self._started = time.monotonic()
        self._first_step = event.position
        self._step = event.position

        self._picture = ReturnPicture(self._total)
        for epoch in trainer.history:  # of a run that is resumed
            position = epoch.info_stat.train_step or epoch.info_stat.gradient_step
            if epoch.train_collect_stat is not None:
                self._picture.training.add_mean(position, epoch.train_collect_stat)
            if epoch.test_collect_stat is not None:
                self._picture.evaluation.add_mean(position, epoch.test_collect_stat)

        self._live = self._open_screen()

    def _open_screen(self) -> Screen | None:
        """Show the live display, and return it. None if lines are printed instead."""
        if self._live_option is False:
            return None
        if self._console is None and is_notebook():
            return NotebookScreen(self._render, self._picture.png)

        # `import lockstep` must not load rich.
        from rich.console import Console
        from rich.live import Live

        self._console = self._console or Console(markup=False, highlight=False, emoji=False)
        if self._live_option is None and not self._console.is_terminal:
            return None
        live = Live(console=self._console, auto_refresh=False, get_renderable=self._render)
        live.start(refresh=True)
        return live

    def on_collect_end(self, event: CollectEnd) -> None:
        self._step = event.position
        if len(event.stats.returns):
            self._train = event.stats
        self._picture.training.add_mean(event.position, event.stats)
        self._draw()

    def on_update_end(self, event: UpdateEnd) -> None:
        self._step = event.position
        self._updates = event.stats
        self._print_pending_line()
        self._draw()

    def on_evaluation_end(self, event: EvaluationEnd) -> None:
        """Show the returns. Their line is delayed, because the line of the epoch may contain them."""
        self._print_pending_line()
        self._test = event.stats
        self._picture.evaluation.add_mean(event.position, event.stats)
        if event.is_best:
            self._best = (event.score, event.position)
        self._draw()
        self._pending_line = f"{self._steps_text(event.position)}  evaluation {_episodes_text(event.stats)}"
        if event.epoch == 0:
            self._print_pending_line()

    def on_epoch_end(self, event: EpochEnd) -> None:
        self._pending_line = ""
        if self._live is None:
            self.say(self.line(event.stats))

    def on_run_end(self, event: RunEnd) -> None:
        self._print_pending_line()
        if self._live is not None:
            live = self._live
            self._live = None
            live.refresh()
            live.stop()

    # -- text ---

    def line(self, epoch: EpochStats) -> str:
        """Return the statistics of an epoch as a line of text."""
        info = epoch.info_stat
        train = epoch.train_collect_stat
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

    def _print_pending_line(self) -> None:
        if self._pending_line and self._live is None:
            self.say(self._pending_line)
        self._pending_line = ""

    def say(self, text: str) -> None:
        """Print a line of text."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _steps_text(self, step: int) -> str:
        total = f"{self._total:,}"
        return f"{step:>{len(total)},}/{total} steps"

    def _speed(self) -> float:
        """Return the steps per second in this process, including the time of evaluations."""
        return (self._step - self._first_step) / self.seconds if self.seconds > 0 else 0.0

    def _left_text(self) -> str:
        return self.progress.left_text()

    def _draw(self) -> None:
        if self._live is not None and time.monotonic() - self._drawn_at >= REFRESH_SECONDS:
            self._drawn_at = time.monotonic()
            self._live.refresh()

    def _render(self) -> Any:
        """Return the live display: title, progress bar, returns, losses and note."""
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

        parts: list[Any] = [head, body, losses]
        if self.title:
            parts.insert(0, Text(self.title, style="bold"))
        if self.note:
            parts.append(Text(self.note))
        return Group(*parts)


def clock_text(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    whole_minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(whole_minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds_left:02}"
    return f"{minutes}:{seconds_left:02}"


def _episodes_text(stats: CollectStats) -> str:
    returns = stats.returns_stat
    lens = stats.lens_stat
    if returns is None or lens is None or returns.mean is None or returns.std is None:
        return "no episode ended yet"
    return f"return {number_text(returns.mean)} ± {number_text(returns.std, 3)}, length {number_text(lens.mean)}"


def _metrics_text(stats: CollectStats) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in stats.metrics.items())


def _losses_text(stats: TrainingStats) -> str:
    all_stats = stats.get_loss_stats_dict()
    losses = {name: value for name, value in all_stats.items() if name == "entropy" or "loss" in name}
    if len(losses) > 1:
        losses.pop("total_loss", None)  # the sum of the other losses
    return "  ".join(f"{name} {value:.4g}" for name, value in losses.items())
