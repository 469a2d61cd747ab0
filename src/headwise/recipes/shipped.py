"""The recipes that come with headwise."""

import json
from importlib import resources
from typing import NamedTuple

import yaml

# Written in C where PyYAML has been built with it, which is ten times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Offline(NamedTuple):
    """What is known of a recipe whose data are there once headwise is installed."""

    size: str  # number of parameters of its first system; `headwise cost` counts it
    data: str  # what a run is trained on
    minutes: str = ""  # that `headwise compare` takes on two cores, if it was measured


def offline_recipes() -> dict[str, Offline]:
    """Returns what is known of the recipes that run offline, those to begin with first.

    Docstrings are those of installed packages, whose number changes with their versions. The
    minutes are those of `make demo`, 600 steps with two systems at a time: docs/results.md.
    """
    file = resources.files("headwise") / "recipes" / "offline.json"
    known = json.loads(file.read_text(encoding="utf-8"))
    return {name: Offline(*facts) for name, facts in known.items()}


class Listed(NamedTuple):
    """What a list of recipes says of one of them."""

    name: str
    task: str
    description: str
    budget: str  # how long each run is
    systems: int  # how many there are
    offline: Offline | None  # what is known of it if its data are there


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
    """Returns what to list of the recipes that headwise ships, those that run offline first.

    They are read as plain YAML and not checked, since a list has to be there at once; the tests
    check every one of them.
    """
    found = []
    shipped, known = shipped_recipes(), offline_recipes()
    for name in [*known, *(name for name in shipped if name not in known)]:
        values = yaml.load(shipped[name], _Loader)
        training = values["training"]
        steps, epochs = training.get("max_steps"), training.get("epochs")
        found.append(
            Listed(
                name=name,
                task=values.get("task", "translation"),
                description=values["description"],
                budget=f"{steps:,} steps" if steps else f"{epochs} epochs",
                systems=len(values.get("systems") or {}),
                offline=known.get(name),
            )
        )
    return found
