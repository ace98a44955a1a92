"""Search spaces: a range for each option that a search may change, by the option's path.

In a file:

{
    "training.lr": {"low": 1e-5, "high": 1e-2, "log": true},
    "training.num_epochs": {"low": 1, "high": 20},
    "training.gamma": {"choices": [0.95, 0.99, 0.999]}
}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.builder import AlgorithmConfig
from lockstep.config.json_form import check_texts
from lockstep.state.tree import JsonValue
from lockstep.state.trust import FileNames


@dataclass(frozen=True)
class Range:
    """Values of one option in a search space: `choices`, or the numbers from `low` to `high`.

    Raises:
        ValueError: `choices` and `low`, `high` are given together or not at all, the range is empty, or it is
            logarithmic and reaches 0.
    """

    low: Any = None
    high: Any = None
    log: bool = False
    """Whether the logarithm of the value is uniform, for options whose values span orders of magnitude."""
    choices: tuple[Any, ...] = ()
    """Allowed values, which may be any JSON."""

    def __post_init__(self) -> None:
        low, high = self.low, self.high
        if bool(self.choices) == (low is not None or high is not None):
            raise ValueError("give low and high (and log), or choices")
        if self.choices:
            return
        if any(isinstance(bound, bool) or not isinstance(bound, int | float) for bound in (low, high)):
            raise ValueError("low and high must be numbers")
        if low is not None and high is not None and not low < high:
            raise ValueError("low must be below high")
        if self.log and low is not None and low <= 0:
            raise ValueError("with log, low must be above 0")

    def plain(self) -> dict[str, Any]:
        """Return the range in the form of a file, with the fields that are set."""
        if self.choices:
            return {"choices": list(self.choices)}
        fields = {"low": self.low, "high": self.high}
        if self.log:
            fields["log"] = True
        return fields

    def suggest(self, trial: Any, path: str) -> Any:
        """Return the value that an Optuna trial has for this option. Between whole bounds it is a whole number."""
        if self.choices:
            # Optuna stores scalars only, so that choices such as lists are given to it as JSON.
            return json.loads(trial.suggest_categorical(path, [json.dumps(choice) for choice in self.choices]))
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        suggest = trial.suggest_int if is_whole else trial.suggest_float
        return suggest(path, self.low, self.high, log=self.log)


SearchSpace = Mapping[str, Range]
"""Range of each option in a search, by the option's path."""


COMMON: SearchSpace = {
    "training.lr": Range(1e-5, 1e-2, log=True),
    "training.gamma": Range(choices=(0.9, 0.95, 0.98, 0.99, 0.995, 0.999)),
}
ON_POLICY: SearchSpace = {
    "training.lambda_": Range(choices=(0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0)),
    "training.entropy_coeff": Range(1e-5, 0.05, log=True),
    "training.num_epochs": Range(choices=(1, 4, 10, 20)),
    "training.clip_param": Range(choices=(0.1, 0.2, 0.3)),
    "training.vf_loss_coeff": Range(0.2, 1.0),
    "training.max_kl": Range(1e-3, 0.05, log=True),
    "training.grad_clip": Range(0.3, 5.0, log=True),
}
OFF_POLICY: SearchSpace = {
    "training.train_batch_size": Range(choices=(32, 64, 128, 256, 512)),
    "training.tau": Range(choices=(0.005, 0.01, 0.02, 0.05)),
    "replay.update_per_step": Range(choices=(0.125, 0.25, 0.5, 1.0)),
    "replay.n_step": Range(choices=(1, 3, 5)),
}
OFFLINE: SearchSpace = {
    "training.train_batch_size": Range(choices=(64, 128, 256, 512)),
    "training.tau": Range(choices=(0.005, 0.01, 0.02)),
    "training.beta": Range(0.1, 10.0, log=True),
}
MINIBATCHES = (32, 16, 8, 4, 2, 1)
"""Numbers of minibatches that a rollout is divided into."""


def default_space(config: AlgorithmConfig) -> dict[str, Range]:
    """Return the space for an algorithm: the ranges of this file for the options that the algorithm has.

    An option that is off (None) stays off. The choices for the size of minibatches divide the rollout evenly.
    """
    if config.is_offline:
        family = OFFLINE
    elif config.is_off_policy:
        family = OFF_POLICY
    else:
        family = ON_POLICY
    space = {path: values for path, values in {**COMMON, **family}.items() if value_at(config, path) is not None}
    if not config.can_sum_rewards:
        space.pop("replay.n_step", None)

    training = config.training.options()
    minibatch_size = training.get("minibatch_size")
    batch_size = training.get("train_batch_size")
    if family is ON_POLICY and isinstance(minibatch_size, int) and isinstance(batch_size, int):
        sizes = tuple(batch_size // number for number in MINIBATCHES if batch_size % number == 0)
        space["training.minibatch_size"] = Range(choices=sizes)
    return space


def value_at(config: AlgorithmConfig, path: str) -> Any:
    """Return the plain value of an option; None if the algorithm does not have the option."""
    value: Any = config.named_options()
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def read_space(path: str | Path, *, trust: bool = False) -> dict[str, Range]:
    """Read a space from a JSON file.

    Args:
        path: The file.
        trust: Whether to accept all objects that its choices name, such as functions.

    Raises:
        ValueError: the file or a range in it is not valid; the message names the file and the option.
        UntrustedError: a choice names an object that needs `trust=True`.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the space {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"the space {path} is no JSON: {error}") from error
    if not isinstance(data, dict) or not data:
        raise ValueError(f'the space {path} must be an object such as {{"training.lr": {{"low": 1e-5, "high": 0.01}}}}')
    space = {option: _read_range(option, values, path) for option, values in data.items()}
    names = FileNames(path, {}, trust)
    for option, values in space.items():
        for choice in values.choices:
            check_texts(option, choice, names)
    return space


def _read_range(option: str, values: JsonValue, path: str | Path) -> Range:
    try:
        fields = dict(values)
        return Range(**{**fields, "choices": tuple(fields.get("choices", ()))})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{option}: {json.dumps(values)} in the space {path} is no range: {error}; allowed are "
            '{"low": 1e-5, "high": 0.01, "log": true} and {"choices": [1, 2]}'
        ) from error


def apply(config: AlgorithmConfig, values: Mapping[str, Any]) -> AlgorithmConfig:
    """Return a copy of a configuration with the values of a trial.

    If an option is a schedule, a number scales the schedule so that it starts with this number.
    """
    config = config.copy()
    for path, value in values.items():
        old_value = value_at(config, path)
        if isinstance(old_value, list) and isinstance(value, int | float):
            first_rate = old_value[0][1]
            if first_rate:
                value = [[step, rate * value / first_rate] for step, rate in old_value]
        config.set_path(path, value)
    return config
