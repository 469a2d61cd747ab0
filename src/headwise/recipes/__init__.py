"""Recipes: YAML files that describe experiments, and how they are read.

- `settings`: the keys that the recipes of all tasks have; each task adds its own keys.
- `catalogue`: the tasks by name.
- `pretrained`: what a recipe takes over from the run that its model starts from.
- `file`: reads a recipe file, applies `--set` and the changes of a system, and compares two.
- `shipped`: the recipe files that come with headwise.
- `schema`: walks over the classes of settings, for the two files below.
- `errors`: explains what is wrong with a recipe.
- `keys`: lists the keys of all recipes, for `headwise keys` and docs/keys.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
