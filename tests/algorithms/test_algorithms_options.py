"""Options: each that cannot be is refused by name with what is allowed, and names of other libraries lead to ours."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import pickle
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from algorithm_cases import ALGORITHM_CASES, Refused
from option_records import COMMAND, Records, differences, saved_records, section_records, trainer_records
from parts import one_in

import lockstep
from lockstep import AlgorithmConfig, PPOConfig, get_config
from lockstep.algorithms import ALGORITHMS
from lockstep.options.section import Limits

NAN, INF = math.nan, math.inf
OF_ALL: list[Refused] = [
    ("training.lr", [[0, 1e-3], [10, -1e-3]], "a finite number, at least 0"),
    ("training.gamma", NAN, "between 0 and 1"),
    ("training.grad_clip", 0.0, "above 0, or None"),
    ("training.grad_clip_by", "size", "'value', 'norm', 'global_norm'"),
    ("training.gama", 0.9, "did you mean 'gamma'"),
    ("training.clip_param", [[0, 0.0], [10, 0.2]], "above 0"),
    ("training.dual_clip", 1.0, "above 1, or None"),
    ("training.normalize_advantages", "all", "'minibatch', 'batch', or None"),
    ("training.minibatch_size", 16, "larger than training.train_batch_size=8"),
    ("training.minibatch_size", "64", "a whole number, at least 1, or 'auto', or None"),
    ("training.train_batch_size", 1, "smaller than"),
    ("framework.device", "gpu", "did you mean 'cuda'?"),
    ("framework.device", "GPU:1", "did you mean 'cuda:1'?"),
    ("framework.device", "warp_drive", "is not there"),
    ("learners.num_learner", 1, "did you mean 'num_learners'"),
    ("learners.num_gpus_per_learner", 1, "framework.device='cpu'"),
    ("learners.custom_resources_per_learner", {"x": -1}, "at least 0"),
    ("env_runners.batch_mode", "whole", "'truncate_episodes', 'complete_episodes'"),
    ("offline_data.input_", [], "names no file"),
    ("reporting.loggers", ["csv"], "'jsonl', 'tensorboard'"),
    ("reporting.logger_config", {"jsonl": {"interval": 1}}, "JsonlLogger has no argument 'interval'"),
    ("fault_tolerance.restart_window_s", 0.0, "above 0"),
]
"""of the options that all algorithms have, asked of PPO"""
ROWS = [("ppo", *row) for row in OF_ALL]
ROWS += [(name, *row) for name, case in ALGORITHM_CASES.items() for row in case.refused]
WRONG_TYPES: list[tuple[str, str, Any, str]] = [
    ("ppo", "training.lr", "abc", "a function of the step"),
    ("ppo", "training.lr", True, "a finite number"),
    ("ppo", "training.gamma", "0.9", "a number"),
    ("ppo", "training.num_epochs", 2.5, "a whole number"),
    ("ppo", "training.num_epochs", None, "a whole number"),
    ("ppo", "training.shuffle_batch_per_epoch", "yes", "True or False"),
    ("ppo", "training.grad_clip", [0.5], "a number, above 0, or None"),
    ("ppo", "multi_agent.policies_to_train", "a", "a list"),
    ("ppo", "multi_agent.policy_mapping_fn", "a", "a function"),
    ("ppo", "rl_module.algorithm_config_overrides_per_module", [("a", {})], "a dict"),
    ("ppo", "rl_module.rl_module_spec", np.zeros(2), "wrap_module() takes a plain nn.Module"),
    ("ppo", "offline_data.input_", 3, "the path of a file"),
    ("ppo", "callbacks.callbacks_class", 3, "a subclass of lockstep.trainer.Callback"),
]


@cache
def keyword_types() -> dict[str, Any]:
    """The keyword types by name; sections import them for type checkers alone."""
    package = Path(lockstep.__file__).parent
    types: dict[str, Any] = {}
    for path in package.rglob("typed.py"):
        name = path.relative_to(package.parent).with_suffix("").as_posix().replace("/", ".")
        types |= {key: each for key, each in vars(importlib.import_module(name)).items() if key.endswith("Options")}
    return types


@pytest.mark.parametrize("kind", [AlgorithmConfig, *ALGORITHMS], ids=lambda kind: kind.algorithm)
def test_each_section_names_its_options_and_their_types_to_type_checkers(kind: type[AlgorithmConfig]) -> None:
    for section in kind().sections.values():
        named: dict[str, Any] = {}
        words = {"framework"}  # of RLlib: taken, and not an option
        signature = inspect.signature(type(section).__call__, locals=keyword_types(), eval_str=True)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                (options,) = get_args(parameter.annotation)
                named |= get_type_hints(options)
            elif parameter.name not in {"self"} | words - section.declared().keys():
                named[parameter.name] = parameter.annotation
        declared = {name: hint for name, (hint, _) in section.declared().items()}
        assert named.keys() == declared.keys()
        for name, hint in declared.items():
            if hint is not Any:  # a call may say more than a field that is checked by `prepare`
                assert named[name] == hint, name


def test_a_section_is_read_by_its_path_and_its_call_returns_the_config() -> None:
    config = PPOConfig()
    assert config.training(lr=0.1).debugging(seed=4).environment("CartPole-v1") is config
    assert (config.training.lr, config.debugging.seed, config.environment.env) == (0.1, 4, "CartPole-v1")
    assert config.training == PPOConfig().training(lr=0.1).training
    for other in (config.copy(), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert other.training(lr=0.2) is other
        assert (other.training.lr, config.training.lr) == (0.2, 0.1)
    alone = pickle.loads(pickle.dumps(config.training))
    assert alone == config.training


def check_refused(algorithm: str, option: str, value: Any, words: str, error: type[Exception] = ValueError) -> None:
    """The option is refused in the call or by `validate`, by its name and with the words."""
    section, _, name = option.partition(".")
    config = get_config(algorithm).environment("CartPole-v1").env_runners(num_envs_per_env_runner=4)
    if algorithm == "ppo":
        config.training(train_batch_size=8, minibatch_size=1)
    with pytest.raises(error) as refused:
        getattr(config, section)(**{name: value}).validate()
    assert name in str(refused.value)
    assert words in str(refused.value), option


def beyond(hint: Any, limits: Limits) -> list[Any]:
    """Values that a declaration does not allow."""
    lower, upper = limits.ge, limits.le
    values: list[Any] = [lower - 1] if lower is not None else []
    values += [upper + 1] if upper is not None else []
    values += [limit for limit in (limits.gt, limits.lt) if limit is not None]
    values += [INF, -INF] if limits.finite else []
    values += [NAN] if values else []
    texts = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    return [*values, "no such choice"] if texts else values


def test_every_algorithm_has_a_row_in_the_table_of_cases() -> None:
    assert set(ALGORITHM_CASES) == {kind.algorithm for kind in ALGORITHMS}


@pytest.mark.parametrize("algorithm", one_in(4, [kind.algorithm for kind in ALGORITHMS]))
def test_every_algorithm_refuses_values_beyond_the_declared_limits(algorithm: str) -> None:
    tried = 0
    for name, section in get_config(algorithm).sections.items():
        for option, (hint, limits) in section.declared().items():
            for value in beyond(hint, limits):
                with pytest.raises((ValueError, TypeError), match=rf"{name}\.{option}="):
                    getattr(get_config(algorithm), name)(**{option: value})
                tried += 1
    assert tried > 60


def test_limits_are_those_that_the_methods_need() -> None:
    """Of each kind one: rates, shares, counts, and what only makes sense above or within something."""
    for algorithm, case in ALGORITHM_CASES.items():
        declared = get_config(algorithm).training.declared()
        assert {name: str(declared[name][1]).strip(", ") for name in case.limits} == case.limits


@pytest.mark.parametrize("algorithm, option, value, words", ROWS, ids=str)
def test_a_value_that_cannot_be_is_refused_by_name(algorithm: str, option: str, value: Any, words: str) -> None:
    check_refused(algorithm, option, value, words)


@pytest.mark.parametrize("algorithm, option, value, words", WRONG_TYPES)
def test_a_value_of_the_wrong_type_is_refused_by_name(algorithm: str, option: str, value: Any, words: str) -> None:
    check_refused(algorithm, option, value, words, TypeError)


def test_what_means_the_same_number_is_taken() -> None:
    training: dict[str, Any] = {
        "lr": [[0, 1e-3], [100, 0]],
        "gamma": 1,
        "num_epochs": np.int64(3),
        "grad_clip": np.float32(0.5),
        "clip_param": lambda step: 0.2,
    }
    config = PPOConfig().environment("CartPole-v1").training(**training)
    config.validate()
    assert config.build_learner().config.num_epochs == 3


@pytest.mark.parametrize(
    "algorithm, section, theirs, ours",
    [
        ("ppo", "training", "clip_range", "'clip_param'"),
        ("ppo", "training", "gae_lambda", "'lambda_'"),
        ("ppo", "training", "n_epochs", "'num_epochs'"),
        ("ppo", "training", "n_steps", "'train_batch_size'"),
        ("ppo", "env_runners", "n_steps", "'rollout_fragment_length'"),
        ("dqn", "training", "batch_size", "'minibatch_size' or 'train_batch_size'"),
        ("dqn", "training", "exploration_fraction", "'epsilon'"),
        ("dqn", "training", "learning_starts", "'replay.learning_starts'"),
        ("dqn", "training", "buffer_size", "'replay.capacity'"),
        ("ppo", "training", "policy_kwargs", "'rl_module.model_config'"),
        ("ppo", "training", "total_timesteps", "'reporting.total_steps'"),
        ("ppo", "evaluation", "evaluation_episodes", "'evaluation_duration'"),
        ("ppo", "evaluation", "n_eval_episodes", "'evaluation_duration'"),
    ],
)
def test_a_name_leads_to_the_option_of_its_own_section_or_of_another(
    algorithm: str, section: str, theirs: str, ours: str
) -> None:
    with pytest.raises(ValueError) as error:
        getattr(get_config(algorithm), section)(**{theirs: 1})
    assert str(error.value) == f"{section} has no option {theirs!r}; did you mean {ours}?"


def check_as_recorded(saved: Records, now: Records) -> None:
    """The records of options are those of the file."""
    changed = list(differences(saved, now))
    assert not changed, (
        f"{len(changed)} differences from options.json; if they are meant, run `{COMMAND}` and name them in "
        "CHANGELOG.md:\n" + "\n".join(changed)
    )


def test_options_of_all_algorithms_are_as_they_are_recorded() -> None:
    trainers = trainer_records()
    check_as_recorded({name: each for name, each in saved_records().items() if name not in trainers}, section_records())


def test_keywords_of_trainers_are_as_they_are_recorded() -> None:
    trainers = trainer_records()
    check_as_recorded({name: each for name, each in saved_records().items() if name in trainers}, trainers)


def test_an_option_that_comes_goes_or_changes_is_found() -> None:
    one, other = {"type": "int", "default": "1"}, {"type": "int", "default": "2"}
    before: Records = {"ppo": {"a": one, "b": one, "c": None}, "dqn": {"a": one}}
    after: Records = {"ppo": {"a": other, "c": None, "d": one}}
    assert list(differences(before, after)) == [
        "ppo: a: default was '1', is '2'",
        "ppo: b is gone, or no longer differs from every algorithm",
        "ppo: d is new: {'type': 'int', 'default': '1'}",
        "dqn: a is gone, or no longer differs from every algorithm",
    ]
