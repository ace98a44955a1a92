"""`lockstep compare`: the last evaluations of runs beside those of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.analysis import compare_runs
from lockstep.analysis.compare import COLUMNS
from lockstep.cli.arguments import PICTURES, Labels, MaybeCount, check_ending
from lockstep.cli.terminal import say, say_facts, show_table, shown_path


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


def _read_scale(text: str) -> tuple[str, tuple[float, float]]:
    """Return `("CartPole-v1", (0, 500))` of `"CartPole-v1=0:500"`."""
    env, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        return env, (float(low), float(high))
    except ValueError:
        raise ValueError(f"--scale {text!r} is not allowed; write ENV=LOW:HIGH, e.g. CartPole-v1=0:500") from None
