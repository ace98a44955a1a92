"""Records of all options: of every section of every algorithm's configuration, and of the trainers' keywords.

`options.json` has them as they were before options were declared anew (issue 47, step 2): type, default, what is
allowed as the refusal says it, which of some values are taken, and the meaning. All of it is asked from outside, of
configurations, trainers and `lockstep list`, so that it shows the same however options are declared.

`python tests/algorithms/option_records.py` writes the file again, and prints what has changed.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep import ALGORITHMS, AlgorithmConfig, OfflineTrainer, OffpolicyTrainer, OnpolicyTrainer, SampleBatch
from lockstep.cli.list import options_of
from lockstep.trainer import BaseTrainer
from lockstep.trainer.options import required_options

FILE = Path(__file__).with_name("options.json")
COMMAND = "python tests/algorithms/option_records.py"
EVERY = "every algorithm"

Record = dict[str, str]
"""`type`, `default`, `allowed`, `takes` and `meaning` of an option"""
Records = dict[str, dict[str, Record | None]]
"""`{owner: {path of an option: record}}`; None for an option of every algorithm that this one does not have"""

PROBES: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "-1": -1,
    "0": 0,
    "0.0": 0.0,
    "0.5": 0.5,
    "1": 1,
    "1.0": 1.0,
    "2": 2,
    "2.5": 2.5,
    "inf": np.inf,
    "nan": np.nan,
    "points": [[0, 0.5], [10, 0.25]],
    "function": lambda *_: 0.5,
    "class": dict,
    "text": "no such choice",
    "list": [],
    "dict": {},
}
"""Values that an option is set to, by the name that the records have for them."""


class Impossible:
    """A value that no option takes but those that take anything."""

    def __repr__(self) -> str:
        return "..."


def sorted_out(set_to: Callable[[Any], object]) -> Record:
    """Return what `set_to(value)` allows: the words of a refusal, and which of the probes are taken."""

    def refusal(value: Any) -> str | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                set_to(value)
        except Exception as error:
            words = re.search(r"it must be .*|must be .*|choose .*|give .*", str(error), re.DOTALL)
            is_ours = words is not None and Impossible.__name__ not in words.group()
            return words.group() if is_ours else type(error).__name__
        return None

    taken = [name for name, value in PROBES.items() if refusal(value) is None]
    return {"allowed": refusal(Impossible()) or "anything", "takes": " ".join(taken)}


# -- sections ---


def records_of(config_class: type[AlgorithmConfig]) -> dict[str, Record]:
    """Return the records of all options of an algorithm's configuration, by path."""
    records = {}
    sections = config_class().sections
    for section, options in options_of(config_class):
        kind = type(sections[section.partition(".")[0]])
        for option in options:
            told = {"type": option.kind, "default": option.default, "meaning": option.text}
            records[f"{section}.{option.name}"] = told | allowed_in(config_class, kind, f"{section}.{option.name}")
    return records


_allowed: dict[tuple[type, str], Record] = {}
"""what is allowed, by the class of the section, which many algorithms have in common, and the path"""


def allowed_in(config_class: type[AlgorithmConfig], section: type, path: str) -> Record:
    """Return what an option may be set to in a configuration."""
    if (section, path) not in _allowed:
        config = config_class()
        _allowed[section, path] = sorted_out(lambda value: config.set_path(path, value))
    return _allowed[section, path]


def section_records() -> Records:
    """Return the records of all sections: those of every algorithm, and for each algorithm what differs from them."""
    off_policy = next(kind for kind in ALGORITHMS if kind.is_off_policy)
    replay = {path: record for path, record in records_of(off_policy).items() if path.startswith("replay.")}
    common = records_of(AlgorithmConfig) | replay
    found: Records = {EVERY: dict(common)}
    for kind in ALGORITHMS:
        own = records_of(kind)
        paths = [*own, *(path for path in common if path not in own)]
        found[kind.algorithm] = {path: own.get(path) for path in paths if own.get(path) != common.get(path)}
    return found


# -- trainers ---

RIVALS = {"episode_per_collect": "step_per_collect", "step_per_test": "episode_per_test"}
"""keywords of which a trainer takes one: the first is asked for without the second"""


def trainer_parts(trainer: type) -> tuple[Any, dict[str, Any]]:
    """Return the policy and the fewest keywords that a trainer can be made of, with evaluation."""
    kind = next(
        kind
        for kind in ALGORITHMS
        if (kind.is_off_policy, kind.is_offline) == (trainer is OffpolicyTrainer, trainer is OfflineTrainer)
    )
    config = kind().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2)
    config.rl_module(model_config={"hiddens": (4,)}).evaluation(evaluation_num_envs=1)
    policy = config.build_policy()
    keywords: dict[str, Any] = {"max_epoch": 1, "batch_size": 4, "step_per_epoch": 8, "episode_per_test": 1}
    keywords["test_collector"] = config.build_test_collector(policy)
    if trainer is OfflineTrainer:
        keywords["buffer"] = SampleBatch(obs=np.zeros((4, 4), np.float32), actions=np.zeros(4, np.int64))
        return policy, keywords
    keywords |= {"train_collector": config.build_collector(policy), "step_per_collect": 8}
    if trainer is OnpolicyTrainer:
        keywords["repeat_per_collect"] = 1
    return policy, keywords


def keywords_of(trainer: type[BaseTrainer]) -> list[str]:
    """Return the names of all keywords of a trainer, as its refusal of an unknown one lists them."""
    policy, keywords = trainer_parts(trainer)
    try:
        trainer(policy, **keywords, zzzzzzzz=1)
    except TypeError as error:
        return str(error).partition("there are ")[2].split(", ")
    raise AssertionError(f"{trainer.__name__} takes an unknown keyword")


def declared_keywords(trainer: type[BaseTrainer]) -> dict[str, tuple[str, str]]:
    """Return type and default of the keywords of a trainer.

    Of all that is recorded this alone depends on where keywords are declared: follow them where they go.
    """
    found = {"policy": ("Policy", "required")}
    required = required_options(trainer.options_class)
    for option in fields(trainer.options_class):
        hint, _ = trainer.options_class.declared()[option.name]
        found[option.name] = (type_text(hint), "required" if option.name in required else repr(option.default))
    return found


def type_text(hint: Any) -> str:
    """Return a type as text, without the modules in which classes are: they may move."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(map(type_text, typing.get_args(hint)))
    return re.sub(r"[\w.]+\.(?=\w)", "", inspect.formatannotation(hint)).replace("NoneType", "None")


def made_with(trainer: type, name: str, keywords: Mapping[str, Any], value: Any) -> object:
    """Make a trainer with one more keyword."""
    return trainer(**{**keywords, name: value})


@cache
def trainer_records() -> Records:
    """Return the records of the keywords of all trainers. Their meaning is in the fields of their options."""
    found: Records = {}
    for trainer in (OnpolicyTrainer, OffpolicyTrainer, OfflineTrainer):
        policy, keywords = trainer_parts(trainer)
        declared = declared_keywords(trainer)
        records: dict[str, Record | None] = {}
        for name in keywords_of(trainer):
            kind, default = declared[name]
            given = {key: value for key, value in keywords.items() if key != RIVALS.get(name)}
            make = partial(made_with, trainer, name, {"policy": policy, **given})
            records[name] = {"type": kind, "default": default, **sorted_out(make)}
        found[trainer.__name__] = records
    return found


# -- the file ---


def all_records() -> Records:
    """Return all records of the working tree."""
    return section_records() | trainer_records()


def saved_records() -> Records:
    """Return the records of the file."""
    return json.loads(FILE.read_text())


def differences(before: Records, after: Records) -> Iterator[str]:
    """Yield a line for each option that has come, gone or changed, and what has changed of it."""
    for owner in [*before, *(after.keys() - before.keys())]:
        old, new = before.get(owner, {}), after.get(owner, {})
        for path in [*old, *(new.keys() - old.keys())]:
            was, now = old.get(path), new.get(path)
            if path not in new or (now is None and was is not None):
                yield f"{owner}: {path} is gone, or no longer differs from {EVERY}"
            elif was is None and now is not None:
                yield f"{owner}: {path} is new: {now}"
            elif was is not None and now is not None:
                for part in [*was, *(now.keys() - was.keys())]:
                    if was.get(part) != now.get(part):
                        yield f"{owner}: {path}: {part} was {was.get(part)!r}, is {now.get(part)!r}"


def text_of(records: Records) -> str:
    """Return the text of the file: a line for each option."""
    owners = []
    for owner, options in records.items():
        lines = [f"  {json.dumps(path)}: {json.dumps(record)}" for path, record in options.items()]
        owners.append(f" {json.dumps(owner)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(owners) + "\n}\n"


def main() -> None:
    """Write the file again and print what has changed."""
    records = all_records()
    for line in differences(saved_records() if FILE.exists() else {}, records):
        print(line)
    FILE.write_text(text_of(records))


if __name__ == "__main__":
    main()
