"""Recipes: YAML files that describe experiments, and how they are read."""
