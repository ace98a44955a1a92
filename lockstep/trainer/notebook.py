"""Live display of a run in a notebook: text and a picture of the returns, redrawn in place.

IPython is not a dependency. A notebook has imported it before it imports Lockstep. The picture needs matplotlib, an
extra; without it the display has the text only.
"""

from __future__ import annotations

import base64
import io
import sys
import time
from collections.abc import Callable
from typing import Any

from lockstep.tracking.statistics import CollectStats

MAX_POINTS = 400
"""Largest number of points of a curve. More cannot be distinguished, and would take longer to draw."""
TEXT_WIDTH = 110
"""Width of the text in letters."""
PICTURE_INCHES = (6.4, 2.8)
PICTURE_DPI = 90
PICTURE_SHARE = 0.05
"""Largest part of the time that may be spent on drawing the picture."""


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return False
    # IPython in a terminal has a shell without a kernel. It cannot show HTML.
    return hasattr(ipython.get_ipython(), "kernel")


class ReturnCurve:
    """Mean returns over the steps of a run. Neighbouring points are merged once there are more than `MAX_POINTS`."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.returns: list[float] = []
        self._num_merged = 1
        """Number of values that one point is the mean of."""
        self._pending: list[tuple[float, float]] = []
        """Values that are not a point yet."""

    def add_mean(self, step: int, stats: CollectStats) -> None:
        """Add the mean return of the episodes that have ended, if there are any."""
        if stats.returns_stat is not None and stats.returns_stat.mean is not None:
            self.add(step, stats.returns_stat.mean)

    def add(self, step: int, value: float) -> None:
        """Add the mean return at a step."""
        self._pending.append((step, value))
        if len(self._pending) < self._num_merged:
            return
        count = len(self._pending)
        self.steps.append(sum(step for step, _ in self._pending) / count)
        self.returns.append(sum(value for _, value in self._pending) / count)
        self._pending = []

        if len(self.steps) > MAX_POINTS:
            self.steps = _means_of_pairs(self.steps)
            self.returns = _means_of_pairs(self.returns)
            self._num_merged *= 2


def _means_of_pairs(values: list[float]) -> list[float]:
    """Return the means of neighbouring pairs. An odd value at the end is dropped."""
    return [(first + second) / 2 for first, second in zip(values[::2], values[1::2], strict=False)]


class ReturnPicture:
    """Picture of the returns of training and evaluation over the steps of a run.

    Args:
        total_steps: Number of steps in the whole run.
    """

    def __init__(self, total_steps: int = 1) -> None:
        self.training = ReturnCurve()
        self.evaluation = ReturnCurve()
        self._total_steps = max(1, total_steps)

    def png(self) -> bytes | None:
        """Return the picture as a PNG file; None before the first return, and if matplotlib is not installed."""
        if not self.training.steps and not self.evaluation.steps:
            return None
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
            from matplotlib.ticker import EngFormatter
        except ImportError:
            return None

        figure = Figure(figsize=PICTURE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)  # without pyplot, so that the figures of the user's own cells are not touched
        axes = figure.subplots()
        if self.training.steps:
            axes.plot(self.training.steps, self.training.returns, color="#56B4E9", linewidth=1, label="training")
        if self.evaluation.steps:
            axes.plot(
                self.evaluation.steps,
                self.evaluation.returns,
                color="#0072B2",
                marker="o",
                markersize=4,
                label="evaluation",
            )
        axes.set_xlim(0, self._total_steps)
        axes.set_xlabel("steps")
        axes.set_ylabel("mean return")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left")

        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=PICTURE_DPI)
        return file.getvalue()


class NotebookScreen:
    """Output of a notebook's cell that is redrawn in place.

    Args:
        render: Function that returns the text as a renderable of the library rich.
        draw: Function that returns the picture as a PNG file, or None if there is nothing to draw.
    """

    def __init__(self, render: Callable[[], Any], draw: Callable[[], bytes | None]) -> None:
        # Not at the top: IPython is imported only where it exists, in a notebook.
        from IPython.display import display

        self._render = render
        self._draw = draw
        self._picture = ""
        """HTML of the last picture."""
        self._next_picture_at = 0.0
        self._handle: Any = display(self._content(), raw=True, display_id=True)

    def refresh(self) -> None:
        """Redraw the text, and the picture if enough time has passed since it was drawn."""
        if time.monotonic() >= self._next_picture_at:
            self._draw_picture()
        self._handle.update(self._content(), raw=True)

    def stop(self) -> None:
        """Draw the last state, which stays in the notebook."""
        self._draw_picture()
        self._handle.update(self._content(), raw=True)

    def _draw_picture(self) -> None:
        start = time.monotonic()
        png = self._draw()
        if png is not None:
            data = base64.b64encode(png).decode("ascii")
            self._picture = f'<img alt="returns of the run" src="data:image/png;base64,{data}"/>'
        end = time.monotonic()
        self._next_picture_at = end + (end - start) / PICTURE_SHARE

    def _content(self) -> dict[str, str]:
        """Return the output in both of its forms: HTML, and plain text for viewers that show no HTML."""
        from rich.console import Console

        # `force_jupyter`: by default rich would display what is printed here below the cell as well.
        console = Console(
            file=io.StringIO(),
            width=TEXT_WIDTH,
            record=True,
            force_jupyter=False,
            color_system="truecolor",
            markup=False,
            highlight=False,
            emoji=False,
        )
        console.print(self._render())
        text = console.export_text(clear=False)
        code = '<pre style="line-height: 1.2; margin: 0">{code}</pre>'
        html = console.export_html(inline_styles=True, code_format=code)
        return {"text/plain": text, "text/html": f"{html}{self._picture}"}
