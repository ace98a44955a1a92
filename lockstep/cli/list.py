"""`lockstep list`: tables of algorithms, the spaces they take, options and recipes, read from the code itself."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep.algorithms import ALGORITHMS
from lockstep.builder import AlgorithmConfig
from lockstep.cli.terminal import say, show_table
from lockstep.modules import ModelConfig
from lockstep.recipes import RECIPES
from lockstep.recipes.families import FAMILIES
from lockstep.replay.config import ReplaySection

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "Box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "images": spaces.Box(0, 255, (36, 36, 3), np.uint8),
    "Discrete": spaces.Discrete(4),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1.0, 1.0, (2,), np.float32)}),
    "Tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,), np.float32))),
    "Text": spaces.Text(4),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "Dict": spaces.Dict({"a": spaces.Discrete(2)}),
    "Tuple": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
}


@dataclass
class List:
    """List algorithms, the spaces they take, and recipes with their reference scores."""

    markdown: bool = False
    """The whole reference, options included, as Markdown."""

    def run(self) -> int:
        """Print the lists; return the exit code."""
        if self.markdown:
            for line in markdown_lines():
                say(line)
            return 0
        show_table(*algorithm_table())
        show_table(*recipe_table())
        return 0


@dataclass(frozen=True)
class Option:
    """One option of a section."""

    name: str
    kind: str
    default: str
    text: str
    """the first sentences of its documentation, on one line"""


@cache
def algorithm_table() -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return columns and rows: name, what it is, observation spaces, action spaces; trying all spaces takes seconds."""
    columns = ("algorithm", "what it is", "observations", "actions")
    rows: list[Sequence[str]] = []
    for config_class in ALGORITHMS:
        observations, actions = spaces_of(config_class)
        rows.append((config_class.algorithm, _what(config_class), ", ".join(observations), ", ".join(actions)))
    return columns, rows


def recipe_table() -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return columns and rows: what the worst seed reached, and the reference (on data of our own agents: ours)."""
    columns = ("recipe", "steps", "promised return", "reference return", "source", "needs")
    rows: list[Sequence[str]] = [
        (
            f"{recipe.algorithm} {recipe.env}",
            f"{recipe.total_steps:,}",
            "" if recipe.promise is None else f"{recipe.promise:g}",
            f"{recipe.reference_return:g}",
            recipe.reference_source,
            recipe.requires or "",
        )
        for recipe in RECIPES
    ]
    rows += [
        (f"{each.algorithm} {each.pattern}", f"{each.total_steps:,}", "", "", f"settings of {each.source}", "atari")
        for each in FAMILIES
    ]
    return columns, rows


def spaces_of(config_class: type[AlgorithmConfig]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of observation and action spaces for which a learner can be built: each is tried."""

    def takes(observation: spaces.Space[Any], action: spaces.Space[Any]) -> bool:
        config = config_class().environment(observation_space=observation, action_space=action)
        try:
            config.build_learner(spaces=(observation, action))
        except (ValueError, TypeError):
            return False
        return True

    box, discrete = OBSERVATIONS["Box"], ACTIONS["Discrete"]
    actions = tuple(name for name, space in ACTIONS.items() if takes(box, space))
    usual = discrete if "Discrete" in actions else ACTIONS["Box"]
    return tuple(name for name, space in OBSERVATIONS.items() if takes(space, usual)), actions


def options_of(config_class: type[AlgorithmConfig]) -> Iterator[tuple[str, list[Option]]]:
    """Yield `(section, options)` in the order of the configuration, with the values that the algorithm begins with."""
    for name, section in config_class().sections.items():
        yield name, _options_in(section)
        if name == "rl_module":
            yield "rl_module.model_config", _options_in(ModelConfig.of(section.model_config))


def markdown_lines() -> Iterator[str]:
    """Yield the reference page, line by line."""
    yield from (
        "# Options and recipes",
        "",
        "Written by `lockstep list --markdown` (`make pages`).",
        "",
        "## Algorithms",
        "",
    )
    columns, rows = algorithm_table()
    yield from _markdown_table(columns, [(f"[{row[0]}](algorithms/{row[0]}.md)", *row[1:]) for row in rows])
    yield from ("", "## Recipes", "")
    yield from _markdown_table(*recipe_table())
    shared = {**dict(options_of(AlgorithmConfig)), "replay": _options_in(ReplaySection())}
    for config_class in ALGORITHMS:
        yield from ("", f"## Options of {config_class.algorithm}", "")
        found = [
            (name, [o for o in options if o not in shared.get(name, ())]) for name, options in options_of(config_class)
        ]
        found.sort(key=lambda part: part[0] not in ("training", "replay"))
        has_replay = any(name == "replay" for name, _ in found)
        shown = "the [options of all algorithms](#options-of-all-algorithms)"
        yield from (f"Besides {shown}{' and of [replay](#replay)' if has_replay else ''}:", "")
        yield from _markdown_options(found)
    yield from (
        "",
        "## Options of all algorithms",
        "",
        "Where an algorithm begins with another value, it stands above. Only off-policy algorithms have `replay`.",
    )
    for section, options in shared.items():
        yield from ("", f"### {section}", "", *_markdown_options([(section, options)]))


def _markdown_options(sections: Iterable[tuple[str, Sequence[Option]]]) -> list[str]:
    rows = [
        (f"`{section}.{o.name}`", f"`{o.kind}`", f"`{o.default}`", o.text) for section, found in sections for o in found
    ]
    return _markdown_table(("option", "type", "default", "meaning"), rows)


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]


def _options_in(section: Any) -> list[Option]:
    texts: dict[str, str] = {}
    for owner in reversed(type(section).__mro__):
        texts.update(_field_texts(owner))
    return [
        Option(field.name, str(field.type), _shown(getattr(section, field.name)), texts.get(field.name, ""))
        for field in fields(section)
    ]


def _shown(value: object) -> str:
    plain = value is None or isinstance(value, bool | int | float | str | list | dict | tuple)
    return repr(value) if plain else f"{type(value).__name__}()"


@cache
def _field_texts(section: type) -> dict[str, str]:
    """Field -> the string that stands below it in the class's source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    except (OSError, TypeError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, below in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = " ".join(below.value.value.split())
    return found


def _what(config_class: type[AlgorithmConfig]) -> str:
    """The first line of the documentation of the algorithm's file, without its name and source."""
    text = (inspect.getdoc(inspect.getmodule(config_class)) or "").partition("\n")[0]
    return text.partition(": ")[2].partition(" (")[0].rstrip(".") or text
