"""Parameters of the constructors: those of Stable-Baselines3 2.9 and sb3-contrib 2.9, with the same defaults."""

from __future__ import annotations

import inspect

import pytest
from small_tasks import Aim, Copy

import lockstep_sb3

ALL = {
    "policy_kwargs": None,
    "tensorboard_log": None,
    "verbose": 0,
    "seed": None,
    "device": "auto",
    "stats_window_size": 100,
    "_init_setup_model": True,
    "gamma": 0.99,
}
ON_POLICY = {
    **ALL,
    "n_steps": 2048,
    "gae_lambda": 0.95,
    "use_sde": False,
    "sde_sample_freq": -1,
    "rollout_buffer_class": None,
    "rollout_buffer_kwargs": None,
}
ACTOR_CRITIC = {**ON_POLICY, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5}
OFF_POLICY = {
    **ALL,
    "buffer_size": 1_000_000,
    "learning_starts": 100,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 1,
    "replay_buffer_class": None,
    "replay_buffer_kwargs": None,
    "optimize_memory_usage": False,
    "n_steps": 1,
}
Q_LEARNING = {
    **OFF_POLICY,
    "batch_size": 32,
    "tau": 1.0,
    "train_freq": 4,
    "target_update_interval": 10_000,
    "exploration_initial_eps": 1.0,
}
SOFT = {
    **OFF_POLICY,
    "action_noise": None,
    "ent_coef": "auto",
    "target_entropy": "auto",
    "use_sde": False,
    "sde_sample_freq": -1,
    "use_sde_at_warmup": False,
}
TARGETS = {"tau": 0.005, "target_update_interval": 1}
PARAMETERS = {
    "PPO": {
        **ACTOR_CRITIC,
        "learning_rate": 3e-4,
        "batch_size": 64,
        "n_epochs": 10,
        "clip_range": 0.2,
        "clip_range_vf": None,
        "normalize_advantage": True,
        "target_kl": None,
    },
    "A2C": {
        **ACTOR_CRITIC,
        "learning_rate": 7e-4,
        "n_steps": 5,
        "gae_lambda": 1.0,
        "rms_prop_eps": 1e-5,
        "use_rms_prop": True,
        "normalize_advantage": False,
    },
    "TRPO": {
        **ON_POLICY,
        "learning_rate": 1e-3,
        "batch_size": 128,
        "cg_max_steps": 15,
        "cg_damping": 0.1,
        "line_search_shrinking_factor": 0.8,
        "line_search_max_iter": 10,
        "n_critic_updates": 10,
        "normalize_advantage": True,
        "target_kl": 0.01,
        "sub_sampling_factor": 1,
    },
    "DQN": {
        **Q_LEARNING,
        "learning_rate": 1e-4,
        "exploration_fraction": 0.1,
        "exploration_final_eps": 0.05,
        "max_grad_norm": 10,
    },
    "QRDQN": {
        **Q_LEARNING,
        "learning_rate": 5e-5,
        "exploration_fraction": 0.005,
        "exploration_final_eps": 0.01,
        "max_grad_norm": None,
    },
    "SAC": {**SOFT, **TARGETS, "learning_rate": 3e-4},
    "TQC": {**SOFT, **TARGETS, "learning_rate": 3e-4, "top_quantiles_to_drop_per_net": 2},
    "CrossQ": {**SOFT, "learning_rate": 1e-3, "policy_delay": 3},
    "TD3": {
        **OFF_POLICY,
        "learning_rate": 1e-3,
        "tau": 0.005,
        "action_noise": None,
        "policy_delay": 2,
        "target_policy_noise": 0.2,
        "target_noise_clip": 0.5,
    },
    "DDPG": {**OFF_POLICY, "learning_rate": 1e-3, "tau": 0.005, "action_noise": None},
}
"""Parameters by class, each with its default; `policy` and `env` come first."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_defaults_are_those_of_stable_baselines3(name):
    parameters = inspect.signature(getattr(lockstep_sb3, name)).parameters
    assert list(parameters)[:3] == ["policy", "env", "learning_rate"]
    found = {each: parameters[each].default for each in PARAMETERS[name]}
    assert found == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_giving_each_default_changes_nothing(name):
    model_class = getattr(lockstep_sb3, name)
    env = Copy if name in ("PPO", "A2C", "TRPO", "DQN", "QRDQN") else Aim
    options = {**PARAMETERS[name], "seed": 1}
    given = model_class("MlpPolicy", env(), **options).config.to_dict()
    assert given == model_class("MlpPolicy", env(), seed=1).config.to_dict()
