"""Who may import whom (docs/architecture.md, "Floors")."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from architecture_checks import (
    declared_names,
    imports_matching,
    imports_of,
    module_name,
    read_sources,
    upward_imports,
    uses_of,
)

ROOT = Path(__file__).parents[2]
SOURCES = read_sources(ROOT, "lockstep")
PACKAGE = read_sources(ROOT / "packages/lockstep-sb3", "lockstep_sb3")
"""The distribution for programs of Stable-Baselines3, which is above all floors."""
FLOORS = {
    "ops": 0,
    "options": 0,
    "state": 1,
    "data": 2,
    "tracking": 2,
    "envs": 3,
    "modules": 3,
    "replay": 3,
    "connectors": 4,
    "rollout": 5,
    "learner": 5,
    "cluster": 6,
    "export": 6,
    "config": 7,
    "policy": 8,
    "builder": 9,
    "algorithms": 10,
    "trainer": 10,
    "analysis": 10,
    "runs": 11,
    "recipes": 12,
    "diagnosis": 12,
    "eject": 12,
    "compat": 12,
    "tuning": 13,
    "cli": 14,
}
WITH_ENTRY = {**FLOORS, "__main__": 15}
WORKSHOP = ("analysis", "runs", "recipes", "diagnosis", "eject", "compat", "tuning", "cli")
"""What people use before and after training. The other folders are the engine, which imports none of these."""
ALGORITHM_FILES = sorted(path.stem for path in (ROOT / "lockstep/algorithms").glob("*.py") if path.stem != "__init__")

NEVER = [
    ("ops", ("gymnasium",)),
    ("state", ("gymnasium", "torch.nn", "torch.optim")),
    ("data", ("gymnasium.envs", "gymnasium.vector", "gymnasium.wrappers", "gymnasium.make", "torch.distributed")),
    ("envs", ("torch.nn", "torch.optim")),
    ("modules", ("torch.optim", "lockstep.ops.losses")),
    ("replay", ("gymnasium.envs", "gymnasium.vector", "gymnasium.make")),
    ("rollout", ("torch.optim", "lockstep.learner")),
    ("learner", ("lockstep.envs", "lockstep.replay", "lockstep.rollout", "gymnasium.vector", "gymnasium.make")),
    *((folder, tuple(f"lockstep.{room}" for room in WORKSHOP)) for folder in FLOORS if folder not in WORKSHOP),
    ("trainer", tuple(f"lockstep.algorithms.{name}" for name in ALGORITHM_FILES)),
]
"""Beyond the floors: what a folder does not know, though it stands lower."""


def test_every_folder_has_a_floor():
    folders = {path.parent.name for path in (ROOT / "lockstep").glob("*/__init__.py")}
    assert folders == set(FLOORS)


def test_no_import_goes_up_or_sideways():
    """So no folders can stand in a circle; circles of files are looked for in `test_architecture_house.py`."""
    assert [str(found) for found in upward_imports(SOURCES, WITH_ENTRY, free=["_version"])] == []


def test_the_floors_would_notice_an_upward_import():
    worse = {**SOURCES, "lockstep/learner/x.py": "def f():\n    from ..trainer import base\n"}
    assert [found.path for found in upward_imports(worse, WITH_ENTRY, free=["_version"])] == ["lockstep/learner/x.py"]


def beyond_public_names(sources):
    """Return the imports of Lockstep in these files that are not of a name that a folder lists in its `__all__`."""
    public = {"lockstep.__version__"}
    for path, text in SOURCES.items():
        if path.endswith("/__init__.py"):
            public |= {f"{module_name(path)}.{name}" for name in declared_names(text) or ()}
    return [found for found in imports_matching(sources, ["lockstep"]) if found.what.split()[1] not in public]


def test_the_package_for_programs_of_sb3_uses_public_names_only():
    assert len(imports_matching(PACKAGE, ["lockstep"])) > 20
    assert [str(found) for found in beyond_public_names(PACKAGE)] == []


def test_an_import_beyond_the_public_names_is_found():
    text = """
import lockstep
from lockstep.data import map_tree, trees
from lockstep.data.trees import map_tree


def f():
    from lockstep.rollout.protocols import sole_part
"""
    assert [found.what.split()[1] for found in beyond_public_names({"lockstep_sb3/x.py": text})] == [
        "lockstep",
        "lockstep.data.trees",
        "lockstep.data.trees.map_tree",
        "lockstep.rollout.protocols.sole_part",
    ]


def test_only_the_old_names_import_the_package_for_programs_of_sb3():
    """It is built on the library. `lockstep.compat` imports it when somebody asks for an old name, and nothing else."""
    found = {item.path for item in imports_matching(SOURCES, ["lockstep_sb3"])}
    assert found == {"lockstep/compat/__init__.py"}


def test_only_the_cluster_imports_ray():
    outside = [found for found in imports_matching(SOURCES, ["ray"]) if "/cluster/" not in found.path]
    assert [str(found) for found in outside] == []


@pytest.mark.parametrize(("folder", "unknown"), NEVER, ids=[f"{folder}-{unknown[0]}" for folder, unknown in NEVER])
def test_a_folder_does_not_know_what_comes_after_it(folder, unknown):
    within = f"lockstep/{folder}/"
    found = imports_matching(SOURCES, unknown, within=within) + uses_of(SOURCES, unknown, within=within)
    assert [str(item) for item in found] == []


def test_one_algorithm_never_imports_another():
    assert {"a2c", "ppo"} <= set(ALGORITHM_FILES)
    for name in ALGORITHM_FILES:
        path = f"lockstep/algorithms/{name}.py"
        for line, imported in imports_of(path, SOURCES[path]):
            parts = imported.split(".")
            from_the_list = parts[:2] == ["lockstep", "algorithms"] and (len(parts) < 3 or parts[2] != "families")
            assert not from_the_list or parts[2:3] == [name], f"{path}:{line} imports {imported}"


def test_an_algorithm_is_one_file_and_one_entry_in_the_list():
    from lockstep import ALGORITHMS

    assert sorted(config.__module__ for config in ALGORITHMS) == [f"lockstep.algorithms.{n}" for n in ALGORITHM_FILES]
    assert sorted(config.algorithm for config in ALGORITHMS) == ALGORITHM_FILES


def test_the_trainers_name_no_concrete_algorithm():
    classes = re.compile(r"^class (\w+)", re.MULTILINE)
    names = [name for file in ALGORITHM_FILES for name in classes.findall(SOURCES[f"lockstep/algorithms/{file}.py"])]
    assert "PPOConfig" in names
    found = uses_of(SOURCES, names, within="lockstep/trainer/")
    found += imports_matching(SOURCES, [f"lockstep.algorithms.{n}" for n in names], within="lockstep/trainer/")
    assert [str(item) for item in found] == []


def test_the_documented_floors_are_these():
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)/` \|", text, re.MULTILINE)
    assert {folder: int(floor) for floor, folder in rows} == FLOORS
