"""Options of a model as plain data, as files of `save` contain them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from lockstep.config import from_plain, to_plain
from lockstep.state import FileNames, Kind
from lockstep_sb3.common import noise
from lockstep_sb3.common.buffers import BaseBuffer

PROGRESS_POINTS = np.linspace(0.0, 1.0, 101)
"""Values of the remaining progress at which a schedule is saved. A function itself cannot be saved."""
NETWORK = Kind("a subclass of torch.nn.Module", (nn.Module,))
OPTIMIZER = Kind("a subclass of torch.optim.Optimizer", (torch.optim.Optimizer,))
KINDS = {"features_extractor_class": NETWORK, "activation_fn": NETWORK, "optimizer_class": OPTIMIZER}
"""Kinds of the classes that a file may name in `policy_kwargs`."""
NOISE_CLASSES = (noise.NormalActionNoise, noise.OrnsteinUhlenbeckActionNoise)
"""Classes of action noise that a file may name."""
BUFFER = Kind("a buffer", (BaseBuffer,))
"""Classes that a file may name as `replay_buffer_class` or `rollout_buffer_class`."""


def networks_of_script() -> list[type]:
    """Return the networks and optimizers of the running script.

    A program that saves a model with a network of its own can load it again, as with Stable-Baselines3.
    """
    values = list(vars(sys.modules["__main__"]).values())
    return [each for each in values if isinstance(each, type) and (NETWORK.fits(each) or OPTIMIZER.fits(each))]


def callables_in(value: Any) -> Iterator[Any]:
    """Iterate over the classes and functions in an option, at any depth of dicts and lists."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from callables_in(part)
    elif callable(value):
        yield value


def plain_option(name: str, value: Any) -> Any:
    """Return an option as plain data. A schedule that is a function is saved by its values at `PROGRESS_POINTS`."""
    if isinstance(value, noise.VectorizedActionNoise):
        value = value.base_noise
    if isinstance(value, NOISE_CLASSES):
        settings = {each.name: getattr(value, each.name) for each in fields(value) if each.name != "dtype"}
        settings = {key: np.asarray(part).tolist() for key, part in settings.items()}
        return {"noise": type(value).__name__, **settings}
    if callable(value) and not isinstance(value, type):
        return {"progress": [float(value(remaining)) for remaining in PROGRESS_POINTS]}
    return to_plain(name, value)


def option_from_plain(name: str, plain: Any, names: FileNames) -> Any:
    """Return an option from its plain data. `names` finds the objects that the file may name."""
    if isinstance(plain, Mapping) and "noise" in plain:
        classes = {each.__name__: each for each in NOISE_CLASSES}
        if plain["noise"] not in classes:
            raise ValueError(f"{name} in {names.file} is {plain['noise']!r}; it must be one of {', '.join(classes)}")
        return classes[plain["noise"]](**{key: part for key, part in plain.items() if key != "noise"})
    if isinstance(plain, Mapping) and "progress" in plain:
        return SavedSchedule(plain["progress"])
    if name.endswith("_buffer_class") and isinstance(plain, Mapping) and list(plain) == ["__import__"]:
        return names.find(name, plain["__import__"], BUFFER)
    if name != "policy_kwargs" or not isinstance(plain, Mapping):
        return from_plain(name, plain, names)
    policy_kwargs = {}
    for key, part in plain.items():
        is_object = isinstance(part, Mapping) and list(part) == ["__import__"]
        if is_object and key in KINDS:
            policy_kwargs[key] = names.find(f"policy_kwargs.{key}", part["__import__"], KINDS[key])
        else:
            policy_kwargs[key] = from_plain(f"policy_kwargs.{key}", part, names)
    return policy_kwargs


@dataclass(frozen=True)
class SavedSchedule:
    """Schedule from a file: its `values` at `PROGRESS_POINTS`, and linear interpolation between them."""

    values: Sequence[float]

    def __call__(self, progress_remaining: float) -> float:
        """Return the value at a remaining progress between 1 and 0."""
        return float(np.interp(progress_remaining, PROGRESS_POINTS, self.values))
