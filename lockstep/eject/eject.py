"""Export of a configuration as one Python file that trains the same agent without Lockstep.

The folder `files` has a file for each algorithm, which runs as it is. `eject` copies the file and replaces the values
in its block of settings by those of a configuration.
"""

from __future__ import annotations

import ast
import math
import textwrap
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lockstep._version import __version__
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.eject.options import EjectError, check_options, checked_spaces, options_of, supported_options
from lockstep.trainer.build import RunLength

BEGIN_OF_SETTINGS = "# -- settings ---"
END_OF_SETTINGS = "# -- end of settings ---"
ORIGIN = "Written by `lockstep eject` of Lockstep {version}, with {sources}."
"""Last paragraph in the docstring of an ejected file."""


def eject(config: AlgorithmConfig, path: str | Path, *, sources: Sequence[str] = ()) -> Path:
    """Write one Python file that trains as `config.build_trainer().run()` does, and return its path.

    The file imports torch, numpy and gymnasium only, and ends with an evaluation. It can express PPO, DQN and SAC with
    observations in a Box.

    Args:
        config: Configuration to express.
        path: File to write.
        sources: Where the settings come from, in words, for the docstring of the file.

    Raises:
        EjectError: the file cannot express an option, which the message names. Nothing is written.
        FileExistsError: there is a file at `path`.
    """
    path = Path(path)
    text = file_text(config, sources)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def file_text(config: AlgorithmConfig, sources: Sequence[str] = ()) -> str:
    """Return the text of the file that `eject` writes. See `eject` for the arguments and errors."""
    settings = settings_of(config)
    text = with_settings(source_of(config.algorithm), settings)
    return with_origin(text, "; ".join(sources) or "a configuration")


def source_of(algorithm: str) -> str:
    """Return the text of an algorithm's file in the package."""
    return (files("lockstep.eject") / "files" / f"{algorithm}.py").read_text(encoding="utf-8")


def settings_of(config: AlgorithmConfig) -> dict[str, str]:
    """Return the value of each constant in the block of settings, as Python text.

    Raises:
        EjectError: the file cannot express an option.
    """
    rows = supported_options(config.algorithm)
    check_options(config)
    config.validate()
    env_id, _, _ = checked_spaces(config)

    # Values that the library derives from other options are derived here, so that the files hold plain values.
    values = dict(options_of(config))
    values["environment.env"] = env_id
    values["env_runners.rollout_fragment_length"] = RunLength.of(config).per_update // config.env_runners.num_envs
    values["framework.num_threads"] = config.framework.num_threads or 1
    if values.get("training.minibatch_size") == "auto":
        values["training.minibatch_size"] = 64
    if config.algorithm == "sac":
        training: Any = config.training
        for name in ("actor", "critic", "alpha"):
            values[f"training.{name}_lr"] = training.lr_of(name)
        if values["rl_module.model_config.critic_hiddens"] is None:
            values["rl_module.model_config.critic_hiddens"] = values["rl_module.model_config.hiddens"]
        process = {"sigma": 0.2, "theta": 0.15, "dt": 1.0, **config.env_runners.exploration_config}
        values |= {f"exploration_config.{name}": value for name, value in process.items()}

    settings = {constant: literal(values[path]) for path, constant in rows if constant}
    # Not a literal, but it is one of two words, since `validate` has refused all others.
    settings["DTYPE"] = f"torch.{config.framework.dtype}"
    return settings


def with_settings(text: str, settings: Mapping[str, str]) -> str:
    """Return the text of a file with other values in its block of settings. Types and comments are kept.

    Each constant of the block must be on a separate line.

    Args:
        text: Text of the file.
        settings: Value of each constant, as Python text.

    Raises:
        KeyError: `settings` lacks a constant of the block, or has another one.
    """
    lines = text.splitlines()
    nodes = _values_in_block(text)
    if nodes.keys() != settings.keys():
        raise KeyError(f"the block of settings has other constants: {sorted(nodes.keys() ^ settings.keys())}")
    for name, node in nodes.items():
        # Offsets of the syntax tree count bytes, which are characters here since the block of settings is ASCII.
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + settings[name] + line[node.end_col_offset :]
    return "\n".join(lines) + "\n"


def _values_in_block(text: str) -> dict[str, ast.expr]:
    """Return the syntax tree of each constant's value, between the two lines that mark the block of settings."""
    lines = text.splitlines()
    first = lines.index(BEGIN_OF_SETTINGS)
    last = lines.index(END_OF_SETTINGS)
    values = {}
    for node in ast.parse(text).body:
        if first < node.lineno <= last:
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            assert isinstance(target, ast.Name)
            assert node.value is not None
            values[target.id] = node.value
    return values


def with_origin(text: str, sources: str) -> str:
    """Return the text of a file with a last paragraph in its docstring that says where the settings come from."""
    origin = ORIGIN.format(version=__version__, sources=sources)
    # The sources contain names of files. A name with a quote or a backslash could end the docstring, and what follows
    # in the name would be code.
    origin = origin.replace("\\", "/").replace('"', "'")
    paragraph = textwrap.wrap(" ".join(origin.split()), 118, break_on_hyphens=False)
    lines = text.splitlines()
    end = lines.index('"""', 1)
    lines[end:end] = ["", *paragraph]
    return "\n".join(lines) + "\n"


def literal(value: Any) -> str:
    """Return a value as a Python literal in the usual form, such as `100_000` or `[[0, 0.001], [100_000, 0.0]]`.

    Raises:
        EjectError: there is no literal for the value.
    """
    # The text becomes code, and the value may come from a file of somebody else. So `repr` is used only for exact types
    # whose `repr` is a literal, and not for subclasses.
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is str:
        return _quoted(value)
    if type(value) is dict:
        items = [f"{literal(key)}: {literal(each)}" for key, each in value.items()]
        return "{" + ", ".join(items) + "}"
    if type(value) is list:
        return f"[{', '.join(map(literal, value))}]"
    if type(value) is tuple:
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(map(literal, value))}{comma})"
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:_}"
    is_finite = type(value) is float and math.isfinite(value)
    if value is None or type(value) in (bool, int) or is_finite:
        return repr(value)
    raise EjectError(
        f"{value!r:.100} cannot be ejected: it is a {type(value).__name__} that Python has no literal for; use plain "
        "finite numbers, text, lists and dicts"
    )


def _quoted(text: str) -> str:
    """Return a text as a literal, in double quotes unless the text itself contains quotes."""
    quoted = repr(text)
    if '"' in quoted or quoted[0] != "'":
        return quoted
    return f'"{quoted[1:-1]}"'


__all__ = ["EjectError", "eject", "file_text"]
