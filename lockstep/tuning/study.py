"""Search for settings: trials in their own processes, stored by Optuna, so that a killed search can be continued.

The study's folder has `study.db` (unless another storage is given), a run for each trial, `best.json` (for
`lockstep train --config`), `search.png`, and the runs of the comparison at the end.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from lockstep.analysis import Interval, iqm_bootstrap
from lockstep.builder import AlgorithmConfig
from lockstep.data.codec import DAMAGE
from lockstep.envs.boundary import EnvLike
from lockstep.envs.make import name_of_env
from lockstep.options.checks import check_whole, install_hint
from lockstep.options.section import settings_by_path
from lockstep.recipes import Recipe, bench
from lockstep.recipes.training import find_settings
from lockstep.runs.pool import PoolWorker, ProcessPool, StopsWithPool, check_not_stopped
from lockstep.runs.run import Run, prepare_run
from lockstep.state.markup import number_text
from lockstep.state.names import with_current_names
from lockstep.state.trust import without_signature
from lockstep.tracking.records import leaves, write_json
from lockstep.tuning.pictures import draw_search
from lockstep.tuning.space import SearchSpace, apply, default_space, read_space, value_at

RUNNING = "running"
COMPLETE = "complete"
PRUNED = "pruned"
FAILED = "failed"
STATES = {"RUNNING": RUNNING, "COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED}
"""States of `TrialRow` by Optuna's names. Optuna has a further state for trials that have not begun."""
FIRST_TRIALS = 5
"""Number of trials that are never pruned, because there are too few others to compare them with."""
START = 0
"""Number of the trial with the settings that the search starts from."""
NEW_SEEDS = 100_000
"""First seed of the comparison at the end, far above the seeds of all trials."""
ERROR = "error"
"""Attribute of a failed trial in the study: the error."""
MADE_WITH = "made_with"
"""Attribute of the study: the space and the settings that all its trials have in common."""
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class TrialRow:
    """Current state of a trial."""

    number: int
    state: str
    """State: "running", "complete", "pruned" (given up early) or "failed"."""
    step: int
    """Environment step of the last evaluation."""
    score: float | None
    """Mean return of the last evaluation."""
    values: Mapping[str, Any]
    """Options of the space by path."""
    error: str = ""
    """Error of a failed trial."""


@dataclass(frozen=True)
class TuneResult:
    """Result of a search."""

    config: AlgorithmConfig
    """Configuration of the best trial, with the seed of the search."""
    best: TrialRow
    trials: tuple[TrialRow, ...]
    path: Path
    """Folder of the study."""
    final: Mapping[str, Interval]
    """Interquartile mean of new seeds, with its interval, for the settings "best" and "start". Only "start" if the
    first trial is the best one; empty without new seeds."""
    final_returns: Mapping[str, tuple[float, ...]]
    """Mean return of each new seed."""

    def __str__(self) -> str:
        """Return the best trial and the folder in one line."""
        best = self.best
        return (
            f"trial {best.number} of {len(self.trials)} is the best, return {number_text(best.score)}: {best.values} "
            f"({self.path})"
        )


def tune(
    algorithm: str | AlgorithmConfig,
    env: EnvLike | None = None,
    *,
    trials: int = 20,
    jobs: int = 1,
    total_steps: int | None = None,
    space: SearchSpace | str | Path | None = None,
    study: str | None = None,
    storage: str | None = None,
    root: str | Path = "runs/tune",
    seed: int = 0,
    recipe: bool = True,
    settings: Mapping[str, Any] | None = None,
    final_seeds: int = 5,
    on_change: Callable[[Sequence[TrialRow]], None] | None = None,
    trust: bool = False,
) -> TuneResult:
    """Search for the settings with the highest mean return at the last evaluation.

    The first trial has the settings that `lockstep.train` would use, and the other trials change the options in the
    space. A trial whose evaluations are below the median of the other trials at the same step ends early. Afterwards
    the best settings and the first ones are compared on new seeds.

    The same call continues a search that was stopped or killed: trials that have not ended are repeated. At Ctrl-C the
    running trials end after their current update.

    Args:
        algorithm: Name of the algorithm, or a configuration.
        env: Environment, as for `lockstep.train`.
        trials: Number of trials in the whole study, including those of earlier calls.
        jobs: Number of trials that train at the same time, each in its own process.
        total_steps: Environment steps of each trial. Defaults to those of the recipe or of the configuration.
        space: Ranges by option, or a file with them. Defaults to `default_space`.
        study: Name of the study and of its folder. Defaults to algorithm and environment.
        storage: URL of Optuna's database. Defaults to `study.db` in the study's folder.
        root: Folder in which the study's folder is made.
        seed: Seed of the first trial.
        recipe: Whether to start from the recipe for the algorithm and environment, if there is one.
        settings: Options of all trials, by path or nested.
        final_seeds: Number of new seeds for the comparison; 0 for no comparison.
        on_change: Function that is called with all trials about once a second.
        trust: Whether to accept all objects that the file of the space names.

    Raises:
        ValueError: the study was begun with another space or other settings, or another process searches in it.
        RuntimeError: no trial is complete.
    """
    check_whole("trials", trials, 1)
    check_whole("jobs", jobs, 1)
    check_whole("final_seeds", final_seeds, 0)
    options = {} if total_steps is None else {"reporting.total_steps": total_steps}
    config = find_settings(
        algorithm, env, recipe=recipe, options={**options, **settings_by_path(settings or {})}
    ).config
    config.debugging(seed=seed)
    if space is None:
        ranges: SearchSpace = default_space(config)
    elif isinstance(space, Mapping):
        ranges = space
    else:
        ranges = read_space(space, trust=trust)
    check_space(config, ranges)

    name = study or re.sub(r"[^A-Za-z0-9.-]+", "-", f"{config.algorithm}-{name_of_env(config.environment.env)}")
    folder = Path(root).absolute() / name
    search = Search(name, storage or f"sqlite:///{folder / 'study.db'}", folder, config, ranges)
    busy_message = (
        f"another process searches in the study {name} ({folder}); wait for its end, or give this search another name "
        "(study=, --study)"
    )
    with _locked(folder / "lock", busy_message):
        with _without_optuna_log():
            search.open()
            search.run(trials, jobs, on_change)
            rows = search.rows()
            best = search.best(rows)
            best_config = search.config_of(best.number, best.values)
            write_json(folder / "best.json", json.loads(best_config.to_json()))
            search.draw(rows)
        returns = search.compare(best, final_seeds, jobs)
    intervals = {key: iqm_bootstrap(np.array(values)) for key, values in returns.items()}
    return TuneResult(best_config, best, tuple(rows), folder, intervals, returns)


def import_optuna() -> Any:
    """Import and return Optuna, or raise an `ImportError` that says how to install it."""
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError(f"a search needs Optuna: {install_hint('tune')}") from error


@dataclass(frozen=True)
class Search:
    """Study with its storage, its first configuration and its space. It is sent to the processes of the trials."""

    name: str
    storage: str
    """URL of Optuna's database."""
    folder: Path
    config: AlgorithmConfig
    """Configuration of the first trial, which the other trials change."""
    space: SearchSpace

    def open(self) -> None:
        """Make the study and queue its first trial, unless the study exists.

        Raises:
            ValueError: the study exists and was begun with another space or other settings, or its storage cannot be
                read.
        """
        made_with = {
            "space": {path: values.plain() for path, values in self.space.items()},
            "settings": without_signature(json.loads(self.config.to_json())),
        }
        with self._naming_storage():
            study = import_optuna().create_study(
                study_name=self.name, storage=self.storage, direction="maximize", load_if_exists=True
            )
            stored = study.user_attrs.get(MADE_WITH, made_with)
            # A study of an older version may have old names of classes.
            stored = {part: with_current_names(dict(stored[part])) for part in made_with}
        check_same(stored, made_with, self.name)
        with self._naming_storage():
            if MADE_WITH not in study.user_attrs:
                study.set_user_attr(MADE_WITH, made_with)
            if not study.get_trials(deepcopy=False):
                study.enqueue_trial(values_of_start(self.config, self.space))

    def study(self) -> Any:
        """Load the current state of Optuna's study."""
        optuna = import_optuna()
        pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS, n_min_trials=FIRST_TRIALS)
        return optuna.load_study(study_name=self.name, storage=self.storage, pruner=pruner)

    def rows(self) -> list[TrialRow]:
        """Return all trials that have begun, in the order of their numbers.

        Raises:
            ValueError: the study's storage cannot be read.
        """
        with self._naming_storage():
            trials = self.study().get_trials(deepcopy=False)
            return [self._trial_row(trial) for trial in trials if trial.state.name in STATES]

    @contextmanager
    def _naming_storage(self) -> Iterator[None]:
        """Context manager that turns an error of the storage, from any library, into a `ValueError` that names it."""
        optuna = import_optuna()
        sqlalchemy = importlib.import_module("sqlalchemy")
        try:
            yield
        except (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, *DAMAGE) as error:
            raise ValueError(
                f"the study {self.name} cannot be read from {self.storage}: {error}; if it is damaged, give this "
                "search another name (study=, --study)"
            ) from error

    def _trial_row(self, trial: Any) -> TrialRow:
        """Return the row of an Optuna trial."""
        step = max(trial.intermediate_values, default=0)
        score = trial.value if trial.state.name == "COMPLETE" else trial.intermediate_values.get(step)
        error = trial.user_attrs.get(ERROR, "")
        values = self._trial_values(trial.number, trial.params)
        return TrialRow(trial.number, STATES[trial.state.name], step, score, values, error)

    def _trial_values(self, number: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a trial by path. `params`: values of the trial in Optuna's form."""
        values = {}
        if number == START:
            # Optuna's values of this trial may be rounded to the ranges; the configuration has the true ones.
            for path in self.space:
                value = value_at(self.config, path)
                if value is not None:
                    values[path] = value
            return values
        for path, value in params.items():
            values[path] = json.loads(value) if self.space[path].choices else value
        return values

    def config_of(self, number: int, values: Mapping[str, Any]) -> AlgorithmConfig:
        """Return the configuration of a trial: that of the search with the trial's values, or unchanged for `START`.

        Raises:
            ValueError: the study's storage has a value that is not in the space.
        """
        for path, value in values.items():
            choices = self.space[path].choices
            # A file from elsewhere may hold any value, so a choice must be one of the choices in the user's space.
            if number != START and choices and value not in choices:
                raise ValueError(
                    f"the study {self.name} ({self.storage}) holds {path}={value!r} of trial {number}, which is not "
                    "in the space: the storage was changed; give this search another name (study=, --study)"
                )
        return self.config.copy() if number == START else apply(self.config, values)

    def best(self, rows: Sequence[TrialRow]) -> TrialRow:
        """Return the trial with the highest score. Raises `RuntimeError` if no trial is complete."""
        scores = {row.number: row.score for row in rows if row.state == COMPLETE and row.score is not None}
        if not scores:
            raise RuntimeError(f"no trial came to its end; the last one: {rows[-1].error}")
        return rows[max(scores, key=lambda number: scores[number])]

    def run(self, trials: int, jobs: int, on_change: Callable[[Sequence[TrialRow]], None] | None) -> None:
        """Run trials until the study has `trials` that have ended.

        Trials that were running when an earlier search was killed are repeated first. `on_change` is called with all
        trials.
        """
        pending = [row.number for row in self.rows() if row.state == RUNNING]
        pending += range(len(self.rows()), trials)
        num_running = 0
        with ProcessPool(jobs, reuse_processes=True) as pool:
            while pending or num_running:
                # Optuna chooses the values of a trial from the results so far, so a trial is made only when a process
                # is free for it.
                while pending and num_running < jobs:
                    number = pending.pop(0)
                    pool.submit(self.run_trial, number, self._values(number))
                    num_running += 1
                for task in pool.wait(POLL_SECONDS):
                    if task.is_done:
                        task.result()
                        num_running -= 1
                if on_change is not None:
                    on_change(self.rows())

    def _values(self, number: int) -> dict[str, Any]:
        """Return the values of a trial, which begins here if it is new.

        Each trial has a sampler with a separate seed, so that a search that was stopped continues with the same values.
        """
        optuna = import_optuna()
        study = self.study()
        study.sampler = optuna.samplers.TPESampler(seed=self.config.debugging.seed + number, multivariate=True)
        trial = self._trial(study, number) if number < len(self.rows()) else study.ask()
        return {path: values.suggest(trial, path) for path, values in self.space.items()}

    def _trial(self, study: Any, number: int) -> Any:
        """Return an Optuna trial that can be continued. Optuna's public functions only make new ones."""
        return import_optuna().trial.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)

    def run_trial(self, number: int, values: Mapping[str, Any], worker: PoolWorker) -> None:
        """Train with the settings of a trial and store its outcome in the study. Runs in a process of the pool.

        If the search is stopped, the trial ends after its current update and stays running in the study, so that the
        next search repeats it.
        """
        folder = self.folder / f"trial_{number:04d}"
        # After a kill of the search alone, this process may still train the trial that the next search repeats.
        with _locked(folder.with_suffix(".lock"), waits=True), _without_optuna_log():
            study = self.study()
            if study.get_trials(deepcopy=False)[number].state.is_finished():
                return
            trial = self._trial(study, number)
            shutil.rmtree(folder, ignore_errors=True)
            trial_state = import_optuna().trial.TrialState
            try:
                config = self.config_of(number, values).debugging(seed=self.config.debugging.seed + number)
                run = prepare_run(config, folder, callbacks=[StopsWithPool(worker)])
                study.tell(trial, self._train(run, trial))
            except import_optuna().TrialPruned:
                study.tell(trial, state=trial_state.PRUNED)
            except Exception as error:  # the search continues without settings that cannot be trained
                trial.set_user_attr(ERROR, f"{type(error).__name__}: {error}")
                study.tell(trial, state=trial_state.FAIL)

    def _train(self, run: Run, trial: Any) -> float:
        """Train a run and return its score; raise `TrialPruned` if it falls behind the other trials."""
        trainer = run.trainer
        score = float("nan")
        reported = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        try:
            for _ in trainer:
                evaluation = trainer.last_test
                returns = None if evaluation is None else evaluation.returns_stat
                if returns is not None and returns.mean is not None:
                    score = returns.mean
                    # A repeated trial has the same scores as before, and Optuna warns of a second report.
                    if trainer.position not in reported:
                        trial.report(score, trainer.position)
                if trainer.position < trainer.steps_in_all and trial.should_prune():
                    raise import_optuna().TrialPruned
            check_not_stopped(run)
            run.write_summary()
        finally:
            trainer.close()
        if not np.isfinite(score):
            raise ValueError(f"the mean return of its last evaluation is {score}")
        return score

    def draw(self, rows: Sequence[TrialRow]) -> None:
        """Draw the picture of the search if matplotlib is installed."""
        importance = import_optuna().importance
        importances: dict[str, float] = {}
        # The importances of options are undefined if all scores are equal.
        if len({row.score for row in rows if row.state == COMPLETE}) > 1:
            evaluator = importance.PedAnovaImportanceEvaluator()
            importances = importance.get_param_importances(self.study(), evaluator=evaluator)
        with suppress(ImportError):
            draw_search([row.score for row in rows], importances, self.folder / "search.png")

    def compare(self, best: TrialRow, seeds: int, jobs: int) -> dict[str, tuple[float, ...]]:
        """Train new seeds with the best settings and with the first ones, and return the mean return of each seed.

        Keys are "best" and "start", or only "start" if the first trial is the best one. A seed whose result is in the
        study's folder is not trained again.
        """
        numbers = {"start": START} if best.number == START else {"best": best.number, "start": START}
        configs = {"best": self.config_of(best.number, best.values), "start": self.config}
        works: list[bench.Work] = []
        for key, number in numbers.items():
            # The benchmark trains recipes; the key takes the place of the algorithm's name in its rows.
            recipe = Recipe(key, self.name, configs[key].copy, 0.0, "", 0, None)
            folder = self.folder / f"final_{number:04d}"
            works += [bench.Work(recipe, NEW_SEEDS + index, folder, self.name) for index in range(seeds)]

        files = {(work.recipe.algorithm, work.seed): work.root / f"seed_{work.seed}.json" for work in works}
        missing = [work for work in works if not files[work.recipe.algorithm, work.seed].exists()]
        for row in bench.run_seeds(missing, jobs, verbose=False):
            write_json(files[row["algorithm"], row["seed"]], row["final_returns"])

        returns: dict[str, list[float]] = {}
        for (key, _), file in files.items():
            episode_returns = json.loads(file.read_text(encoding="utf-8"))
            returns.setdefault(key, []).append(float(np.mean(episode_returns)))
        return {key: tuple(values) for key, values in returns.items()}


# -- checks of a study ---


def check_space(config: AlgorithmConfig, space: SearchSpace) -> None:
    """Check that trials can be compared, and that the options of the space accept its values.

    Raises:
        ValueError: the configuration has no evaluations, or the space is empty, or an option or value is not allowed.
    """
    config.validate()
    if not config.evaluation.evaluation_interval:
        raise ValueError("evaluation.evaluation_interval=0 is not allowed: a search compares evaluations; give 1")
    if not space:
        raise ValueError("the space is empty; give a range for an option, e.g. training.lr")
    for path, values in space.items():
        for value in values.choices or (values.low, values.high):
            try:
                apply(config, {path: value})
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"the space has {path}={value!r}: {error.args[0] if error.args else error}") from error


def values_of_start(config: AlgorithmConfig, space: SearchSpace) -> dict[str, Any]:
    """Return the values of the first trial in Optuna's form, from which Optuna chooses the values of later trials.

    A number outside of its range becomes the nearest bound, a schedule its first value. A value that is not among the
    choices is left out.
    """
    start_values: dict[str, Any] = {}
    for path, values in space.items():
        value = value_at(config, path)
        if isinstance(value, list) and not values.choices:
            value = value[0][1]
        if values.choices and value in values.choices:
            start_values[path] = json.dumps(value)
        elif values.low is not None and values.high is not None and isinstance(value, int | float):
            start_values[path] = min(max(value, values.low), values.high)
    return start_values


def check_same(stored: Mapping[str, Any], made_with: Mapping[str, Any], name: str) -> None:
    """Check that a search has the space and the settings that its study was begun with.

    Args:
        stored: Space and settings in the study.
        made_with: Space and settings of the search.
        name: Name of the study.

    Raises:
        ValueError: an option differs; the message names it.
    """
    for part in ("space", "settings"):
        old = dict(leaves(stored[part]))
        new = dict(leaves(json.loads(json.dumps(made_with[part]))))  # tuples become lists, as in the study
        for path in {**old, **new}:
            if old.get(path) != new.get(path):
                raise ValueError(
                    f"the study {name} was begun with another {part.removesuffix('s')}: {path}={old.get(path)!r}, now "
                    f"{new.get(path)!r}; give this search another name (study=, --study), or the same {part}"
                )


@contextmanager
def _without_optuna_log() -> Iterator[None]:
    """Context manager that hides Optuna's line for each trial."""
    optuna = import_optuna()
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


@contextmanager
def _locked(path: Path, message: str = "", waits: bool = False) -> Iterator[None]:
    """Context manager that holds the lock of a file. The system releases it if the process is killed.

    Args:
        path: File of the lock, which is made.
        message: Message of the error.
        waits: Whether to wait for another process instead of raising an error.

    Raises:
        ValueError: another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=-1 if waits else 0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(message) from None
    try:
        yield
    finally:
        lock.release()
