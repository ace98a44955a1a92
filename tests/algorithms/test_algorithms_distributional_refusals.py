"""C51 and QR-DQN refuse every option that they cannot use, with its name, its value and what is allowed."""

import math

import pytest
from gymnasium import spaces

from lockstep import C51Config, QRDQNConfig

BOTH, NAN, INF = (C51Config, QRDQNConfig), math.nan, math.inf
SPACES = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
VALUES = [
    ({"lr": -1e-3}, "lr=-0.001 is not allowed; it must be a finite number, at least 0"),
    ({"lr": NAN}, "lr=nan is not allowed"),
    ({"gamma": 1.5}, "gamma=1.5 is not allowed; it must be between 0 and 1"),
    ({"gamma": NAN}, "gamma=nan is not allowed"),
    ({"train_batch_size": 0}, "train_batch_size=0 is not allowed; it must be at least 1"),
    ({"minibatch_size": 8}, r"minibatch_size=8 is not allowed; it must be None \(use train_batch_size\)"),
    ({"num_epochs": 2}, r"num_epochs=2 is not allowed; it must be 1 \(use replay.update_per_step\)"),
    ({"grad_clip": 0.0}, "grad_clip=0.0 is not allowed; it must be above 0, or None"),
    ({"grad_clip_by": "size"}, "grad_clip_by='size' is not allowed; choose one of 'value', 'norm', 'global_norm'"),
    ({"adam_epsilon": 0.0}, "adam_epsilon=0.0 is not allowed; it must be above 0"),
    ({"nan_policy": "hope"}, "nan_policy='hope' is not allowed; choose one of 'skip', 'stop', 'zero'"),
    ({"epsilon": 1.5}, "epsilon=1.5 is not allowed; it must be between 0 and 1"),
    ({"epsilon": -0.1}, "epsilon=-0.1 is not allowed"),
    ({"tau": 0.0}, "tau=0.0 is not allowed; it must be above 0 and at most 1"),
    ({"tau": 1.5}, "tau=1.5 is not allowed"),
    ({"target_update_interval": 0}, "target_update_interval=0 is not allowed; it must be at least 1"),
    ({"huber_delta": 1.0}, "training has no option 'huber_delta'"),
    ({"alpha": 1.0}, "training has no option 'alpha'"),
]
C51_VALUES = [
    ({"num_atoms": 1}, "num_atoms=1 is not allowed; it must be at least 2"),
    ({"v_min": -INF}, "v_min=-inf is not allowed; it must be a finite number"),
    ({"v_min": NAN}, "v_min=nan is not allowed"),
    ({"v_max": INF}, "v_max=inf is not allowed; it must be a finite number above v_min=-100.0"),
    ({"v_min": 3.0, "v_max": 3.0}, "v_max=3.0 is not allowed; it must be a finite number above v_min=3.0"),
    ({"num_quantiles": 8}, "training has no option 'num_quantiles'"),
    ({"kappa": 1.0}, "training has no option 'kappa'"),
]
QRDQN_VALUES = [
    ({"num_quantiles": 1}, "num_quantiles=1 is not allowed; it must be at least 2"),
    ({"kappa": -1.0}, "kappa=-1.0 is not allowed; it must be at least 0"),
    ({"kappa": NAN}, "kappa=nan is not allowed"),
    ({"num_atoms": 51}, "training has no option 'num_atoms'"),
    ({"v_max": 1.0}, "training has no option 'v_max'"),
]
KINDS = [
    (C51Config, {"num_atoms": 5.5}, "num_atoms=5.5"),
    (C51Config, {"num_atoms": "many"}, "num_atoms='many'"),
    (C51Config, {"v_min": None}, "v_min=None"),
    (QRDQNConfig, {"num_quantiles": 5.5}, "num_quantiles=5.5"),
    (QRDQNConfig, {"kappa": "one"}, "kappa='one'"),
    *((config, {"double_q": "maybe"}, "double_q='maybe'") for config in BOTH),
]
SECTIONS = [
    ("environment", {"normalize_observations": True}, "normalize_observations=True is not allowed for"),
    ("environment", {"normalize_rewards": True}, "normalize_rewards=True is not allowed for"),
    ("replay", {"capacity": 3}, "replay.capacity=3 is less than one transition for each of"),
    ("replay", {"learning_starts": -1}, "replay.learning_starts=-1 is not allowed; it must be at least 0"),
    ("replay", {"update_per_step": 0}, "replay.update_per_step=0 is not allowed; it must be above 0"),
    ("replay", {"n_step": 0}, "replay.n_step=0 is not allowed; it must be at least 1"),
    ("replay", {"alpha": -1.0}, "replay.alpha=-1.0 is not allowed; it must be at least 0"),
    ("replay", {"her_strategy": "past"}, "replay.her_strategy='past' is not allowed; it must be 'future', 'final'"),
    ("replay", {"storage": "tape"}, "replay.storage='tape' is not allowed; it must be 'memory' or 'memmap'"),
]


@pytest.mark.parametrize(
    "config, options, message",
    [(config, *case) for config in BOTH for case in VALUES]
    + [(C51Config, *case) for case in C51_VALUES]
    + [(QRDQNConfig, *case) for case in QRDQN_VALUES],
)
def test_distributional_training_options_that_cannot_be_are_refused(config, options, message):
    with pytest.raises(ValueError, match=message):
        config().environment("CartPole-v1").training(**options).validate()


@pytest.mark.parametrize("config, options, message", KINDS)
def test_distributional_training_options_of_a_wrong_kind_are_refused(config, options, message):
    with pytest.raises(TypeError, match=message):
        config().environment("CartPole-v1").training(**options).validate()


@pytest.mark.parametrize("config", BOTH)
@pytest.mark.parametrize("section, options, message", SECTIONS)
def test_distributional_algorithms_refuse_options_of_other_sections(config, section, options, message):
    made = config().environment("CartPole-v1").env_runners(num_envs_per_env_runner=8)
    with pytest.raises(ValueError, match=message):
        made.set_section(section, options).validate()


@pytest.mark.parametrize("config", BOTH)
def test_distributional_algorithms_refuse_spaces_networks_and_goals_that_they_cannot_learn_with(config):
    for actions in (spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(3)):
        with pytest.raises(ValueError, match="action values need a Discrete action space"):
            config().build_learner(spaces=(SPACES[0], actions))
    with pytest.raises(ValueError, match="recurrent='lstm': action values are learned without memory; leave it out"):
        config().rl_module(model_config={"recurrent": "lstm"}).build_learner(spaces=SPACES)
    with pytest.raises(ValueError, match="CartPoleEnv has no compute_reward"):
        config().environment("CartPole-v1").replay(her=True).build_trainer()
