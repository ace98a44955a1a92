"""`lockstep plot`: draw the learning curves of runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from lockstep.analysis import plot_runs
from lockstep.analysis.run_groups import open_runs
from lockstep.cli.arguments import PICTURES, Count, Labels, OptionNames, Runs, check_ending
from lockstep.cli.terminal import say, shown_path
from lockstep.options.texts import count_text


@dataclass
class Plot:
    """Draw the learning curves of runs. Runs with the same settings become one curve with a confidence interval.

    That curve is the interquartile mean of the runs: the mean of the middle half of their values.
    """

    runs: Positional[Runs]
    """Folders of the runs, or a folder that holds runs: `lockstep plot runs`."""
    output: Annotated[Path, arg(aliases=["-o"])] = field(default_factory=lambda: Path("curves.png"))
    """Picture to write: .png, .pdf or .svg."""
    metric: Annotated[str, arg(metavar="NAME")] = "returns_stat/mean"
    """Metric to draw, as metrics.jsonl names it."""
    scope: Literal["test", "train", "update"] = "test"
    """Where the metric comes from: evaluations (test), training episodes (train), or updates."""
    x: Literal["steps", "seconds", "gradient_steps"] = "steps"
    """Quantity on the horizontal axis."""
    group_by: OptionNames = ()
    """Draw one curve for each value of this option, e.g. training.lr."""
    labels: Labels = ()
    """Name of a curve in the legend; give one for each curve, in their order."""
    smooth: Count = 1
    """Draw the running mean of this many evaluations; the picture says so."""

    def run(self) -> int:
        """Draw the curves; return the exit code."""
        if not self.runs:
            raise ValueError("plot needs at least one run's folder: lockstep plot runs/ppo_* -o curves.png")
        check_ending(self.output, PICTURES)
        runs = [run.path for run in open_runs(self.runs, self.scope)]
        picture = plot_runs(
            runs,
            self.output,
            metric=self.metric,
            scope=self.scope,
            x=self.x,
            group_by=self.group_by,
            labels=self.labels,
            smooth=self.smooth,
        )
        say(f"{shown_path(picture)} ({count_text(len(runs), 'run', 'runs')})")
        return 0
