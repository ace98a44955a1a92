"""`lockstep bench`: run the recipes over several seeds, and show the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from tyro.conf import Positional, arg

from lockstep.cli.arguments import Count, OptionalPath, OptionValues, parse_setting
from lockstep.cli.terminal import say, show_table, shown_path
from lockstep.options.checks import check_whole
from lockstep.recipes import RECIPES, Recipe, bench

RECIPE_HINT = "(required by run and repeat)"


@dataclass
class Bench:
    """Run recipes over several seeds, and show their results: `lockstep bench run ppo CartPole-v1 --seeds 3`.

    The actions: list shows the recipes with their results. run trains the seeds that have no result. repeat trains the
    stored seeds again, with the settings stored with them, and compares the final weights. table writes the results as
    Markdown. pictures draws the learning curves.
    """

    action: Positional[Literal["list", "run", "repeat", "table", "pictures"]]
    """Action, as described above."""
    algorithm: Positional[Annotated[str, arg(metavar="[ALGORITHM]", help_behavior_hint=RECIPE_HINT)]] = ""
    """Algorithm of the recipe, e.g. ppo."""
    env: Positional[Annotated[str, arg(metavar="[ENV]", help_behavior_hint=RECIPE_HINT)]] = ""
    """Environment of the recipe, e.g. CartPole-v1."""
    seeds: Count = 10
    """Number of seeds, from --first-seed on."""
    first_seed: Count = 0
    """First seed."""
    jobs: Count = 1
    """Number of seeds that train at the same time, each in its own process."""
    again: bool = False
    """For run: also train the seeds that have a result, which is replaced."""
    set: OptionValues = ()
    """For run: set an option of the recipe; the value is JSON. Example: --set training.lr=3e-4."""
    results: Path = field(default_factory=lambda: bench.RESULTS)
    """Folder of the results."""
    root: Path = field(default_factory=lambda: Path("runs/bench"))
    """Folder of the runs. A run that was stopped is continued from there."""
    draft: bool = False
    """For run and repeat: allow sources that are not committed. The results are kept in the folder draft of --root."""
    trust: bool = False
    """For repeat: accept all objects that the stored settings name, which are executed."""
    output: Annotated[OptionalPath, arg(aliases=["-o"], help_behavior_hint="(default: print; for pictures bench)")] = (
        None
    )
    """For table: file to write. For pictures: folder to write."""

    def run(self) -> int:
        """Perform the action; return the exit code."""
        actions: dict[str, Callable[[], None]] = {
            "list": self._list,
            "run": self._run,
            "repeat": self._repeat,
            "table": self._table,
            "pictures": self._pictures,
        }
        actions[self.action]()
        return 0

    @property
    def _results_folder(self) -> Path:
        return self.root / "draft" if self.draft else self.results

    @property
    def _requested_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def _runs_folder(self, recipe: Recipe, root: Path, revision: str) -> Path:
        """Return the folder of a recipe's runs with a revision of the sources."""
        return root / revision[:12] / bench.file_of(recipe, self._results_folder).stem

    def _list(self) -> None:
        rows = []
        for recipe in RECIPES:
            finals = [np.mean(row["final_returns"]) for row in bench.read_rows(recipe, self._results_folder)]
            worst = f"{min(finals):.1f}" if finals else ""
            promise = "" if recipe.promise is None else f"{recipe.promise:g}"
            row = (
                recipe.algorithm,
                recipe.env,
                f"{recipe.total_steps:,}",
                str(len(finals)),
                worst,
                promise,
            )
            rows.append(row)
        show_table(("algorithm", "environment", "steps", "seeds", "worst", "promised"), rows)

    def _run(self) -> None:
        """Train the requested seeds that have no result, and add their results."""
        recipe = bench.known_recipe(self.algorithm, self.env)
        check_whole("--seeds", self.seeds, 1)
        check_whole("--jobs", self.jobs, 1)
        revision = "draft" if self.draft else bench.clean_revision()
        settings = dict(map(parse_setting, self.set))
        folder = self._results_folder
        runs_folder = self._runs_folder(recipe, self.root, revision)

        rows = bench.read_rows(recipe, folder)
        if self.again:
            rows = [row for row in rows if row["seed"] not in self._requested_seeds]
        works = [bench.Work(recipe, seed, runs_folder, revision, settings) for seed in self._requested_seeds]
        bench.check_same_settings(recipe, rows, works[0].config())
        finished_seeds = {row["seed"] for row in rows}
        missing = [work for work in works if work.seed not in finished_seeds]

        say(f"{recipe.algorithm} {recipe.env}: {len(missing)} of {len(works)} seeds to run")
        for row in bench.run_seeds(missing, self.jobs):
            bench.add_row(recipe, row, folder)
            say(f"  seed {row['seed']}: {np.mean(row['final_returns']):.1f} in {row['seconds']:.0f} s")
        for cells in bench.table(folder):
            if cells[0] == f"{recipe.algorithm.upper()} {recipe.env}":
                show_table(bench.COLUMNS, [cells])

    def _repeat(self) -> None:
        """Train seeds again with the settings of their rows, and say whether they end with the same weights."""
        recipe = bench.known_recipe(self.algorithm, self.env)
        seeds = self._requested_seeds
        check_whole("--jobs", self.jobs, 1)
        stored = {}
        for row in bench.read_rows(recipe, self._results_folder):
            if row["seed"] in seeds:
                stored[row["seed"]] = row
        if not stored:
            raise ValueError(
                f"{self._results_folder} has no result of {recipe.algorithm} {recipe.env} with a seed of "
                f"{seeds.start} to {seeds.stop - 1}; `lockstep bench list` shows all results"
            )

        revision = "draft" if self.draft else bench.clean_revision()
        runs_folder = self._runs_folder(recipe, self.root / "repeated", revision)
        works = [
            bench.Work(recipe, seed, runs_folder, revision, row=row, trust=self.trust)
            for seed, row in sorted(stored.items())
        ]
        for new in bench.run_seeds(works, self.jobs):
            old = stored[new["seed"]]
            weights = "the same" if new["weights_sha256"] == old["weights_sha256"] else "other"
            say(
                f"  seed {new['seed']}: {np.mean(new['final_returns']):.1f}, {weights} weights; "
                f"before {np.mean(old['final_returns']):.1f}, at revision {old['revision'][:12]} on {old['processor']}"
            )

    def _table(self) -> None:
        text = bench.markdown_table(self._results_folder)
        if self.output is None:
            say(text)
        else:
            self.output.write_text(text, encoding="utf-8")
            say(shown_path(self.output))

    def _pictures(self) -> None:
        for picture in bench.draw(self.output or Path("bench"), self._results_folder):
            say(shown_path(picture))
