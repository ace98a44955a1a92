"""`lockstep plot`: the learning curves of runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.analysis import plot_runs
from lockstep.cli.arguments import PICTURES, Count, Labels, check_ending
from lockstep.cli.terminal import say, shown_path


@dataclass
class Plot:
    """Draw the learning curves of runs; runs of equal settings become an interquartile mean with its interval."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN")]]
    """Folders of runs."""
    output: Annotated[Path, arg(aliases=["-o"])] = field(default_factory=lambda: Path("curves.png"))
    """The picture to write."""
    metric: str = "returns_stat/mean"
    """Name of the record."""
    scope: Literal["test", "train", "update"] = "test"
    """Of evaluation, of training episodes, or of updates."""
    x: Literal["steps", "seconds", "gradient_steps"] = "steps"
    """What the curves run over."""
    group_by: UseAppendAction[tuple[str, ...]] = ()
    """Option whose values tell curves apart, e.g. training.lr; else all that differ but seeds. May be repeated."""
    labels: Labels = ()
    """Name in the legend, one for each curve in their order. May be repeated."""
    smooth: Count = 1
    """Draw the mean of this many evaluations; the picture says so."""

    def run(self) -> int:
        """Draw the curves; return the exit code."""
        if not self.runs:
            raise ValueError("plot needs at least one run's folder: lockstep plot runs/ppo_* -o curves.png")
        check_ending(self.output, PICTURES)
        picture = plot_runs(
            self.runs,
            self.output,
            metric=self.metric,
            scope=self.scope,
            x=self.x,
            group_by=self.group_by,
            labels=self.labels,
            smooth=self.smooth,
        )
        say(shown_path(picture))
        return 0
