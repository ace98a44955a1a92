"""`lockstep report`: write an HTML page about runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.analysis import write_report
from lockstep.analysis.run_groups import open_runs
from lockstep.cli.arguments import Labels, OptionNames, Runs, check_ending
from lockstep.cli.terminal import say, shown_path
from lockstep.options.texts import count_text


@dataclass
class Report:
    """Write an HTML page about runs: curves, settings that differ, final evaluations, shares of time, videos."""

    runs: Positional[Runs]
    """Folders of the runs, or a folder that holds runs: `lockstep report runs`."""
    output: Annotated[Path, arg(aliases=["-o"])] = field(default_factory=lambda: Path("report.html"))
    """Page to write: .html. It loads nothing from the network."""
    group_by: OptionNames = ()
    """Make one group of runs for each value of this option, e.g. training.lr."""
    labels: Labels = ()
    """Name of a group of runs; give one for each group, in their order."""
    metric: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="SCOPE/NAME")] = ()
    """Draw this metric too, e.g. update/entropy."""
    title: Annotated[str, arg(metavar="TEXT")] = "Runs"
    """Heading of the page."""

    def run(self) -> int:
        """Write the page; return the exit code."""
        if not self.runs:
            raise ValueError("report needs at least one run's folder: lockstep report runs/ppo_* -o report.html")
        check_ending(self.output, (".html", ".htm"))
        runs = [run.path for run in open_runs(self.runs)]
        page = write_report(
            runs,
            self.output,
            group_by=self.group_by,
            labels=self.labels,
            metrics=self.metric,
            title=self.title,
        )
        say(f"{shown_path(page)} ({count_text(len(runs), 'run', 'runs')})")
        return 0
