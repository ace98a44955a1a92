"""The benchmark: runs of recipes with several seeds, their results as Parquet files, tables and pictures of them.

    lockstep bench run ppo CartPole-v1 --seeds 10 --jobs 2      # again: only missing seeds; a killed seed continues
    lockstep bench table

A recipe has one file of results, and a seed one row of it: the returns of the final evaluation, the learning curve, the
settings, the versions, the revision, and the SHA-256 of the final weights. One command reproduces a row, on the same
kind of processor bit for bit. Therefore only the results of a committed revision count.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lockstep._version import __version__
from lockstep.algorithms import get_config
from lockstep.analysis import iqm_bootstrap
from lockstep.analysis.plots import Curve, draw_curves
from lockstep.builder import AlgorithmConfig
from lockstep.data.parquet import import_pyarrow
from lockstep.recipes import RECIPES, Recipe, find_recipe
from lockstep.runs.pool import PoolWorker, ProcessPool, StopsWithPool, check_not_stopped
from lockstep.runs.run import Run, prepare_resume, prepare_run
from lockstep.state.names import with_current_names
from lockstep.state.tree import JsonValue
from lockstep.tracking.logger import torch_param_hash
from lockstep.tracking.records import read_metrics
from lockstep.tracking.run_folder import RunFolder, versions

SOURCES = Path(__file__).parents[2]
"""Folder of the checkout, or of the installed packages."""
RESULTS = SOURCES / "benchmarks/results/bench"
"""Folder of the results."""
FINAL_EPISODES = 50
"""Number of episodes of the final evaluation."""
RETURN = "returns_stat/mean"
Row = dict[str, Any]
"""Result of one seed of one recipe, with the columns that `run_seed` returns."""


def known_recipe(algorithm: str, env: str) -> Recipe:
    """Return the recipe of an algorithm for an environment. `ValueError` names the existing ones."""
    algorithm = get_config(algorithm).algorithm
    recipe = find_recipe(algorithm, env)
    if recipe is None:
        envs = [known.env for known in RECIPES if known.algorithm == algorithm]
        hint = f"there are some for {', '.join(envs)}" if envs else "`lockstep bench list` shows all"
        raise ValueError(f"there is no recipe of {algorithm!r} for {env!r}; {hint}")
    return recipe


def clean_revision() -> str:
    """Return the commit of the library's sources, or the version of an installed package.

    Raises `ValueError`, which names files, if the sources differ from the commit.
    """
    git = ["git", "-C", str(SOURCES)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0 or not (SOURCES / "pyproject.toml").exists():
        return f"lockstep-rl {__version__}"
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "lockstep", "pyproject.toml", "requirements"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    if changed:
        files = ", ".join(line[3:] for line in changed[:3])
        if len(changed) > 3:
            files += ", ..."
        raise ValueError(
            f"the sources differ from the commit ({files}): nobody could make the result again. Commit them, or give "
            "--draft, which writes elsewhere"
        )
    return head.stdout.strip()


# -- running ---


@dataclass(frozen=True)
class Work:
    """Task of running one seed of a recipe."""

    recipe: Recipe
    """Recipe to run."""
    seed: int
    """Seed of the run."""
    root: Path
    """Folder of all runs of this recipe and revision."""
    revision: str
    """Revision of the library, see `clean_revision`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options by path that differ from the recipe's."""
    row: Row | None = None
    """Earlier result to reproduce, with the settings that it has. None: the recipe's settings are used."""
    trust: bool = False
    """Whether all objects that the settings of `row` name are accepted."""

    @property
    def command(self) -> str:
        """Command that reproduces the result."""
        action = "run" if self.row is None else "repeat"
        of_seed = f"{self.recipe.algorithm} {self.recipe.env} --first-seed {self.seed} --seeds 1"
        parts = [f"lockstep bench {action} {of_seed}"]
        return " ".join(parts + [f"--set {path}={json.dumps(value)}" for path, value in self.settings.items()])

    def config(self) -> Any:
        """Return the configuration, including the seed."""
        config = self.recipe.config().debugging(seed=self.seed)
        if self.row is not None:
            stored = with_current_names(json.loads(self.row["settings"]))
            config.update_from_dict(stored, trust=self.trust, file=f"the row of seed {self.seed}")
        for path, value in self.settings.items():
            config.set_path(path, value)
        return config

    def begin(self, worker: PoolWorker) -> Run:
        """Return a new run, or a stopped one from its newest checkpoint. The run stops when its pool does."""
        callbacks = [StopsWithPool(worker)]
        folder = self.root / f"seed_{self.seed}"
        for config_path in sorted(folder.glob("*/config.json")):
            if RunFolder.open(config_path.parent).newest_checkpoint() is not None:
                return prepare_resume(config_path.parent).build(callbacks)
        shutil.rmtree(folder, ignore_errors=True)  # runs that were killed before their first checkpoint
        return prepare_run(self.config(), folder, callbacks=callbacks)


def run_seed(work: Work, verbose: bool, worker: PoolWorker) -> Row:
    """Train one seed to its end, in a process of `run_seeds`, and return its row.

    The final evaluation plays `FINAL_EPISODES` new episodes as the evaluation of the recipe does. `seconds` are those
    of collection, updates and evaluation; `curve_steps` and `curve_returns` are the evaluations during the run.
    """
    recipe = work.recipe
    run = work.begin(worker)
    trainer = run.trainer
    test_collector = trainer.test_collector
    if test_collector is None:
        raise ValueError(f"the recipe of {recipe.algorithm!r} for {recipe.env!r} has no evaluation")

    title = f"{recipe.algorithm} {recipe.env} seed {work.seed}"
    try:
        for _ in trainer:
            test = trainer.last_test
            score = float("nan") if test is None or test.returns_stat is None else test.returns_stat.mean
            if verbose:
                print(f"{title}: {trainer.position:,} of {trainer.total_steps:,} steps, return {score:.1f}", flush=True)
        # A stopped pool also ends the loop above. Half a run must not become a row.
        check_not_stopped(run)
        run.write_summary()

        final = test_collector.collect(n_episode=FINAL_EPISODES)
        weights = [torch_param_hash(part.module) for _, part in sorted(trainer.policy.acting.items())]
        timing = trainer.info().timing
        config = work.config()
        # "auto" may choose otherwise in a later version: the row has the choice itself.
        config.framework.compile = trainer.policy.config.framework.compile
    finally:
        trainer.close()

    curve = evaluations(run.folder)
    return {
        "algorithm": recipe.algorithm,
        "env": recipe.env,
        "seed": work.seed,
        "final_returns": [float(value) for value in final.returns],
        "curve_steps": list(curve),
        "curve_returns": list(curve.values()),
        "steps": trainer.position,
        "gradient_steps": trainer.gradient_step,
        "seconds": round(timing.train_time_collect + timing.train_time_update + timing.test_time, 2),
        "weights_sha256": hashlib.sha256("".join(weights).encode()).hexdigest(),
        "command": work.command,
        "settings": json.dumps(plain_settings(config), sort_keys=True),
        "revision": work.revision,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "versions": json.dumps(versions(), sort_keys=True),
    }


def run_seeds(works: Sequence[Work], jobs: int = 1, verbose: bool = True) -> Iterator[Row]:
    """Run seeds, each in its own process, and yield their rows as they end.

    Args:
        works: seeds to run.
        jobs: number of processes that run at once.
        verbose: whether each prints a line after every epoch.
    """
    with ProcessPool(jobs) as pool:
        tasks = [pool.submit(run_seed, work, verbose) for work in works]
        for task in pool.as_completed(tasks):
            yield task.result()


def evaluations(folder: RunFolder) -> dict[int, float]:
    """Return the mean return of each evaluation of a run, by its step in increasing order."""
    records = [each for each in read_metrics(folder.path) if each["scope"] == "test" and RETURN in each["data"]]
    points = [(int(record["step"]), float(record["data"][RETURN])) for record in records]
    return dict(sorted(points))


def plain_settings(config: Any) -> dict[str, Any]:
    """Return all options of a configuration but the seed."""
    options = dict(config.to_dict())
    options.pop("debugging")
    return options


def processor() -> str:
    """Return the name of the processor and its number of cores. Other processors may round differently."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


# -- results ---


def file_of(recipe: Recipe, results: Path) -> Path:
    """Return the file with the rows of a recipe."""
    return results / f"{recipe.algorithm}_{re.sub(r'[^A-Za-z0-9.-]+', '-', recipe.env)}.parquet"


def read_rows(recipe: Recipe, results: Path = RESULTS) -> list[Row]:
    """Return the rows of a recipe in the order of their seeds; nothing if it has no file."""
    pyarrow = import_pyarrow()
    file = file_of(recipe, results)
    rows: list[Row] = pyarrow.parquet.read_table(file).to_pylist() if file.exists() else []
    return sorted(rows, key=lambda row: int(row["seed"]))


def add_row(recipe: Recipe, row: Row, results: Path) -> None:
    """Add a row to the file of its recipe, in place of an older one with its seed. The file is replaced atomically."""
    pyarrow = import_pyarrow()
    file = file_of(recipe, results)
    rows = [row, *(old for old in read_rows(recipe, results) if old["seed"] != row["seed"])]
    rows.sort(key=lambda each: int(each["seed"]))
    results.mkdir(parents=True, exist_ok=True)
    new_file = file.with_suffix(".new")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), new_file)
    new_file.replace(file)


MAY_DIFFER = ("framework.compile", "framework.compile_after", "framework.device")
"""Options that may differ between the seeds of a recipe."""


def check_same_settings(recipe: Recipe, rows: Iterable[Row], config: AlgorithmConfig) -> None:
    """Check that earlier rows of a recipe were made with the settings of a configuration.

    The options `MAY_DIFFER` are not compared. Options that were added after a row was made must have their defaults.

    Raises `ValueError`, which names the options that differ.
    """
    now = plain_settings(config)
    for row in rows:
        before = with_current_names(json.loads(row["settings"]))
        differing = []
        for section, options in before.items():
            if isinstance(options, dict):
                differing += _differing(section, options, now[section])
        if differing:
            raise ValueError(
                f"seed {row['seed']} of {recipe.algorithm} {recipe.env} was made with other settings "
                f"({'; '.join(differing)}); --again runs all seeds again, in their place"
            )


def _differing(section: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a text for each option of a section that differs from an earlier value."""
    return [
        f"{section}.{name}={value!r}, now {now.get(name)!r}"
        for name, value in before.items()
        if f"{section}.{name}" not in MAY_DIFFER and not _agrees(value, now.get(name))
    ]


def _agrees(before: JsonValue, now: JsonValue) -> bool:
    """Return whether two values of an option are equal; a dict may have new keys."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(name in now and now[name] == value for name, value in before.items())
    return bool(before == now)


# -- tables and pictures ---


COLUMNS = ("recipe", "steps", "seeds", "IQM", "95 % interval", "worst", "promised", "best", "published", "seconds")
"""Columns of the table of all results."""


def table(results: Path = RESULTS) -> Iterator[tuple[str, ...]]:
    """Yield a row with the `COLUMNS` for each recipe that has results.

    Returns come from the final evaluation, except for the column `best`: the mean over seeds of each seed's best
    evaluation.
    """
    for recipe in RECIPES:
        rows = read_rows(recipe, results)
        if not rows:
            continue
        finals = np.array([np.mean(row["final_returns"]) for row in rows])
        interval = iqm_bootstrap(finals)
        yield (
            f"{recipe.algorithm.upper()} {recipe.env}",
            f"{max(row['steps'] for row in rows):,}",
            str(len(rows)),
            f"{interval.value:,.1f}",
            f"{interval.low:,.1f} to {interval.high:,.1f}",
            f"{finals.min():,.1f}",
            "" if recipe.promise is None else f"{recipe.promise:,g}",
            f"{np.mean([max(row['curve_returns']) for row in rows]):,.1f}",
            f"{recipe.reference_return:,.1f} ({recipe.reference_source})",
            f"{np.median([row['seconds'] for row in rows]):.0f}",
        )


def markdown_table(results: Path = RESULTS) -> str:
    """Return the table of all results as Markdown."""
    lines = [COLUMNS, ("---",) + ("---:",) * (len(COLUMNS) - 1), *table(results)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def draw(directory: Path, results: Path = RESULTS, by: Literal["env", "algorithm"] = "env") -> list[Path]:
    """Draw the results of each environment, or of each algorithm, with a panel for each recipe.

    Curves are drawn as by `plot_runs`; dashed lines are published returns.

    Returns:
        The paths of the pictures, `bench_<environment>.png` or `bench_<algorithm>.png`.
    """
    pictures = []
    directory.mkdir(parents=True, exist_ok=True)
    for shared in dict.fromkeys(getattr(recipe, by) for recipe in RECIPES):
        curves = {}
        for recipe in RECIPES:
            rows = read_rows(recipe, results) if getattr(recipe, by) == shared else []
            if rows:
                curves[recipe] = [_curve(row) for row in rows]
        if not curves:
            continue

        panels = {}
        for recipe, of_recipe in curves.items():
            algorithm = recipe.algorithm.upper()
            panels[f"{algorithm} {recipe.env}"] = {algorithm: of_recipe}
        figure = draw_curves(panels)
        for recipe, panel in zip(curves, figure.axes):
            panel.axhline(recipe.reference_return, color="#666666", linewidth=1.0, linestyle="--", zorder=1)

        name = shared
        if by == "env":  # in the form that file names have
            name = file_of(next(iter(curves)), results).stem.partition("_")[2]
        pictures.append(directory / f"bench_{name}.png")
        figure.savefig(pictures[-1], dpi=110)
    return pictures


def _curve(row: Row) -> Curve:
    """Return the learning curve in a row."""
    steps = np.array(row["curve_steps"])
    values = np.array(row["curve_returns"])
    return Curve(steps, values, np.full(len(steps), np.nan))
