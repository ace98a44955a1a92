"""`AlgorithmConfig`: names, copies, JSON, checks across sections, schedules."""

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lockstep import A2CConfig, ModelConfig, PPOConfig, get_config
from lockstep.algorithms.ppo import PPOLearner

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO = spaces.Discrete(2)


def small() -> PPOConfig:
    """A configuration that builds without making an environment."""
    return (
        PPOConfig()
        .environment(observation_space=BOX, action_space=TWO)
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size=8, minibatch_size=4, num_epochs=1)
        .rl_module(model_config={"hiddens": (4,)})
    )


def halving(step: int) -> float:
    """A schedule that JSON can name."""
    return 0.5 ** (step / 100)


# -- names ---


def test_unknown_keyword_of_a_section_raises_with_did_you_mean():
    with pytest.raises(ValueError, match=r"training has no option 'gama'; did you mean 'gamma'"):
        PPOConfig().training(gama=0.9)
    with pytest.raises(ValueError, match=r"learners has no option 'num_learner'; did you mean 'num_learners'"):
        PPOConfig().learners(num_learner=1)


def test_unknown_keyword_changes_nothing_else_of_the_same_call():
    config = PPOConfig()
    with pytest.raises(ValueError):
        config.training(gamma=0.5, gama=0.9)
    assert config == PPOConfig()


def test_unknown_attribute_read_or_set_raises_with_did_you_mean():
    config = PPOConfig()
    with pytest.raises(AttributeError, match=r"PPOConfig has no option 'gama'; did you mean 'gamma'"):
        config.gama
    with pytest.raises(AttributeError, match=r"PPOConfig has no option 'gama'; did you mean 'gamma'"):
        config.gama = 0.9


def test_option_of_another_algorithm_is_unknown():
    with pytest.raises(ValueError, match="training has no option 'target_kl'"):
        A2CConfig().training(target_kl=0.01)


def test_unknown_algorithm_raises_with_did_you_mean():
    with pytest.raises(ValueError, match=r"unknown algorithm 'pop'; did you mean 'ppo'"):
        get_config("pop")
    assert get_config("a2c") == A2CConfig()


def test_section_methods_chain_and_options_read_as_attributes():
    config = PPOConfig()
    assert config.environment("CartPole-v1").training(lr=0.1).debugging(seed=4) is config
    assert (config.env, config.lr, config.seed) == ("CartPole-v1", 0.1, 4)
    config.lr = 0.2
    assert config.sections["training"].lr == 0.2


def test_set_path_sets_one_option_and_names_what_is_unknown():
    config = PPOConfig().set_path("training.lr", 0.25).set_path("rl_module.model_config.hiddens", [8, 4])
    assert config.lr == 0.25
    assert config.model_config == ModelConfig(hiddens=(8, 4))
    with pytest.raises(ValueError, match=r"unknown option 'trainig.lr'; did you mean 'training'"):
        config.set_path("trainig.lr", 1)
    with pytest.raises(ValueError, match=r"training has no option 'learning_rat'"):
        config.set_path("training.learning_rat", 1)
    with pytest.raises(ValueError, match=r"unknown model_config key 'hidens'; did you mean 'hiddens'"):
        config.set_path("rl_module.model_config.hidens", [8])
    with pytest.raises(ValueError, match=r"write section.option, e.g. training.lr"):
        config.set_path("lr", 1)


def test_dict_of_model_config_changes_those_fields_only():
    config = PPOConfig().rl_module(model_config={"activation": "relu"}).rl_module(model_config={"hiddens": (8,)})
    assert config.model_config == ModelConfig(activation="relu", hiddens=(8,))


# -- copies and files ---


def test_copy_is_independent_and_equal():
    config = small().environment(env_config={"size": [1, 2]})
    other = config.copy()
    assert other == config
    other.env_config["size"].append(3)
    other.training(lr=0.5)
    assert config.env_config == {"size": [1, 2]}
    assert config.lr == PPOConfig().lr
    assert other != config


def test_frozen_config_refuses_every_way_of_setting_and_its_copy_is_free():
    config = small().environment(env_config={"sizes": [1, 2]}).freeze()
    before = config.copy()
    for change in (
        lambda: config.training(lr=1.0),
        lambda: setattr(config, "lr", 1.0),
        lambda: config.set_path("training.lr", 1.0),
        lambda: config.update_from_dict({"training": {"lr": 1.0}}),
        lambda: setattr(config.sections["training"], "lr", 1.0),
        lambda: config.learner_config_dict.update(a=1),
        lambda: config.env_config["sizes"].append(3),
        lambda: config.sections["environment"].env_config.__setitem__("a", 1),
    ):
        with pytest.raises(ValueError, match="frozen; change a copy"):
            change()
    with pytest.raises(TypeError):
        config.sections["training"] = None
    assert config == before
    assert config.copy().training(lr=1.0).lr == 1.0
    free = config.copy()
    free.env_config["sizes"].append(3)
    assert free.env_config == {"sizes": [1, 2, 3]}


def test_frozen_config_validates_builds_and_is_written_like_any_other():
    config = small().multi_agent(policies=["default_policy"]).freeze()
    config.validate()
    assert set(config.build_learner().module) == {"default_policy"}
    assert PPOConfig().update_from_dict(json.loads(config.to_json())) == config


def test_configs_of_different_algorithms_are_never_equal():
    assert PPOConfig() == PPOConfig()
    assert PPOConfig() != A2CConfig()
    assert PPOConfig().training(lr=0.1) != PPOConfig()


def test_repr_shows_only_what_differs_from_the_defaults():
    assert repr(PPOConfig()) == "PPOConfig()"
    assert repr(PPOConfig().training(gamma=0.9).debugging(seed=3)) == "PPOConfig(training.gamma=0.9, debugging.seed=3)"


def test_to_dict_has_every_option_of_every_section():
    data = PPOConfig().to_dict()
    assert data.pop("algorithm") == "ppo"
    assert data["training"]["gamma"] == 0.99
    assert set(data) == set(PPOConfig().sections)
    assert {option for section in data.values() for option in section} == set(PPOConfig()._all_options())


def test_json_round_trip_gives_back_an_equal_config(tmp_path):
    nested = spaces.Dict(
        image=spaces.Box(0, 255, (4, 4), np.uint8), rest=spaces.Tuple([spaces.MultiDiscrete([2, 3]), BOX])
    )
    config = (
        small()
        .environment("CartPole-v1", observation_space=nested, normalize_observations=True, env_config={"a": [1, None]})
        .training(lr=[[0, 1e-3], [1000, 0.0]], entropy_coeff=halving, vf_clip_param=0.5, target_kl=0.02)
        .rl_module(model_config={"conv_filters": ((8, 4, 2),), "squash_actions": False})
        .multi_agent(policies_to_train=["default_policy"])
    )
    text = config.to_json(tmp_path / "config.json")
    assert (tmp_path / "config.json").read_text() == text + "\n"
    restored = PPOConfig().update_from_dict(json.loads(text))
    assert restored == config
    assert restored.entropy_coeff is halving


def test_what_json_cannot_hold_is_refused_by_its_path():
    with pytest.raises(ValueError, match=r"training\.lr=.*cannot be written to JSON"):
        PPOConfig().training(lr=lambda step: 0.1).to_dict()


class FromTheScript(PPOLearner):
    """As one that is defined in the script that runs."""


FromTheScript.__module__ = "__main__"


def test_what_json_cannot_hold_is_told_why_and_what_to_do():
    class Inside(PPOLearner):
        pass

    for options, why in (
        ({"lr": lambda step: 0.1}, "a lambda has no name; use points"),
        ({"learner_class": FromTheScript}, r"defined in the script that runs \(`__main__`\); move it to a file"),
        ({"learner_class": Inside}, "it is defined inside of a function; define it at the top of a module"),
    ):
        with pytest.raises(ValueError, match=why):
            PPOConfig().training(**options).to_json()


def test_update_from_dict_refuses_other_algorithms_and_unknown_names():
    with pytest.raises(ValueError, match="is for 'a2c', this one for 'ppo'"):
        PPOConfig().update_from_dict(A2CConfig().to_dict())
    with pytest.raises(ValueError, match="unknown section 'trainig'; did you mean 'training'"):
        PPOConfig().update_from_dict({"trainig": {}})
    with pytest.raises(ValueError, match="training has no option 'gama'; did you mean 'gamma'"):
        PPOConfig().update_from_dict({"training": {"gama": 0.1}})


# -- checks ---


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_validate_refuses_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match=r"framework\.device='cuda' is not there"):
        small().framework(device="cuda").validate()


def test_an_environment_must_be_named():
    with pytest.raises(ValueError, match=r'environment\.env is not set; give an id such as "CartPole-v1"'):
        PPOConfig().validate()


def test_unknown_environment_id_is_refused_with_did_you_mean():
    with pytest.raises(ValueError, match="CartPole-v1"):
        PPOConfig().environment("CartPol-v1").build_learner()


def test_build_refuses_an_unknown_id_in_policies_to_train():
    with pytest.raises(ValueError, match=r"policies_to_train=.*'other'.*the modules are \['default_policy'\]"):
        small().multi_agent(policies_to_train=["default_policy", "other"]).build_learner()


@pytest.mark.parametrize("config", [PPOConfig(), A2CConfig()])
@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict(a=TWO)])
def test_action_space_that_cannot_be_taken_is_refused_with_algorithm_and_space(config, space):
    with pytest.raises(ValueError) as refused:
        config.environment(observation_space=BOX, action_space=space).build_learner()
    assert f"{config.algorithm} cannot act in {space}" in str(refused.value)
    assert "Discrete, MultiDiscrete, MultiBinary" in str(refused.value)


def test_observation_space_that_cannot_be_taken_is_refused():
    with pytest.raises(ValueError, match="no network for observation space Text"):
        PPOConfig().environment(observation_space=spaces.Text(3), action_space=TWO).build_learner()


# -- schedules ---


def learning_rate_at(learner, step):
    learner.before_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": step})
    return learner.get_optimizer("default_policy").param_groups[0]["lr"]


@pytest.mark.parametrize(
    "schedule, at_0, at_50, at_1000",
    [
        (0.3, 0.3, 0.3, 0.3),
        ([[0, 1.0], [100, 0.0]], 1.0, 0.5, 0.0),
        ([[0, 1.0], [25, 3.0], [75, 1.0]], 1.0, 2.0, 1.0),
        (lambda step: 1.0 / (1 + step), 1.0, 1 / 51, 1 / 1001),
    ],
)
def test_learning_rate_takes_a_number_points_or_a_callable(schedule, at_0, at_50, at_1000):
    learner = small().training(lr=schedule).build_learner()
    assert learner.get_optimizer("default_policy").param_groups[0]["lr"] == at_0
    assert learning_rate_at(learner, 50) == pytest.approx(at_50)
    assert learning_rate_at(learner, 1000) == pytest.approx(at_1000)


@pytest.mark.parametrize("option", ["lr", "entropy_coeff", "clip_param"])
@pytest.mark.parametrize(
    "points, message", [([[1, 0.1], [5, 0.0]], "first point must be at step 0"), ([[0, 0.1]], "at least two points")]
)
def test_schedule_with_bad_points_is_refused_by_the_build(option, points, message):
    with pytest.raises(ValueError, match=message):
        small().training(**{option: points}).build_learner()


def test_position_of_schedules_is_part_of_the_state():
    config = small().training(lr=[[0, 1.0], [100, 0.0]], entropy_coeff=[[0, 0.4], [100, 0.0]])
    learner, other = config.build_learner(), config.build_learner()
    learning_rate_at(learner, 75)
    other.set_state(learner.get_state())
    assert other.get_optimizer("default_policy").param_groups[0]["lr"] == pytest.approx(0.25)
    assert float(other.coefficient("default_policy", "entropy_coeff")) == pytest.approx(0.1)
    assert other.get_state(["coefficients"]) == learner.get_state(["coefficients"])
    assert other.get_state("optimizer")["optimizer"]["default_policy.default_optimizer"]["schedule"]["timestep"] == 75
