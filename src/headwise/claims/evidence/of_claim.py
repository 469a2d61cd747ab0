"""The evidence for a claim at a scale: the records of the systems that its tests name."""

import math
from collections.abc import Sequence
from pathlib import Path

from headwise.claims.catalogue.declared import AtScale, Claim, Scale, Subject
from headwise.claims.catalogue.experiments import Places, recipe_hash
from headwise.claims.evidence.conditions import Conditions
from headwise.claims.evidence.fingerprint import computes_alike, fingerprint
from headwise.claims.evidence.quantities import Found, Kept, find_quantity
from headwise.claims.evidence.records import TIMES, StoredTimes, read_run, read_times, run_path
from headwise.recipe.settings import Recipe

_MOST_SEEDS = 100  # that are looked for
_COMPUTED: dict[str, list[float]] = {}  # hash of a recipe to its fingerprint


def kept_runs(folder: Path, here: Subject, recipe: Recipe) -> list[Kept]:
    """Returns the runs of a system that were made with a recipe, by their seeds.

    Args:
        folder: with the evidence of the experiment.
        here: names the system and its data set.
        recipe: of the system on these data; runs of other recipes are left out.
    """
    expected = recipe_hash(recipe)
    return [
        Kept(path, run)
        for seed in range(1, _MOST_SEEDS + 1)
        if (path := run_path(folder / (here.dataset or ""), here.system, seed)).is_file()
        and (run := read_run(path)) is not None
        and run.recipe == expected
    ]


def sound(runs: Sequence[Kept]) -> list[Kept]:
    """Returns those runs that did not diverge."""
    return [each for each in runs if math.isfinite(each.run.validation_loss)]


def fingerprint_today(recipe: Recipe) -> Sequence[float]:
    """Returns what the code computes today for a recipe; once for all who ask for it."""
    key = recipe_hash(recipe)
    if key not in _COMPUTED:
        _COMPUTED[key] = fingerprint(recipe)
    return _COMPUTED[key]


def is_stale(runs: Sequence[Kept], recipe: Recipe) -> bool:
    """Whether one of the runs was made by code that computes otherwise than today's."""
    return any(not computes_alike(each.run.fingerprint, fingerprint_today(recipe)) for each in runs)


class ClaimEvidence:
    """The records of the systems that the tests of a claim name.

    Attributes:
        used: system and data set to the runs that were read of them, those that diverged too.
    """

    def __init__(self, claim: Claim, scale: Scale, where: AtScale, places: Places) -> None:
        self.where = where
        self.conditions = Conditions(scale, where.experiment, places)
        self.folder = self.conditions.own.evidence
        self.quantity = claim.quantity
        self.used: dict[Subject, list[Kept]] = {}
        self._times_stale: list[str] = []

    def recipe(self, subject: Subject) -> Recipe:
        return self.recipe_of(self.where.named(subject))

    def recipe_of(self, here: Subject) -> Recipe:
        return self.conditions.recipe(here.system, here.dataset)

    def runs(self, subject: Subject) -> list[Kept]:
        """The runs of a system with the recipe of today, by their seeds."""
        here = self.where.named(subject)
        key = Subject(system=here.system, dataset=here.dataset)
        if key not in self.used:
            self.used[key] = kept_runs(self.folder, key, self.recipe_of(here))
        return self.used[key]

    def sound_runs(self, subject: Subject) -> list[Kept]:
        return sound(self.runs(subject))

    def quantity_of(self, subject: Subject) -> Found | None:
        """The number that the claim is about; None if the runs do not have it."""
        return find_quantity(self.quantity, subject, self.sound_runs(subject), self.recipe(subject))

    def times(self) -> StoredTimes | None:
        """The times of the experiment; None if they were not measured."""
        return read_times(self.folder / TIMES)

    def stale(self) -> list[str]:
        """Returns the systems with runs that the code of today would not repeat."""
        found = dict.fromkeys(self._times_stale)
        for here, runs in self.used.items():
            if is_stale(runs, self.recipe_of(here)):
                found[here.system] = None
        return list(found)

    def fingerprint_today(self, here: Subject) -> Sequence[float]:
        return fingerprint_today(self.recipe_of(here))

    def note_stale_times(self, name: str) -> None:
        """Has `stale` name a system whose times are those of other code."""
        self._times_stale.append(name)
