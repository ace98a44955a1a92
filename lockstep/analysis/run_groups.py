"""Groups of runs with the same settings, named by the options in which they differ from other groups."""

import json
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeGuard

from lockstep.tracking.records import read_metrics
from lockstep.tracking.run_folder import OBJECT, RunFolder, RunFolderError, find_runs

SEED = "debugging.seed"
NO_DIFFERENCE = (SEED, "evaluation.stop_return")
"""Options in which runs of a group may differ. A return to stop at ends a run earlier, and changes nothing before."""
MISSING = "-"
"""Value of an option that an algorithm does not have."""
_MAX_TEXT = 40
"""Number of letters of the longest value; longer values are cut."""
MAX_LABEL = 48
"""Number of letters of the longest label. A longer one would cover the curves of a picture."""
RunPath = str | os.PathLike[str]


@dataclass(frozen=True)
class RunGroup:
    """Runs of one algorithm with equal values of the options that distinguish groups."""

    label: str
    """Short name, for a legend."""
    runs: tuple[RunFolder, ...]
    """Runs of the group."""
    settings: str = ""
    """Options in which the group differs from the others, if they do not fit into the label."""


def differing_options(runs: Iterable[RunFolder]) -> list[str]:
    """Return the paths of all options that differ between runs, except `NO_DIFFERENCE`."""
    settings = [run.settings() for run in runs]
    paths: dict[str, None] = {}  # a dict keeps the order of options
    for each in settings:
        paths.update(dict.fromkeys(each))

    def differs(path: str) -> bool:
        return any(_value(each, path) != _value(settings[0], path) for each in settings)

    return [path for path in paths if path not in NO_DIFFERENCE and differs(path)]


def open_runs(paths: Sequence[RunPath] | RunPath, scope: str = "test") -> list[RunFolder]:
    """Return the runs in the given folders.

    Args:
        paths: folders of runs. A folder that holds runs at any depth, such as `runs` or that of a tuning study,
            stands for those of them that have a record of `scope`; a warning names the others, which have often just
            begun or failed early.
        scope: scope of the records that are needed, "test" (evaluation), "train" or "update".

    Raises:
        ValueError: there is no folder, a folder does not hold a run, or a run is given twice.
    """
    folders = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not folders:
        raise ValueError("give at least one run's folder, e.g. runs/ppo_*")
    runs = []
    for folder in map(Path, folders):
        # The pattern `trial_*` also matches the lock files that a tuning study has beside its trials.
        if folder.suffix != ".lock":
            runs.extend(_open_folder(folder, scope))
    for run in runs:
        if not run.metrics_path.exists():
            raise RunFolderError(f"the run in {run.path} is damaged: it has no {run.metrics_path.name}")
    counts = Counter(run.path.resolve() for run in runs)
    for path, count in counts.items():
        if count > 1:
            raise ValueError(f"{path} is given twice")
    return runs


def _open_folder(folder: Path, scope: str) -> list[RunFolder]:
    """Return the run in a folder, or those in a folder of several runs that have a record of `scope`."""
    paths = find_runs(folder)
    if not paths:
        return [RunFolder.open(folder)]
    if len(paths) == 1:
        return [RunFolder.open(paths[0])]
    drawn: list[Path] = []
    left_out: list[Path] = []
    for path in paths:
        has_record = any(record["scope"] == scope for record in read_metrics(path))
        (drawn if has_record else left_out).append(path)
    if not drawn:
        raise ValueError(f"none of the {len(paths)} runs in {folder} has a record of {scope!r} yet")
    if left_out:
        names = ", ".join(str(path.relative_to(folder)) for path in left_out)
        warnings.warn(f"runs in {folder} without a record of {scope!r} are left out: {names}", stacklevel=2)
    return [RunFolder.open(path) for path in drawn]


def group_runs(
    runs: Sequence[RunFolder], *, group_by: Sequence[str] = (), labels: Sequence[str] = ()
) -> list[RunGroup]:
    """Divide runs into groups of equal settings, in the order in which they first appear.

    Runs of different algorithms never share a group. The groups of one algorithm are distinguished by the options that
    differ between its runs in the same environment. An option that differs only from one environment to another
    distinguishes nothing.

    Args:
        runs: runs to divide.
        group_by: paths of the options that distinguish groups, in place of those above.
        labels: labels of the groups. Otherwise a label names the algorithm and its options, `PPO learner=Mine`. If one
            of them is too long for a legend, labels are `PPO 1`, `PPO 2`, and `RunGroup.settings` has the options.

    Raises:
        ValueError: no run has an option of `group_by`, or the numbers of labels and groups differ.
    """
    _check_known(runs, group_by)
    distinguishing = {}
    for algo in dict.fromkeys(run.algo for run in runs):
        of_algo = [run for run in runs if run.algo == algo]
        distinguishing[algo] = _distinguishing_options(of_algo, group_by)
    objects: set[str] = set()
    for run in runs:
        objects.update(path for path, value in run.settings().items() if is_object(value))

    members: dict[str, list[RunFolder]] = {}
    options: dict[str, str] = {}
    for run in runs:
        settings = run.settings()
        paths = distinguishing[run.algo]
        values = {path: _value(settings, path) for path in paths}
        key = json.dumps([run.algo, values], sort_keys=True, default=str)
        members.setdefault(key, []).append(run)
        options[key] = ", ".join(_option_texts(paths, values, objects))

    return _labelled_groups(list(members.values()), list(options.values()), labels)


def _labelled_groups(
    members: Sequence[Sequence[RunFolder]], options: Sequence[str], labels: Sequence[str]
) -> list[RunGroup]:
    """Return groups with labels, given the runs of each group and a text of its options."""
    algorithms = [of_group[0].algo.upper() for of_group in members]
    names = [f"{algorithm} {text}".strip() for algorithm, text in zip(algorithms, options)]
    if labels and len(labels) != len(members):
        raise ValueError(
            f"{len(labels)} labels for {len(members)} groups of runs; give one for each of: {'; '.join(names)}"
        )
    if labels or max(map(len, names)) <= MAX_LABEL:
        titles = _distinct(list(labels) or names)
        return [RunGroup(title, tuple(of_group)) for title, of_group in zip(titles, members)]

    numbers: Counter[str] = Counter()
    groups = []
    for algorithm, text, of_group in zip(algorithms, options, members):
        numbers[algorithm] += 1
        label = f"{algorithm} {numbers[algorithm]}" if algorithms.count(algorithm) > 1 else algorithm
        groups.append(RunGroup(label, tuple(of_group), text))
    return groups


def value_text(value: object) -> str:
    """Return the value of an option as a short text: the name of a class, six digits of a number."""
    if is_object(value):
        text = str(value[OBJECT]).rpartition(":")[2]
    elif isinstance(value, str):
        text = value
    else:
        text = json.dumps(_rounded(value), default=str)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the value of an option names a class or function."""
    return isinstance(value, Mapping) and set(value) == {OBJECT}


def _rounded(value: object) -> object:
    """Return a value with its numbers rounded to six digits."""
    if isinstance(value, float):
        short = float(f"{value:g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return value


def _check_known(runs: Sequence[RunFolder], group_by: Sequence[str]) -> None:
    """Check that runs have the options of `group_by`. `ValueError` names a similar option, or those that differ."""
    known: dict[str, None] = {}
    for run in runs:
        known.update(dict.fromkeys(run.settings()))
    for path in group_by:
        if path in known:
            continue
        similar = [name for name in known if name.endswith(f".{path}")]
        similar = similar or get_close_matches(path, known, n=1, cutoff=0.75)
        differing = ", ".join(differing_options(runs))
        if similar:
            hint = f"did you mean {similar[0]!r}?"
        elif differing:
            hint = f"these differ: {differing}"
        else:
            hint = "only seeds differ"
        raise ValueError(f"no run has an option {path!r} to group by; {hint}")


def _distinguishing_options(runs: Sequence[RunFolder], group_by: Sequence[str]) -> list[str]:
    """Return the options that distinguish groups among the runs of one algorithm."""
    if group_by:
        return list(group_by)
    paths: dict[str, None] = {}
    for env in dict.fromkeys(run.env for run in runs):
        in_env = [run for run in runs if run.env == env]
        paths.update(dict.fromkeys(differing_options(in_env)))
    return list(paths)


def _value(settings: Mapping[str, Any], path: str) -> Any:
    """Return the value of an option, `MISSING` if there is no such option."""
    return settings.get(path, MISSING)


def _option_texts(paths: Sequence[str], values: Mapping[str, Any], objects: Collection[str]) -> list[str]:
    """Return a text like `lr=0.001` for each option. If two options have the same last name, both have their sections.

    An option of `objects`, which names a class in some run, becomes `learner=Mine`, and is left out at its default.
    """
    ends = {path: path.rpartition(".")[2].removesuffix("_class") for path in paths}
    short = Counter(ends.values())
    names = []
    for path, end in ends.items():
        name = path if short[end] > 1 else end
        value = values[path]
        if path in objects and value is None:
            continue
        if value == MISSING:
            names.append(f"no {name}")
        else:
            names.append(f"{name}={value_text(value)}")
    return names


def _distinct(labels: Sequence[str]) -> list[str]:
    """Return labels that all differ. A label that occurs again gets a number."""
    counts: Counter[str] = Counter()
    distinct = []
    for label in labels:
        counts[label] += 1
        distinct.append(label if counts[label] == 1 else f"{label} ({counts[label]})")
    return distinct
