"""A search for settings: trials in processes of their own, kept by Optuna so that a killed search goes on.

The study's folder has `study.db` (unless another storage is given), a run for each trial, `best.json` (for
`lockstep train --config`), `search.png`, and the runs of the comparison at the end.
"""

from __future__ import annotations

import fcntl
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

RUNNING, COMPLETE, PRUNED, FAILED = "running", "complete", "pruned", "failed"
FIRST_TRIALS = 5
"""trials that are not compared with others: they run to their end"""
START = 0
"""the number of the trial that has the settings of the start"""
NEW_SEEDS = 100_000
"""the first seed of the comparison at the end: no trial has it"""
STATES = {"RUNNING": RUNNING, "COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED}
ERROR, MADE_WITH = "error", "made_with"
"""what the study remembers: of a failed trial why, and of itself what its trials have in common"""
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class TrialRow:
    """One trial as it stands."""

    number: int
    state: str
    """"running", "complete", "pruned" (given up early) or "failed" """
    step: int
    """environment steps at the last evaluation"""
    score: float | None
    """mean return of the last evaluation"""
    values: Mapping[str, Any]
    """options by path"""
    error: str = ""
    """why it failed"""


@dataclass(frozen=True)
class TuneResult:
    """What a search leaves."""

    config: AlgorithmConfig
    """the best trial's; its seed is that of the search"""
    best: TrialRow
    trials: tuple[TrialRow, ...]
    path: Path
    """the study's folder"""
    final: Mapping[str, Interval]
    """interquartile mean and interval of new seeds with the "best" settings and those of the "start" (only these where
    they are the best); empty without new seeds"""
    final_returns: Mapping[str, tuple[float, ...]]
    """the mean return of each of these seeds"""

    def __str__(self) -> str:
        """Return the best trial and the folder in one line."""
        best = self.best
        which = f"trial {best.number} of {len(self.trials)} is the best"
        return f"{which}, return {number_text(best.score)}: {best.values} ({self.path})"


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
    """Search for the settings with the highest mean return at the last evaluation; return the best ones.

    It begins with the settings that `train` would take (`recipe`, `settings`, `total_steps` as there): the first trial
    has them, the others change what is in `space` (a file, or ranges by path; default: `default_space`). A trial whose
    evaluations stay below the median of the others at the same step ends early. `trials` counts all of the study;
    `jobs` of them run side by side. Afterwards `final_seeds` new seeds are trained with the best settings and with
    those of the start (0: none).

    The study has a name (default: algorithm and environment) and a folder of this name below `root`. The same call goes
    on where a search was stopped or killed: trials that had not ended are repeated. At Ctrl-C those under way end after
    their update. `storage`: another database
    (Optuna's URL) than the folder's. `on_change` gets all trials about once a second. `trust`: take all objects that
    the file of the space names.

    Raises `ValueError` where the study was made with another space or other settings, or where another process searches
    in it; `RuntimeError` where no trial came to its end.
    """
    check_whole("trials", trials, 1)
    check_whole("jobs", jobs, 1)
    check_whole("final_seeds", final_seeds, 0)
    options = {} if total_steps is None else {"reporting.total_steps": total_steps}
    config = find_settings(
        algorithm, env, recipe=recipe, options={**options, **settings_by_path(settings or {})}
    ).config
    config.debugging(seed=seed)
    ranges = (
        default_space(config)
        if space is None
        else space
        if isinstance(space, Mapping)
        else read_space(space, trust=trust)
    )
    check_space(config, ranges)
    name = study or re.sub(r"[^A-Za-z0-9.-]+", "-", f"{config.algorithm}-{name_of_env(config.environment.env)}")
    folder = Path(root).absolute() / name
    search = Search(name, storage or f"sqlite:///{folder / 'study.db'}", folder, config, ranges)
    busy = (
        f"another process searches in the study {name} ({folder}); wait for its end, or give this search another name"
    )
    with _locked(folder / "lock", f"{busy} (study=, --study)"):
        with _quiet():
            search.open()
            search.run(trials, jobs, on_change)
            rows = search.rows()
            best = search.best(rows)
            chosen = search.config_of(best.number, best.values)
            write_json(folder / "best.json", json.loads(chosen.to_json()))
            search.draw(rows)
        returns = search.compare(best, final_seeds, jobs)
    intervals = {which: iqm_bootstrap(np.array(values)) for which, values in returns.items()}
    return TuneResult(chosen, best, tuple(rows), folder, intervals, returns)


def import_optuna() -> Any:
    """Return Optuna. Raises `ImportError` that says how to install it."""
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError(f"a search needs Optuna: {install_hint('tune')}") from error


@dataclass(frozen=True)
class Search:
    """A study: where it is, what its trials begin with, and what they change. It goes to the processes of trials."""

    name: str
    storage: str
    folder: Path
    config: AlgorithmConfig
    space: SearchSpace

    def open(self) -> None:
        """Make the study with the start as its first trial.

        Raises:
            ValueError: the study exists and was begun with another space or other settings, or its storage cannot be
                read.
        """
        now = {
            "space": {path: values.plain() for path, values in self.space.items()},
            "settings": without_signature(json.loads(self.config.to_json())),
        }
        with self._naming_storage():
            study = import_optuna().create_study(
                study_name=self.name, storage=self.storage, direction="maximize", load_if_exists=True
            )
            made_with = study.user_attrs.get(MADE_WITH, now)
            before = {part: with_current_names(dict(made_with[part])) for part in now}
        check_same(before, now, self.name)
        with self._naming_storage():
            if MADE_WITH not in study.user_attrs:
                study.set_user_attr(MADE_WITH, now)
            if not study.get_trials(deepcopy=False):
                study.enqueue_trial(values_of_start(self.config, self.space))

    def study(self) -> Any:
        """Return Optuna's study as it is now."""
        optuna = import_optuna()
        pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS, n_min_trials=FIRST_TRIALS)
        return optuna.load_study(study_name=self.name, storage=self.storage, pruner=pruner)

    def rows(self) -> list[TrialRow]:
        """Return the trials that have begun, in the order of their numbers.

        Raises:
            ValueError: the study's storage cannot be read.
        """
        with self._naming_storage():
            trials = self.study().get_trials(deepcopy=False)
            return [self._trial_row(trial) for trial in trials if trial.state.name in STATES]

    @contextmanager
    def _naming_storage(self) -> Iterator[None]:
        """Raise `ValueError` naming the storage where reading it fails, whichever library notices."""
        optuna, sqlalchemy = import_optuna(), importlib.import_module("sqlalchemy")
        try:
            yield
        except (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, *DAMAGE) as error:
            raise ValueError(
                f"the study {self.name} cannot be read from {self.storage}: {error}; if it is damaged, give this "
                "search another name (study=, --study)"
            ) from error

    def _trial_row(self, trial: Any) -> TrialRow:
        step = max(trial.intermediate_values, default=0)
        score = trial.value if trial.state.name == "COMPLETE" else trial.intermediate_values.get(step)
        values = {path: json.loads(one) if self.space[path].choices else one for path, one in trial.params.items()}
        if trial.number == START:
            values = {path: value for path in self.space if (value := value_at(self.config, path)) is not None}
        return TrialRow(trial.number, STATES[trial.state.name], step, score, values, trial.user_attrs.get(ERROR, ""))

    def config_of(self, number: int, values: Mapping[str, Any]) -> AlgorithmConfig:
        """Return a copy of the configuration with the values of a trial; the first one has the start, unchanged.

        Raises `ValueError` for a value that the study's storage holds and the space does not have.
        """
        for path, value in values.items():
            choices = self.space[path].choices
            if number != START and choices and value not in choices:
                raise ValueError(
                    f"the study {self.name} ({self.storage}) holds {path}={value!r} of trial {number}, which is not "
                    "in the space: the storage was changed; give this search another name (study=, --study)"
                )
        return self.config.copy() if number == START else apply(self.config, values)

    def best(self, rows: Sequence[TrialRow]) -> TrialRow:
        """Return the trial with the highest score. Raises `RuntimeError` where none came to its end."""
        scores = {row.number: row.score for row in rows if row.state == COMPLETE and row.score is not None}
        if not scores:
            raise RuntimeError(f"no trial came to its end; the last one: {rows[-1].error}")
        return rows[max(scores, key=lambda number: scores[number])]

    def run(self, trials: int, jobs: int, on_change: Callable[[Sequence[TrialRow]], None] | None) -> None:
        """Run trials until `trials` of them have begun and ended; first those that were under way."""
        left = [row.number for row in self.rows() if row.state == RUNNING]
        left += range(len(self.rows()), trials)
        num_running = 0
        with ProcessPool(jobs, reuse_processes=True) as pool:
            while left or num_running:
                # The values of a trial depend on those that have ended, so it is not made before a process is free.
                while left and num_running < jobs:
                    number = left.pop(0)
                    pool.submit(self.run_trial, number, self._values(number))
                    num_running += 1
                for task in pool.wait(POLL_SECONDS):
                    if task.is_done:
                        task.result()
                        num_running -= 1
                if on_change is not None:
                    on_change(self.rows())

    def _values(self, number: int) -> dict[str, Any]:
        """Return the values of a trial; a new one begins here.

        Each has a sampler of its own seed, so that a search that was stopped goes on with the same values.
        """
        optuna, study = import_optuna(), self.study()
        study.sampler = optuna.samplers.TPESampler(seed=self.config.debugging.seed + number, multivariate=True)
        trial = self._trial(study, number) if number < len(self.rows()) else study.ask()
        return {path: each.suggest(trial, path) for path, each in self.space.items()}

    def _trial(self, study: Any, number: int) -> Any:
        return import_optuna().trial.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)

    def run_trial(self, number: int, values: Mapping[str, Any], worker: PoolWorker) -> None:
        """Train with the settings of one trial and tell the study how it ended. Runs in a process of its own.

        Ends after an update where the search that waits for it was stopped. The next search repeats the trial when this
        process has ended.
        """
        place = self.folder / f"trial_{number:04d}"
        with _locked(place.with_suffix(".lock"), waits=True), _quiet():
            study = self.study()
            if study.get_trials(deepcopy=False)[number].state.is_finished():
                return
            trial = self._trial(study, number)
            shutil.rmtree(place, ignore_errors=True)
            try:
                config = self.config_of(number, values).debugging(seed=self.config.debugging.seed + number)
                run = prepare_run(config, place, callbacks=[StopsWithPool(worker)])
                study.tell(trial, self._train(run, trial))
            except import_optuna().TrialPruned:
                study.tell(trial, state=import_optuna().trial.TrialState.PRUNED)
            except Exception as error:  # settings that do not train: the search goes on without them
                trial.set_user_attr(ERROR, f"{type(error).__name__}: {error}")
                study.tell(trial, state=import_optuna().trial.TrialState.FAIL)

    def _train(self, run: Run, trial: Any) -> float:
        """Return the score of a run; raise `TrialPruned` where it falls behind."""
        trainer, score = run.trainer, float("nan")
        known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        try:
            for _ in trainer:
                found = trainer.last_test
                if found is not None and found.returns_stat is not None and found.returns_stat.mean is not None:
                    score = found.returns_stat.mean
                    if trainer.position not in known:  # else it is repeated, and has said so
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
        """Draw the picture of the search where matplotlib is installed."""
        importance, shares = import_optuna().importance, {}
        if len({row.score for row in rows if row.state == COMPLETE}) > 1:
            evaluator = importance.PedAnovaImportanceEvaluator()
            shares = importance.get_param_importances(self.study(), evaluator=evaluator)
        with suppress(ImportError):
            draw_search([row.score for row in rows], shares, self.folder / "search.png")

    def compare(self, best: TrialRow, seeds: int, jobs: int) -> dict[str, tuple[float, ...]]:
        """Train new seeds with the best settings and those of the start; return their final returns by seed.

        Seeds that have run with the same settings do not run again.
        """
        numbers = {"start": START} if best.number == START else {"best": best.number, "start": START}
        configs = {"best": self.config_of(best.number, best.values), "start": self.config}
        works = [
            bench.Work(
                Recipe(which, self.name, configs[which].copy, 0.0, "", 0, None),
                seed,
                self.folder / f"final_{number:04d}",
                self.name,
            )
            for which, number in numbers.items()
            for seed in range(NEW_SEEDS, NEW_SEEDS + seeds)
        ]
        files = {(work.recipe.algorithm, work.seed): work.root / f"seed_{work.seed}.json" for work in works}
        left = [work for work in works if not files[work.recipe.algorithm, work.seed].exists()]
        for row in bench.run_seeds(left, jobs, verbose=False):
            write_json(files[row["algorithm"], row["seed"]], row["final_returns"])
        found: dict[str, list[float]] = {}
        for (which, _), file in files.items():
            found.setdefault(which, []).append(float(np.mean(json.loads(file.read_text(encoding="utf-8")))))
        return {which: tuple(returns) for which, returns in found.items()}


# -- what a study was made with ---


def check_space(config: AlgorithmConfig, space: SearchSpace) -> None:
    """Raise `ValueError` where trials could not be compared, and for an option or a value that there is not."""
    config.validate()
    if not config.evaluation.evaluation_interval:
        raise ValueError("evaluation.evaluation_interval=0 is not allowed: a search compares evaluations; give 1")
    if not space:
        raise ValueError("the space is empty; give a range for an option, e.g. training.lr")
    for path, values in space.items():
        ends = values.choices or (values.low, values.high)
        for value in ends:
            try:
                apply(config, {path: value})
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"the space has {path}={value!r}: {error.args[0] if error.args else error}") from error


def values_of_start(config: AlgorithmConfig, space: SearchSpace) -> dict[str, Any]:
    """Return the values that the configuration has, by which later trials are chosen; numbers as near as they lie."""
    found: dict[str, Any] = {}
    for path, values in space.items():
        value = value_at(config, path)
        if isinstance(value, list) and not values.choices:
            value = value[0][1]  # a schedule
        if values.choices and value in values.choices:
            found[path] = json.dumps(value)
        elif values.low is not None and values.high is not None and isinstance(value, int | float):
            found[path] = min(max(value, values.low), values.high)
    return found


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> None:
    """Raise `ValueError` naming what differs from what the study was begun with."""
    for part in ("space", "settings"):
        old, new = dict(leaves(before[part])), dict(leaves(json.loads(json.dumps(now[part]))))
        other = [path for path in {**old, **new} if old.get(path) != new.get(path)]
        if other:
            path = other[0]
            raise ValueError(
                f"the study {name} was begun with another {part.removesuffix('s')}: {path}={old.get(path)!r}, now "
                f"{new.get(path)!r}; give this search another name (study=, --study), or the same {part}"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's lines for each trial off the screen."""
    optuna = import_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _locked(path: Path, message: str = "", waits: bool = False) -> Iterator[None]:
    """Hold the lock of a file; it ends with the process. Raises `ValueError` with the message where another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise ValueError(message) from None
        yield
