"""A search for settings: trials in processes of their own, kept by Optuna so that a killed search goes on.

The study's folder has `study.db` (unless another storage is given), a run for each trial, `best.json` (for
`lockstep train --config`), `search.png`, and the runs of the comparison at the end.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.algorithms import AlgorithmConfig
from lockstep.recipes import Recipe, bench
from lockstep.recipes.training import find_settings
from lockstep.state.checks import check_whole, install_hint
from lockstep.tracking import IqmInterval, iqm_bootstrap
from lockstep.trainer.run import name_of_env, prepare_run
from lockstep.tuning.pictures import draw_search
from lockstep.tuning.space import SearchSpace, apply, default_space, read_space

RUNNING, COMPLETE, PRUNED, FAILED = "running", "complete", "pruned", "failed"
FIRST_TRIALS = 5
"""trials that are not compared with others: they run to their end"""
START = 0
"""the number of the trial that has the settings of the start"""
NEW_SEEDS = 100_000
"""the first seed of the comparison at the end: no trial has it"""
ERROR = "error"
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
    final: Mapping[str, IqmInterval]
    """interquartile mean and interval of new seeds with the "best" settings and those of the "start" (only these where
    they are the best); empty without new seeds"""
    final_returns: Mapping[str, tuple[float, ...]]
    """the mean return of each of these seeds"""


def tune(
    algorithm: str | AlgorithmConfig,
    env: Any = None,
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
) -> TuneResult:
    """Search for the settings with the highest mean return at the last evaluation; return the best ones.

    It begins with the settings that `train` would take (`recipe`, `settings`, `total_steps` as there): the first trial
    has them, the others change what is in `space` (a file, or ranges by path; default: `default_space`). A trial whose
    evaluations stay below the median of the others at the same step ends early. `trials` counts all of the study;
    `jobs` of them run side by side. Afterwards `final_seeds` new seeds are trained with the best settings and with
    those of the start (0: none).

    The study has a name (default: algorithm and environment) and a folder of this name below `root`. The same call goes
    on where a search was stopped or killed: trials that had not ended are repeated. `storage`: another database
    (Optuna's URL) than the folder's. `on_change` gets all trials about once a second.

    Raises `ValueError` where the study was made with another space or other settings, or where another process searches
    in it; `RuntimeError` where no trial came to its end.
    """
    optuna = import_optuna()
    check_whole("trials", trials, 1)
    check_whole("jobs", jobs, 1)
    check_whole("final_seeds", final_seeds, 0)
    options = {} if total_steps is None else {"reporting.total_steps": total_steps}
    config = find_settings(algorithm, env, recipe=recipe, options={**options, **(settings or {})}).config
    config.debugging(seed=seed).validate()
    if not config.evaluation.evaluation_interval:
        raise ValueError("evaluation.evaluation_interval=0 is not allowed: a search compares evaluations; give 1")
    ranges = default_space(config) if space is None else space if isinstance(space, Mapping) else read_space(space)
    _check_space(config, ranges)
    env_name = name_of_env(config.environment.env)
    name = study or f"{config.algorithm}_{env_name.replace('/', '-').replace(':', '-')}"
    folder = Path(root) / name
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"another process searches in the study {name} ({folder}); wait for its end"
    with _locked(folder / "lock", busy), _quiet(optuna):
        place = Place(name, storage or f"sqlite:///{(folder / 'study.db').absolute()}", folder.absolute())
        made = optuna.create_study(
            study_name=name,
            storage=place.storage,
            direction="maximize",
            load_if_exists=True,
        )
        _check_same(made, _description(config, ranges), name)
        if not made.get_trials(deepcopy=False):
            made.enqueue_trial(_values_of_start(config, ranges))
        _search(made, place, config, ranges, trials, jobs, on_change)
        rows = trial_rows(made, ranges)
        complete = [row for row in rows if row.state == COMPLETE]
        if not complete:
            raise RuntimeError(f"no trial came to its end; the last one: {rows[-1].error}")
        best = max(complete, key=lambda row: row.score if row.score is not None else -np.inf)
        chosen = apply(config, best.values)
        _write_whole(folder / "best.json", chosen.to_json())
        _draw(made, rows, folder / "search.png")
        compared = {"start": config} if best.number == START else {"best": chosen, "start": config}
        returns = _compare(compared, folder / "final", final_seeds, jobs, env_name)
    intervals = {which: iqm_bootstrap(np.array(values)) for which, values in returns.items()}
    return TuneResult(chosen, best, tuple(rows), folder, intervals, returns)


def import_optuna() -> Any:
    """Return Optuna. Raises `ImportError` that says how to install it."""
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError(f"a search needs Optuna: {install_hint('tune')}") from error


# -- one study ---


@dataclass(frozen=True)
class Place:
    """Where a study is; it goes to the processes of trials."""

    name: str
    storage: str
    folder: Path

    def load(self) -> Any:
        """Return the study, as a process of a trial needs it."""
        optuna = import_optuna()
        pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS, n_min_trials=FIRST_TRIALS)
        return optuna.load_study(study_name=self.name, storage=self.storage, pruner=pruner)

    def trial(self, number: int) -> Path:
        """Return the folder of a trial's run."""
        return self.folder / f"trial_{number:04d}"


def trial_rows(study: Any, space: SearchSpace) -> list[TrialRow]:
    """Return the trials of an Optuna study that have begun, in the order of their numbers."""
    states = {"RUNNING": RUNNING, "COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED}
    rows = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name in states:
            step = max(trial.intermediate_values, default=0)
            score = trial.value if trial.state.name == "COMPLETE" else trial.intermediate_values.get(step)
            values = {path: json.loads(value) if space[path].choices else value for path, value in trial.params.items()}
            rows.append(
                TrialRow(trial.number, states[trial.state.name], step, score, values, trial.user_attrs.get(ERROR, ""))
            )
    return rows


def _search(
    study: Any,
    place: Place,
    config: AlgorithmConfig,
    space: SearchSpace,
    trials: int,
    jobs: int,
    on_change: Callable[[Sequence[TrialRow]], None] | None,
) -> None:
    """Run trials until `trials` of them have begun and ended; first those that were under way.

    Each trial has a sampler of its own seed, so that a search that was stopped goes on with the same values.
    """
    optuna = import_optuna()
    unfinished = [row.number for row in trial_rows(study, space) if row.state == RUNNING]
    known = {trial.number: trial._trial_id for trial in study.get_trials(deepcopy=False)}
    running: set[Future[None]] = set()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        try:
            while True:
                while len(running) < jobs:
                    number = unfinished[0] if unfinished else len(trial_rows(study, space))
                    if number >= trials and not unfinished:
                        break
                    study.sampler = optuna.samplers.TPESampler(seed=config.debugging.seed + number, multivariate=True)
                    trial = optuna.trial.Trial(study, known[unfinished.pop(0)]) if unfinished else study.ask()
                    values = {path: each.suggest(trial, path) for path, each in space.items()}
                    seeded = apply(config, values).debugging(seed=config.debugging.seed + trial.number)
                    running.add(pool.submit(run_trial, place, trial._trial_id, trial.number, seeded, os.getpid()))
                if not running:
                    return
                ended, running = wait(running, POLL_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    future.result()
                if on_change is not None:
                    on_change(trial_rows(study, space))
        except BaseException:
            for future in running:
                future.cancel()
            raise


def run_trial(place: Place, trial_id: int, number: int, config: AlgorithmConfig, parent: int) -> None:
    """Train with the settings of one trial and tell the study how it ended. Runs in a process of its own.

    Ends after an epoch where the search that waits for it (process `parent`) is gone. The next search repeats the trial
    when this process has ended.
    """
    optuna = import_optuna()
    folder = place.trial(number)
    with _locked(folder.with_suffix(".lock"), "", waits=True), _quiet(optuna):
        study = place.load()
        trial = optuna.trial.Trial(study, trial_id)
        if study.trials[number].state.is_finished():
            return
        shutil.rmtree(folder, ignore_errors=True)
        known = study.trials[number].intermediate_values
        try:
            run = prepare_run(config, folder)
            trainer, score = run.trainer, float("nan")
            try:
                for _ in trainer:
                    found = trainer.last_test
                    if found is not None and found.returns_stat is not None and found.returns_stat.mean is not None:
                        score = found.returns_stat.mean
                        if trainer.position not in known:
                            trial.report(score, trainer.position)
                    if os.getppid() != parent:
                        return
                    if trainer.position < trainer.steps_in_all and trial.should_prune():
                        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                        return
                run.write_summary()
            finally:
                trainer.close()
            if not np.isfinite(score):
                raise ValueError(f"the mean return of its last evaluation is {score}")
            study.tell(trial, score)
        except Exception as error:  # settings that do not train: the search goes on without them
            trial.set_user_attr(ERROR, f"{type(error).__name__}: {error}")
            study.tell(trial, state=optuna.trial.TrialState.FAIL)


def _draw(study: Any, rows: Sequence[TrialRow], path: Path) -> None:
    """Draw the picture of the search where matplotlib is installed."""
    importance, shares = import_optuna().importance, {}
    scores = {row.score for row in rows if row.state == COMPLETE}
    if len(scores) > 1:
        shares = importance.get_param_importances(study, evaluator=importance.PedAnovaImportanceEvaluator())
    with suppress(ImportError):
        draw_search([row.score for row in rows], shares, path)


def _compare(
    configs: Mapping[str, AlgorithmConfig], folder: Path, seeds: int, jobs: int, env: str
) -> dict[str, tuple[float, ...]]:
    """Train new seeds with each configuration; return their final returns. Seeds that have run are not run again."""
    works: list[bench.Work] = []
    found: dict[str, tuple[float, ...]] = {}
    asked = range(NEW_SEEDS, NEW_SEEDS + seeds)
    for which, config in configs.items():
        recipe = Recipe(which, env, config.copy, 0.0, "", config.reporting.total_steps or 0, None)
        works += [bench.Work(recipe, seed, folder / which, "tune") for seed in asked]
    files = {(work.recipe.algorithm, work.seed): work.root / f"seed_{work.seed}.json" for work in works}
    left = [work for work in works if not files[work.recipe.algorithm, work.seed].exists()]
    for row in bench.run_seeds(left, jobs, verbose=False) if left else ():
        _write_whole(files[row["algorithm"], row["seed"]], json.dumps({"final_returns": row["final_returns"]}))
    for which in configs:
        rows = [json.loads(files[which, seed].read_text(encoding="utf-8")) for seed in asked]
        found[which] = tuple(float(np.mean(row["final_returns"])) for row in rows)
    return found if seeds else {}


# -- what a study was made with ---


def _check_space(config: AlgorithmConfig, space: SearchSpace) -> None:
    """Raise `ValueError` for a path that is no option, or a value that it cannot have."""
    if not space:
        raise ValueError("the space is empty; give a range for an option, e.g. training.lr")
    for path, values in space.items():
        ends = values.choices or (values.low, values.high)
        for value in ends:
            try:
                apply(config, {path: value})
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"the space has {path}={value!r}: {error.args[0] if error.args else error}") from error


def _values_of_start(config: AlgorithmConfig, space: SearchSpace) -> dict[str, Any]:
    """Return the values that the configuration has, of options where they lie in the space."""
    options = config.named_options()
    found: dict[str, Any] = {}
    for path, values in space.items():
        section, _, option = path.partition(".")
        value: Any = options.get(section, {}).get(option)
        if isinstance(value, list) and not values.choices:
            value = value[0][1]  # a schedule
        if values.choices and value in values.choices:
            found[path] = json.dumps(value)
        elif values.low is not None and values.high is not None and isinstance(value, int | float):
            if values.low <= value <= values.high:
                found[path] = value
    return found


def _description(config: AlgorithmConfig, space: SearchSpace) -> dict[str, Any]:
    """Return what all trials of a study have in common, as plain values."""
    sections = json.loads(config.to_json())
    return {"space": {path: values.plain() for path, values in space.items()}, "settings": sections}


def _check_same(study: Any, now: Mapping[str, Any], name: str) -> None:
    """Note what the study searches; raise `ValueError` where it was begun with something else."""
    before = study.user_attrs.get("lockstep")
    if before is None:
        study.set_user_attr("lockstep", now)
        return
    for part in ("space", "settings"):
        old, new = _flat(before[part]), _flat(json.loads(json.dumps(now[part])))
        other = [path for path in {**old, **new} if old.get(path) != new.get(path)]
        if other:
            path = other[0]
            raise ValueError(
                f"the study {name} was begun with another {part.removesuffix('s')}: {path}={old.get(path)!r}, now "
                f"{new.get(path)!r}; give this search another name (study=, --study), or the same {part}"
            )


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix: values}
    return {
        path: leaf for name, part in values.items() for path, leaf in _flat(part, f"{prefix}.{name}".strip(".")).items()
    }


def _write_whole(path: Path, text: str) -> None:
    """Write a file at once: nobody sees a half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Keep Optuna's lines for each trial off the screen."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _locked(path: Path, message: str, waits: bool = False) -> Iterator[None]:
    """Hold the lock of a file; it ends with the process. Raises `ValueError` with the message where another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise ValueError(message) from None
        yield
