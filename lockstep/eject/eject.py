"""`eject`: one Python file that trains what a configuration trains, without Lockstep."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from lockstep._version import __version__
from lockstep.builder.algorithm_config import AlgorithmConfig
from lockstep.eject.options import EjectError, check_options, checked_spaces, options_of, rows_of, steps_between_updates
from lockstep.eject.source import render

ACTIVATIONS = {"tanh": "Tanh", "relu": "ReLU", "gelu": "GELU", "silu": "SiLU", "elu": "ELU"}
ACTIVATION_FUNCTIONS = {"tanh": "torch.tanh", "relu": "torch.relu", "gelu": "F.gelu", "silu": "F.silu", "elu": "F.elu"}
ORIGIN = """Written by `lockstep eject` of Lockstep {version}, with {sources}. It trains the agent that `lockstep train`
trains with these settings: with the same initial weights, random numbers and minibatches, and so the same parameters up
to rounding. It needs torch, numpy and gymnasium: `python {name}`."""


def eject(config: AlgorithmConfig, path: str | Path, *, sources: Sequence[str] = ()) -> Path:
    """Write one Python file that trains as `config.build_trainer().run()` does, and return its path.

    It imports torch, numpy and gymnasium, has no branch for what is switched off, and ends with an evaluation. PPO, DQN
    and SAC can be ejected, with observations of a Box. `sources`: where the settings come from, for its first lines.

    Raises:
        EjectError: what the file could not say, by name; nothing is written then.
        FileExistsError: there is a file already.
    """
    path = Path(path)
    text = file_text(config, path.name, sources)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def file_text(config: AlgorithmConfig, name: str = "agent.py", sources: Sequence[str] = ()) -> str:
    """Return the text that `eject` writes into a file of this name; raises as that."""
    rows = rows_of(config.algorithm)
    check_options(config)
    config.validate()
    env_id, _, actions = checked_spaces(config)
    values = dict(options_of(config))
    values |= {
        "environment.env": env_id,
        "env_runners.rollout_fragment_length": steps_between_updates(config),
        "framework.dtype": Code(f"torch.{config.framework.dtype}"),
    }
    noise = {"sigma": 0.2, "theta": 0.15, "dt": 1.0, **config.env_runners.exploration_config}
    values |= {f"ou.{name}": value for name, value in noise.items()}
    if values["rl_module.model_config.critic_hiddens"] is None:
        values["rl_module.model_config.critic_hiddens"] = values["rl_module.model_config.hiddens"]
    if values["training.minibatch_size"] == "auto":
        values["training.minibatch_size"] = 64
    rows_each = values["env_runners.rollout_fragment_length"] * config.env_runners.num_envs
    minibatch, gains = values["training.minibatch_size"], values["rl_module.model_config.orthogonal_init"]
    facts: dict[str, Any] = {path.rpartition(".")[2]: value for path, value in reversed(values.items())}
    facts["alpha"] = getattr(config.training, "alpha", None)  # not that of priorities
    rates = [getattr(config.training, f"{name}lr", None) for name in ("", "actor_", "critic_", "alpha_")]
    facts["rates_vary"] = any(isinstance(rate, list | tuple) for rate in rates)
    facts |= {
        "origin": _origin(name, "; ".join(sources) or "a configuration"),
        "is_discrete": isinstance(actions, spaces.Discrete),
        "squashes_actions": config.squashes_actions,
        "activation_class": ACTIVATIONS[facts["activation"]],
        "policy_gain_argument": ", POLICY_GAIN" * gains,
        "value_gain_argument": ", VALUE_GAIN" * gains,
        "algorithm": config.algorithm,
        "best": "advantages" if facts.get("dueling") else "forward",
        "discounts": 'batch["discounts"]' if facts.get("n_step", 1) > 1 else "GAMMA",
        "activation_function": ACTIVATION_FUNCTIONS[facts["activation"]],
        "temperature": ", temperature (18)" * (facts.get("alpha") == "auto"),
        "target_entropy": '-float(batch["actions"].shape[1])'
        if facts.get("target_entropy") == "auto"
        else "TARGET_ENTROPY",
        **{f"{name}_rate": _rate(name, facts) for name in ("actor", "critic", "alpha")},
        "follow": ".copy_" if facts.get("tau") == 1 else ".lerp_",
        "tau_argument": "" if facts.get("tau") == 1 else ", TAU",
        "gain": 1.0,
        "old_values": True,
        "entropy": "entropy" * bool(facts.get("entropy_coeff")),
        "bonus": ", entropy bonus" * bool(facts.get("entropy_coeff")),
        "num_threads": facts["num_threads"] or 1,
        "varies": lambda value: isinstance(value, list | tuple),
        "shuffles": minibatch is not None and minibatch < rows_each,
        "num_updates": f"{-(-config.reporting.total_steps // rows_each):,}",
    }
    changing = [name for name in ("clip_param", "entropy_coeff") if isinstance(facts.get(name), list | tuple)]
    facts["clip_value"] = "scheduled(CLIP_PARAM, step)" if "clip_param" in changing else "CLIP_PARAM"
    facts |= {"step_parameter": ", step: int" * bool(changing), "step_argument": ", step" * bool(changing)}
    return render(config.algorithm, facts, _constants(rows, values))


def _origin(name: str, sources: str) -> str:
    """Return the words of the file's docstring. Names of files come into it: without quotes they cannot end it."""
    text = ORIGIN.format(version=__version__, name=name, sources=sources)
    text = " ".join(text.replace("\\", "/").replace('"', "'").split())
    return textwrap.fill(text, 118, break_on_hyphens=False)


def _rate(name: str, facts: Mapping[str, Any]) -> str:
    return "LEARNING_RATE" if facts.get(f"{name}_lr") is None else f"{name.upper()}_LR"


class Code(str):
    """A value that is written as it is."""


def _constants(rows: Sequence[tuple[str, str, str]], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the line of each constant by its name."""
    found = {}
    for path, constant, meaning in rows:
        if constant:
            found[constant] = f"{constant} = {_written(values[path])}" + f"  # {meaning}" * bool(meaning)
    return found


def _written(value: Any) -> str:
    """Return a value as a Python literal, as a person writes it: 100_000, [[0, 0.001], [100_000, 0.0]].

    Options may come from a file, and the text becomes code. `EjectError` for a value that has no literal.
    """
    if isinstance(value, Code):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is str:
        return _quoted(value)
    if type(value) is dict:
        return "{" + ", ".join(f"{_written(key)}: {_written(each)}" for key, each in value.items()) + "}"
    if type(value) in (list, tuple):
        inner = ", ".join(map(_written, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:_}"
    if value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
        return repr(value)
    raise EjectError(
        f"{value!r:.100} cannot be ejected: it is a {type(value).__name__} that Python has no literal for; use plain "
        "finite numbers, text, lists and dicts"
    )


def _quoted(text: str) -> str:
    """Return a text as a literal, between double quotes where it holds no quotes itself."""
    literal = repr(text)
    return literal if '"' in literal or literal[0] != "'" else f'"{literal[1:-1]}"'


__all__ = ["EjectError", "eject", "file_text"]
