"""`lockstep tune`: a search for settings."""

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
from tyro.conf import Positional, UseAppendAction, arg

from lockstep.builder import AlgorithmConfig
from lockstep.cli.arguments import Count, MaybeCount, MaybePath, MaybeText, parse_setting, read_config_file
from lockstep.cli.terminal import make_console, say, say_facts, show_table, shown_path
from lockstep.recipes.training import find_settings
from lockstep.state.markup import number_text
from lockstep.tuning import TrialRow, tune
from lockstep.tuning.study import COMPLETE, RUNNING, START

SHOWN = 12
"""rows of the live table: the best trials and those under way"""


@dataclass
class Tune:
    """Search for settings with Optuna: `lockstep tune ppo CartPole-v1 --trials 20 --total-steps 50000`."""

    algorithm: Positional[Annotated[str, arg(metavar="ALGORITHM")]]
    """Its name, e.g. ppo; `lockstep list` shows all."""
    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """An environment's id (CartPole-v1, ALE/Pong-v5, package:Id-v0) or your own module:Class."""
    trials: Count = 20
    """Trials of the whole study."""
    jobs: Count = 1
    """Trials side by side, each in a process of its own."""
    total_steps: MaybeCount = None
    """Environment steps of each trial."""
    space: MaybePath = None
    """JSON file with a range for each option: {"training.lr": {"low": 1e-5, "high": 0.01, "log": true}}."""
    study: MaybeText = None
    """Name of the study, and of its folder; the same name goes on with it. Default: algorithm and environment."""
    storage: MaybeText = None
    """Optuna's database, as a URL; default: study.db in the folder."""
    seed: Count = 0
    """Seed of the first trial; each has another one."""
    final_seeds: Count = 5
    """New seeds for the comparison of the best settings with those of the start; 0: none."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Any option that all trials have: section.option=value. May be repeated."""
    config: MaybePath = None
    """JSON file of options by section, or the config.json of a run, that all trials begin with."""
    recipe: bool = True
    """Start from the recipe where there is one; else from the algorithm's defaults."""
    trust: bool = False
    """Take all objects that the files of --config and --space name, such as functions, which are run."""
    root: Path = field(default_factory=lambda: Path("runs/tune"))
    """Where the study's folder is made."""

    def run(self) -> int:
        """Search, show the trials and the comparison; return the exit code."""
        config, table = self.start(), LiveTrials()
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
            sys.stderr.write("interrupted; the same command goes on: trials that ended stay, others are repeated\n")
            return 130
        best, path = result.best, result.path
        train = f"lockstep train {self.algorithm} {self.env} --config {shown_path(path / 'best.json')}"
        if self.total_steps is not None:  # best.json has the length of a trial
            train += f" --total-steps {self.start(whole=True).reporting.total_steps}"
        states = [row.state for row in result.trials]
        say()
        say_facts(
            {
                "trials": ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
                "best": f"trial {best.number}, return {number_text(best.score)}: {values_text(best)}",
                "train with it": train,
                "folder": shown_path(path),
            }
        )
        if result.final:
            say(f"\n{self.final_seeds} new seeds, mean return at the end:")
            names = {"best": f"best (trial {best.number})", "start": "those of the start"}
            rows = [
                (
                    names[which],
                    number_text(interval.value),
                    f"{number_text(interval.low)} to {number_text(interval.high)}",
                    number_text(min(result.final_returns[which])),
                )
                for which, interval in result.final.items()
            ]
            spread = "95 % interval" if self.final_seeds > 2 else "range"
            show_table(("settings", "IQM", spread, "worst"), rows)
        if best.number == START:
            say("No trial was better than the settings of the start.")
            return 0
        how = "those above tell" if result.final else "the same command with --final-seeds 5 trains some"
        say(
            f"\nThis return is the best of {states.count(COMPLETE)} noisy ones. Only new seeds tell whether the "
            f"settings are better than those of the start: {how}."
        )
        return 0

    def start(self, *, whole: bool = False) -> AlgorithmConfig:
        """Return the settings that trials begin with; `whole`: those of a run as long as without --total-steps."""
        settings = dict(parse_setting(text) for text in self.set)
        if self.total_steps is not None and not whole:
            settings = {"reporting.total_steps": self.total_steps, **settings}
        file = None if self.config is None else (str(self.config), read_config_file(self.config))
        return find_settings(
            self.algorithm, self.env, recipe=self.recipe, options=settings, file=file, trust=self.trust
        ).config

    def plan(self, config: AlgorithmConfig) -> str:
        """Return how many runs and steps the search has, in words."""
        steps, finals = config.reporting.total_steps, 2 * self.final_seeds
        then = f", then {self.final_seeds} new seeds with the best settings and as many with those of the start"
        runs = self.trials + finals
        return (
            f"{self.trials} trials of {steps:,} steps{then if finals else ''}: at most {runs} runs, {runs * steps:,} "
            "steps"
        )


class LiveTrials:
    """Shows the trials of a search: one live table on a terminal, a line for each trial that ends elsewhere."""

    def __init__(self) -> None:
        self.console = make_console()
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self.told: set[int] | None = None

    def __enter__(self) -> None:
        if self.live is not None:
            self.live.start()

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, rows: Sequence[TrialRow]) -> None:
        """Show trials as they stand."""
        if self.live is not None:
            self.live.update(trials_table(rows), refresh=True)
        ended = {row.number for row in rows if row.state != RUNNING}
        for row in rows:
            if self.live is None and row.number in ended - (self.told or set()):
                score = "" if row.score is None else f", return {number_text(row.score)}"
                say(f"trial {row.number} {row.state}{score}: {row.error or values_text(row)}")
        self.told = ended


def trials_table(rows: Sequence[TrialRow]) -> Table:
    """Return the table of the trials under way and of the best ones."""
    running = [row for row in rows if row.state == RUNNING]
    complete = [row for row in rows if row.state == COMPLETE and row.score is not None]
    ranked = sorted(complete, key=lambda row: -(row.score or 0.0))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{len(rows) - len(running)} trials have ended")
    for name in ("trial", "state", "steps", "return", "settings"):
        table.add_column(name, justify="right" if name in ("trial", "steps", "return") else "left")
    for row in [*running, *ranked][:SHOWN]:
        score = "" if row.score is None else number_text(row.score)
        table.add_row(str(row.number), row.state, f"{row.step:,}", score, values_text(row))
    return table


def values_text(row: TrialRow) -> str:
    """Return the settings of a trial in one line, as `--set` takes them."""
    values = {path: float(f"{value:.3g}") if isinstance(value, float) else value for path, value in row.values.items()}
    return " ".join(f"{path}={json.dumps(value)}" for path, value in values.items())
