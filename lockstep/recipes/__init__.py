"""Recipes: settings that are known to learn an environment, with a return for reference.

    recipe = find_recipe("ppo", "CartPole-v1")
    recipe.config().debugging(seed=3).build_trainer().run()

What Lockstep itself reaches with them stands in `benchmarks/results/learning_*.json` (`benchmarks/learning.py`).
"""

from lockstep.recipes.offline import OFFLINE
from lockstep.recipes.online import ONLINE
from lockstep.recipes.recipe import Recipe

RECIPES: tuple[Recipe, ...] = (*ONLINE, *OFFLINE)
"""All recipes, at most one for each algorithm and environment."""


def find_recipe(algorithm: str, env_id: object) -> Recipe | None:
    """Return the recipe of an algorithm for an environment's id; None where there is none."""
    for recipe in RECIPES:
        if recipe.algorithm == algorithm and recipe.env == env_id:
            return recipe
    return None


__all__ = ["RECIPES", "Recipe", "find_recipe"]
