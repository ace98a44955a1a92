"""The checkers of the architecture tests find what they are there to find."""

from __future__ import annotations

import pytest
from architecture_checks import (
    calls_of,
    constant_asserts,
    declared_names,
    folder_of,
    imports_matching,
    imports_of,
    module_name,
    optimizer_steps,
    unasserted_tests,
    undocumented,
    unfinished_marks,
    unsafe_loading,
    upward_imports,
    uses_of,
)

FLOORS = {"ops": 0, "envs": 2, "modules": 2, "learner": 4, "trainer": 7}


def whats(found):
    return [item.what for item in found]


def test_module_names_and_folders():
    assert module_name("lockstep/ops/__init__.py") == "lockstep.ops"
    assert module_name("lockstep/ops/returns.py") == "lockstep.ops.returns"
    assert folder_of("lockstep.ops.returns") == "ops"
    assert folder_of("lockstep") == ""
    assert folder_of("lockstepper.ops") is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import lockstep.trainer", "lockstep.trainer"),
        ("import lockstep.trainer as t, os", "lockstep.trainer"),
        ("from lockstep.trainer import base", "lockstep.trainer.base"),
        ("from lockstep import trainer", "lockstep.trainer"),
        ("from ..trainer import base", "lockstep.trainer.base"),
        ("from .. import trainer", "lockstep.trainer"),
        ("from ..trainer.base import *", "lockstep.trainer.base"),
        ("def f():\n    from lockstep.trainer import base", "lockstep.trainer.base"),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..trainer import base",
            "lockstep.trainer.base",
        ),
        ("try:\n    import lockstep.trainer\nexcept ImportError:\n    pass", "lockstep.trainer"),
        ("import importlib\nx = importlib.import_module('lockstep.trainer')", "lockstep.trainer"),
        ("x = __import__('lockstep.trainer')", "lockstep.trainer"),
    ],
)
def test_imports_are_found_wherever_they_hide(line, name):
    assert name in [found for _, found in imports_of("lockstep/ops/a.py", line)]
    assert upward_imports({"lockstep/ops/a.py": line}, FLOORS) != []
    assert upward_imports({"lockstep/trainer/a.py": line}, FLOORS) == []  # its own folder


def test_relative_imports_in_an_init_start_at_the_folder_itself():
    assert imports_of("lockstep/ops/__init__.py", "from .returns import gae") == [(1, "lockstep.ops.returns.gae")]
    assert imports_of("lockstep/ops/a.py", "from .returns import gae") == [(1, "lockstep.ops.returns.gae")]


def test_upward_and_sideways_imports_are_refused_and_downward_ones_allowed():
    assert upward_imports({"lockstep/learner/a.py": "import lockstep.ops, torch"}, FLOORS) == []
    (sideways,) = upward_imports({"lockstep/envs/a.py": "\nimport lockstep.modules.x"}, FLOORS)
    assert str(sideways) == "lockstep/envs/a.py:2: envs (floor 2) imports lockstep.modules.x (floor 2)"
    assert upward_imports({"lockstep/trainer/a.py": "import lockstep.other"}, FLOORS) != []
    assert upward_imports({"lockstep/trainer/a.py": "import lockstep"}, FLOORS) != []  # the whole package is above all
    assert upward_imports({"lockstep/other/a.py": ""}, FLOORS) != []
    assert upward_imports({"lockstep/ops/a.py": "from lockstep._version import x"}, FLOORS, ["_version"]) == []


def test_imports_matching_takes_whole_names():
    sources = {
        "lockstep/ops/a.py": "import ray",
        "lockstep/cluster/b.py": "from ray.util import x",
        "c.py": "import rays",
    }
    assert whats(imports_matching(sources, ["ray"])) == ["imports ray", "imports ray.util.x"]
    assert whats(imports_matching(sources, ["ray"], within="lockstep/ops/")) == ["imports ray"]


def test_uses_of_finds_dotted_and_plain_names():
    sources = {"lockstep/modules/a.py": "x = torch.optim.Adam(p)\ny = torch.optimal"}
    assert [found.line for found in uses_of(sources, ["torch.optim"], within="lockstep/modules/")] == [1]
    assert uses_of(sources, ["torch.optim"], within="lockstep/learner/") == []
    assert uses_of({"a.py": "c = PPOConfig()"}, ["PPOConfig"]) != []


def test_calls_and_optimizer_steps():
    source = (
        "loss.backward()\n"
        "# loss.backward()\n"
        "x = 'loss.backward()'\n"
        "entry.optimizer.step()\n"
        "opt.step()\n"
        "scaler.step(optimizer)\n"
        "self.optim.step(closure)\n"
        "env.step(actions)\n"
        "step()\n"
    )
    assert [found.line for found in calls_of({"a.py": source}, "backward")] == [1]
    assert [found.line for found in optimizer_steps({"a.py": source})] == [4, 5, 7]


def test_declared_names():
    assert declared_names("__all__ = ['a', 'b']") == ["a", "b"]
    assert declared_names("a = ['b']") is None


def test_undocumented_names_are_found():
    source = '''"""Module."""
class Base:
    """Base."""
    def act(self):
        """Acts."""
    def learn(self): ...
    def _private(self): ...
    def __len__(self): ...
class Child(pkg.Base[int]):
    """Child."""
    def act(self): ...
    def forward(self): ...
    def other(self): ...
class Bare(Child):
    def act(self): ...
class _Hidden:
    def f(self): ...
def f(): ...
@typing.overload
def g(x): ...
def g(x):
    """G."""
    def inner(): ...
'''
    assert whats(undocumented({"a.py": source})) == [
        "method Base.learn",
        "method Child.other",
        "class Bare",
        "function f",
    ]
    assert whats(undocumented({"a.py": "x = 1"})) == ["module"]
    protocol = '"""M."""\nclass Actor(Protocol):\n    """A."""\n    def act(self):\n        """Acts."""\n'
    actor = 'class Mine:\n    """Mine."""\n    def act(self): ...\n'
    assert undocumented({"a.py": protocol + actor}) == []
    assert whats(undocumented({"a.py": protocol, "b.py": '"""M."""\n' + actor})) == ["method Mine.act"]


def test_marks_of_unfinished_work_are_found():
    mark, error = "TO" + "DO", "NotImplemented" + "Error"
    assert whats(unfinished_marks({"a.py": f"x = 1  # {mark}: later\nraise {error}\nmy_mastodon = 2"})) == [mark, error]


def test_unsafe_loading_is_found():
    source = (
        "import pickle\nfrom joblib import load\nimport numpy as np, torch, json\n"
        "torch.load(p)\ntorch.save(x, p)\nnp.load(p, allow_pickle=True)\nnp.load(p)\njson.load(f)\n"
    )
    assert sorted(found.line for found in unsafe_loading({"a.py": source})) == [1, 2, 4, 5, 6]


def test_tests_without_assertion_are_found():
    source = """
def same(a, b):
    assert a == b
def test_by_helper(): same(1, 1)
def test_by_raises():
    with pytest.raises(ValueError): f()
def test_by_process(): subprocess.run([x], check=True)
def test_nothing(): f()
def test_constant():
    assert True
def test_unchecked(): subprocess.run([x], check=False)
class TestGroup:
    def test_inside(self): f()
"""
    assert whats(unasserted_tests({"test_a.py": source})) == [
        "test_nothing",
        "test_constant",
        "test_unchecked",
        "test_inside",
    ]
    assert [found.line for found in constant_asserts({"test_a.py": source})] == [10]
