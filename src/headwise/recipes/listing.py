"""What `headwise recipes` lists of the recipes that come with headwise."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from headwise.recipes.document import flatten, read_document, shipped_recipes

# Data that are there once headwise is installed: the names that tasks have as `built_in`, but those
# that read files. Tasks are not asked, since that takes seconds.
OFFLINE = {"interface-strings", "pydoc-topics", "package-docs", "docstrings", "generated", "pairs"}
OFFLINE |= {"digits", "photographs"}


class Listed(NamedTuple):
    """What a list of recipes says of one of them."""

    name: str
    task: str
    budget: str  # how long each run is
    systems: int  # how many there are
    description: str
    is_offline: bool  # whether its data are there once headwise is installed


def listed_recipes() -> list[Listed]:
    """Returns what to list of the recipes that headwise ships, those that run offline first.

    They are not checked, since a list has to be there at once; the tests check every one of them.
    """
    found = []
    for name in shipped_recipes():
        document = read_document(name)
        training = document["training"]
        steps, epochs = training.get("max_steps"), training.get("epochs")
        found.append(
            Listed(
                name=name,
                task=document["task"],
                budget=f"{steps:,} steps" if steps else f"{epochs} epochs",
                systems=len(document["systems"]),
                description=document["description"],
                is_offline=set(_sources(document)) <= OFFLINE,
            )
        )
    return sorted(found, key=lambda listed: not listed.is_offline)


def _sources(document: dict[str, Any]) -> Iterator[str]:
    """Yields the names of data, and the files, that a recipe reads."""
    for key, value in flatten(document).items():
        if key.rpartition(".")[2] == "path" or "files" in key.split("."):
            yield str(value)
