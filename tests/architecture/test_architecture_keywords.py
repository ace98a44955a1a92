"""Keyword types of options: made from the fields of sections, and written as they are made."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest
from architecture_checks import module_name, parsed, read_sources
from keyword_types import COMMAND, ROOT, KeywordTypeError, written

SECTIONS = """
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Unpack

from lockstep.options.schedules import ScheduleLike
from lockstep.options.section import ConfigT, Section, option

Kind = Literal["fast", "slow"]


class Own:
    pass


@dataclass
class TrainingSection(Section[ConfigT]):
    name = "training"

    lr: ScheduleLike = option(3e-4, ge=0)
    kinds: list[Kind] | None = None
    of_whole_update: ClassVar[frozenset[str]] = frozenset()


@dataclass
class EnvironmentSection(Section[ConfigT]):
    env: Any = None
    clip: bool = True

    def __call__(self, env: Any = None, **options: Unpack[EnvironmentOptions]) -> ConfigT: ...
"""
ALGORITHM = """
from collections.abc import Callable

from lockstep.learner.config import TrainingSection


@dataclass
class SampledTraining(TrainingSection[ConfigT]):
    lr: ScheduleLike = 1e-3


@dataclass
class PPOTraining(SampledTraining[ConfigT]):
    clip: Callable[..., float]
"""


def made(sections: str = SECTIONS, algorithm: str = ALGORITHM) -> dict[str, str]:
    return written({"lockstep/learner/config.py": sections, "lockstep/algorithms/ppo.py": algorithm})


def test_the_files_are_as_the_command_writes_them() -> None:
    sources = read_sources(ROOT, "lockstep")
    expected = written({path: text for path, text in sources.items() if not path.endswith("/typed.py")})
    assert len(expected) >= 8
    for path, text in expected.items():
        assert sources.get(path) == text, f"{path} is out of date; run `{COMMAND}`"
    assert {path for path in sources if path.endswith("/typed.py")} == expected.keys()


def test_a_section_gives_the_types_of_its_own_options_as_they_are_declared() -> None:
    rooms = made()
    assert list(rooms) == ["lockstep/algorithms/families/typed.py", "lockstep/learner/typed.py"]
    assert rooms["lockstep/learner/typed.py"].endswith(
        dedent(
            '''
            from typing import Literal, TypedDict

            from lockstep.options.schedules import ScheduleLike


            class TrainingOptions(TypedDict, total=False):
                """Options of `TrainingSection`."""

                lr: ScheduleLike
                kinds: list[Literal["fast", "slow"]] | None


            class EnvironmentOptions(TypedDict, total=False):
                """Options of `EnvironmentSection`."""

                clip: bool
            '''
        )
    )
    assert rooms["lockstep/algorithms/families/typed.py"].endswith(
        dedent(
            '''
            from collections.abc import Callable

            from lockstep.learner.typed import TrainingOptions


            class PPOOptions(TrainingOptions, total=False):
                """Options of `PPOTraining`."""

                clip: Callable[..., float]
            '''
        )
    )


def test_options_of_a_constructor_are_required_where_they_have_no_default() -> None:
    sections = """
from lockstep.options.section import Section, option


@dataclass(kw_only=True)
class RunOptions(Section):
    max_epoch: int = option(ge=0)
    env: str
    seed: int | None = option(None, ge=0)
    names: list[str] = option(factory=list)
    verbose: bool = False


@dataclass(kw_only=True)
class OfflineOptions(RunOptions):
    buffer: str | None
"""
    assert written({"lockstep/trainer/options.py": sections})["lockstep/trainer/typed.py"].endswith(
        dedent(
            '''
            from typing import Required, TypedDict


            class RunKeywords(TypedDict, total=False):
                """Options of `RunOptions`."""

                max_epoch: Required[int]
                env: Required[str]
                seed: int | None
                names: list[str]
                verbose: bool


            class OfflineKeywords(RunKeywords, total=False):
                """Options of `OfflineOptions`."""

                buffer: Required[str | None]
            '''
        )
    )


def test_an_option_is_added_by_one_line() -> None:
    more = ALGORITHM + "    target_kl: float | None = option(None, gt=0)\n"
    path = "lockstep/algorithms/families/typed.py"
    assert made(algorithm=more)[path] == made()[path] + "    target_kl: float | None\n"


@pytest.mark.parametrize(
    "line, words",
    [
        ("    lr: float = 1e-3\n", "PPOTraining.lr has another type than in the section that it extends"),
        ("    own: Missing\n", "names 'Missing' in the type of an option"),
        ("    array: np.ndarray | None = None\n", "import the type by name"),
    ],
)
def test_a_declaration_without_a_keyword_type_is_refused_with_its_place(line: str, words: str) -> None:
    algorithm = ALGORITHM.replace("\n\n@dataclass\nclass Sampled", "\nimport numpy as np\n\n@dataclass\nclass Sampled")
    with pytest.raises(KeywordTypeError, match=r"lockstep/algorithms/ppo\.py:\d+") as refused:
        made(algorithm=algorithm + line)
    assert words in str(refused.value)


def test_the_package_runs_without_the_files() -> None:
    """They are imported for type checkers alone, so that the command can replace files that are missing or old."""
    sources = read_sources(ROOT, "lockstep")
    rooms = {module_name(path) for path in sources if path.endswith("/typed.py")}
    found = 0
    for path, text in sources.items():
        if module_name(path) in rooms:
            continue
        tree = parsed(text)
        guarded = {
            id(node)
            for block in tree.body
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in rooms:
                found += 1
                assert id(node) in guarded, f"{path}:{node.lineno} imports {node.module} when it runs"
    assert found > 20
