"""Text and tables on the terminal, and plain ones where the output is no terminal."""

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


def make_console() -> Console:
    """Return a console on stdout that takes text as it is; wide where no terminal sets a width."""
    width = None if Console().is_terminal else PLAIN_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def shown_path(path: str | Path) -> str:
    """Return a path relative to here where it lies below, quoted for a shell where it must be."""
    full, here = Path(path).absolute(), Path.cwd()
    return shlex.quote(str(full.relative_to(here) if full.is_relative_to(here) else full))


def say(text: str = "") -> None:
    """Print one line to stdout at once, never wrapped."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_facts(facts: Mapping[str, str]) -> None:
    """Print `name  value` lines, names aligned."""
    for line in fact_lines(facts):
        say(line)


def fact_lines(facts: Mapping[str, str]) -> list[str]:
    """Return `name  value` lines, names aligned."""
    width = max(map(len, facts))
    return [f"  {name:<{width}}  {value}" for name, value in facts.items()]


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a small table; columns of numbers are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        numeric = all(row[number].lstrip("-")[:1].isdigit() for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    make_console().print(table)


def show_result(folder: RunFolder) -> dict[str, Any]:
    """Print the short table of a run that has ended, from its summary; return the summary."""
    summary = folder.read_summary()
    stages = "  ".join(f"{name} {share:.0%}" for name, (_, share) in stage_seconds(summary).items())
    best = summary.get("best_score")
    best_return = "none"
    if best is not None:
        best_return = f"{number_text(best)} (epoch {summary.get('best_epoch')}, kept in best/)"
    say()
    say_facts(
        {
            "final return": return_text(summary.get("final_return"), summary.get("final_return_std"))
            + _evaluated_text(summary),
            "best return": best_return,
            "steps": _steps_text(summary),
            "speed": f"{summary['steps_per_second']:,.0f} steps/s while training, "
            f"{clock_text(summary['timing']['total_time'])} in all",
            "time": stages,
            "ended by": str(summary.get("stop_reason")),
            "folder": shown_path(folder.path),
        }
    )
    return summary


def _evaluated_text(summary: Mapping[str, Any]) -> str:
    """Return the step of the final return, where it is earlier than the run's last."""
    step = summary.get("final_return_step")
    if summary.get("final_return") is None or step in (None, summary["train_step"] or summary["gradient_step"]):
        return ""
    return f" (evaluated at step {step:,})"


def _steps_text(summary: Mapping[str, Any]) -> str:
    steps = f"{summary['gradient_step']:,} gradient steps"
    if summary.get("samples_seen"):
        return f"{steps}, {summary['dataset_passes']:.3g} passes over the data"
    return f"{summary['train_step']:,} in {summary['train_episode']:,} episodes, {steps}"


def show_seeds(folders: Sequence[Path]) -> None:
    """Print a row for each run, and the interquartile mean of their final returns with its bootstrap interval."""
    rows, finals = [], []
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
                "none" if summary.get("best_score") is None else number_text(summary["best_score"]),
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
    """Return `"412.3 ± 50.1"`, or `"none"`."""
    if mean is None:
        return "none"
    return number_text(mean) if std is None else f"{number_text(mean)} ± {number_text(std, 3)}"
