"""The tries of one system, before they are trained: its recipe with each combination of values.

Every system has every combination. Those that differ for it in nothing, since they set the rule of
training of a system that its model does not have, are one try.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from headwise.models.plan import rule_name
from headwise.models.sites import attention_sites
from headwise.recipe import RecipeError, RecipeFile, to_yaml
from headwise.recipe.catalogue import task_class
from headwise.recipe.file import Change
from headwise.recipe.settings import Recipe
from headwise.runs.grid import TUNING_SEED, Grid, KeyPath, dotted
from headwise.training.settings import TrainingSettings

_LONGEST_NAME = 120  # of a folder


class Candidate(NamedTuple):
    """One combination of tuned values for one system.

    Attributes:
        values: path of a key to its value, as the recipe reads it, without the settings of systems
            that the model does not have.
        recipe: of the runs, if they are to have these values.
        training: how the try is trained: with its own seed and number of steps.
    """

    values: dict[str, Any]
    recipe: Recipe
    training: TrainingSettings

    def folder_name(self, steps: int | None) -> str:
        """Returns a name for the folder of the try.

        Args:
            steps: of `--tune-steps`; tries of other numbers of steps have other folders.
        """
        parts = [f"{key}={_plain(value)}" for key, value in self.values.items()]
        parts += [f"steps={steps}"] if steps is not None else []
        wanted = ",".join(parts)
        name = re.sub(r"[^\w.,=+-]+", "-", wanted)
        if name == wanted and len(name) <= _LONGEST_NAME:
            return name
        return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"


def candidates(file: RecipeFile, system: str, dataset: str | None, grid: Grid) -> list[Candidate]:
    """Returns a candidate for every combination that differs for a system; no data are read.

    Args:
        file: the recipe.
        system: name of the system.
        dataset: name of the data set; None for the recipe's `data`.
        grid: the tuned values.

    Raises:
        RecipeError: there is no such key, or a value is wrong.
        ValueError: a value is there twice, or the tries end while the learning rate still rises.
    """
    found: dict[str, Candidate] = {}  # by the recipe
    combined = []
    for combination in grid.combinations():
        try:
            asked = file.system(system, dataset, combination)
            idle = _idle_paths(asked, grid)
            changes = [change for change in combination if change[0] not in idle]
            recipe = file.system(system, dataset, changes)
            of_try = file.system(system, dataset, [*changes, *_changes_of_tries(grid)])
        except RecipeError as error:
            raise RecipeError(f"--tune {_shown(combination)}: {error}") from None
        _check_warmup(recipe.training, grid.steps)
        settings = asked.model_dump(mode="json", by_alias=True)
        values = {path: _value(settings, path) for path in grid.values}
        if values in combined:
            raise ValueError(
                f"--tune names {_shown(list(values.items()))} twice, expected different values"
            )
        combined.append(values)
        own = {dotted(path): values[path] for path, _ in changes}
        found.setdefault(to_yaml(recipe), Candidate(own, recipe, of_try.training))
    return list(found.values())


def _changes_of_tries(grid: Grid) -> list[Change]:
    changes: list[Change] = [(("training", "seed"), TUNING_SEED)]
    if grid.steps is not None:
        changes.append((("training", "max_steps"), grid.steps))
    return changes


def _idle_paths(recipe: Recipe, grid: Grid) -> set[KeyPath]:
    """The tuned keys of rules of training that no system of the recipe's model has."""
    rules = recipe.training.of_rules()
    named = {path for path in grid.values if path[0] == "training" and path[1] in rules}
    if not named:
        return set()
    task = task_class(recipe.task)
    with torch.device("meta"):
        model = task.model_class(task.nominal_config(recipe))
    systems = {type(place.module) for place in attention_sites(model)}
    held = {rule_name(system) for system in systems if system.rule is not None}
    return {path for path in named if path[1] not in held}


def _check_warmup(training: TrainingSettings, steps: int | None) -> None:
    """Raises `ValueError` if shorter tries never reach the learning rate that runs do reach."""
    if steps is None or training.warmup(steps) < steps:
        return
    rises = training.warmup(steps)
    if training.max_steps is None or training.max_steps > rises:
        raise ValueError(
            f"--tune-steps is {steps}, expected more than the {rises} steps of "
            f"training.warmup_steps: the tries would end while the learning rate still rises"
        )


def _value(settings: Mapping[str, Any], path: KeyPath) -> Any:
    value: Any = settings
    for key in path:
        value = value[key]
    return value


def _shown(changes: Sequence[Change]) -> str:
    return ", ".join(f"{dotted(path)}={value}" for path, value in changes)


def _plain(value: Any) -> str:
    return str(value).replace(" ", "").strip("[]")
