"""`lockstep plot`, `compare`, `report`: runs beside each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.analysis import compare_runs, plot_runs, write_report
from lockstep.analysis.compare import COLUMNS
from lockstep.cli.arguments import Count, MaybeCount
from lockstep.cli.report import say, say_facts, show_table, shown_path

PICTURES = (".png", ".pdf", ".svg")
Labels = Annotated[UseAppendAction[tuple[str, ...]], arg(name="label")]


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


@dataclass
class Compare:
    """Compare the last evaluations of runs with those of others: is one better, and how sure is that?"""

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN")]]
    """Folders of runs."""
    against: Annotated[tuple[Path, ...], arg(metavar="RUN")] = ()
    """Folders of the runs to compare them with, on the same environments."""
    output: Annotated[Path, arg(aliases=["-o"])] = field(default_factory=lambda: Path("comparison.png"))
    """The picture to write."""
    metric: str = "returns_stat/mean"
    """Name of the record that is the score."""
    scope: Literal["test", "train"] = "test"
    """Of evaluation, or of training episodes."""
    at_step: MaybeCount = None
    """Compare at this step; else each run's last evaluation counts."""
    scale: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="ENV=LOW:HIGH")] = ()
    """Returns of an environment that become 0 and 1; several environments are scaled in any case. May be repeated."""
    labels: Labels = ()
    """Name of a side; give none or two."""
    markdown: bool = False
    """Print Markdown."""

    def run(self) -> int:
        """Print the comparison and draw it; return the exit code."""
        if not self.runs or not self.against:
            raise ValueError("compare needs runs on both sides: lockstep compare runs/fast/* --against runs/slow/*")
        check_ending(self.output, PICTURES)
        comparison = compare_runs(
            self.runs,
            self.against,
            metric=self.metric,
            scope=self.scope,
            at_step=self.at_step,
            scale=dict(map(_read_scale, self.scale)),
            labels=self.labels,
        )
        if self.markdown:
            say(comparison.markdown())
        else:
            show_table(COLUMNS, comparison.rows())
            say_facts(comparison.facts())
        picture = shown_path(comparison.save(self.output))
        say(f"![comparison]({picture})" if self.markdown else f"  picture      {picture}")
        return 0


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


def check_ending(path: Path, endings: tuple[str, ...]) -> None:
    """Raise `ValueError` unless a file's name has one of the endings."""
    if path.suffix.lower() not in endings:
        raise ValueError(f"--output {path} must end in {', '.join(endings[:-1])} or {endings[-1]}")


def _read_scale(text: str) -> tuple[str, tuple[float, float]]:
    """Return `("CartPole-v1", (0, 500))` of `"CartPole-v1=0:500"`."""
    env, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        return env, (float(low), float(high))
    except ValueError:
        raise ValueError(f"--scale {text!r} is not allowed; write ENV=LOW:HIGH, e.g. CartPole-v1=0:500") from None
