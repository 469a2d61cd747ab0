"""Why a system does worse than its paper says, looked for by varying one key of a recipe.

- `questions`: what is varied, of which systems.
- `answers`: the differences along the key; `trends`: whether they grow or shrink.
"""
