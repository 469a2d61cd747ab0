"""Recipes: what an experiment's YAML file says, and how it is read.

- `settings`: the keys that the recipes of all tasks have; each task adds its own to them.
- `catalogue`: the tasks by name.
- `file`: reads a recipe file, applies `--set` and the changes of a system, and explains errors.
- `keys`: lists the keys of all recipes, for `headwise keys` and docs/keys.md.
"""

from headwise.recipe.file import (
    RecipeError,
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
