"""`lockstep tune`: search for settings with Optuna."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rich import box
from rich.live import Live
from rich.table import Table
from tyro.conf import Positional, arg

from lockstep.builder import AlgorithmConfig
from lockstep.cli.arguments import (
    Count,
    OptionalCount,
    OptionalPath,
    OptionalText,
    OptionValues,
    parse_setting,
    read_config_file,
)
from lockstep.cli.terminal import make_console, say, say_facts, show_table, shown_path
from lockstep.recipes.training import find_settings
from lockstep.state.markup import number_text
from lockstep.tuning import TrialRow, TuneResult, tune
from lockstep.tuning.study import COMPLETE, RUNNING, START

MAX_SHOWN = 12
"""Largest number of rows in the live table, which has the running trials and then the best ones."""


@dataclass
class Tune:
    """Search for good settings with Optuna: `lockstep tune ppo CartPole-v1 --trials 20 --total-steps 50000`.

    A study consists of trials: runs with different settings. Afterwards the best settings are compared with the first
    ones on new seeds, because the best of many noisy trials is partly luck.
    """

    algorithm: Positional[Annotated[str, arg(metavar="ALGORITHM")]]
    """Algorithm, e.g. ppo; `lockstep list` shows all."""
    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """Environment: an id (CartPole-v1, ALE/Pong-v5, package:Id-v0) or your own module:Class."""
    trials: Count = 20
    """Number of trials in the whole study, including those of earlier calls."""
    jobs: Count = 1
    """Number of trials that train at the same time, each in its own process."""
    total_steps: Annotated[OptionalCount, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Environment steps of each trial."""
    space: Annotated[OptionalPath, arg(help_behavior_hint="(default: ranges for the algorithm)")] = None
    """JSON file with a range for each option: {"training.lr": {"low": 1e-5, "high": 0.01, "log": true}}."""
    study: Annotated[OptionalText, arg(metavar="NAME", help_behavior_hint="(default: ALGORITHM-ENV)")] = None
    """Name of the study and of its folder. A study that exists is continued."""
    storage: Annotated[OptionalText, arg(metavar="URL", help_behavior_hint="(default: study.db in the folder)")] = None
    """Database of Optuna."""
    seed: Count = 0
    """Seed of the first trial; the seeds of the other trials follow it."""
    final_seeds: Count = 5
    """Number of new seeds on which the best settings are compared with the first ones; 0 for no comparison."""
    set: OptionValues = ()
    """Set an option of all trials; the value is JSON. Example: --set training.gamma=0.95."""
    config: Annotated[OptionalPath, arg(help_behavior_hint="(default: no file)")] = None
    """JSON file with options of all trials by section, or the config.json of a run."""
    recipe: bool = True
    """Start from the recipe for this algorithm and environment if there is one, otherwise from the defaults."""
    trust: bool = False
    """Accept all objects that the files of --config and --space name, which are executed."""
    root: Path = field(default_factory=lambda: Path("runs/tune"))
    """Folder in which the study gets its folder."""

    def run(self) -> int:
        """Search, and show the trials and the comparison; return the exit code."""
        config = self.start()
        table = LiveTrials()
        say(self.plan(config))
        try:
            with table:
                result = tune(
                    config,
                    trials=self.trials,
                    jobs=self.jobs,
                    space=self.space,
                    study=self.study,
                    storage=self.storage,
                    root=self.root,
                    seed=self.seed,
                    final_seeds=self.final_seeds,
                    on_change=table.show,
                    trust=self.trust,
                )
        except KeyboardInterrupt:
            sys.stderr.write(
                "interrupted; the same command continues: trials that ended are kept, the other ones are repeated\n"
            )
            return 130
        self._show_result(result)
        return 0

    def _show_result(self, result: TuneResult) -> None:
        """Print the best trial, the command that trains with its settings, and the comparison on new seeds."""
        best = result.best
        command = f"lockstep train {self.algorithm} {self.env} --config {shown_path(result.path / 'best.json')}"
        if self.total_steps is not None:  # best.json has the length of a trial, not that of a run
            command += f" --total-steps {self.start(whole=True).reporting.total_steps}"
        states = [row.state for row in result.trials]
        say()
        say_facts(
            {
                "trials": ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
                "best": f"trial {best.number}, return {number_text(best.score)}: {values_text(best)}",
                "train with it": command,
                "folder": shown_path(result.path),
            }
        )
        if result.final:
            self._show_comparison(result)

        if best.number == START:
            say("No trial was better than the starting settings.")
            return
        advice = "see those above" if result.final else "the same command with --final-seeds 5 trains some"
        say(
            f"\nThis return is the best of {states.count(COMPLETE)} noisy ones. Only new seeds show whether the "
            f"settings are better than the starting ones: {advice}."
        )

    def _show_comparison(self, result: TuneResult) -> None:
        """Print the returns that new seeds reached with the best settings and with the first ones."""
        say(f"\n{self.final_seeds} new seeds, mean return at the end:")
        names = {"best": f"best (trial {result.best.number})", "start": "starting settings"}
        rows = []
        for key, interval in result.final.items():
            row = (
                names[key],
                number_text(interval.value),
                f"{number_text(interval.low)} to {number_text(interval.high)}",
                number_text(min(result.final_returns[key])),
            )
            rows.append(row)
        spread = "95 % interval" if self.final_seeds > 2 else "range"
        show_table(("settings", "IQM", spread, "worst"), rows)

    def start(self, *, whole: bool = False) -> AlgorithmConfig:
        """Return the settings that trials start from.

        `whole`: whether to leave out `--total-steps`, which gives the settings of a run in its full length.
        """
        settings = dict(map(parse_setting, self.set))
        if self.total_steps is not None and not whole:
            settings = {"reporting.total_steps": self.total_steps, **settings}
        file = None if self.config is None else (str(self.config), read_config_file(self.config))
        return find_settings(
            self.algorithm, self.env, recipe=self.recipe, options=settings, file=file, trust=self.trust
        ).config

    def plan(self, config: AlgorithmConfig) -> str:
        """Return the numbers of runs and steps of the search, in words."""
        steps = config.reporting.total_steps
        num_runs = self.trials + 2 * self.final_seeds
        text = f"{self.trials} trials of {steps:,} steps"
        if self.final_seeds:
            text += f", then {self.final_seeds} new seeds with the best settings and as many with the starting ones"
        return f"{text}: at most {num_runs} runs, {num_runs * steps:,} steps"


class LiveTrials:
    """Display of a search's trials: a live table on a terminal, one line for each ended trial elsewhere."""

    def __init__(self) -> None:
        self._console = make_console()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._printed: set[int] = set()
        """Numbers of the trials whose line has been printed."""

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, rows: Sequence[TrialRow]) -> None:
        """Show the current state of all trials."""
        if self._live is not None:
            self._live.update(trials_table(rows), refresh=True)
            return
        for row in rows:
            if row.state != RUNNING and row.number not in self._printed:
                self._printed.add(row.number)
                score = "" if row.score is None else f", return {number_text(row.score)}"
                say(f"trial {row.number} {row.state}{score}: {row.error or values_text(row)}")


def trials_table(rows: Sequence[TrialRow]) -> Table:
    """Return the table of the running trials and of the best ones."""
    running = [row for row in rows if row.state == RUNNING]
    complete = [row for row in rows if row.state == COMPLETE and row.score is not None]
    best_first = sorted(complete, key=lambda row: -(row.score or 0.0))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{len(rows) - len(running)} trials have ended")
    for name in ("trial", "state", "steps", "return", "settings"):
        table.add_column(name, justify="right" if name in ("trial", "steps", "return") else "left")
    for row in [*running, *best_first][:MAX_SHOWN]:
        score = "" if row.score is None else number_text(row.score)
        table.add_row(str(row.number), row.state, f"{row.step:,}", score, values_text(row))
    return table


def values_text(row: TrialRow) -> str:
    """Return the settings of a trial on one line, in the form of `--set`. Numbers have three digits."""
    texts = []
    for path, value in row.values.items():
        rounded = float(f"{value:.3g}") if isinstance(value, float) else value
        texts.append(f"{path}={json.dumps(rounded)}")
    return " ".join(texts)
