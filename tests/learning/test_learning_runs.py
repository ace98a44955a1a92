"""Real training on real environments, several seeds each, against the recipes' bands (`make test-learning`).

Each seed is a process of its own with one thread, as in `benchmarks/learning.py`, which makes the committed figures.
"""

import json
import os
import statistics
import subprocess
import sys

import gymnasium as gym
import pytest

from lockstep.recipes import RECIPES

pytestmark = pytest.mark.learning

SEEDS = {100_000: 5, 200_000: 3, 500_000: 3, 1_000_000: 1}
"""how many, by the length of the run"""
ONE_SEED = """
import json, statistics, sys
from lockstep.recipes import find_recipe

algorithm, env, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
trainer = find_recipe(algorithm, env).config().debugging(seed=seed).build_trainer()
trainer.run()
final = trainer.test_collector.collect(n_episode=50)
print(json.dumps({"steps": trainer.env_step, "final_return": statistics.fmean(final.returns)}))
"""


def final_return(recipe, seed):
    """Mean return of 50 new episodes after training with a seed."""
    command = [sys.executable, "-c", ONE_SEED, recipe.algorithm, recipe.env, str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == recipe.total_steps
    print(f"\n{recipe.algorithm} {recipe.env} seed {seed}: {result['final_return']:.1f}", flush=True)
    return result["final_return"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.algorithm}-{recipe.env}")
def test_the_median_seed_reaches_the_band(recipe):
    try:
        gym.make(recipe.env).close()
    except (gym.error.DependencyNotInstalled, ImportError):
        pytest.skip(f"{recipe.env} needs the extra {recipe.requires!r}")
    returns = [final_return(recipe, seed) for seed in range(SEEDS[recipe.total_steps])]
    assert statistics.median(returns) >= recipe.band, returns
    assert recipe.worst is None or min(returns) >= recipe.worst, returns
