"""Types of command-line arguments, and parsers for their text.

The docstring of an argument is its help. It must fit on one line of the source, since tyro keeps its line breaks.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec


def whole_number(text: str) -> int:
    """Return the whole number in `"100_000"` or `"1e6"`; raise `ValueError` for any other text."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise ValueError(f"{text!r} is not a whole number") from None
        return int(value)


def _parsed_by(parse: Callable[[str], Any], kind: type, metavar: str) -> PrimitiveConstructorSpec[Any]:
    """Return tyro's specification of an argument that is one word, parsed by `parse` into a `kind`.

    With tyro's own parser of `int | None`, the word `None` would be a value. Here None is only the default.
    """
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: parse(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["unset" if value is None else str(value)],
    )


Count = Annotated[int, _parsed_by(whole_number, int, "INT")]
OptionalCount = Annotated[int | None, _parsed_by(whole_number, int, "INT")]
OptionalNumber = Annotated[float | None, _parsed_by(float, float, "FLOAT")]
OptionalText = Annotated[str | None, _parsed_by(str, str, "TEXT")]
OptionalPath = Annotated[Path | None, _parsed_by(Path, Path, "PATH")]

Runs = Annotated[tuple[Path, ...], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")]
"""Folders of runs. tyro lets the list be empty; the commands refuse that with an example."""
Labels = Annotated[UseAppendAction[tuple[str, ...]], arg(name="label", metavar="NAME")]
OptionNames = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(metavar="SECTION.OPTION", help_behavior_hint="(repeatable; default: all that differ, except the seed)"),
]
"""Options whose values divide runs into groups."""
OptionValues = Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="SECTION.OPTION=VALUE")]
"""Words of `--set`, each for `parse_setting`."""

PICTURES = (".png", ".pdf", ".svg")
"""File endings of the pictures that commands write."""


def parse_setting(text: str) -> tuple[str, Any]:
    """Return `("training.lr", 0.0003)` for `"training.lr=3e-4"`. The value is JSON, a Python literal, or else text."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"--set {text!r} has no value; write section.option=value, e.g. training.lr=3e-4")
    value = value.strip()
    for parse in (json.loads, ast.literal_eval):
        try:
            return path.strip(), parse(value)
        except (ValueError, SyntaxError):
            continue
    return path.strip(), value


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the options by section in a JSON file, which may also be the config.json of a run.

    Raises:
        ValueError: the file cannot be read, is not JSON, or is not an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read --config {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"--config {path} is no JSON: {error}") from error

    is_of_run = isinstance(data, dict) and {"algo", "env", "config"} <= set(data)
    if is_of_run:
        data = data["config"]
    if not isinstance(data, dict):
        raise ValueError(f'--config {path} must be an object of sections, e.g. {{"training": {{"lr": 0.001}}}}')
    return data


def check_ending(path: Path, endings: tuple[str, ...]) -> None:
    """Raise `ValueError` unless the name of an output file has one of the endings."""
    if path.suffix.lower() not in endings:
        raise ValueError(f"--output {path} must end in {', '.join(endings[:-1])} or {endings[-1]}")
