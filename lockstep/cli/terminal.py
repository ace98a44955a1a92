"""Text and tables for the terminal; plain text if the output is not a terminal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from lockstep.analysis import iqm_bootstrap
from lockstep.state.markup import number_text
from lockstep.tracking import RunFolder
from lockstep.tracking.run_folder import stage_seconds
from lockstep.trainer.display import clock_text

PLAIN_WIDTH = 200
"""Width of text that is not printed on a terminal."""
UNLIMITED_WIDTH = 10_000
"""Width for tables that are not printed on a terminal: each entry stays on one line, so that it can be searched."""


def make_console(plain_width: int = PLAIN_WIDTH) -> Console:
    """Return a console on stdout that prints text without markup. `plain_width`: its width without a terminal."""
    width = None if Console().is_terminal else plain_width
    return Console(markup=False, highlight=False, emoji=False, width=width)


def shown_path(path: str | Path) -> str:
    """Return a path as text for a shell: quoted if necessary, relative if it is in the current folder."""
    full = Path(path).absolute()
    current = Path.cwd()
    return shlex.quote(str(full.relative_to(current) if full.is_relative_to(current) else full))


def say(text: str = "") -> None:
    """Print one line to stdout, without wrapping, and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_facts(facts: Mapping[str, str]) -> None:
    """Print `name  value` lines with aligned values."""
    for line in fact_lines(facts):
        say(line)


def fact_lines(facts: Mapping[str, str]) -> list[str]:
    """Return `name  value` lines with aligned values."""
    width = max(map(len, facts))
    return [f"  {name:<{width}}  {value}" for name, value in facts.items()]


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without blank lines. Columns of numbers are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(columns):
        is_numeric = all(row[index].lstrip("-")[:1].isdigit() for row in rows if row[index])
        table.add_column(name, justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)

    # rich pads every line to the table's width. A pager or a window narrower than that shows the spaces at the end as
    # blank lines between the entries.
    console = make_console(UNLIMITED_WIDTH)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        say(line.rstrip())


def show_result(folder: RunFolder) -> dict[str, Any]:
    """Print the result of a run that has ended, from its summary; return the summary."""
    summary = folder.read_summary()
    final_return = return_text(summary.get("final_return"), summary.get("final_return_std"))
    best = summary.get("best_score")
    best_return = "none"
    if best is not None:
        best_return = f"{number_text(best)} (epoch {summary.get('best_epoch')}, kept in best/)"
    seconds = summary["timing"]["total_time"]
    stages = [f"{name} {share:.0%}" for name, (_, share) in stage_seconds(summary).items()]

    say()
    say_facts(
        {
            "final return": final_return + _evaluated_text(summary),
            "best return": best_return,
            "steps": _steps_text(summary),
            "speed": f"{summary['steps_per_second']:,.0f} steps/s while training, {clock_text(seconds)} in all",
            "time": "  ".join(stages),
            "ended": folder.ending_text(summary),
            "folder": shown_path(folder.path),
        }
    )
    return summary


def _evaluated_text(summary: Mapping[str, Any]) -> str:
    """Return the step of the final return if it is before the run's last step; otherwise an empty text."""
    step = summary.get("final_return_step")
    last_step = summary["train_step"] or summary["gradient_step"]
    if summary.get("final_return") is None or step in (None, last_step):
        return ""
    return f" (evaluated at step {step:,})"


def _steps_text(summary: Mapping[str, Any]) -> str:
    """Return the numbers of environment steps, episodes and gradient steps; offline, of passes over the data."""
    gradient_steps = f"{summary['gradient_step']:,} gradient steps"
    if summary.get("samples_seen"):
        return f"{gradient_steps}, {summary['dataset_passes']:.3g} passes over the data"
    return f"{summary['train_step']:,} in {summary['train_episode']:,} episodes, {gradient_steps}"


def show_seeds(folders: Sequence[Path]) -> None:
    """Print a row for each run, and the interquartile mean of their final returns with its bootstrap interval."""
    rows = []
    finals = []
    for path in folders:
        folder = RunFolder.open(path)
        summary = folder.read_summary()
        final = summary.get("final_return")
        if final is not None:
            finals.append(float(final))
        rows.append(
            (
                f"seed {folder.seed}",
                return_text(final, summary.get("final_return_std")),
                return_text(summary.get("best_score"), None),
                f"{summary['steps_per_second']:,.0f}",
                shown_path(path),
            )
        )

    show_table(("run", "final return", "best", "steps/s", "folder"), rows)
    if finals:
        interval = iqm_bootstrap(np.array(finals))
        say(
            f"{len(finals)} runs: median {number_text(np.median(finals))}, worst {number_text(min(finals))}, "
            f"interquartile mean {number_text(interval.value)} "
            f"(95 % interval {number_text(interval.low)} to {number_text(interval.high)})"
        )


def return_text(mean: float | None, std: float | None) -> str:
    """Return a mean return with its standard deviation as text: `"412.3 ± 50.1"`, or `"none"`."""
    if mean is None:
        return "none"
    return number_text(mean) if std is None else f"{number_text(mean)} ± {number_text(std, 3)}"
