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
from algorithm_kinds import OFFLINE
from option_records import COMMAND, Records, differences, saved_records, section_records, trainer_records

import lockstep
from lockstep import AlgorithmConfig, PPOConfig, get_config
from lockstep.algorithms import ALGORITHMS
from lockstep.options.section import Limits

NAN, INF = math.nan, math.inf
Row = tuple[str, Any, str]
"""an option, a value that it cannot have, words that the message has"""

OF_SAMPLES: list[Row] = [("training.minibatch_size", 8, "it must be None"), ("training.num_epochs", 2, "it must be 1")]
OF_ACTION_VALUES: list[Row] = [
    *OF_SAMPLES,
    ("training.epsilon", 1.5, "between 0 and 1"),
    ("training.tau", 0.0, "above 0 and at most 1"),
    ("training.alpha", 1.0, "no option 'alpha'"),
    ("replay.capacity", 3, "less than one transition for each"),
    ("replay.beta", [[0, 0.4], [10, -1]], "at least 0"),
    ("replay.her_strategy", "past", "'future', 'final'"),
]
ROWS: dict[str, list[Row]] = {
    "ppo": [
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
    ],
    "reinforce": [
        ("env_runners.batch_mode", "truncate_episodes", "use 'complete_episodes'"),
        ("training.lambda_", 0.9, "no option 'lambda_'"),
    ],
    "trpo": [
        ("training.minibatch_size", 4, "must be None"),
        ("framework.compile", True, "not allowed for trpo"),
        ("rl_module.model_config", {"vf_share_layers": True}, "not allowed for trpo"),
    ],
    "pqn": [
        ("training.epsilon", 1.5, "between 0 and 1"),
        ("training.tau", 0.01, "no option 'tau'"),
        ("rl_module.model_config", {"recurrent": "lstm"}, "recurrent='lstm' is not allowed for pqn"),
        ("rl_module.model_config", {"attention": {}}, "is not allowed for pqn"),
    ],
    "dqn": OF_ACTION_VALUES,
    "c51": [
        *OF_ACTION_VALUES,
        ("training.v_max", -100.0, "above v_min=-100.0"),
        ("training.num_quantiles", 8, "no option 'num_quantiles'"),
    ],
    "qrdqn": [*OF_ACTION_VALUES, ("training.num_atoms", 51, "no option 'num_atoms'")],
    "rainbow": [*OF_ACTION_VALUES, ("training.v_max", -100.0, "above v_min=-100.0")],
    "iqn": [*OF_ACTION_VALUES, ("training.num_quantile", 8, "did you mean 'num_quantiles' or")],
    "sac": [
        *OF_SAMPLES,
        ("training.alpha", "automatic", "'auto'"),
        ("training.policy_lr", 2, "did you mean 'actor_lr'?"),
        ("training.ent_coef", 2, "did you mean 'alpha'?"),
    ],
    "tqc": [
        *OF_SAMPLES,
        ("training.quantiles_to_drop", 25, "below num_quantiles=25"),
        ("training.n_quantiles", 10, "did you mean 'num_quantiles'?"),
        ("training.top_quantiles_to_drop_per_net", 1, "did you mean 'quantiles_to_drop'?"),
    ],
    "crossq": [*OF_SAMPLES, ("training.tau", 0.1, "no option 'tau'"), ("training.policy_freq", 2, "'policy_delay'?")],
    "td3": [
        *OF_SAMPLES,
        ("training.q_lr", 2, "did you mean 'critic_lr'?"),
        ("training.polyak", 1.5, "did you mean 'tau'?"),
        ("training.policy_freq", 2, "did you mean 'policy_delay'?"),
    ],
    "bc": [
        *OF_SAMPLES,
        ("training.loss", "l1", "'log_prob', 'mse'"),
        ("environment.normalize_rewards", True, "is not allowed for bc"),
        ("environment.frame_stack", 2, "is not allowed for bc"),
        ("framework.compile", True, "is not allowed for bc"),
    ],
    **dict.fromkeys((name for name in OFFLINE if name != "bc"), OF_SAMPLES),
}
SHARE, RATE, COUNT = "between 0 and 1", "above 0 and at most 1", "at least 1"
LIMITS: dict[str, dict[str, str]] = {
    "ppo": {"lr": "at least 0", "gamma": SHARE, "lambda_": SHARE, "clip_param": "above 0", "dual_clip": "above 1"},
    "appo": {
        "target_worker_clipping": COUNT,
        "max_lag": "at least 0",
        "target_network_update_freq": COUNT,
        "tau": RATE,
    },
    "trpo": {"lambda_": SHARE, "max_kl": "above 0", "cg_iterations": COUNT, "cg_damping": "at least 0"},
    "pqn": {"epsilon": SHARE, "lambda_": SHARE, "minibatch_size": COUNT, "num_epochs": COUNT},
    "dqn": {"epsilon": SHARE, "tau": RATE, "target_update_interval": COUNT, "huber_delta": "above 0"},
    "c51": {"num_atoms": "at least 2"},
    "qrdqn": {"num_quantiles": "at least 2", "kappa": "at least 0"},
    "rainbow": {"num_atoms": "at least 2"},
    "iqn": {"num_quantiles": COUNT, "num_target_quantiles": COUNT, "num_policy_quantiles": COUNT, "num_cosines": COUNT},
    "sac": {"tau": RATE, "alpha": "at least 0", "initial_alpha": "above 0", "target_update_interval": COUNT},
    "tqc": {"num_quantiles": "at least 2", "quantiles_to_drop": "at least 0", "tau": RATE},
    "crossq": {"policy_delay": COUNT, "alpha": "at least 0"},
    "td3": {"policy_delay": COUNT, "target_noise": "at least 0", "noise_clip": "at least 0", "tau": RATE},
    "marwil": {"beta": "at least 0", "max_weight": "above 0", "moving_average_sqd_adv_norm_update_rate": SHARE},
    "cql": {"num_actions": COUNT, "temperature": "above 0", "bc_iters": "at least 0", "min_q_weight": "at least 0"},
    "iql": {"expectile": "above 0 and below 1", "exp_adv_max": "above 0", "beta": "at least 0"},
    "td3_bc": {"alpha": "at least 0"},
}
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
        assert named == {name: hint for name, (hint, _) in section.declared().items()}


def test_a_section_is_read_by_its_path_and_its_call_returns_the_configuration() -> None:
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


@pytest.mark.parametrize("algorithm", [kind.algorithm for kind in ALGORITHMS])
def test_every_algorithm_refuses_values_beyond_the_limits_that_its_options_declare(algorithm: str) -> None:
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
    for algorithm, expected in LIMITS.items():
        declared = get_config(algorithm).training.declared()
        assert {name: str(declared[name][1]).strip(", ") for name in expected} == expected


@pytest.mark.parametrize(
    "algorithm, option, value, words", [(name, *row) for name, rows in ROWS.items() for row in rows], ids=str
)
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
