"""`lockstep.train` and the command line begin with the same settings: the recipe, and a number of all environments."""

import json

import pytest
from parts import one_in

import lockstep
from lockstep import PPOConfig
from lockstep.algorithms import get_config
from lockstep.cli.commands import parse
from lockstep.recipes import RECIPES
from lockstep.recipes.training import find_settings
from lockstep.tracking import RunFolder

RUNNERS, PER_RUNNER = "env_runners.num_env_runners", "env_runners.num_envs_per_env_runner"


def command_line(*words):
    return parse(["train", *words]).settings()


@pytest.mark.parametrize("recipe", one_in(5, RECIPES), ids=lambda recipe: f"{recipe.algorithm}-{recipe.env}")
def test_python_and_the_command_give_the_same_settings(recipe):
    here = find_settings(recipe.algorithm, recipe.env)
    assert here == command_line(recipe.algorithm, recipe.env)
    assert here.config == recipe.config()
    assert here.sources[0].startswith(f"the recipe for {recipe.algorithm} on {recipe.env}")
    plain = find_settings(recipe.algorithm, recipe.env, recipe=False)
    assert plain == command_line(recipe.algorithm, recipe.env, "--no-recipe")
    assert plain.config == get_config(recipe.algorithm).environment(recipe.env)
    assert plain.sources == [f"the defaults of {recipe.algorithm}"]


@pytest.mark.parametrize("recipe", [True, False])
def test_an_id_without_a_version_gets_the_highest_one_and_its_recipe(recipe):
    here, full = (find_settings("sac", name, recipe=recipe) for name in ("HalfCheetah", "HalfCheetah-v5"))
    assert here == full
    assert here.config.environment.env == "HalfCheetah-v5"
    assert ("recipe for sac on HalfCheetah-v5" in here.sources[0]) == recipe
    assert find_settings("ppo", "lockstep.envs:CartPole").config.environment.env == "lockstep.envs:CartPole-v1"


SMALL = {"reporting.total_steps": 32, "training.train_batch_size": 32, "training.minibatch_size": 16}
SMALL |= {"training.num_epochs": 1, "evaluation.evaluation_duration": 1}


def test_settings_may_be_nested_by_section():
    nested = {"reporting": {"total_steps": 32}, "training": {"lr": 1e-2, "minibatch_size": 16}}
    nested["rl_module"] = {"model_config": {"hiddens": (8,)}}
    flat = {"reporting.total_steps": 32, "training.lr": 1e-2, "training.minibatch_size": 16}
    flat["rl_module.model_config.hiddens"] = (8,)
    found, expected = (find_settings("ppo", "CartPole-v1", options=options).config for options in (nested, flat))
    assert found == expected
    assert (found.total_steps, found.lr, found.model_config.hiddens) == (32, 1e-2, (8,))


@pytest.mark.parametrize("recipe", [True, False])
def test_train_uses_the_recipe_unless_asked_not_to_and_says_which(recipe, tmp_path, capfd):
    result = lockstep.train("ppo", "CartPole-v1", recipe=recipe, settings=SMALL, root=tmp_path)
    lr = [[0, 1e-3], [32, 0.0]] if recipe else 3e-4
    assert RunFolder.open(result.path).config["training"]["lr"] == lr
    assert result.policy.config.lr == lr
    assert result.sources[0].startswith("the recipe for ppo on CartPole-v1" if recipe else "the defaults of ppo")
    assert capfd.readouterr().out == "", "lockstep.train prints nothing"


def test_a_configuration_is_taken_as_it_is():
    config = PPOConfig().environment("CartPole-v1").training(lr=0.5)
    settings = find_settings(config, options={"reporting.total_steps": 50})
    assert settings.config == config.copy().reporting(total_steps=50)
    assert settings.config is not config
    assert settings.sources[0] == "the configuration that was given"


def test_schedules_of_a_recipe_span_a_run_of_another_length():
    assert find_settings("ppo", "CartPole-v1", options={"reporting.total_steps": 500}).config.lr == [
        [0, 1e-3],
        [500, 0],
    ]
    own = {"reporting.total_steps": 500, "training.lr": [[0, 0.1], [7, 0]]}
    assert find_settings("ppo", "CartPole-v1", options=own).config.lr == [[0, 0.1], [7, 0]]


@pytest.mark.parametrize(
    ("num_envs", "options", "runners", "each"),
    [
        (None, {}, 0, 8),
        (None, {RUNNERS: 1}, 1, 8),
        (None, {RUNNERS: 2}, 2, 4),
        (None, {RUNNERS: 2, PER_RUNNER: 8}, 2, 8),
        (None, {PER_RUNNER: 3}, 0, 3),
        (6, {}, 0, 6),
        (6, {RUNNERS: 3}, 3, 2),
    ],
)
def test_env_runners_share_the_environments(num_envs, options, runners, each):
    settings = find_settings("ppo", "CartPole-v1", num_envs=num_envs, options=options)
    section = settings.config.sections["env_runners"]
    assert (section.num_env_runners, section.num_envs_per_env_runner) == (runners, each)
    words = [] if num_envs is None else ["--num-envs", str(num_envs)]
    words += [word for path, value in options.items() for word in ("--set", f"{path}={value}")]
    assert command_line("ppo", "CartPole-v1", *words).config == settings.config


def test_a_config_with_env_runners_keeps_environments_and_splits_numbers():
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=2, num_envs_per_env_runner=8)
    assert find_settings(config).config.num_envs_per_env_runner == 8
    assert find_settings(config, num_envs=8).config.num_envs_per_env_runner == 4
    assert find_settings(config, options={RUNNERS: 4}).config.num_envs_per_env_runner == 4


def test_a_file_with_env_runners_shares_the_environments_too():
    for own, each in (({"num_env_runners": 4}, 2), ({"num_env_runners": 4, "num_envs_per_env_runner": 8}, 8)):
        settings = find_settings("ppo", "CartPole-v1", file=("options.json", {"env_runners": own}))
        assert settings.config.num_envs_per_env_runner == each
        assert settings.sources[1] == "options.json"


@pytest.mark.parametrize(
    ("num_envs", "options", "words"),
    [
        (8, {RUNNERS: 3}, ("8 environments", "3 env runners", "num_envs=6 or 9", "1, 2, 4, 8")),
        (2, {RUNNERS: 3}, ("2 environments", "num_envs=3,", "1, 2")),
        (None, {RUNNERS: 5}, ("8 environments", "num_envs=5 or 10")),
        (0, {}, ("num_envs=0", "at least 1")),
        (8, {PER_RUNNER: 4}, ("num_envs=8", f"{PER_RUNNER}=4", "not allowed together")),
        (8, {RUNNERS: -1}, ("num_env_runners=-1", "at least 0")),
    ],
)
def test_environments_that_cannot_be_split_are_refused_with_valid_numbers(num_envs, options, words, tmp_path):
    with pytest.raises(ValueError) as caught:
        lockstep.train("ppo", "CartPole-v1", num_envs=num_envs, settings=options, root=tmp_path / "runs")
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_whole_configuration_of_a_file_is_stretched_from_its_own_length():
    short = find_settings("ppo", "CartPole-v1", options={"reporting.total_steps": 20_000}).config
    file = ("best.json", json.loads(short.to_json()))
    same = find_settings("ppo", "CartPole-v1", file=file).config
    assert same.training.lr == [[0, 1e-3], [20_000, 0.0]]
    longer = find_settings("ppo", "CartPole-v1", file=file, options={"reporting.total_steps": 100_000}).config
    assert longer.training.lr == [[0, 1e-3], [100_000, 0.0]]


def test_progress_prints_lines_where_there_is_no_terminal(tmp_path, capsys):
    options = {"num_envs": 2, "recipe": False, "settings": {"training.train_batch_size": 256}}
    first = lockstep.train("ppo", "CartPole-v1", total_steps=256, root=tmp_path, **options)
    assert "steps/s" not in capsys.readouterr().out
    lockstep.resume(first.path, total_steps=512, progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("512/512 steps")
    lockstep.train("ppo", "CartPole-v1", total_steps=256, root=tmp_path, progress=True, **options)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("/")[0].strip() for line in lines] == ["0", "256"]
    assert "evaluation return" in lines[-1]


def test_progress_that_is_no_flag_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(ValueError, match="progress='bar' is not allowed; it must be True or False"):
        lockstep.train("ppo", "CartPole-v1", total_steps=256, root=tmp_path, progress="bar")
    assert list(tmp_path.iterdir()) == []
