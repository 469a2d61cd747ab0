"""The recipes that come with headwise."""

from importlib import resources
from typing import NamedTuple

import yaml

# Written in C where PyYAML has been built with it, which is ten times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Offline(NamedTuple):
    """What is known of a recipe whose data are there once headwise is installed.

    Attributes:
        size: number of parameters of its first system; `headwise cost` counts it.
        data: what a run is trained on.
        minutes: that `headwise compare` takes with all systems on two cores, if it was measured.
    """

    size: str
    data: str
    minutes: str = ""


OFFLINE: dict[str, Offline] = {}


class Listed(NamedTuple):
    """What a list of recipes says of one of them.

    Attributes:
        name: of the recipe.
        task: its task.
        description: a line.
        budget: how long each run is.
        systems: how many there are.
        offline: what is known of it if its data are there; None if they are not.
    """

    name: str
    task: str
    description: str
    budget: str
    systems: int
    offline: Offline | None


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
        training = values["training"]
        steps, epochs = training.get("max_steps"), training.get("epochs")
        found.append(
            Listed(
                name=name,
                task=values.get("task", "translation"),
                description=values["description"],
                budget=f"{steps:,} steps" if steps else f"{epochs} epochs",
                systems=len(values.get("systems") or {}),
                offline=OFFLINE.get(name),
            )
        )
    return found
