"""The shape of the code (house, section 5): circles, reaches into other objects, methods that left home."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_checks import read_sources
from house_counts import (
    any_parameters,
    assigned_methods,
    circles,
    file_graph,
    owner_first,
    private_accesses,
)

SOURCES = read_sources(Path(__file__).parents[2], "lockstep")
LIMITS = {
    "files in circles": (lambda: sum(map(len, circles(file_graph(SOURCES)))), 0),
    "accesses to another object's _private": (lambda: private_accesses(SOURCES), 41),
    "functions that take their owner first": (lambda: owner_first(SOURCES), 79),
    "methods assigned in class bodies": (lambda: assigned_methods(SOURCES), 0),
    "parameters annotated Any": (lambda: any_parameters(SOURCES), 606),
}
"""what there is today: each may only become less, until the numbers of the plan are reached"""


@pytest.mark.parametrize("name", LIMITS)
def test_the_shape_of_the_code_does_not_grow_worse(name):
    count, limit = LIMITS[name]
    found = count()
    assert (found if isinstance(found, int) else len(found)) <= limit, found


SMALL = {
    "lockstep/a.py": """
from lockstep.b import helper


class Owner:
    other = helper

    def check_it(self, value):
        if value < 0:
            raise ValueError(value)
        return self._own + value._secret
""",
    "lockstep/b.py": """
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.a import Owner


def helper(owner: Owner, value: Any) -> None:
    if not value:
        raise ValueError("none")


def free(value: list[Owner]) -> None:
    def inner() -> None:
        from lockstep.c import NAME
""",
    "lockstep/c.py": "NAME = 1\n",
}


def test_a_circle_over_a_type_checking_import_is_found():
    assert circles(file_graph(SMALL)) == [["lockstep/a.py", "lockstep/b.py"]]
    assert file_graph(SMALL)["lockstep/b.py"] == {"lockstep/a.py", "lockstep/c.py"}  # the lazy import too


def test_reaches_into_other_objects_are_counted_and_own_ones_are_not():
    assert [found.what for found in private_accesses(SMALL)] == ["value._secret"]


def test_functions_that_take_their_owner_first_are_those_with_an_object_of_ours():
    assert [found.what for found in owner_first(SMALL)] == ["helper(owner: Owner)"]


def test_a_method_taken_from_a_module_is_found():
    text = "from lockstep import parts\n\n\nclass A:\n    save = parts.save\n    load = classmethod(parts.load)\n"
    assert [found.line for found in assigned_methods({"lockstep/d.py": text})] == [5, 6]


def test_plain_any_is_counted():
    assert any_parameters(SMALL) == 1
