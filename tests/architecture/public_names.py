"""Public names of the package: what an `__all__` lists, and what pages, examples and benchmarks import.

`public_names.json` has those of the revision before the redraw of issue 47 (2dd00802); none of them may be lost.
`python tests/architecture/public_names.py` adds the names that are new, and never takes one away.

Form of the file: `{where the name was found: {module: [names]}}`. A module without names is mentioned, and nothing is
imported from it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from architecture_checks import declared_names, module_name, read_sources

ROOT = Path(__file__).resolve().parents[2]
NAMES = Path(__file__).with_name("public_names.json")
DECLARED, PAGES, BENCHMARKS = "declared", "pages", "benchmarks"

RENAMED: dict[str, str] = {
    **{
        f"lockstep.algorithms.families.{old}": f"lockstep.algorithms.families.{new}"
        for old, new in (
            ("CorrectedTraining", "VTraceTraining"),
            ("FollowedActorCriticTraining", "TargetActorCriticTraining"),
            ("FollowedSoftActorCriticTraining", "TargetSoftActorCriticTraining"),
        )
    },
    "lockstep.modules.ParameterPlaces": "lockstep.modules.ParameterAddresses",
    "lockstep.modules.Remembered": "lockstep.modules.MemoryFeatures",
    "lockstep.replay.Placed": "lockstep.replay.AddedRows",
    "lockstep.envs.tensor.arrived_at": "lockstep.envs.tensor.final_observations",
    "lockstep.compat": "lockstep_sb3",
    "lockstep.compat.sb3": "lockstep_sb3",
    **{
        f"lockstep.compat.sb3.common.{old}": f"lockstep_sb3.common.{new}"
        for old, new in (
            ("base_class.ConvertCallback", "callbacks.ConvertCallback"),
            ("base_class.OverSteps", "utils.StepSchedule"),
            ("base_class.Progress", "model_options.SavedSchedule"),
            ("base_class.RolloutEnd", "base_class.RolloutEndCallback"),
            ("base_class.Stopped", "base_class.StopTraining"),
            ("base_class.normalize_of", "vec_env.wrappers.find_vec_normalize"),
            ("torch_layers.turned", "torch_layers.with_channels_first"),
            ("utils.OverSteps", "utils.StepSchedule"),
            ("vec_env.wrappers.normalize_of", "vec_env.wrappers.find_vec_normalize"),
        )
    },
    **{
        f"lockstep.compat.sb3.algorithms.{old}": f"lockstep_sb3.common.{new}"
        for old, new in (
            ("BaseAlgorithm", "base_class.BaseAlgorithm"),
            ("NormalActionNoise", "noise.NormalActionNoise"),
            ("OrnsteinUhlenbeckActionNoise", "noise.OrnsteinUhlenbeckActionNoise"),
            ("ReplayView", "buffers.ReplayBuffer"),
        )
    },
    "lockstep.trainer.run": "lockstep.runs.run",
    "lockstep.trainer.video": "lockstep.runs.video",
    **{
        f"lockstep.trainer.{name}": f"lockstep.runs.{name}"
        for name in ("SeedBegun", "SeedEnded", "SeedProgress", "run_seeds")
    },
    **{
        f"lockstep.tracking.{name}": f"lockstep.analysis.{name}"
        for name in (
            *("Comparison", "compare_runs", "compare_scores", "plot_runs", "read_curve", "write_report"),
            *("Interval", "bootstrap", "improvement_bootstrap", "iqm", "iqm_bootstrap", "iqm_difference_bootstrap"),
            *("performance_profile", "probability_of_improvement"),
        )
    },
}
"""Table of renamed names, `{"lockstep.trainer.run": "lockstep.runs.run"}`: an entry for a module holds for all names in
it that have no entry of their own. The old path is an alias of the new one and may give a `DeprecationWarning`."""

IMPORTED = re.compile(r"^\s*(?:>>> )?from (lockstep[\w.]*) import (\([^)]*\)|.+)$", re.MULTILINE)
MENTIONED = re.compile(r"\blockstep(?:\.[A-Za-z_]\w*)+")


# -- names of today ---


def declared_in(sources: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield `(module, name)` for every name in every `__all__`."""
    for path, text in sources.items():
        for name in declared_names(text) or ():
            yield module_name(path), name


def shown_in(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield `(module, name)` for what texts import or mention, as `lockstep.envs.make_vector`; `""` for no name."""
    for text in texts:
        for module, names in IMPORTED.findall(text):
            for name in re.sub(r"#.*", "", names).strip("() \n").replace("\n", ",").split(","):
                if name.strip():
                    yield from resolved(f"{module}.{name.split()[0]}")
        for path in MENTIONED.findall(text):
            yield from resolved(path)


def resolved(path: str) -> Iterator[tuple[str, str]]:
    """Yield `(module, name)` for a dotted path that exists: the longest module in it, and the name that follows.

    Private names are left out, and what follows the name (a method, the ending of a file).
    """
    module, rest = importlib.import_module("lockstep"), path.split(".")[1:]
    while rest and inspect.ismodule(getattr(module, rest[0], module)):
        try:
            module = importlib.import_module(f"{module.__name__}.{rest[0]}")
        except ModuleNotFoundError:
            break
        rest.pop(0)
    name = rest[0] if rest and hasattr(module, rest[0]) else ""
    if not any(part.startswith("_") for part in [*module.__name__.split("."), name]):
        yield module.__name__, name


def texts_below(*places: str) -> Iterator[str]:
    """Yield the text of Markdown and Python files: those named, and those in the folders named."""
    for place in places:
        path = ROOT / place
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in (".md", ".py") and "results" not in file.parts:
                yield file.read_text()


def names_of_today() -> dict[str, dict[str, list[str]]]:
    """Return the public names of the working tree, in the form of the file."""
    found = {
        DECLARED: declared_in(read_sources(ROOT, "lockstep")),
        PAGES: shown_in(texts_below("README.md", "CONTRIBUTING.md", "docs", "examples")),
        BENCHMARKS: shown_in(texts_below("benchmarks")),
    }
    return {where: as_table(names) for where, names in found.items()}


def as_table(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return `{module: sorted names}` for pairs of them."""
    table: dict[str, set[str]] = {}
    for module, name in names:
        table.setdefault(module, set()).update({name} - {""})
    return {module: sorted(table[module]) for module in sorted(table)}


def saved_names() -> dict[str, dict[str, list[str]]]:
    """Return the names of the file."""
    return json.loads(NAMES.read_text())


# -- names that have moved ---


def moved_names() -> dict[str, str]:
    """Return `{old path: new path}` for all old names that still work in both packages, from the code's own tables."""
    found: dict[str, str] = {"lockstep.compat.sb3": "lockstep_sb3"}
    for place, package in ((ROOT, "lockstep"), (ROOT / "packages/lockstep-sb3", "lockstep_sb3")):
        for path, text in read_sources(place, package).items():
            module = module_name(path)
            if re.search(r"^_MOVED\b", text, re.MULTILINE):
                for name, new in importlib.import_module(module)._MOVED.items():
                    new_module, _, new_name = new.partition(":")
                    found[f"{module}.{name}"] = f"{new_module}.{new_name or name}"
            found |= dict(renamed_members(module, text))
    return found


def renamed_members(module: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield `(old path, new path)` for members of classes whose docstring is "Deprecated name of `...`."."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        for member in node.body:
            words = ast.get_docstring(member) if isinstance(member, ast.FunctionDef) else None
            if words and (match := re.match(r"Deprecated name of `(\w+)`", words)):
                owner = public_path(module, node.name)
                yield f"{owner}.{member.name}", f"{owner}.{match[1]}"  # type: ignore[attr-defined]


def public_path(module: str, name: str) -> str:
    """Return the path of a class in the highest folder that exports it."""
    value = find(module, name)
    words = module.split(".")
    for length in range(1, len(words)):
        folder = ".".join(words[:length])
        if getattr(importlib.import_module(folder), name, None) is value:
            return f"{folder}.{name}"
    return f"{module}.{name}"


# -- where a name is now ---


def new_path(path: str, renamed: Mapping[str, str]) -> str:
    """Return the dotted path that `path` has now, by the longest entry of the table that it begins with."""
    old, rest = path, ""
    while old and old not in renamed:
        old, _, last = old.rpartition(".")
        rest = f".{last}{rest}"
    return renamed[old] + rest if old else path


def find(module: str, name: str) -> object:
    """Return what `from module import name` gives, or the module itself for the name `""`."""
    owner = importlib.import_module(module)
    return getattr(owner, name) if name else owner


def is_same(old: object, new: object) -> bool:
    """Whether two paths lead to one object. Modules may be two: the names in them are compared one by one."""
    return old is new or (inspect.ismodule(old) and inspect.ismodule(new))


def main() -> None:
    """Add the names of today to the file."""
    merged = saved_names() if NAMES.exists() else {}
    for where, table in names_of_today().items():
        saved = merged.setdefault(where, {})
        for module, names in table.items():
            saved[module] = sorted({*saved.get(module, ()), *names})
        merged[where] = {module: saved[module] for module in sorted(saved)}
    NAMES.write_text(json.dumps(merged, indent=1) + "\n")


if __name__ == "__main__":
    main()
