"""The evidence for a claim at a scale: the records of the systems that its tests name."""

from collections.abc import Sequence

from headwise.claims.catalogue.declared import AtScale, Claim, Scale, Subject
from headwise.claims.catalogue.experiments import Places
from headwise.claims.evidence.conditions import Conditions
from headwise.claims.evidence.kept_runs import (
    check_data,
    fingerprint_today,
    is_stale,
    kept_runs,
    sound,
)
from headwise.claims.evidence.quantities import Found, Kept, find_quantity
from headwise.claims.evidence.records import StoredTimes, read_times, times_paths
from headwise.recipe.settings import Recipe


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
            found = kept_runs(self.folder, key, self.recipe_of(here))
            check_data([*self._on(here.dataset), *found])
            self.used[key] = found
        return self.used[key]

    def _on(self, dataset: str | None) -> list[Kept]:
        return [each for here, of in self.used.items() if here.dataset == dataset for each in of]

    def sound_runs(self, subject: Subject) -> list[Kept]:
        return sound(self.runs(subject))

    def quantity_of(self, subject: Subject) -> Found | None:
        """The number that the claim is about; None if the runs do not have it."""
        return find_quantity(self.quantity, subject, self.sound_runs(subject), self.recipe(subject))

    def times(self) -> list[StoredTimes]:
        """The measurements of times of the experiment."""
        return [times for path in times_paths(self.folder) if (times := read_times(path))]

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
