"""Recipes: YAML files that describe experiments, and how they are read.

- `settings`: the keys that the recipes of all tasks have; each task adds its own keys.
- `catalogue`: the tasks by name.
- `file`: reads a recipe file and applies `--set` and the changes of a system.
- `schema`: walks over the classes of settings, for the two files below.
- `errors`: explains what is wrong with a recipe.
- `keys`: lists the keys of all recipes, for `headwise keys` and docs/keys.md.
"""

from headwise.recipe.errors import RecipeError
from headwise.recipe.file import (
    RecipeFile,
    differences,
    load_recipe,
    shipped_recipes,
    to_yaml,
    with_defaults,
)

__all__ = [
    "RecipeError",
    "RecipeFile",
    "differences",
    "load_recipe",
    "shipped_recipes",
    "to_yaml",
    "with_defaults",
]
