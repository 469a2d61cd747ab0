"""What a comparison is of: which runs there are, on which data, and with which values.

Each run has a folder `SYSTEM-seedN`, and each try of `--tune` has one in `tries/SYSTEM/`; of
several data sets all this is in the folder of the data set. Nothing is written before `claim`.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import RunResult, Tries
from headwise.files import written_whole
from headwise.recipes.document import Change, RecipeError
from headwise.recipes.recipe import SYSTEM, Recipe, RecipeFile, task_class
from headwise.runs.folder import check_claim, check_inputs, claim, read_result
from headwise.runs.match import match_parameters
from headwise.runs.names import ENCODER, MODEL, TRIES
from headwise.runs.run import lines_of
from headwise.runs.tuning import Grid, check_grid, choose, in_words
from headwise.tasks.task import Task

_STAMP = "comparison.yaml"  # of a comparison's folder, in place of recipe.yaml


class Run(NamedTuple):
    """A run of a comparison, or a try of `--tune`."""

    folder: Path
    system: str
    recipe: Recipe
    task: Task

    def result(self) -> RunResult | None:
        """Returns its result; None before it is finished, also with new test sets of its recipe."""
        result = read_result(self.folder)
        tests = self.recipe.data.tests.keys() if self.recipe.evaluation.test else set()
        return result if result is not None and tests <= result.tests.keys() else None


class OneDataset:
    """What is compared on one data set; its data are read here.

    Args:
        file: the recipe.
        systems, seeds: what is trained; the first system is the baseline.
        folder: of the runs.
        name: of the data set; None for `data` of the recipe as they stand.
        grid: values from which every system chooses; None for no tries.

    Attributes:
        task: the data, as all systems read them.
        matched: what `match` chose for each system, in words.
        tuned: what each system has tried, and its choice.

    Raises:
        FolderError: the folder holds something else.
        ValueError: the data cannot be read.
    """

    def __init__(
        self,
        file: RecipeFile,
        systems: Sequence[str],
        seeds: Sequence[int],
        folder: Path,
        name: str | None,
        grid: Grid | None,
    ) -> None:
        self.file, self.systems, self.folder, self.name = file, systems, folder, name
        self._seeds, self._grid = seeds, grid
        self.matched: dict[str, str] = {}
        self.tuned: dict[str, Tries] = {}
        self._changes: dict[str, list[Change]] = {system: [] for system in systems}
        # Other systems and seeds may join later, but on the same data and vocabularies.
        self._base = file.system(None, name)
        check_claim(folder, self._base, _STAMP)
        recipes = [*map(self.recipe, systems), self._base]
        starts = [r for r in recipes if r.pretrained is not None and SYSTEM not in r.pretrained]
        # All data are encoded as by the model that one of them starts from, or has become.
        self._has_encoder = bool(starts)
        finished = next(iter(sorted(folder.glob(f"*/{MODEL}"))), None)
        self.task: Task = task_class(self._base.task)([*starts, *recipes][0], finished)

    def recipe(self, system: str, changes: Sequence[Change] = ()) -> Recipe:
        """Returns the recipe of a system, with what was matched and tuned."""
        return self.file.system(system, self.name, [*self._changes[system], *changes])

    def parameters(self, system: str, changes: Sequence[Change] = ()) -> int:
        """Returns how many parameters a system has; its model takes no memory."""
        recipe = self.recipe(system, changes)
        with torch.device("meta"):
            return count_parameters(self.task.model_class(self.task.config(recipe, self.task)))

    def match(self) -> None:
        """Gives all systems as many parameters as the first has, by their width.

        Raises:
            ValueError: no width of a system gives this number.
        """
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

    def runs(self) -> list[Run]:
        """Returns the runs, of each seed those of all systems, so that early results compare."""
        return [
            self._run(f"{system}-seed{seed}", system, [(("training", "seed"), seed)])
            for seed in self._seeds
            for system in self.systems
        ]

    def tries(self) -> list[Run]:
        """Returns the tries of all systems."""
        return [
            self._run(f"{TRIES}/{system}/{grid.name(each)}", system, grid.of_try(each))
            for grid in filter(None, [self._grid])
            for system in self.systems
            for each in grid.combinations()
        ]

    def _run(self, name: str, system: str, changes: Sequence[Change]) -> Run:
        return Run(self.folder / name, system, self.recipe(system, changes), self.task)

    def choose(self, console: Console) -> None:
        """Has each system choose among its tries, which have all ended, and says what it chose.

        Raises:
            ValueError: all tries of a system diverged.
        """
        grid, tries = self._grid, self.tries()
        if grid is None:
            return
        for system in self.systems:
            found = choose(grid, [run.folder for run in tries if run.system == system])
            chosen, failed = grid.combinations()[found.chosen], sum(t.diverged for t in found.tries)
            self.tuned[system] = found
            self._changes[system] += chosen
            label = f"{self.name} {system}" if self.name else system
            line = (
                f"{label}: {in_words(chosen)}, validation loss "
                f"{found.tries[found.chosen].validation_loss:.4g}, the best of {len(found.tries)} "
                f"tries{f', {failed} of which diverged' if failed else ''}"
            )
            console.print(line, style="dim", highlight=False, markup=False)
            for note in found.notes:
                console.print(f"{label}: {note}", style="yellow", highlight=False, markup=False)

    def claim(self, runs: list[Run]) -> list[Run]:
        """Makes folders those of runs; whoever calls it has locked the folder of the comparison.

        Raises:
            FolderError: a folder holds a run of another recipe, or the data have changed.
        """
        claim(self.folder, self._base, _STAMP)
        check_inputs(self.folder, data=self.task.digest())
        for run in runs:
            claim(run.folder, run.recipe)
            encoder = run.folder / ENCODER
            if self._has_encoder and run.recipe.pretrained is None and not encoder.is_dir():
                with written_whole(encoder) as partial:  # also for a process of its own
                    partial.mkdir()
                    self.task.save(partial)
        return runs


def plan(
    file: RecipeFile,
    systems: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    console: Console,
    *,
    datasets: Sequence[str] = (),
    match: bool = False,
    grid: Grid | None = None,
) -> list[OneDataset]:
    """Reads all that is compared, so that an error shows before anything is trained; see `compare`.

    Raises:
        FolderError: a folder holds something else.
        ValueError: a recipe is wrong, data cannot be read, no width gives a system its number of
            parameters, or tuning would undo what the user has said.
    """
    file.check_comparable()
    names: list[str | None] = [*datasets] or [None]
    if not all(file.system(of, name).evaluation.test for of in systems for name in names):
        raise RecipeError("evaluation.test is false, expected true: test scores are compared")
    if grid is not None:
        check_grid(grid, file, systems, seeds, match=match)
        for of, name, each in product(systems, names, grid.combinations()):
            file.system(of, name, grid.of_try(each))  # which says what is wrong
    planned = []
    for name in names:
        console.print(f"reading {name or 'the data'}", style="dim", highlight=False, markup=False)
        one = OneDataset(file, systems, seeds, folder / (name or ""), name, grid)
        for line in lines_of(one.task.facts):
            console.print(line, style="dim", highlight=False, markup=False)
        if match:
            one.match()
        for system, words in one.matched.items():
            console.print(f"{system}: {words}", style="dim", highlight=False, markup=False)
        planned.append(one)
    return planned
