"""The shape of the code (house, section 5): concepts, circles, reaches into other objects, methods that left home."""

from __future__ import annotations

import house_counts as count
import pytest
from concepts import CONCEPTS, counted, in_words, rows, sources
from house_counts import (
    any_parameters,
    assigned_methods,
    circles,
    file_graph,
    owner_first,
    private_accesses,
)

ROWS = {row.concept: row for row in rows()}


def test_the_table_has_a_row_for_each_concept_that_is_counted():
    assert list(ROWS) == list(CONCEPTS)


@pytest.mark.parametrize("concept", CONCEPTS)
def test_the_table_of_concepts_says_how_many_there_are(concept):
    row, found = ROWS[concept], counted(concept)
    more = f"{concept}: {len(found)}, and docs/architecture.md has {row.today}; it may only become less:"
    assert len(found) <= row.today, f"{more}\n{in_words(found)}"
    # A number may lag behind by 5 in 100, so that not each removed line has to change the page.
    assert row.today - len(found) <= row.today // 20, (
        f"{concept}: {len(found)}, and docs/architecture.md still has {row.today}; "
        "`python tests/architecture/concepts.py` writes it"
    )


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


def test_functions_that_take_their_owner_first_take_our_objects():
    assert [found.what for found in owner_first(SMALL)] == ["helper(owner: Owner)"]


def test_a_method_taken_from_a_module_is_found():
    text = "from lockstep import parts\n\n\nclass A:\n    save = parts.save\n    load = classmethod(parts.load)\n"
    assert [found.line for found in assigned_methods({"lockstep/d.py": text})] == [5, 6]


def test_plain_any_is_counted():
    assert [found.what for found in any_parameters(SMALL)] == ["value"]


FORMS = """
class Collector:
    def __init__(self): self.stepper = None
    def _run(self, most): ...


class ThinCollector(Collector):
    def __init__(self): self.stepper = 1


class CollectorLike(Protocol):
    def collect(self): ...


class SmallSection(Section):
    def __call__(self, **options): ...
    def __setattr__(self, name, value): ...


class PlainTrainer:
    def __init__(self, size): self.size = check_whole("size", size, 1)


class SmallOptions(TypedDict):
    size: int


class LargeOptions(SmallOptions):
    height: int


class Reduction(TypedDict):
    window: int


class RunPool(ProcessPoolExecutor): ...


class RunTotals:
    steps: int


class RunStats:
    totals: RunTotals


def begin(context): context.Process(target=begin).start()


def walk(tree):
    if isinstance(tree, dict):
        return {key: walk(part) for key, part in tree.items()}
    return tuple(map(walk, tree)) if isinstance(tree, tuple) else tree


def plain(tree):
    if isinstance(tree, dict | tuple):
        return [plain(part) for part in tree]
    return tree if isinstance(tree, str) else float(tree)


def mapped(tree):
    return walk(tree) if isinstance(tree, (dict, tuple)) else isinstance(tree, RunTotals)
"""


@pytest.mark.parametrize(
    "counts, expected",
    [
        (count.looping_collectors, ["Collector"]),
        (
            count.ways_to_set_options,
            ["section call: SmallSection", "assignment: SmallSection", "trainers' keywords: PlainTrainer"],
        ),
        (count.written_keyword_types, ["SmallOptions", "LargeOptions"]),
        (count.run_pools, ["RunPool", "context.Process"]),
        (count.array_walkers, ["walk"]),
        (count.sets_of_statistics, ["RunTotals"]),
        (count.own_isinstance, ["isinstance(tree, RunTotals)"]),
    ],
)
def test_each_form_of_a_concept_is_counted_once_and_what_uses_it_is_not(counts, expected):
    assert [found.what for found in counts({"lockstep/trainer/forms.py": FORMS})] == expected


def test_what_is_generated_or_lies_in_other_folders_is_not_counted():
    assert count.written_keyword_types({"lockstep/trainer/typed.py": FORMS}) == []
    store = "class RunStore:\n    def sample(self): ...\n"
    places = {f"lockstep/{folder}/store.py": store for folder in ("data", "replay", "tracking")}
    assert [found.path for found in count.rollout_stores(places)] == ["lockstep/data/store.py"]
    assert [found.path for found in count.replays(places)] == ["lockstep/replay/store.py"]
    assert [found.what for found in count.doubled_class_names(places)] == ["RunStore, as in lockstep/data/store.py"]


def test_an_opaque_type_has_its_name_in_one_file():
    code, _ = sources()
    assert not (found := count.doubled_aliases_of_any(code)), in_words(found)
    twice = {f"lockstep/{name}.py": "Tree = Any\nOther = int\n" for name in "ab"}
    assert [each.what for each in count.doubled_aliases_of_any(twice)] == ["Tree, as in lockstep/a.py"]


def test_an_algorithm_is_named_by_its_word_and_by_its_classes():
    code = {f"lockstep/algorithms/{name}.py": f'class A:\n    algorithm = "{name}"\n' for name in ("ppo", "sac", "td3")}
    tests = {
        "tests/a.py": "from lockstep import PPOConfig\nNAMES = 'sac td3'.split()\n",
        "tests/b.py": "build(sac=1)\n# td3\n",
        "tests/c.py": 'TABLE = {"sac": 1}\n',
        "tests/past/d.py": 'NAMES = ["ppo", "sac", "td3"]\n',
    }
    assert [found.what for found in count.files_that_name_an_algorithm(code, tests)] == ["names td3"]
