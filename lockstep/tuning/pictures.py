"""The picture of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lockstep.options.checks import install_hint


def draw_search(scores: Sequence[float | None], importances: Mapping[str, float], path: Path) -> None:
    """Draw the score of each trial with the best so far, and how much each option mattered.

    `scores`: None for a trial without one. `importances`: shares of 1 by option. Raises `ImportError` without
    matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"the picture of a search needs matplotlib: {install_hint('plot')}") from error
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    history, shares = figure.subplots(1, 2)
    known = np.array([np.nan if score is None else score for score in scores])
    numbers = np.arange(len(known))
    history.plot(numbers, known, "o", color="#0072B2", label="trial")
    if np.isfinite(known).any():
        best = np.fmax.accumulate(np.where(np.isfinite(known), known, -np.inf))
        history.step(
            numbers, np.where(np.isfinite(best), best, np.nan), where="post", color="#D55E00", label="best so far"
        )
    history.set(xlabel="trial", ylabel="mean return at the end", title="Trials")
    history.legend()
    names = sorted(importances, key=lambda name: importances[name])
    shares.barh(names, [importances[name] for name in names], color="#0072B2")
    shares.set(xlabel="importance", title="What mattered")
    figure.savefig(path, dpi=110)
