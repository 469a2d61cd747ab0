"""Recipes as tests read them: plain values, and what is said of a recipe that is wrong.

How a recipe is read, merged and checked is known here and nowhere else.
"""

from collections.abc import Iterator
from typing import Any

from headwise.recipes.document import RecipeError, read_document, shipped_recipes
from headwise.recipes.recipe import load_recipe

__all__ = ["RecipeError", "places", "resolved", "shipped", "variants"]


def shipped() -> dict[str, dict[str, Any]]:
    """The recipes that headwise ships, each with the keys of its base, without defaults."""
    return {name: read_document(name) for name in shipped_recipes()}


def resolved(
    recipe: object, *changes: str, system: str | None = None, dataset: str | None = None
) -> dict[str, Any]:
    """All values of a recipe, the defaults included, of one system on one data set.

    Args:
        recipe: its name or its path.
        changes: what `--set` takes.
    """
    file = load_recipe(str(recipe), changes)
    return file.system(system, dataset).model_dump(mode="json", by_alias=True)


def variants(recipe: object, *changes: str) -> Iterator[dict[str, Any]]:
    """The values of each system on each data set of a recipe."""
    file = load_recipe(str(recipe), changes)
    for system in file.system_names:
        for dataset in file.dataset_names or [None]:
            yield file.system(system, dataset).model_dump(mode="json", by_alias=True)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside a document."""
    inside = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    for key, inner in inside:
        yield (*path, key)
        yield from places(inner, (*path, key))
