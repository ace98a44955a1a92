"""From the arguments of `lockstep train` to a configuration."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from lockstep.cli.arguments import Train
from lockstep.recipes.training import Settings, find_settings


def settings_of(command: Train) -> Settings:
    """Recipe (or the algorithm's defaults), then the file, the options, `--set`. `ValueError` for mistakes."""
    if command.total_steps is not None and command.total_steps < 1:
        raise ValueError(f"--total-steps {command.total_steps} is not allowed; it must be at least 1")
    settings = find_settings(
        command.algorithm,
        command.env,
        recipe=command.recipe,
        num_envs=command.num_envs,
        options=_options(command),
        file=None if command.config is None else (str(command.config), read_config_file(command.config)),
    )
    settings.config.validate()
    return settings


def parse_setting(text: str) -> tuple[str, Any]:
    """`"training.lr=3e-4"` -> `("training.lr", 0.0003)`. Values are JSON, Python's None/True/(1, 2), or else text."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"--set {text!r} has no value; write section.option=value, e.g. training.lr=3e-4")
    return path.strip(), parse_value(value.strip())


def parse_value(text: str) -> Any:
    """JSON, else a Python literal, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def read_config_file(path: Path) -> dict[str, Any]:
    """Options by section, from a file of them or from a run's config.json. `ValueError` where it is neither."""
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


def _options(command: Train) -> dict[str, Any]:
    options = {
        "reporting.total_steps": command.total_steps,
        "debugging.seed": command.seed,
        "learners.num_learners": command.num_learners,
        "env_runners.num_env_runners": command.num_env_runners,
        "resources.ray_address": command.ray_address,
        "evaluation.stop_return": command.stop_return,
        "framework.device": command.device,
        "framework.compile": command.compile or None,
        "reporting.loggers": list(dict.fromkeys(("jsonl", *command.logger))) if command.logger else None,
    }
    given = {path: value for path, value in options.items() if value is not None}
    given.update(parse_setting(text) for text in command.set)
    return given
