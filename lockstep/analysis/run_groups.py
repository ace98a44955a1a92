"""Runs that belong together: those of the same settings, named by what differs from the others'."""

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeGuard

from lockstep.tracking.run_folder import OBJECT, RunFolder, RunFolderError

SEED = "debugging.seed"
MISSING = "-"
"""stands for the value of an option that an algorithm does not have"""
_MAX_TEXT = 40
MAX_LABEL = 48
"""Letters of the longest label; longer ones would cover the curves of a picture."""
RunPath = str | os.PathLike[str]


@dataclass(frozen=True)
class RunGroup:
    """Runs of one algorithm with the same values of the options that count."""

    label: str
    """Short name, as it stands in a legend."""
    runs: tuple[RunFolder, ...]
    settings: str = ""
    """The options by which the group differs from the others, where they do not fit into the label."""


def differing_options(runs: Iterable[RunFolder]) -> list[str]:
    """Return the paths of the options that are not the same in all runs; seeds are no difference."""
    settings = [run.settings() for run in runs]
    paths = dict.fromkeys(path for found in settings for path in found)
    return [
        path
        for path in paths
        if path != SEED and any(_value(found, path) != _value(settings[0], path) for found in settings)
    ]


def open_runs(paths: Sequence[RunPath] | RunPath) -> list[RunFolder]:
    """Return the runs in folders. Raises `ValueError`: none is given, one is no run, one is given twice."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError("give at least one run's folder, e.g. runs/ppo_*")
    runs = [RunFolder.open(path) for path in given]
    for run in runs:
        if not run.metrics_path.exists():
            raise RunFolderError(f"the run in {run.path} is damaged: it has no {run.metrics_path.name}")
    twice = [str(path) for path, count in Counter(run.path.resolve() for run in runs).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given twice")
    return runs


def group_runs(
    runs: Sequence[RunFolder], *, group_by: Sequence[str] = (), labels: Sequence[str] = ()
) -> list[RunGroup]:
    """Return the runs in groups of equal settings, in the order in which they first appear.

    Runs of different algorithms never share a group. Those of one algorithm are apart where options differ between its
    runs in the same environment (`group_by`: where these do). The label names the algorithm and these options:
    `PPO learner=Mine`. Where that is longer than a legend can hold, labels are `PPO 1`, `PPO 2`, and `settings` has the
    options. `labels` are other names, one for each group.

    Raises `ValueError`: no run has an option of `group_by`; as many labels as groups are needed.
    """
    _check_known(runs, group_by)
    counting = {algo: _counting_options([run for run in runs if run.algo == algo], group_by) for algo in _algos(runs)}
    objects = {path for run in runs for path, value in run.settings().items() if is_object(value)}
    found: dict[str, list[RunFolder]] = {}
    options: dict[str, str] = {}
    for run in runs:
        settings, paths = run.settings(), counting[run.algo]
        values = {path: _value(settings, path) for path in paths}
        key = json.dumps([run.algo, values], sort_keys=True, default=str)
        found.setdefault(key, []).append(run)
        options[key] = ", ".join(_named(paths, values, objects))
    algorithms = [members[0].algo.upper() for members in found.values()]
    names = [f"{algorithm} {text}".strip() for algorithm, text in zip(algorithms, options.values())]
    if labels and len(labels) != len(found):
        raise ValueError(
            f"{len(labels)} labels for {len(found)} groups of runs; give one for each of: {'; '.join(names)}"
        )
    if labels or max(map(len, names)) <= MAX_LABEL:
        titles = _distinct(list(labels) or names)
        return [RunGroup(title, tuple(members)) for title, members in zip(titles, found.values())]
    numbers: Counter[str] = Counter()
    groups = []
    for algorithm, text, members in zip(algorithms, options.values(), found.values()):
        numbers[algorithm] += 1
        label = f"{algorithm} {numbers[algorithm]}" if algorithms.count(algorithm) > 1 else algorithm
        groups.append(RunGroup(label, tuple(members), text))
    return groups


def value_text(value: object) -> str:
    """Return the value of an option in few letters: of a class its name, of numbers six digits."""
    if is_object(value):
        text = str(value[OBJECT]).rpartition(":")[2]
    else:
        text = value if isinstance(value, str) else json.dumps(_rounded(value), default=str)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the value of an option names a class or function of somebody's own."""
    return isinstance(value, Mapping) and set(value) == {OBJECT}


def _rounded(value: object) -> object:
    if isinstance(value, float):
        short = float(f"{value:g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return value


def _check_known(runs: Sequence[RunFolder], group_by: Sequence[str]) -> None:
    """Raise `ValueError` for an option that no run has; name one like it, or those that differ."""
    known = dict.fromkeys(path for run in runs for path in run.settings())
    for path in group_by:
        if path in known:
            continue
        near = [name for name in known if name.endswith(f".{path}")] or get_close_matches(path, known, n=1, cutoff=0.75)
        differing = ", ".join(differing_options(runs))
        hint = (
            f"did you mean {near[0]!r}?" if near else f"these differ: {differing}" if differing else "only seeds differ"
        )
        raise ValueError(f"no run has an option {path!r} to group by; {hint}")


def _algos(runs: Iterable[RunFolder]) -> list[str]:
    return list(dict.fromkeys(run.algo for run in runs))


def _counting_options(runs: Sequence[RunFolder], group_by: Sequence[str]) -> list[str]:
    """Return the options by which the runs of one algorithm are told apart."""
    if group_by:
        return list(group_by)
    envs = dict.fromkeys(run.env for run in runs)
    paths = [path for env in envs for path in differing_options(run for run in runs if run.env == env)]
    return list(dict.fromkeys(paths))


def _value(settings: Mapping[str, Any], path: str) -> Any:
    return settings.get(path, MISSING)


def _named(paths: Sequence[str], values: Mapping[str, Any], objects: Collection[str]) -> list[str]:
    """Return `lr=0.001` for each option; with its section where two end in the same name.

    An option of `objects` names a class in some run: it is `learner=Mine`, and left out where it is at its default.
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
    """Return labels that differ: a second one of the same words gets a number."""
    seen: Counter[str] = Counter()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found
