"""`lockstep bench`: what the recipes reach over several seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from tyro.conf import Positional, UseAppendAction, arg

from lockstep.cli.arguments import Count, parse_setting
from lockstep.cli.terminal import say, show_table, shown_path
from lockstep.options.checks import check_whole
from lockstep.recipes import RECIPES, bench


@dataclass
class Bench:
    """Run recipes over several seeds; show what they reach as tables and pictures."""

    action: Positional[Literal["list", "run", "repeat", "table", "pictures"]]
    """list: tasks and the seeds that there are; run: those that are missing; repeat: those that there are, with the
    settings that each row stores, and compare; table: Markdown; pictures: curves."""
    algorithm: Positional[str] = ""
    """Of the recipe to run."""
    env: Positional[str] = ""
    """Of the recipe to run."""
    seeds: Count = 10
    """How many seeds."""
    first_seed: Count = 0
    """The first of them."""
    jobs: Count = 1
    """Seeds side by side, each in a process of its own."""
    again: bool = False
    """Run seeds that have a result, too."""
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="SECTION.OPTION=VALUE")] = ()
    """Other settings than the recipe's."""
    results: Path = field(default_factory=lambda: bench.RESULTS)
    """Folder of the results."""
    root: Path = field(default_factory=lambda: Path("runs/bench"))
    """Folder of the runs; a run that was stopped goes on from there."""
    draft: bool = False
    """Run changed sources, too; results go into a folder of their own below the runs."""
    trust: bool = False
    """Of `repeat`: take all objects that stored settings name."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Of `table`: a file; of `pictures`: a folder."""

    def run(self) -> int:
        """Do what `action` says; return the exit code."""
        actions: dict[str, Callable[[], None]] = {
            "list": self._list,
            "run": self._run,
            "repeat": self._repeat,
            "table": self._table,
            "pictures": self._pictures,
        }
        actions[self.action]()
        return 0

    def _folder(self) -> Path:
        return self.root / "draft" if self.draft else self.results

    def _list(self) -> None:
        rows = []
        for recipe in RECIPES:
            finals = [np.mean(row["final_returns"]) for row in bench.read_rows(recipe, self._folder())]
            worst = f"{min(finals):.1f}" if finals else ""
            steps = f"{recipe.total_steps:,}"
            promise = "" if recipe.promise is None else f"{recipe.promise:g}"
            rows.append((recipe.algorithm, recipe.env, steps, str(len(finals)), worst, promise))
        show_table(("algorithm", "environment", "steps", "seeds", "worst", "promised"), rows)

    def _run(self) -> None:
        recipe = bench.known_recipe(self.algorithm, self.env)
        check_whole("--seeds", self.seeds, 1)
        check_whole("--jobs", self.jobs, 1)
        revision = "draft" if self.draft else bench.clean_revision()
        settings = dict(parse_setting(text) for text in self.set)
        folder = self._folder()
        place = self.root / revision[:12] / bench.file_of(recipe, folder).stem
        rows = bench.read_rows(recipe, folder)
        asked = range(self.first_seed, self.first_seed + self.seeds)
        if self.again:
            rows = [row for row in rows if row["seed"] not in asked]
        works = [bench.Work(recipe, seed, place, revision, settings) for seed in asked]
        bench.check_same_settings(recipe, rows, works[0].config())
        done = {row["seed"] for row in rows}
        works = [work for work in works if work.seed not in done]
        say(f"{recipe.algorithm} {recipe.env}: {len(works)} of {len(asked)} seeds to run")
        for row in bench.run_seeds(works, self.jobs):
            bench.add_row(recipe, row, folder)
            say(f"  seed {row['seed']}: {np.mean(row['final_returns']):.1f} in {row['seconds']:.0f} s")
        for cells in bench.table(folder):
            if cells[0] == f"{recipe.algorithm.upper()} {recipe.env}":
                show_table(bench.COLUMNS, [cells])

    def _repeat(self) -> None:
        """Train seeds again from the settings of their rows, and say whether they end with the same weights."""
        recipe = bench.known_recipe(self.algorithm, self.env)
        asked = range(self.first_seed, self.first_seed + self.seeds)
        check_whole("--jobs", self.jobs, 1)
        rows = {row["seed"]: row for row in bench.read_rows(recipe, self._folder()) if row["seed"] in asked}
        if not rows:
            raise ValueError(
                f"{self._folder()} has no result of {recipe.algorithm} {recipe.env} with a seed of {asked.start} to "
                f"{asked.stop - 1}; `lockstep bench list` shows what there is"
            )
        revision = "draft" if self.draft else bench.clean_revision()
        place = self.root / "repeated" / revision[:12] / bench.file_of(recipe, self._folder()).stem
        works = [
            bench.Work(recipe, seed, place, revision, row=row, trust=self.trust) for seed, row in sorted(rows.items())
        ]
        for again in bench.run_seeds(works, self.jobs):
            before = rows[again["seed"]]
            same = "the same" if again["weights_sha256"] == before["weights_sha256"] else "other"
            returns = [f"{np.mean(row['final_returns']):.1f}" for row in (again, before)]
            say(
                f"  seed {again['seed']}: {returns[0]}, {same} weights; before {returns[1]}, at revision "
                f"{before['revision'][:12]} on {before['processor']}"
            )

    def _table(self) -> None:
        text = bench.markdown_table(self._folder())
        if self.output is None:
            say(text)
        else:
            self.output.write_text(text, encoding="utf-8")
            say(shown_path(self.output))

    def _pictures(self) -> None:
        for picture in bench.draw(self.output or Path("bench"), self._folder()):
            say(shown_path(picture))
