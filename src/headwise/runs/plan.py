"""The runs of a comparison: which there are, on which data, and with which values.

Each has a folder `SYSTEM-seedN`, and each try of `--tune` has one in `tries/SYSTEM/`; of several
data sets all this is in the folder of the data set.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import Tries
from headwise.files import written_whole
from headwise.recipes.document import Change
from headwise.recipes.recipe import SYSTEM, Recipe, RecipeFile, task_class
from headwise.runs.folder import ENCODER, MODEL, TRIES, check_claim, check_inputs, claim
from headwise.runs.match import match_parameters
from headwise.runs.tuning import Grid, choose, in_words
from headwise.tasks.task import Task

_STAMP = "comparison.yaml"  # of a comparison's folder, in place of recipe.yaml


class Run(NamedTuple):
    """A run of a comparison, or a try of `--tune`."""

    folder: Path
    system: str
    recipe: Recipe
    task: Task


class OneDataset:
    """What is compared on one data set, whose data are read here.

    Args:
        file: the recipe.
        systems: their names; the first is the baseline.
        folder: of the runs.
        name: of the data set; None for `data` of the recipe as they stand.
        claims: whether folders become those of runs; else it is only found out whether they can,
            and nothing is written.

    Attributes:
        matched: what `match` chose for each system, in words.
        tuned: what each system has tried, and its choice.

    Raises:
        FolderError: the folder holds something else, or runs on other data.
        ValueError: data cannot be read.
    """

    def __init__(
        self, file: RecipeFile, systems: Sequence[str], folder: Path, name: str | None, claims: bool
    ) -> None:
        self.file, self.systems, self.folder, self.name = file, systems, folder, name
        self._claims = claims
        self.matched: dict[str, str] = {}
        self.tuned: dict[str, Tries] = {}
        self._changes: dict[str, list[Change]] = {system: [] for system in systems}
        # Other systems and seeds may join later, but on the same data and vocabularies.
        base = file.system(None, name)
        (claim if claims else check_claim)(folder, base, _STAMP)
        recipes = [*(self.recipe(system) for system in systems), base]
        starts = [r for r in recipes if r.pretrained is not None and SYSTEM not in r.pretrained]
        # All are encoded as by the model that one of them starts from, or has become.
        self._has_encoder = bool(starts)
        finished = next(iter(sorted(folder.glob(f"*/{MODEL}"))), None)
        self.task: Task = task_class(base.task)([*starts, *recipes][0], finished)
        if claims:
            check_inputs(folder, data=self.task.digest())

    def recipe(self, system: str, changes: Sequence[Change] = ()) -> Recipe:
        """Returns the recipe of a system, with what `--match` and `--tune` chose for it."""
        return self.file.system(system, self.name, [*self._changes[system], *changes])

    def parameters(self, system: str, changes: Sequence[Change] = ()) -> int:
        """Returns how many parameters a system has; its model takes no memory."""
        recipe = self.recipe(system, changes)
        with torch.device("meta"):
            return count_parameters(self.task.model_class(self.task.config(recipe, self.task)))

    def match(self) -> None:
        """Gives all systems as many parameters as the first has, by their width."""
        target = self.parameters(self.systems[0])
        for system in self.systems[1:]:
            config = self.task.config(self.recipe(system), self.task)

            def widths(embed_dim: int, ffn_dim: int) -> list[Change]:
                return [(("model", "embed_dim"), embed_dim), (("model", "ffn_dim"), ffn_dim)]

            def count(embed_dim: int, ffn_dim: int, system: str = system) -> int:
                return self.parameters(system, widths(embed_dim, ffn_dim))

            before = config.embed_dim, config.ffn_dim, config.num_heads
            try:
                self._changes[system] = widths(*match_parameters(*before, target, count))
            except ValueError as error:
                raise ValueError(f"--match parameters: {system}: {error}") from None
            found = self.parameters(system)
            words = in_words(self._changes[system])
            self.matched[system] = f"{words}: {found:,} parameters ({found / target - 1:+.2%})"

    def runs(self, seeds: Sequence[int]) -> list[Run]:
        """Returns the runs, of each seed those of all systems, and claims their folders.

        Raises:
            FolderError: a folder holds a run of another recipe.
        """
        return [
            self._run(f"{system}-seed{seed}", system, [(("training", "seed"), seed)])
            for seed in seeds
            for system in self.systems
        ]

    def tries(self, grid: Grid) -> dict[str, list[Run]]:
        """Returns the tries of each system, and claims their folders."""
        return {
            system: [
                self._run(f"{TRIES}/{system}/{grid.name(each)}", system, grid.of_try(each))
                for each in grid.combinations()
            ]
            for system in self.systems
        }

    def choose(self, grid: Grid) -> None:
        """Has each system choose among its tries, which have all ended.

        Raises:
            ValueError: all tries of a system diverged.
        """
        for system, tries in self.tries(grid).items():
            self.tuned[system] = choose(grid, [run.folder for run in tries])
        for system, tuned in self.tuned.items():
            self._changes[system] += grid.combinations()[tuned.chosen]

    def _run(self, name: str, system: str, changes: Sequence[Change]) -> Run:
        folder, recipe = self.folder / name, self.recipe(system, changes)
        (claim if self._claims else check_claim)(folder, recipe)
        needs_encoder = self._claims and self._has_encoder and recipe.pretrained is None
        if needs_encoder and not (folder / ENCODER).is_dir():
            with written_whole(folder / ENCODER) as partial:  # also for a process of its own
                partial.mkdir()
                self.task.save(partial)
        return Run(folder, system, recipe, self.task)
