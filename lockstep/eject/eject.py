"""`eject`: one Python file that trains what a configuration trains, without Lockstep.

The folder `files` has a file for each algorithm, which runs as it is. `eject` copies it and replaces the values in its
block of settings by those of a configuration.
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
from lockstep.eject.options import EjectError, check_options, checked_spaces, options_of, rows_said
from lockstep.trainer.build import RunLength

BEGIN_OF_SETTINGS = "# -- settings ---"
END_OF_SETTINGS = "# -- end of settings ---"
ORIGIN = "Written by `lockstep eject` of Lockstep {version}, with {sources}."


def eject(config: AlgorithmConfig, path: str | Path, *, sources: Sequence[str] = ()) -> Path:
    """Write one Python file that trains as `config.build_trainer().run()` does, and return its path.

    It imports torch, numpy and gymnasium, and ends with an evaluation. PPO, DQN and SAC can be ejected, with
    observations of a Box. `sources`: where the settings come from, for the docstring of the file.

    Raises:
        EjectError: an option that the file cannot express, by name; nothing is written then.
        FileExistsError: there is a file already.
    """
    path = Path(path)
    text = file_text(config, sources)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def file_text(config: AlgorithmConfig, sources: Sequence[str] = ()) -> str:
    """Return the text that `eject` writes. Raises the same `EjectError`."""
    settings = settings_of(config)
    text = source_of(config.algorithm)
    return with_origin(with_settings(text, settings), "; ".join(sources) or "a configuration")


def source_of(algorithm: str) -> str:
    """Return the file of an algorithm as it is in the package."""
    return (files("lockstep.eject") / "files" / f"{algorithm}.py").read_text(encoding="utf-8")


def settings_of(config: AlgorithmConfig) -> dict[str, str]:
    """Return the Python text of the value of each constant in the block of settings.

    Raises:
        EjectError: an option that the file cannot express.
    """
    rows = rows_said(config.algorithm)
    check_options(config)
    config.validate()
    env_id, _, _ = checked_spaces(config)

    # What the library derives from other options is derived here, so that the files hold plain values.
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

    found = {constant: literal(values[path]) for path, constant in rows if constant}
    found["DTYPE"] = f"torch.{config.framework.dtype}"  # one of two words: `validate` refuses others
    return found


def with_settings(text: str, settings: Mapping[str, str]) -> str:
    """Return the text of a file with the values of `settings` in its block of settings; types and comments stay.

    Each constant of the block stands on a line of its own. `KeyError` unless `settings` has all of them and no other.
    """
    lines = text.splitlines()
    values = _values_in_block(text)
    if values.keys() != settings.keys():
        raise KeyError(f"the block of settings has other constants: {sorted(values.keys() ^ settings.keys())}")
    for name, value in values.items():
        # Offsets of the syntax tree count bytes, but the block of settings is ASCII.
        line = lines[value.lineno - 1]
        lines[value.lineno - 1] = line[: value.col_offset] + settings[name] + line[value.end_col_offset :]
    return "\n".join(lines) + "\n"


def _values_in_block(text: str) -> dict[str, ast.expr]:
    """Return the syntax tree of the value of each constant between the two lines that mark the settings."""
    lines = text.splitlines()
    first = lines.index(BEGIN_OF_SETTINGS)
    last = lines.index(END_OF_SETTINGS)
    found = {}
    for node in ast.parse(text).body:
        if first < node.lineno <= last:
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            assert isinstance(target, ast.Name)
            assert node.value is not None
            found[target.id] = node.value
    return found


def with_origin(text: str, sources: str) -> str:
    """Return the text of a file with a last paragraph in its docstring that says where the settings come from.

    Names of files are part of it: without backslashes and double quotes they cannot end the docstring.
    """
    words = ORIGIN.format(version=__version__, sources=sources).replace("\\", "/").replace('"', "'")
    paragraph = textwrap.wrap(" ".join(words.split()), 118, break_on_hyphens=False)
    lines = text.splitlines()
    end = lines.index('"""', 1)
    lines[end:end] = ["", *paragraph]
    return "\n".join(lines) + "\n"


def literal(value: Any) -> str:
    """Return a value as a Python literal, in the form in which people write it: 100_000, [[0, 0.001], [100_000, 0.0]].

    Options may come from a file, and the text becomes code. `EjectError` for a value that has no literal.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is str:
        return _quoted(value)
    if type(value) is dict:
        return "{" + ", ".join(f"{literal(key)}: {literal(each)}" for key, each in value.items()) + "}"
    if type(value) is list:
        return f"[{', '.join(map(literal, value))}]"
    if type(value) is tuple:
        comma = "," if len(value) == 1 else ""
        return f"({', '.join(map(literal, value))}{comma})"
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:_}"
    if value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
        return repr(value)
    raise EjectError(
        f"{value!r:.100} cannot be ejected: it is a {type(value).__name__} that Python has no literal for; use plain "
        "finite numbers, text, lists and dicts"
    )


def _quoted(text: str) -> str:
    """Return a text as a literal, between double quotes unless it contains quotes itself."""
    quoted = repr(text)
    return quoted if '"' in quoted or quoted[0] != "'" else f'"{quoted[1:-1]}"'


__all__ = ["EjectError", "eject", "file_text"]
