"""Picture of a search: scores of the trials, and importances of the options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lockstep.options.checks import install_hint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours of the palette of Okabe and Ito, which people with colour blindness can tell apart.
BLUE = "#0072B2"
RED = "#D55E00"


def draw_search(scores: Sequence[float | None], importances: Mapping[str, float], path: Path) -> None:
    """Write the picture of a search to `path`. Other arguments and errors are those of `search_figure`."""
    search_figure(scores, importances).savefig(path, dpi=110)


def search_figure(scores: Sequence[float | None], importances: Mapping[str, float]) -> Figure:
    """Return a figure with the score of each trial, the best score so far, and how much each option mattered.

    Args:
        scores: Score of each trial; None for a trial without one.
        importances: Share of each option, with the sum 1.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ImportError(f"the picture of a search needs matplotlib: {install_hint('plot')}") from error

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    score_axes, importance_axes = figure.subplots(1, 2)

    values = np.array([np.nan if score is None else score for score in scores])
    numbers = np.arange(len(values))
    score_axes.plot(numbers, values, "o", color=BLUE, label="trial")
    if np.isfinite(values).any():
        best = np.fmax.accumulate(np.where(np.isfinite(values), values, -np.inf))
        best = np.where(np.isfinite(best), best, np.nan)  # before the first trial with a score there is no best one
        score_axes.step(numbers, best, where="post", color=RED, label="best so far")
    score_axes.set(xlabel="trial", ylabel="mean return at the end", title="Trials")
    score_axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower left", ncols=2, frameon=False)  # inside it could cover a trial

    names = sorted(importances, key=lambda name: importances[name])
    importance_axes.barh(names, [importances[name] for name in names], color=BLUE)
    importance_axes.set(xlabel="importance", title="What mattered")
    return figure
