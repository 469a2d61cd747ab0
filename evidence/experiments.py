"""The experiments by which claims are tested: an ordinary recipe for each at each scale.

Claims that name the same experiment share its runs. A recipe names no folder of a machine: `{data}`
in it stands for the folder with the data. What tells a recipe from others is its hash without it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field

from evidence import claims
from evidence.claims import AtScale, Claim, Declared, Scale, all_claims
from evidence.results import Choice, RecordedTries, Run, Table, Tried, check_data
from headwise.analysis.results import Try
from headwise.recipes.document import (
    Change,
    flatten,
    parse_change,
    read_document,
    shipped_recipes,
    split_path,
)
from headwise.recipes.recipe import Recipe, RecipeFile
from headwise.yaml import read_yaml

DATA = "{data}"
# The first seed of runs, so that no run before this edition has one of theirs.
FIRST_SEED = 11
MOST_BEYOND = 3  # values that a tuned key adds to those declared


class Key(Declared):
    """A key of the recipe with the values to choose from, in ascending order."""

    key: str
    values: tuple[float, ...] = Field(min_length=2)
    factor: float | None = Field(None, gt=1)  # from the last value to one beyond; None for none
    # Losses no further than this above the lowest count as equal: then the smallest value is taken.
    equal_within: float = Field(0.0, ge=0)

    def beyond(self, best: float, values: Sequence[float]) -> float | None:
        """Returns the value to try next where the best is at an end; None if it is not."""
        if self.factor is None or len(values) >= len(self.values) + MOST_BEYOND:
            return None
        if best == values[-1]:
            return float(f"{best * self.factor:.6g}")
        return float(f"{best / self.factor:.6g}") if best == values[0] else None


class Experiment(Declared):
    """Runs of the systems of one recipe, all under one budget; options as `compare` has them."""

    recipe: str  # a file of `catalogue/recipes/`, or the name of a recipe of headwise
    changes: tuple[str, ...] = ()
    describes: str | None = None  # where the changes leave little of the recipe's description
    data: str = ""  # what the models learn from, in a few words
    tune: tuple[Key, ...] = ()  # what systems choose, in turn
    tune_on: str | None = None  # the data set on which systems choose, of several


class Places(NamedTuple):
    """Folders of this machine, which recipes do not name: data, trained runs, kept results."""

    data: Path
    runs: Path
    results: Path


def experiments(scale: Scale) -> dict[str, Experiment]:
    """Returns the experiments of a scale by their names; at `paper`, all shipped recipes too."""
    found = _declared((claims.CATALOGUE / "scales.yaml").read_text(encoding="utf-8"), scale)
    if scale != "paper":
        return found
    return {name: Experiment(recipe=name) for name in shipped_recipes()} | found


@cache
def _declared(text: str, scale: Scale) -> dict[str, Experiment]:
    of_scale = read_yaml(text)[scale] or {}
    return {name: Experiment.model_validate(values) for name, values in of_scale.items()}


@dataclass(frozen=True)
class Conditions:
    """Under what conditions runs are trained: an experiment, or what a question changes of it.

    What a question changes nothing of stays that of the experiment: the folders that recipes name,
    and the tuned values that systems have chosen there.
    """

    scale: Scale
    name: str
    places: Places
    changes: tuple[str, ...] = ()  # to the recipe, as `--set` takes them
    at: str = ""  # question and value, if a question asks for the changes
    chooses: bool = True  # if not, systems have the tuned values of the experiment

    @property
    def title(self) -> str:
        """Returns what messages call the conditions."""
        return " ".join([self.scale, self.name, *self.at.split("/")]).strip()

    @cached_property
    def experiment(self) -> Experiment:
        """Returns the experiment with the changes."""
        found = experiments(self.scale)[self.name]
        return found.model_copy(update={"changes": (*found.changes, *self.changes)})

    @property
    def unchanged(self) -> "Conditions":
        """Returns the conditions of the experiment itself."""
        return Conditions(self.scale, self.name, self.places)

    @property
    def table(self) -> Table:
        """Returns what is kept of the experiment, runs that questions have changed included."""
        return Table(self.places.results / self.scale / f"{self.name}.jsonl")

    @property
    def run_folder(self) -> Path:
        """Returns the folder in which runs are trained."""
        # Beside the experiment's own runs and not among them: either may be trained first.
        name = f"{self.name}-why/{self.at}" if self.at else self.name
        return self.places.runs / self.scale / name

    @cached_property
    def plain(self) -> RecipeFile:
        """Returns the recipe with the names of folders as they stand."""
        return _recipe_file(self.experiment.recipe, DATA, *self.experiment.changes)

    @cached_property
    def file(self) -> RecipeFile:
        """Returns the recipe with the folders of this machine."""
        data = self.places.data
        if not data.is_dir() and DATA in self.plain.yaml():
            raise FileNotFoundError(
                f"the folder with the data is {str(data)!r}, which is not there: name yours by "
                f"--data DIR or the variable HEADWISE_DATA; docs/practice.md says what lies in it"
            )
        changes = self.experiment.changes
        if self.scale == "laptop" and torch.accelerator.is_available():
            # A GPU may train these runs too: as a laptop does, and not in bf16.
            changes = ("training.precision=float32", *changes)
        return _recipe_file(self.experiment.recipe, str(data.absolute()), *changes)

    @property
    def tune(self) -> tuple[Key, ...]:
        """Returns what systems choose under these conditions; empty if they do not choose."""
        return self.experiment.tune if self.chooses else ()

    def chosen(self, system: str) -> Choice | None:
        """Returns what decided a system's tuned values; None without finished tries.

        Tries of another recipe, or of other values than today's, count for nothing.
        """
        kept = self.table.find(Choice, at=self.at, system=system) if self.tune else []
        return next((of for of in kept if of == self.choice_from(system, of.tries)), None)

    def tried(self, system: str) -> list[Try]:
        """Returns the tries of a system with the recipe and the tuned keys of today."""
        recipe, keys = self._untuned_hash(system), {key.key for key in self.tune}
        kept = self.table.find(Tried, at=self.at, system=system, recipe=recipe)
        return [of.tried for of in kept if of.tried.values.keys() == keys]

    def tried_from(self, system: str, tried: Try) -> Tried:
        """Returns the record of a try with the recipe of today."""
        return Tried(at=self.at, system=system, recipe=self._untuned_hash(system), tried=tried)

    def choice_from(self, system: str, tries: RecordedTries) -> Choice:
        """Returns the record of a system's tries with the recipe and the values of today."""
        keys = [key.model_dump(mode="json") for key in self.tune]
        recipe = self._untuned_hash(system)
        return Choice(at=self.at, system=system, recipe=recipe, keys=keys, tries=tries)

    def _untuned_hash(self, system: str) -> str:
        dataset = None if self.plain.has_data else self.plain.dataset_names[0]
        return recipe_hash(self.plain.system(system, dataset))

    def choice(self, system: str) -> list[Change]:
        """Returns the tuned values of a system, as changes to its recipe; empty if none."""
        if self.chooses:
            kept = self.chosen(system)
            values: Mapping[str, Any] = {} if kept is None else kept.values
            return [(split_path(key), value) for key, value in values.items()]
        varied = [split_path(change.partition("=")[0]) for change in self.changes]
        ours = {path[2:] if path[:2] == ("systems", system) else path for path in varied}
        return [change for change in self.unchanged.choice(system) if change[0] not in ours]

    def recipe(self, system: str, dataset: str | None) -> Recipe:
        """Returns the recipe of a system, with the names of folders as they stand."""
        return _recipe_of(self.plain, system, dataset, tuple(self.choice(system)))[0]

    def runs(self, system: str, dataset: str | None) -> list[Run]:
        """Returns the runs of a system that were made with the recipe of today, by their seeds."""
        known = self.table.find(Run, at=self.at, dataset=dataset, system=system)
        if not known:
            return []
        _, expected = _recipe_of(self.plain, system, dataset, tuple(self.choice(system)))
        found = [run for run in known if run.recipe == expected]
        check_data(found)
        return found


@cache
def _recipe_file(name: str, data: str, *changes: str) -> RecipeFile:
    """Reads a recipe once for all claims that name it; `data` is the folder with the data."""
    own = claims.CATALOGUE / "recipes" / f"{name}.yaml"
    document = read_document(str(own) if own.is_file() else name)
    parsed = [(keys, _with_folder(value, data)) for keys, value in map(parse_change, changes)]
    return RecipeFile(name, _with_folder(document, data), parsed)


def _with_folder(value: Any, folder: str) -> Any:
    """The values of a recipe with a folder in the place of `DATA`."""
    if isinstance(value, dict):
        return {key: _with_folder(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_folder(inner, folder) for inner in value]
    return value.replace(DATA, folder) if isinstance(value, str) else value


@cache
def _recipe_of(
    file: RecipeFile, system: str, dataset: str | None, choice: tuple[Change, ...]
) -> tuple[Recipe, str]:
    """Returns the recipe of a system with its hash, made once for all claims about it."""
    recipe = file.system(system, dataset, choice)
    return recipe, recipe_hash(recipe)


_UNCOUNTED: dict[str, Any] = {
    "title": True,
    "description": True,
    "system": True,
    "training": {"seed", "report_to", "snapshots", "loader_workers"},
}


def recipe_hash(recipe: Recipe) -> str:
    """Returns a hash of a recipe of one system, whatever its seed, loggers and description.

    What has its default does not count, so that a new key changes no hash; nor does a new default.
    """
    given = recipe.model_dump(mode="json", exclude=_UNCOUNTED, exclude_defaults=True)
    text = json.dumps({**flatten(given), "task": recipe.task}, sort_keys=True)
    text = text.replace(f"{Path.cwd()}/", "")  # recipes make paths absolute
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def tested_by(claim: Claim, scale: Scale) -> AtScale | None:
    """Returns what tests a claim at a scale; None if no experiment of the scale does."""
    where = claim.experiment_at(scale)
    return where if where is not None and where.experiment in experiments(scale) else None


class Needed(NamedTuple):
    """What claims need of one experiment."""

    systems: Mapping[str | None, list[str]]  # by data set
    times: list[str]  # of which times are measured, besides the baseline


def needed_runs(asked: Mapping[str, Claim], scale: Scale) -> dict[str, Needed]:
    """Returns what claims need at a scale, by experiment; runs that several need are named once."""
    found: dict[str, tuple[dict[str | None, list[str]], list[str]]] = {}
    for claim in asked.values():
        where = tested_by(claim, scale)
        if where is None or claim.quantity is None:
            continue
        systems, times = found.setdefault(where.experiment, ({}, []))
        for here in map(where.named, claim.subjects()):
            of = times if claim.quantity.is_of_times else systems.setdefault(here.dataset, [])
            of += [here.system] * (here.system not in of)
    return {name: Needed(*of) for name, of in found.items()}


def wanted_ablations(scale: Scale, name: str, system: str) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the ablations under which claims want the loss of a system, and its scores too.

    All claims count: a run is kept once, and its model may be gone when the next claim asks.
    """
    losses: dict[str, None] = {}
    scores: dict[str, None] = {}
    for claim in all_claims().values():
        where = tested_by(claim, scale)
        if where is None or where.experiment != name:
            continue
        for subject in claim.subjects():
            if where.named(subject).system == system:
                scored = [subject.ablated] if subject.ablated else []
                losses |= dict.fromkeys([*subject.without, *scored])
                scores |= dict.fromkeys(scored)
    return list(losses), list(scores)
