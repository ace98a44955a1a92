"""`lockstep list`: tables of algorithms with their spaces, recipes, and options, read from the code itself."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces
from tyro.conf import arg

from lockstep.algorithms import ALGORITHMS, get_config
from lockstep.builder import AlgorithmConfig
from lockstep.cli.arguments import OptionalText
from lockstep.cli.terminal import say, show_table
from lockstep.envs.make import with_version
from lockstep.modules import ModelConfig
from lockstep.recipes import RECIPES
from lockstep.recipes.families import FAMILIES
from lockstep.replay.config import ReplaySection

Cells = tuple[str, ...]
"""Row of a table."""
RECIPE_COLUMNS = ("recipe", "steps", "promised return", "reference return", "source", "needs")
ALGORITHM_COLUMNS = ("algorithm", "what it is", "observations", "actions")
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
    """List the algorithms with the spaces that they accept, and the recipes with their reference returns.

    A recipe is a set of options for an algorithm and an environment. Its promised return is what the worst of its seeds
    reached with Lockstep; its reference return is what the source reached.
    """

    algorithm: Annotated[OptionalText, arg(metavar="ALGORITHM", help_behavior_hint="(default: all)")] = None
    """Show only this algorithm and its recipes, e.g. ppo."""
    env: Annotated[OptionalText, arg(metavar="ENV", help_behavior_hint="(default: all)")] = None
    """Show only the recipes for this environment, e.g. CartPole-v1, or for all that match a pattern: 'MinAtar/*'."""
    markdown: bool = False
    """Print all tables and all options as Markdown."""

    def run(self) -> int:
        """Print the tables; return the exit code."""
        if self.markdown:
            if self.algorithm is not None or self.env is not None:
                raise ValueError("--markdown prints the whole reference; leave out --algorithm and --env")
            for line in markdown_lines():
                say(line)
            return 0

        algorithm = None if self.algorithm is None else get_config(self.algorithm).algorithm
        # A list of algorithms below an environment would be read as those that can learn it, which `list` cannot know.
        if algorithm is not None or self.env is None:
            show_table(ALGORITHM_COLUMNS, algorithm_rows(algorithm))
            say()
        rows = recipe_rows(algorithm, self.env)
        if rows:
            show_table(RECIPE_COLUMNS, rows)
        else:
            say(f"There is no recipe {_filter_text(algorithm, self.env)}; `lockstep train` uses the defaults.")
        return 0


def _filter_text(algorithm: str | None, env: str | None) -> str:
    parts = []
    if algorithm is not None:
        parts.append(f"of {algorithm}")
    if env is not None:
        parts.append(f"for {env}")
    return " ".join(parts)


@dataclass(frozen=True)
class Option:
    """One option of a section, as text."""

    name: str
    kind: str
    default: str
    text: str
    """Documentation of the option, on one line."""


def algorithm_rows(algorithm: str | None = None) -> list[Cells]:
    """Return a row for each algorithm, or only for one, with the columns of `ALGORITHM_COLUMNS`."""
    return [_algorithm_row(each) for each in ALGORITHMS if algorithm in (None, each.algorithm)]


@cache
def _algorithm_row(config_class: type[AlgorithmConfig]) -> Cells:
    observations, actions = spaces_of(config_class)
    return config_class.algorithm, _summary(config_class), ", ".join(observations), ", ".join(actions)


def recipe_rows(algorithm: str | None = None, env: str | None = None) -> list[Cells]:
    """Return a row for each recipe, then for each family of environments, with the columns of `RECIPE_COLUMNS`.

    Args:
        algorithm: Name of an algorithm whose recipes are returned. Defaults to all.
        env: Id of an environment, or a pattern with `*`, whose recipes are returned. Defaults to all. An id without a
            version means the highest version.
    """
    rows: list[Cells] = []
    for recipe in RECIPES:
        if algorithm in (None, recipe.algorithm) and _matches(recipe.env, env):
            row = (
                f"{recipe.algorithm} {recipe.env}",
                f"{recipe.total_steps:,}",
                "" if recipe.promise is None else f"{recipe.promise:g}",
                f"{recipe.reference_return:g}",
                recipe.reference_source,
                recipe.requires or "",
            )
            rows.append(row)
    for family in FAMILIES:
        if algorithm in (None, family.algorithm) and _matches(family.pattern, env):
            name = f"{family.algorithm} {family.pattern}"
            rows.append((name, f"{family.total_steps:,}", "", "", f"settings of {family.source}", "atari"))
    return rows


def _matches(recipe_env: str, env: str | None) -> bool:
    """Return whether the environment of a recipe, or the pattern of a family, fits what the user asks for."""
    if env is None:
        return True
    return fnmatchcase(recipe_env, env) or fnmatchcase(with_version(env), recipe_env)


def spaces_of(config_class: type[AlgorithmConfig]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kinds of observation and action spaces that an algorithm accepts.

    A learner is built for each kind, so that the answer is never out of date. It takes a fraction of a second.
    """

    def accepts(observation: spaces.Space[Any], action: spaces.Space[Any]) -> bool:
        config = config_class().environment(observation_space=observation, action_space=action)
        try:
            config.build_learner(spaces=(observation, action))
        except (ValueError, TypeError):
            return False
        return True

    box = OBSERVATIONS["Box"]
    actions = tuple(name for name, space in ACTIONS.items() if accepts(box, space))
    usual_action = ACTIONS["Discrete"] if "Discrete" in actions else ACTIONS["Box"]
    observations = tuple(name for name, space in OBSERVATIONS.items() if accepts(space, usual_action))
    return observations, actions


def options_of(config_class: type[AlgorithmConfig]) -> Iterator[tuple[str, list[Option]]]:
    """Iterate over `(section, options)` in the order of the configuration, with the defaults of the algorithm."""
    for name, section in config_class().sections.items():
        yield name, _options_in(section)
        if name == "rl_module":
            yield "rl_module.model_config", _options_in(ModelConfig.of(section.model_config))


def markdown_lines() -> Iterator[str]:
    """Iterate over the lines of the reference page, docs/reference.md."""
    yield from (
        "# Options and recipes",
        "",
        "Written by `lockstep list --markdown` (`make pages`).",
        "",
        "## Algorithms",
        "",
    )
    linked_rows = [(f"[{name}](algorithms/{name}.md)", *cells) for name, *cells in algorithm_rows()]
    yield from _markdown_table(ALGORITHM_COLUMNS, linked_rows)
    yield from ("", "## Recipes", "")
    yield from _markdown_table(RECIPE_COLUMNS, recipe_rows())

    shared = {**dict(options_of(AlgorithmConfig)), "replay": _options_in(ReplaySection())}
    for config_class in ALGORITHMS:
        yield from ("", f"## Options of {config_class.algorithm}", "")
        sections = []
        for name, options in options_of(config_class):
            # An option with another default than the shared one is listed here too.
            sections.append((name, [option for option in options if option not in shared.get(name, ())]))
        sections.sort(key=lambda section: section[0] not in ("training", "replay"))

        text = "Besides the [options of all algorithms](#options-of-all-algorithms)"
        if any(name == "replay" for name, _ in sections):
            text += " and of [replay](#replay)"
        yield from (f"{text}:", "")
        yield from _markdown_options(sections)

    yield from (
        "",
        "## Options of all algorithms",
        "",
        "If an algorithm has another default, it is listed above. Only off-policy algorithms have `replay`.",
    )
    for section, options in shared.items():
        yield from ("", f"### {section}", "", *_markdown_options([(section, options)]))


def _markdown_options(sections: Iterable[tuple[str, Sequence[Option]]]) -> list[str]:
    rows = []
    for section, options in sections:
        for option in options:
            cells = (f"`{section}.{option.name}`", f"`{option.kind}`", f"`{option.default}`", option.text)
            rows.append(cells)
    return _markdown_table(("option", "type", "default", "meaning"), rows)


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]


def _options_in(section: Any) -> list[Option]:
    """Return the options of a section with their current values as defaults."""
    texts: dict[str, str] = {}
    for owner in reversed(type(section).__mro__):
        texts.update(_field_texts(owner))
    options = []
    for field in fields(section):
        default = _default_text(getattr(section, field.name))
        options.append(Option(field.name, str(field.type), default, texts.get(field.name, "")))
    return options


def _default_text(value: object) -> str:
    """Return the default of an option as text. An object is only named, since its repr may have an address in it."""
    is_plain = value is None or isinstance(value, bool | int | float | str | list | dict | tuple)
    return repr(value) if is_plain else f"{type(value).__name__}()"


@cache
def _field_texts(section: type) -> dict[str, str]:
    """Return the docstring of each field of a class: the string below it in the source, on one line."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    except (OSError, TypeError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    texts = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            texts[statement.target.id] = " ".join(following.value.value.split())
    return texts


def _summary(config_class: type[AlgorithmConfig]) -> str:
    """Return the first line of the docstring of the algorithm's file, without the name and the paper.

    For `PPO: proximal policy optimisation (Schulman et al. 2017).` that is "proximal policy optimisation".
    """
    docstring = inspect.getdoc(inspect.getmodule(config_class)) or ""
    first_line = docstring.partition("\n")[0]
    return first_line.partition(": ")[2].partition(" (")[0].rstrip(".") or first_line
