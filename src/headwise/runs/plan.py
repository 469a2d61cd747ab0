"""What a comparison is of: which runs there are, on which data, with which values, and how long.

Each run has a folder `SYSTEM-seedN`, and each try of `--tune` has one in `tries/SYSTEM/`; of
several data sets all this is in the folder of the data set. Nothing is written before `claim`.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import RunResult, Tries
from headwise.analysis.speed import step_seconds
from headwise.data.divide import lines_of
from headwise.files import written_whole
from headwise.recipes.document import Change, RecipeError
from headwise.recipes.recipe import SYSTEM, Recipe, RecipeFile, task_class
from headwise.runs.folder import check_claim, check_inputs, claim, read_result
from headwise.runs.match import match_parameters
from headwise.runs.names import ENCODER, MODEL, TRIES
from headwise.runs.run import batches, build_model, some_batches
from headwise.runs.tuning import Grid, check_grid, choose, in_words
from headwise.tasks.task import Task
from headwise.training.watching import last_progress, say

_STAMP = "comparison.yaml"  # of a comparison's folder, in place of recipe.yaml


class Run(NamedTuple):
    """A run of a comparison, or a try of `--tune`."""

    folder: Path
    system: str
    recipe: Recipe
    task: Task

    def result(self) -> RunResult | None:
        """Returns its result; None before it is finished, also with new test sets of its recipe."""
        return read_result(self.folder, self.recipe)


class OneDataset:
    """What is compared on one data set, or on `data` of the recipe as they stand; see `plan`.

    Attributes:
        task: the data, as all systems read them.
        matched: what `match` chose for each system, in words.
        tuned: what each system has tried, and its choice.
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

    def match(self, system: str, target: int) -> None:
        """Gives a system a number of parameters, by its width.

        Raises:
            ValueError: no width gives this number.
        """

        def widths(embed_dim: int, ffn_dim: int) -> list[Change]:
            return [(("model", "embed_dim"), embed_dim), (("model", "ffn_dim"), ffn_dim)]

        def count(embed_dim: int, ffn_dim: int) -> int:
            return self.parameters(system, widths(embed_dim, ffn_dim))

        config = self.task.config(self.recipe(system), self.task)
        before = config.embed_dim, config.ffn_dim, config.num_heads
        try:
            self._changes[system] = widths(*match_parameters(*before, target, count))
        except ValueError as error:
            raise ValueError(f"--match parameters: {system}: {error}") from None
        found, words = self.parameters(system), in_words(self._changes[system])
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

    def ready(self, console: Console) -> list[Run]:
        """Returns the tries until all of them have ended, and then the runs, with what was chosen.

        Raises:
            ValueError: all tries of a system diverged.
        """
        tries = self.tries()
        if not all(run.result() for run in tries):
            return tries
        combinations = self._grid.combinations() if self._grid else []
        for system in self.systems if combinations else ():
            results = [result for run in tries if run.system == system and (result := run.result())]
            label = f"{self.name} {system}" if self.name else system
            self.tuned[system] = found = choose(label, combinations, results)
            chosen, best = combinations[found.chosen], found.tries[found.chosen].validation_loss
            self._changes[system] += chosen
            of_tries = f"validation loss {best:.4g}, the best of {len(results)} tries"
            say(console, f"{label}: {in_words(chosen)}, {of_tries}", "dim")
            for note in found.notes:
                say(console, f"{label}: {note}", "yellow")
        return self.runs()

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
        check_grid(grid, file, systems, seeds, names, match=match)
    planned = []
    for name in names:
        say(console, f"reading {name or 'the data'}", "dim")
        one = OneDataset(file, systems, seeds, folder / (name or ""), name, grid)
        say(console, "\n".join(lines_of(one.task.facts)), "dim")
        for system in systems[1:] if match else ():
            one.match(system, one.parameters(systems[0]))
            say(console, f"{system}: {one.matched[system]}", "dim")
        planned.append(one)
    return planned


class Forecast(NamedTuple):
    """What is left of a run of a comparison, or of a try of `--tune`."""

    run: Path  # its folder
    parameters: int  # of the model
    steps: int  # it takes fewer if `training.patience` ends it
    left: int  # how many of them it has yet to take
    # About how long these take on this machine. Where a run of the system is finished, it is as
    # fast as that with its validations; else forward and backward passes are timed.
    seconds: float


def forecast(planned: Sequence[OneDataset], console: Console) -> list[Forecast]:
    """Returns what is left of each run, tries first; nothing is trained, and nothing is written.

    Raises:
        FolderError: a folder holds a run of another recipe.
    """
    found = []
    for of in planned:
        tries = of.tries()  # before a choice is made
        for run in of.ready(console):
            check_claim(run.folder, run.recipe)
        for system in of.systems:
            own = [(run, run.result()) for run in [*tries, *of.runs()] if run.system == system]
            steps = [_steps(run) for run, _ in own]
            times = [result.seconds / result.steps for _, result in own if result and result.steps]
            if not times and any(steps):
                say(console, f"timing steps of {system}", "dim")
                times = [_seconds_of_step(own[0][0])]
            for (run, result), total in zip(own, steps, strict=True):
                taken = (last_progress(run.folder) or {}).get("step", 0)
                left = 0 if result else total - taken
                seconds = left * median(times or [0.0])
                found.append(Forecast(run.folder, of.parameters(system), total, left, seconds))
    return found


def _steps(run: Run) -> int:
    """How many steps a run takes, as the trainer plans them."""
    settings = run.recipe.training
    if settings.train == "nothing":
        return 0
    per_epoch = batches(run.task, "train", settings, seed=0).per_epoch or 0
    of_epochs = (settings.epochs or 0) * per_epoch / settings.gradient_accumulation
    return settings.max_steps or math.ceil(of_epochs - 1e-6)


def _seconds_of_step(run: Run) -> float:
    settings = run.recipe.training
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    some = some_batches(run.task, settings, device)
    seconds = step_seconds(build_model(run.recipe, run.task).to(device), settings.rules, some)
    return seconds * settings.gradient_accumulation
