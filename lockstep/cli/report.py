"""`lockstep report`: one page about runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.analysis import write_report
from lockstep.cli.arguments import Labels, check_ending
from lockstep.cli.terminal import say, shown_path


@dataclass
class Report:
    """Write one page about runs: curves, settings that differ, final evaluations, shares of time, videos."""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN")]]
    """Folders of runs."""
    output: Annotated[Path, arg(aliases=["-o"])] = field(default_factory=lambda: Path("report.html"))
    """The page to write; it needs no network."""
    group_by: UseAppendAction[tuple[str, ...]] = ()
    """Option whose values tell curves apart, e.g. training.lr; else all that differ but seeds. May be repeated."""
    labels: Labels = ()
    """Name of a group of runs, one for each in their order. May be repeated."""
    metric: UseAppendAction[tuple[str, ...]] = ()
    """Another record to draw, with its scope: update/entropy. May be repeated."""
    title: str = "Runs"
    """Heading of the page."""

    def run(self) -> int:
        """Write the page; return the exit code."""
        if not self.runs:
            raise ValueError("report needs at least one run's folder: lockstep report runs/ppo_* -o report.html")
        check_ending(self.output, (".html", ".htm"))
        page = write_report(
            self.runs,
            self.output,
            group_by=self.group_by,
            labels=self.labels,
            metrics=self.metric,
            title=self.title,
        )
        say(shown_path(page))
        return 0
