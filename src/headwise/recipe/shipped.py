"""The recipes that come with headwise."""

from importlib import resources
from typing import NamedTuple

import yaml

# Written in C where PyYAML has been built with it, which is ten times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Listed(NamedTuple):
    """What a list of recipes says of one of them."""

    name: str
    task: str
    description: str


def shipped_recipes() -> dict[str, str]:
    """Returns the recipes that headwise ships: name to YAML text, sorted by name."""
    folder = resources.files("headwise") / "recipes"
    texts = {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }
    return dict(sorted(texts.items()))


def listed_recipes() -> list[Listed]:
    """Returns what to list of the recipes that headwise ships, sorted by name.

    They are read as plain YAML and not checked, since a list has to be there at once; the tests
    check every one of them.
    """
    found = []
    for name, text in shipped_recipes().items():
        values = yaml.load(text, _Loader)
        found.append(Listed(name, values.get("task", "translation"), values["description"]))
    return found
