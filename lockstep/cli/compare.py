"""`lockstep compare`: compare the evaluations of two groups of runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, UseAppendAction, arg

from lockstep.analysis import compare_runs
from lockstep.analysis.compare import COLUMNS
from lockstep.cli.arguments import PICTURES, Labels, OptionalCount, Runs, check_ending
from lockstep.cli.terminal import say, say_facts, show_table, shown_path


@dataclass
class Compare:
    """Compare the last evaluations of two groups of runs: which group is better, and how certain is that?"""

    runs: Positional[Runs]
    """Folders of the first group of runs, or a folder that holds them."""
    against: Runs = ()
    """Folders of the second group of runs, on the same environments."""
    output: Annotated[Path, arg(aliases=["-o"])] = field(default_factory=lambda: Path("comparison.png"))
    """Picture to write: .png, .pdf or .svg."""
    metric: Annotated[str, arg(metavar="NAME")] = "returns_stat/mean"
    """Metric that is the score of a run, as metrics.jsonl names it."""
    scope: Literal["test", "train"] = "test"
    """Where the metric comes from: evaluations (test) or training episodes (train)."""
    at_step: Annotated[OptionalCount, arg(help_behavior_hint="(default: each run's last evaluation)")] = None
    """Environment step at which the runs are compared."""
    scale: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="ENV=LOW:HIGH")] = ()
    """Returns of an environment that become 0 and 1. By default only runs on several environments are scaled."""
    labels: Labels = ()
    """Name of a group; give two or none."""
    markdown: bool = False
    """Print the comparison as Markdown."""

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
            scale=dict(map(_parse_scale, self.scale)),
            labels=self.labels,
        )

        # The numbers are printed before the picture is drawn, which needs matplotlib.
        if self.markdown:
            say(comparison.markdown())
        else:
            show_table(COLUMNS, comparison.rows())
            say()
            say_facts(comparison.facts())
        picture = shown_path(comparison.save(self.output))
        say(f"![comparison]({picture})" if self.markdown else f"  picture      {picture}")
        return 0


def _parse_scale(text: str) -> tuple[str, tuple[float, float]]:
    """Return `("CartPole-v1", (0, 500))` for `"CartPole-v1=0:500"`."""
    env, _, bounds = text.rpartition("=")
    low, _, high = bounds.partition(":")
    try:
        return env, (float(low), float(high))
    except ValueError:
        raise ValueError(f"--scale {text!r} is not allowed; write ENV=LOW:HIGH, e.g. CartPole-v1=0:500") from None
