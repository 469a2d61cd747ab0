"""Under what conditions runs are trained: those of an experiment, or changed ones for a question.

A question changes one key of an experiment's recipe. What it changes nothing of stays that of the
experiment: the folders that recipes name, and the tuned values that systems have chosen there.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headwise.claims.catalogue.declared import Scale
from headwise.claims.catalogue.experiments import (
    Experiment,
    Places,
    chosen_changes,
    find_experiment,
    grid_of,
    read_recipe,
)
from headwise.claims.evidence.records import StoredTries, run_path
from headwise.claims.evidence.tries import tries_of
from headwise.recipe import RecipeFile
from headwise.recipe.file import Change, split_path
from headwise.recipe.settings import Recipe


@dataclass(frozen=True)
class Conditions:
    """The recipe of an experiment, with further changes if a question asks for them.

    Attributes:
        scale: the scale.
        name: of the experiment.
        places: the folders of this machine.
        changes: further changes to the recipe, as `--set` takes them.
        systems: the systems that are trained under these changes, which may suit no others; all
            systems of the experiment if empty.
        folder: where the runs with these changes lie in the folders of the experiment.
        chooses: whether systems choose tuned values under these conditions. If not, they have the
            values that they chose in the experiment, but for keys that `changes` set.
    """

    scale: Scale
    name: str
    places: Places
    changes: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    folder: str = ""
    chooses: bool = True

    @property
    def title(self) -> str:
        """Returns what messages call the conditions."""
        return " ".join([self.scale, self.name, *self.folder.split("/")[1:]])

    @cached_property
    def experiment(self) -> Experiment:
        """Returns the experiment with the changes."""
        declared = find_experiment(self.scale, self.name)
        return declared.model_copy(
            update={
                "changes": (*declared.changes, *self.changes),
                "systems": self.systems or declared.systems,
            }
        )

    @property
    def unchanged(self) -> "Conditions":
        """Returns the conditions of the experiment itself."""
        return Conditions(self.scale, self.name, self.places)

    @cached_property
    def own(self) -> Places:
        """Returns the folders of the runs and of what is kept of them."""
        of = self.places.of(self.scale, self.name)
        if not self.folder:
            return of
        # Beside the experiment's own runs and not among them: either may be trained first.
        runs = of.runs.with_name(f"{self.name}-why") / self.folder.partition("/")[2]
        return Places(of.data, runs, of.evidence / self.folder)

    @cached_property
    def plain(self) -> RecipeFile:
        """Returns the recipe with the names of folders as they stand."""
        return read_recipe(self.experiment, None)

    @cached_property
    def file(self) -> RecipeFile:
        """Returns the recipe with the folders of this machine."""
        return read_recipe(self.experiment, self.places.of(self.scale, self.name))

    def tries(self, system: str) -> StoredTries | None:
        """Returns the finished tries that decided a system's tuned values; None without any."""
        return tries_of(self.plain, self.own.evidence, system, grid_of(self.experiment))

    def choice(self, system: str) -> list[Change]:
        """Returns the tuned values of a system, as changes to its recipe; empty if none."""
        if self.chooses:
            tries = self.tries(system)
            return [] if tries is None else chosen_changes(tries.chosen_values)
        varied = [split_path(change.partition("=")[0]) for change in self.changes]
        ours = {path[2:] if path[:2] == ("systems", system) else path for path in varied}
        return [change for change in self.unchanged.choice(system) if change[0] not in ours]

    def recipe(self, system: str, dataset: str | None) -> Recipe:
        """Returns the recipe of a system, with the names of folders as they stand."""
        return self.plain.system(system, dataset, self.choice(system))

    def run_folder(self, system: str, dataset: str | None, seed: int) -> Path:
        """Returns the folder in which a run is trained."""
        return self.own.runs / (dataset or "") / f"{system}-seed{seed}"

    def run_path(self, system: str, dataset: str | None, seed: int) -> Path:
        """Returns the path of the record that is kept of a run."""
        return run_path(self.own.evidence / (dataset or ""), system, seed)
