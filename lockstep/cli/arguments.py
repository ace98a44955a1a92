"""Parsers for command-line arguments."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import UseAppendAction, arg
from tyro.constructors import PrimitiveConstructorSpec


def whole_number(text: str) -> int:
    """Return the whole number in `"100_000"` or `"1e6"`; raise `ValueError` for anything else."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise ValueError(f"{text!r} is no whole number") from None
        return int(value)


def _reader(kind: type, read: Callable[[str], Any], metavar: str) -> PrimitiveConstructorSpec[Any]:
    """Read one word of the command line by `read`; None is only the value of an option that is left out."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["unset" if value is None else str(value)],
    )


Count = Annotated[int, _reader(int, whole_number, "INT")]
MaybeCount = Annotated[int | None, _reader(int, whole_number, "INT")]
MaybeNumber = Annotated[float | None, _reader(float, float, "FLOAT")]
MaybeText = Annotated[str | None, _reader(str, str, "STR")]
MaybePath = Annotated[Path | None, _reader(Path, Path, "PATH")]
Labels = Annotated[UseAppendAction[tuple[str, ...]], arg(name="label")]

PICTURES = (".png", ".pdf", ".svg")
"""Endings of the pictures that commands write."""


def parse_setting(text: str) -> tuple[str, Any]:
    """Return `("training.lr", 0.0003)` of `"training.lr=3e-4"`. Values are JSON, a Python literal, or else text."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"--set {text!r} has no value; write section.option=value, e.g. training.lr=3e-4")
    value = value.strip()
    for read in (json.loads, ast.literal_eval):
        try:
            return path.strip(), read(value)
        except (ValueError, SyntaxError):
            continue
    return path.strip(), value


def read_config_file(path: Path) -> dict[str, Any]:
    """Return options by section, from a file of them or from a run's config.json; `ValueError` for another file."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read --config {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"--config {path} is no JSON: {error}") from error
    if isinstance(data, dict) and {"algo", "env", "config"} <= set(data):
        data = data["config"]
    if not isinstance(data, dict):
        raise ValueError(f'--config {path} must be an object of sections, e.g. {{"training": {{"lr": 0.001}}}}')
    return data


def check_ending(path: Path, endings: tuple[str, ...]) -> None:
    """Raise `ValueError` unless a file's name has one of the endings."""
    if path.suffix.lower() not in endings:
        raise ValueError(f"--output {path} must end in {', '.join(endings[:-1])} or {endings[-1]}")
