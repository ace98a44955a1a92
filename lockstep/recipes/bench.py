"""The benchmark: recipes over several seeds, their results as Parquet, and tables and pictures of them.

    lockstep bench run ppo CartPole-v1 --seeds 10 --jobs 2      # again: only what is missing; a killed seed goes on
    lockstep bench table

A result is one row of one file for each recipe: returns of the final evaluation, the curve on the way, the settings,
versions, the revision, and the SHA-256 of the final weights. One command makes it again, on such a processor to the
bit. It counts only from a revision that a commit holds.
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
"""the checkout, or the folder of installed packages"""
RESULTS = SOURCES / "benchmarks/results/bench"
FINAL_EPISODES, RETURN = 50, "returns_stat/mean"
Row = dict[str, Any]
"""one seed of one recipe; `run_seed` says which columns"""


def known_recipe(algorithm: str, env: str) -> Recipe:
    """Return the recipe of a task. Raises `ValueError` naming what there is."""
    recipe = find_recipe(algorithm, env)
    if recipe is None:
        envs = [known.env for known in RECIPES if known.algorithm == algorithm]
        raise ValueError(
            f"there is no recipe of {algorithm!r} for {env!r}; "
            + (f"there are some for {', '.join(envs)}" if envs else "`lockstep bench list` shows all")
        )
    return recipe


def clean_revision() -> str:
    """Return the commit that the library's sources are of; of an installed package its version.

    Raises `ValueError` where the sources differ from the commit, naming files.
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
        raise ValueError(
            f"the sources differ from the commit ({files}{', ...' if len(changed) > 3 else ''}): nobody could make "
            "the result again. Commit them, or give --draft, which writes elsewhere"
        )
    return head.stdout.strip()


# -- running ---


@dataclass(frozen=True)
class Work:
    """One seed to be run."""

    recipe: Recipe
    seed: int
    root: Path
    """where the runs of this task and revision are"""
    revision: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """options by path, other than the recipe's"""
    row: Row | None = None
    """what the seed reached before, with the settings that it learns with again; None: those of the recipe"""
    trust: bool = False
    """take all objects that the settings of `row` name"""

    @property
    def command(self) -> str:
        """What makes this result again."""
        action = "run" if self.row is None else "repeat"
        of_seed = f"{self.recipe.algorithm} {self.recipe.env} --first-seed {self.seed} --seeds 1"
        parts = [f"lockstep bench {action} {of_seed}"]
        return " ".join(parts + [f"--set {path}={json.dumps(value)}" for path, value in self.settings.items()])

    def config(self) -> Any:
        """Return the configuration, seed included."""
        config = self.recipe.config().debugging(seed=self.seed)
        if self.row is not None:
            stored = with_current_names(json.loads(self.row["settings"]))
            config.update_from_dict(stored, trust=self.trust, file=f"the row of seed {self.seed}")
        for path, value in self.settings.items():
            config.set_path(path, value)
        return config

    def begin(self, worker: PoolWorker) -> Run:
        """Return the run: a new one, or one that was stopped, from its newest checkpoint. It stops with its pool."""
        callbacks = [StopsWithPool(worker)]
        place = self.root / f"seed_{self.seed}"
        for folder in sorted(place.glob("*/config.json")):
            if RunFolder.open(folder.parent).newest_checkpoint() is not None:
                return prepare_resume(folder.parent).build(callbacks)
        shutil.rmtree(place, ignore_errors=True)
        return prepare_run(self.config(), place, callbacks=callbacks)


def run_seed(work: Work, verbose: bool, worker: PoolWorker) -> Row:
    """Train one seed to its end, in a process of `run_seeds`, and return its row.

    The final evaluation plays 50 new episodes with the most likely actions. `seconds` are those of collecting, updating
    and evaluating; `curve_*` are the evaluations on the way.
    """
    run, recipe = work.begin(worker), work.recipe
    trainer, evaluates = run.trainer, run.trainer.test_collector
    if evaluates is None:
        raise ValueError(f"the recipe of {recipe.algorithm!r} for {recipe.env!r} has no evaluation")
    title = f"{recipe.algorithm} {recipe.env} seed {work.seed}"
    try:
        for _ in trainer:
            found = trainer.last_test
            score = float("nan") if found is None or found.returns_stat is None else found.returns_stat.mean
            if verbose:
                print(f"{title}: {trainer.position:,} of {trainer.total_steps:,} steps, return {score:.1f}", flush=True)
        check_not_stopped(run)
        run.write_summary()
        final = evaluates.collect(n_episode=FINAL_EPISODES)
        weights = [torch_param_hash(part.module) for _, part in sorted(trainer.policy.acting.items())]
        timing, config = trainer.info().timing, work.config()
        config.framework.compile = trainer.policy.config.framework.compile  # as it was chosen for "auto"
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
    """Run each in a process of its own, `jobs` of them at once; yield rows as they end.

    `verbose`: each prints a line after an epoch.
    """
    with ProcessPool(jobs) as pool:
        tasks = [pool.submit(run_seed, work, verbose) for work in works]
        for task in pool.as_completed(tasks):
            yield task.result()


def evaluations(folder: RunFolder) -> dict[int, float]:
    """Return the mean return of each evaluation of a run by its step."""
    found = [one for one in read_metrics(folder.path) if one["scope"] == "test" and RETURN in one["data"]]
    return dict(sorted((int(one["step"]), float(one["data"][RETURN])) for one in found))


def plain_settings(config: Any) -> dict[str, Any]:
    """Return all options but the seed."""
    options = dict(config.to_dict())
    options.pop("debugging")
    return options


def processor() -> str:
    """Return the processor's name: the bits of a result are those of its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


# -- results ---


def file_of(recipe: Recipe, results: Path) -> Path:
    """Return where the rows of a recipe are."""
    return results / f"{recipe.algorithm}_{re.sub(r'[^A-Za-z0-9.-]+', '-', recipe.env)}.parquet"


def read_rows(recipe: Recipe, results: Path = RESULTS) -> list[Row]:
    """Return the rows of a recipe in the order of their seeds; none where there is no file."""
    pyarrow, file = import_pyarrow(), file_of(recipe, results)
    rows: list[Row] = pyarrow.parquet.read_table(file).to_pylist() if file.exists() else []
    return sorted(rows, key=lambda row: int(row["seed"]))


def add_row(recipe: Recipe, row: Row, results: Path) -> None:
    """Write a row to those of its recipe, in the place of an older one of its seed; the file is replaced at once."""
    pyarrow, file = import_pyarrow(), file_of(recipe, results)
    rows = [kept for kept in read_rows(recipe, results) if kept["seed"] != row["seed"]] + [row]
    results.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(sorted(rows, key=lambda one: int(one["seed"]))), new)
    new.replace(file)


MAY_DIFFER = ("framework.compile", "framework.compile_after", "framework.device")


def check_same_settings(recipe: Recipe, rows: Iterable[Row], config: AlgorithmConfig) -> None:
    """Raise `ValueError` where seeds would stand beside others that learned with other settings.

    Whether and from which step updates are compiled, and the device, may differ; options that came later stand at
    their defaults.
    """
    now = plain_settings(config)
    for row in rows:
        before = with_current_names(json.loads(row["settings"]))
        other = [
            f"{section}.{name}={value!r}, now {now[section].get(name)!r}"
            for section, options in before.items()
            if isinstance(options, dict)
            for name, value in options.items()
            if f"{section}.{name}" not in MAY_DIFFER and not _agrees(value, now[section].get(name))
        ]
        if other:
            raise ValueError(
                f"seed {row['seed']} of {recipe.algorithm} {recipe.env} was made with other settings "
                f"({'; '.join(other)}); --again runs all seeds anew, in their place"
            )


def _agrees(before: JsonValue, now: JsonValue) -> bool:
    if isinstance(before, dict) and isinstance(now, dict):
        return all(name in now and now[name] == value for name, value in before.items())
    return bool(before == now)


# -- tables and pictures ---


COLUMNS = ("recipe", "steps", "seeds", "IQM", "95 % interval", "worst", "promised", "best", "published", "seconds")


def table(results: Path = RESULTS) -> Iterator[tuple[str, ...]]:
    """Yield a row of `COLUMNS` for each recipe that has results.

    All but `best` are of the final evaluation; that is the mean over seeds of the best evaluation of each.
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
    """Return the table as Markdown."""
    lines = [COLUMNS, ("---",) + ("---:",) * (len(COLUMNS) - 1), *table(results)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def draw(directory: Path, results: Path = RESULTS, by: Literal["env", "algorithm"] = "env") -> list[Path]:
    """Write a picture for each environment (or algorithm) that has results, with a panel for each recipe.

    Curves are those of `plot_runs`; dashed lines are what was published.

    Returns:
        The paths: `bench_<environment>.png`, or `bench_<algorithm>.png`.
    """
    pictures = []
    directory.mkdir(parents=True, exist_ok=True)
    for shared in dict.fromkeys(getattr(recipe, by) for recipe in RECIPES):
        found = {recipe: read_rows(recipe, results) for recipe in RECIPES if getattr(recipe, by) == shared}
        groups = {recipe: [_curve(row) for row in rows] for recipe, rows in found.items() if rows}
        if not groups:
            continue
        names = [f"{recipe.algorithm.upper()} {recipe.env}" for recipe in groups]
        figure = draw_curves({name: {recipe.algorithm.upper(): groups[recipe]} for name, recipe in zip(names, groups)})
        for recipe, panel in zip(groups, figure.axes):
            panel.axhline(recipe.reference_return, color="#666666", linewidth=1.0, linestyle="--", zorder=1)
        name = file_of(next(iter(groups)), results).stem.partition("_")[2] if by == "env" else shared
        pictures.append(directory / f"bench_{name}.png")
        figure.savefig(pictures[-1], dpi=110)
    return pictures


def _curve(row: Row) -> Curve:
    steps, values = np.array(row["curve_steps"]), np.array(row["curve_returns"])
    return Curve(steps, values, np.full(len(steps), np.nan))
