"""Recipes: settings of an algorithm for an environment, with a reference return.

A recipe with a promise is known to reach the promised return.

    recipe = find_recipe("ppo", "CartPole-v1")
    recipe.config().debugging(seed=3).build_trainer().run()

The results of Lockstep's own runs are in `benchmarks/results/bench` (`lockstep bench`).
"""

from lockstep.envs.make import with_version
from lockstep.recipes.box2d import BOX2D
from lockstep.recipes.classic_control import CLASSIC_CONTROL
from lockstep.recipes.families import sign_of_rewards
from lockstep.recipes.games import GAMES
from lockstep.recipes.memory import MEMORY, small_rewards
from lockstep.recipes.mujoco import MUJOCO
from lockstep.recipes.offline import OFFLINE
from lockstep.recipes.recipe import Recipe
from lockstep.recipes.sparse_rewards import SPARSE_REWARDS

RECIPES: tuple[Recipe, ...] = (*CLASSIC_CONTROL, *BOX2D, *MEMORY, *MUJOCO, *GAMES, *SPARSE_REWARDS, *OFFLINE)
"""All recipes, at most one for each algorithm and environment."""


def find_recipe(algorithm: str, env_id: object) -> Recipe | None:
    """Return the recipe of an algorithm for an environment's id, None if there is none.

    An id without a version means the highest version, as in gymnasium.
    """
    env_id = with_version(env_id) if isinstance(env_id, str) else env_id
    for recipe in RECIPES:
        if recipe.algorithm == algorithm and recipe.env == env_id:
            return recipe
    return None


__all__ = ["RECIPES", "Recipe", "find_recipe", "sign_of_rewards", "small_rewards"]
