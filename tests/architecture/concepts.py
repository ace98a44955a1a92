"""The table of concepts in `docs/architecture.md`: what is counted, and the numbers of today.

`python tests/architecture/concepts.py` writes the numbers into the column `today` where there are fewer now;
`python tests/architecture/concepts.py isinstance` lists what the rows with that word count.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import house_counts as count
from architecture_checks import Found, Sources, read_sources

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/architecture.md"
TABLE = re.compile(r"(<!-- concepts -->\n)(.*?)(<!-- end of concepts -->)", re.DOTALL)
ROW = re.compile(r"^\| (?P<concept>[^|]+) \| (?P<before>\d+) \| (?P<today>\d+) \| (?P<goal>\d+)(?P<words>[^|]*) \|$")

CONCEPTS: Mapping[str, Callable[[Sources, Sources], list[Found]]] = {
    "collectors with a loop of their own": lambda code, tests: count.looping_collectors(code),
    "rollout stores and writers": lambda code, tests: count.rollout_stores(code),
    "replays": lambda code, tests: count.replays(code),
    "ways to set an option": lambda code, tests: count.ways_to_set_options(code),
    "keyword types written by hand": lambda code, tests: count.written_keyword_types(code),
    "pools of processes for whole runs": lambda code, tests: count.run_pools(code),
    "files that walk nested arrays": lambda code, tests: count.array_walkers(code),
    "sets of statistics beside `Metrics`": lambda code, tests: count.sets_of_statistics(code),
    "class names that exist twice": lambda code, tests: count.doubled_class_names(code),
    "test files that name an algorithm": count.files_that_name_an_algorithm,
    "`isinstance` of own classes": lambda code, tests: count.own_isinstance(code),
    "uses of `is_multi_agent`": lambda code, tests: count.is_multi_agent_uses(code),
    "parameters annotated `Any`": lambda code, tests: count.any_parameters(code),
    "accesses to another object's `_private`": lambda code, tests: count.private_accesses(code),
    "functions that take their owner first": lambda code, tests: count.owner_first(code),
    "methods assigned in class bodies": lambda code, tests: count.assigned_methods(code),
    "files in circles of imports": lambda code, tests: count.files_in_circles(code),
}
"""By row of the table: what is counted, in the package and in its tests."""


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    concept: str
    before: int
    """the number at 2dd00802, before the redraw of issue 47"""
    today: int
    goal: int
    words: str = ""
    """what the goal is"""

    def __str__(self) -> str:
        return f"| {self.concept} | {self.before} | {self.today} | {self.goal}{self.words} |"


def rows() -> list[Row]:
    """Return the rows of the table on the page."""
    found = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE.name} has no table of concepts"
    matches = [ROW.match(line) for line in found[2].splitlines()]
    return [
        Row(each["concept"], int(each["before"]), int(each["today"]), int(each["goal"]), each["words"])
        for each in matches
        if each
    ]


@cache
def sources() -> tuple[Sources, Sources]:
    """Return the library, and all tests."""
    tests = {**read_sources(ROOT, "tests"), **read_sources(ROOT, "packages/lockstep-sb3/tests")}
    return read_sources(ROOT, "lockstep"), tests


def counted(concept: str) -> list[Found]:
    """Return what there is of a concept today."""
    return CONCEPTS[concept](*sources())


def in_words(found: list[Found]) -> str:
    """Return what was counted, a line each; of more than 60 the number in each file."""
    if len(found) <= 60:
        return "\n".join(map(str, found))
    return "\n".join(f"{path}: {number}" for path, number in Counter(each.path for each in found).most_common())


def write_today() -> None:
    """Lower the numbers of today where there is less now. What has grown is left to the test to say."""
    lines = []
    for row in rows():
        today = min(row.today, len(counted(row.concept)))
        lines.append(str(Row(row.concept, row.before, today, row.goal, row.words)))
    page = PAGE.read_text(encoding="utf-8")
    head = "| concept | before | today | goal |\n|---|---:|---:|---|\n"
    table = head + "\n".join(lines) + "\n"
    PAGE.write_text(TABLE.sub(lambda found: found[1] + table + found[3], page), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        for name in CONCEPTS:
            if sys.argv[1] in name:
                print(f"{name}:", *counted(name), sep="\n")
    else:
        write_today()
