"""Spaces: what is read from a file, what is searched by default, what is refused."""

import json

import optuna
import pytest
from algorithm_cases import takes
from parts import one_in

from lockstep import ALGORITHMS, PPOConfig, get_config, tune
from lockstep.recipes import find_recipe
from lockstep.tuning.space import Range, apply, default_space, read_space
from lockstep.tuning.study import Search


def drawn(ranges, seed=0):
    """The values of one trial."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    trial = study.ask()
    return {path: each.suggest(trial, path) for path, each in ranges.items()}


def test_a_file_gives_whole_numbers_fractions_and_any_choices(tmp_path):
    file = tmp_path / "space.json"
    file.write_text(
        json.dumps(
            {
                "training.lr": {"low": 1e-5, "high": 1e-2, "log": True},
                "training.num_epochs": {"low": 1, "high": 3},
                "rl_module.model_config": {"choices": [{"hiddens": [8]}, {"hiddens": [16, 16]}]},
            }
        )
    )
    space = read_space(file)
    for seed in range(20):
        values = drawn(space, seed)
        assert 1e-5 <= values["training.lr"] <= 1e-2
        assert values["training.num_epochs"] in (1, 2, 3)
        config = apply(PPOConfig(), values)
        assert config.rl_module.model_config.hiddens in ((8,), (16, 16))
        assert config.training.num_epochs == values["training.num_epochs"]


def test_a_logarithmic_range_is_drawn_by_orders_of_magnitude():
    space = {"training.lr": Range(1e-5, 1e-1, log=True)}
    below = sum(drawn(space, seed)["training.lr"] < 1e-3 for seed in range(200))
    assert 70 < below < 130


@pytest.mark.parametrize("algorithm", one_in(4, [config.algorithm for config in ALGORITHMS]))
def test_every_algorithm_has_a_space_whose_values_are_allowed(algorithm):
    config = get_config(algorithm).environment("CartPole-v1" if takes(algorithm, "discrete") else "Pendulum-v1")
    if config.is_offline:
        config.offline_data(input_="data.parquet")
    space = default_space(config)
    assert {"training.lr", "training.gamma"} & set(space)
    assert len(space) >= 2
    for seed in range(5):
        apply(config, drawn(space, seed)).validate()


def test_minibatches_divide_the_rollout_of_the_recipe():
    config = find_recipe("ppo", "CartPole-v1").config()
    sizes = default_space(config)["training.minibatch_size"].choices
    assert sizes == (125, 250, 500, 1000)


def test_a_number_for_a_schedule_scales_it():
    config = PPOConfig().training(lr=[[0, 1e-3], [100, 5e-4], [200, 0.0]])
    assert apply(config, {"training.lr": 2e-3}).training.lr == [[0, 2e-3], [100, 1e-3], [200, 0.0]]
    assert config.training.lr[0] == [0, 1e-3]


def test_the_first_trial_keeps_initial_settings_outside_of_the_space(tmp_path):
    config = PPOConfig().training(entropy_coeff=0.0, clip_param=0.2)
    space = {"training.entropy_coeff": Range(1e-5, 0.05, log=True), "training.clip_param": Range(choices=(0.1, 0.3))}
    search = Search("s", f"sqlite:///{tmp_path / 'study.db'}", tmp_path, config, space)
    search.open()
    values = search._values(0)
    assert search.config_of(0, values).to_dict() == config.to_dict()
    assert search.rows()[0].values == {"training.entropy_coeff": 0.0, "training.clip_param": 0.2}
    assert values["training.entropy_coeff"] == 1e-5, "what later trials are chosen by is as near as the space allows"
    assert search.config_of(1, values).training.entropy_coeff == 1e-5


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "training.lr.*low and high.*choices"),
        ({"low": 0.1}, "must be numbers"),
        ({"low": "a", "high": "b"}, "must be numbers"),
        ({"low": 1.0, "high": 0.1}, "low must be below high"),
        ({"low": 0.0, "high": 0.1, "log": True}, "low must be above 0"),
        ({"low": 0.0, "high": 0.1, "choices": [1]}, "low and high"),
        ({"lowest": 0.0}, "lowest.*allowed are"),
        ([1, 2], "is no range"),
    ],
)
def test_a_range_that_is_none_is_refused_with_the_file_and_the_option(tmp_path, values, words):
    file = tmp_path / "space.json"
    file.write_text(json.dumps({"training.lr": values}))
    with pytest.raises(ValueError, match=words) as error:
        read_space(file)
    assert "training.lr" in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is no JSON"), ("[]", "must be an object"), ("{}", "must be an obj")]
)
def test_a_file_that_is_no_space_is_refused(tmp_path, text, words):
    file = tmp_path / "space.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_space(file)
    with pytest.raises(ValueError, match="cannot read"):
        read_space(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "space is empty"),
        ({"training.learning_rate": Range(1e-4, 1e-2)}, "training.learning_rate=.*no option"),
        ({"training.clip_param": Range(0.1, -1.0 + 3.0), "training.gamma": Range(0.9, 1.5)}, "training.gamma=1.5"),
        ({"training.num_epochs": Range(choices=(1, "many"))}, "training.num_epochs='many'"),
    ],
)
def test_an_unsupported_space_is_refused_before_anything_runs(tmp_path, space, words):
    with pytest.raises((ValueError, TypeError), match=words):
        tune("ppo", "CartPole-v1", space=space, root=tmp_path)
    assert list(tmp_path.iterdir()) == []
