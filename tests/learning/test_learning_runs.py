"""Real training on real environments, several seeds each, against the recipes' bands (`make test-learning`).

Each seed is a process of its own with one thread, as with `lockstep bench`, which makes the committed figures.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from lockstep.envs.toys.probes import register_environments
from lockstep.recipes import RECIPES

pytestmark = pytest.mark.learning

ROOT = Path(__file__).resolve().parents[2]
SEEDS = {100_000: 5, 500_000: 3, 1_000_000: 1}
"""how many, for runs up to that long (a run of SAC on HalfCheetah, with a gradient step for each step, is one: it takes
most of an hour)"""
ONE_SEED = """
import json, statistics, sys
from lockstep.recipes import find_recipe

algorithm, env, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
trainer = find_recipe(algorithm, env).config().debugging(seed=seed).build_trainer()
trainer.run()
final = trainer.test_collector.collect(n_episode=50)
print(json.dumps({"steps": trainer.position, "final_return": statistics.fmean(final.returns)}))
"""


@pytest.fixture(scope="module")
def made_data(tmp_path_factory):
    """Makes the data sets of an environment, once: `made_data(env)` is the folder that they are in."""
    folder, made = tmp_path_factory.mktemp("minari"), set()

    def make(env):
        if env not in made:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "MINARI_DATASETS_PATH": str(folder)}
            command = [sys.executable, str(ROOT / "benchmarks" / "learning" / "make_offline_data.py"), env]
            subprocess.run(command, env=environment, check=True)
            made.add(env)
        return folder

    return make


def final_return(recipe, seed, **variables):
    """Mean return of 50 new episodes after training with a seed."""
    command = [sys.executable, "-c", ONE_SEED, recipe.algorithm, recipe.env, str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == recipe.total_steps
    print(f"\n{recipe.algorithm} {recipe.env} seed {seed}: {result['final_return']:.1f}", flush=True)
    return result["final_return"]


@pytest.mark.parametrize(
    "recipe", [one for one in RECIPES if one.promise is not None], ids=lambda recipe: f"{recipe.algorithm}-{recipe.env}"
)
def test_every_seed_reaches_what_the_recipe_promises(recipe, made_data):
    register_environments()
    try:
        gym.make(recipe.env).close()
    except (gym.error.DependencyNotInstalled, ImportError):
        pytest.skip(f"{recipe.env} needs the extra {recipe.requires!r}")
    variables = {}
    if recipe.config().is_offline:
        pytest.importorskip("minari", reason=f"{recipe.algorithm} {recipe.env} needs the extra {recipe.requires!r}")
        variables["MINARI_DATASETS_PATH"] = str(made_data(recipe.env))
    num_seeds = next(seeds for steps, seeds in SEEDS.items() if recipe.total_steps <= steps)
    if recipe.config().is_off_policy and recipe.total_steps > 100_000:
        num_seeds = 1
    returns = [final_return(recipe, seed, **variables) for seed in range(num_seeds)]
    assert min(returns) >= recipe.promise, returns
