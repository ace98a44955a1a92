"""Every recipe is a whole, valid configuration for an environment that exists, and is found by its two names."""

import json
import math
import re
import statistics
from pathlib import Path

import gymnasium as gym
import pytest

from lockstep import ALGORITHMS, get_config
from lockstep.envs import register_environments
from lockstep.envs.make import known_id
from lockstep.recipes import RECIPES, bench, find_recipe
from lockstep.state.names import with_current_names
from lockstep.trainer.build import RunLength

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def name(recipe):
    return f"{recipe.algorithm}-{recipe.env}"


def test_recipes_are_found_by_algorithm_and_environment():
    for recipe in RECIPES:
        assert find_recipe(recipe.algorithm, recipe.env) is recipe
        assert find_recipe(recipe.algorithm, re.sub(r"-v\d+$", "", recipe.env)) is recipe, "the highest version"
    assert find_recipe("ppo", "CartPole-v0") is None
    assert find_recipe("ppo", "HalfCheetah-v4") is None
    assert find_recipe("ppo", "NothingLikeIt") is None
    assert find_recipe("dqn", "Pendulum-v1") is None
    assert find_recipe("ppo", gym.make) is None


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_is_a_full_configuration(recipe):
    config = recipe.config()
    config.validate()
    assert config.algorithm == recipe.algorithm
    assert config.algorithm in {known.algorithm for known in ALGORITHMS}
    assert config.env == recipe.env
    register_environments()
    assert known_id(recipe.env) == recipe.env
    assert config.total_steps == recipe.total_steps
    assert math.isfinite(recipe.reference_return)
    assert recipe.reference_source
    assert recipe.promise is None or math.isfinite(recipe.promise)


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_each_call_makes_a_new_configuration(recipe):
    first = recipe.config()
    first.debugging(seed=123).training(gamma=0.5)
    assert recipe.config() == recipe.config()
    assert recipe.config() != first


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_can_be_saved_and_loaded(recipe):
    """`config.json` of a run gives back the same settings."""
    data = json.loads(recipe.config().to_json())
    assert get_config(recipe.algorithm).update_from_dict(data).to_dict() == recipe.config().to_dict()


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_run_ends_at_exactly_its_last_step(recipe):
    """Rollouts divide epochs and minibatches divide rollouts; a learning rate that falls ends at zero there."""
    config = recipe.config()
    batch, envs = config.train_batch_size, config.num_envs_per_env_runner
    if config.is_off_policy:
        batch = RunLength.of(config).per_update  # what is collected at once; samples have a size of their own
    if config.is_offline:  # gradient steps, one after another
        batch, envs = RunLength.of(config).per_update, 1
    assert batch % envs == 0
    assert (recipe.total_steps // 10) % batch == 0
    if config.minibatch_size != "auto":  # with memory, it counts sequences
        assert batch % (config.minibatch_size or batch) == 0
    if isinstance(config.lr, list):
        assert config.lr[-1][0] == recipe.total_steps


def result_of(recipe):
    """What is committed about a recipe; of those that learn from data, the case of their data."""
    data = recipe.config().input_
    rows = bench.read_rows(recipe)
    if rows:
        finals = [statistics.fmean(row["final_returns"]) for row in rows]
        runs = [{"steps": row["steps"], "final_episodes": len(row["final_returns"])} for row in rows]
        return {"worst": min(finals), "runs": runs, "config": json.loads(rows[0]["settings"])}
    file = Path(recipe.reference_source.rpartition("/")[2]).with_suffix(".json")
    cases = json.loads((RESULTS / file).read_text())["cases"]
    cases = [case for case in cases if case["runs"][0]["steps"] == recipe.total_steps]
    own = (recipe.algorithm, recipe.env, data.rpartition("/")[2].removesuffix("-v0"))
    (case,) = (case for case in cases if (case["algorithm"], case["environment"], case["data"]) == own)
    return case


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.promise is not None], ids=name)
def test_the_committed_result_is_of_this_recipe(recipe):
    """What the documentation quotes was made with these settings, on three seeds or more, and keeps the promise."""
    record, expected = result_of(recipe), recipe.config().to_dict()
    for section in ("environment", "env_runners", "training", "rl_module"):
        for option, value in with_current_names(record["config"][section]).items():
            now = expected[section][option]
            if isinstance(value, dict):  # options that came later stand at their defaults
                now = {key: now[key] for key in value}
            assert now == value, f"{section}.{option}"
    assert len(record["runs"]) >= 3
    whole_episodes = recipe.config().env_runners.batch_mode == "complete_episodes"
    assert all(run["steps"] == recipe.total_steps or whole_episodes for run in record["runs"])
    assert all(run["steps"] >= recipe.total_steps and run["final_episodes"] >= 20 for run in record["runs"])
    assert record["worst"] >= recipe.promise


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r.config().input_ is not None], ids=name)
def test_the_return_of_an_offline_recipe_is_the_committed_one(recipe):
    assert recipe.reference_return == pytest.approx(result_of(recipe)["median"], abs=0.05)


def test_cloning_is_no_better_than_its_data_and_reward_learning_is():
    """With actions taken as those in the data were: drawn, or, by the expert, most likely."""
    cases = json.loads((RESULTS / "offline_learning.json").read_text())["cases"]
    assert {case["algorithm"] for case in cases} == {c.algorithm for c in ALGORITHMS if c.is_offline}
    for case in cases:
        score, behaviour = case["as_the_data_acted"], case["behaviour"]
        if case["data"] == "expert":
            assert abs(score - behaviour) <= 0.2 * abs(behaviour)
        elif case["algorithm"] == "bc":
            assert score <= behaviour + 0.05 * abs(behaviour)
        else:
            assert score > behaviour + 0.05 * abs(behaviour)
