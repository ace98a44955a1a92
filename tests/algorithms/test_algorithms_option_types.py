"""Options of the wrong type or range are refused by name, and names of other libraries lead to ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lockstep import AlgorithmConfig, DQNConfig, PPOConfig


@pytest.mark.parametrize(
    "section, option, value, allowed",
    [
        ("training", "lr", "abc", "a number"),
        ("training", "lr", True, "a number"),
        ("training", "gamma", "0.9", "a number"),
        ("training", "num_epochs", 2.5, "a whole number"),
        ("training", "num_epochs", None, "a whole number"),
        ("training", "minibatch_size", "64", "a whole number or None"),
        ("training", "shuffle_batch_per_epoch", "yes", "True or False"),
        ("training", "grad_clip", [0.5], "a number or None"),
        ("training", "clip_param", "0.2", "a number"),
        ("env_runners", "num_envs_per_env_runner", None, "a whole number"),
        ("reporting", "total_steps", "100", "a whole number"),
        ("debugging", "seed", "a", "a whole number"),
        ("framework", "compile", 1, "True or False"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_what_is_allowed(
    section: str, option: str, value: Any, allowed: str
) -> None:
    config = PPOConfig().environment("CartPole-v1")
    getattr(config, section)(**{option: value})
    with pytest.raises(TypeError) as error:
        config.validate()
    assert str(error.value).startswith(f"{section}.{option}={value!r} is not allowed; it must be {allowed}")


@pytest.mark.parametrize("option, value", [("clip_param", 0.0), ("clip_param", -0.2), ("lr", -1e-3)])
def test_a_number_out_of_range_is_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{option}={value}"):
        PPOConfig().environment("CartPole-v1").training(**{option: value}).validate()


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
    "theirs, ours",
    [("learning_rate", "lr"), ("clip_range", "clip_param"), ("gae_lambda", "lambda_"), ("n_epochs", "num_epochs")],
)
def test_the_name_of_another_library_leads_to_ours(theirs: str, ours: str) -> None:
    with pytest.raises(ValueError, match=f"no option '{theirs}'; did you mean '{ours}'"):
        PPOConfig().training(**{theirs: 1})


@pytest.mark.parametrize(
    "config, section, theirs, ours",
    [
        (PPOConfig, "training", "n_steps", "'train_batch_size'"),
        (PPOConfig, "env_runners", "n_steps", "'rollout_fragment_length'"),
        (DQNConfig, "training", "batch_size", "'minibatch_size' or 'train_batch_size'"),
        (DQNConfig, "training", "exploration_fraction", "'epsilon'"),
        (DQNConfig, "training", "learning_starts", "'replay.learning_starts'"),
        (DQNConfig, "training", "buffer_size", "'replay.capacity'"),
        (PPOConfig, "training", "policy_kwargs", "'rl_module.model_config'"),
        (PPOConfig, "training", "total_timesteps", "'reporting.total_steps'"),
        (PPOConfig, "evaluation", "evaluation_duration", "'evaluation_episodes'"),
    ],
)
def test_a_name_leads_to_the_option_of_its_own_section_or_of_another(
    config: type[AlgorithmConfig], section: str, theirs: str, ours: str
) -> None:
    with pytest.raises(ValueError) as error:
        getattr(config(), section)(**{theirs: 1})
    assert str(error.value) == f"{section} has no option {theirs!r}; did you mean {ours}?"


def test_a_number_for_the_hidden_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="hiddens must be a list of positive whole numbers, got 64"):
        PPOConfig().rl_module(model_config={"hiddens": 64})
