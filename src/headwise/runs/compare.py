"""Several systems of a recipe under one budget, side by side; on one data set or on several.

A comparison is a folder of runs `SYSTEM-seedN`, and of tries of `--tune` in `tries/SYSTEM/`; of
several data sets all this is in the folder of the data set. What is finished there is not trained
again, and other systems and seeds may join it. What is compared stands in its `comparison.json`,
and what was found in the runs.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import Benchmark, Compared, Tries, machine, versions
from headwise.analysis.speed import OverRounds, decoding_speeds, relative_step_times
from headwise.data.divide import lines_of
from headwise.files import remove, write_text, written_whole
from headwise.recipes.document import Change, RecipeError
from headwise.recipes.recipe import SYSTEM, Recipe, RecipeFile, task_class
from headwise.runs.folder import check_claim, check_inputs, claim, locked, read_model
from headwise.runs.launching import Run, train_all
from headwise.runs.match import match_parameters
from headwise.runs.names import COMPARISON, ENCODER, MODEL, TRIES
from headwise.runs.run import batches
from headwise.runs.tuning import Grid, check_grid, choose, combinations, in_words, name_of, of_try
from headwise.tasks.task import Task
from headwise.training.part import freeze_all_but
from headwise.training.watching import say

_STAMP = "comparison.yaml"  # of a comparison's folder, in place of recipe.yaml


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
) -> "list[OnData]":
    """Reads all that is compared, so that an error shows before anything is trained.

    Args:
        file: the recipe.
        systems, seeds: what to train; the first system is the baseline.
        folder: of the runs; of several data sets each has a folder in it.
        console: for notes.
        datasets: names of the recipe's data sets; without any, its `data` as they stand.
        match: whether all systems get as many parameters as the first has, by their width.
        grid: values from which every system chooses before its seeds are trained.

    Raises:
        FolderError: a folder holds something else.
        ValueError: a recipe is wrong, data cannot be read, no width gives a system its number of
            parameters, or tuning would undo what the user has said.
    """
    file.check_comparable()
    names: list[str | None] = [*datasets] or [None]
    if not all(file.system(of, name).evaluation.test for of in systems for name in names):
        raise RecipeError("evaluation.test is false, expected true: test scores are compared")
    if grid:
        check_grid(grid, file, systems, seeds, names, match=match)
    planned = []
    for name in names:
        say(console, f"reading {name or 'the data'}", "dim")
        planned.append(OnData(file, systems, seeds, folder / (name or ""), name, grid or {}))
        say(console, "\n".join(lines_of(planned[-1].task.facts)), "dim")
        for system in systems[1:] if match else ():
            planned[-1].match(system)
            say(console, f"{system}: {planned[-1].matched[system]}", "dim")
    return planned


class OnData:
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
        grid: Grid,
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

    def match(self, system: str) -> None:
        """Gives a system as many parameters as the first has, by its width.

        Raises:
            ValueError: no width gives this number.
        """

        def count(system: str, changes: Sequence[Change] = ()) -> int:
            config = self.task.config(self.recipe(system, changes), self.task)
            with torch.device("meta"):  # its model takes no memory
                return count_parameters(self.task.model_class(config))

        def widths(embed_dim: int, ffn_dim: int) -> list[Change]:
            return [(("model", "embed_dim"), embed_dim), (("model", "ffn_dim"), ffn_dim)]

        config, target = self.task.config(self.recipe(system), self.task), count(self.systems[0])
        before = config.embed_dim, config.ffn_dim, config.num_heads
        try:
            found = match_parameters(*before, target, lambda *both: count(system, widths(*both)))
        except ValueError as error:
            raise ValueError(f"--match parameters: {system}: {error}") from None
        self._changes[system] = widths(*found)
        words, number = in_words(self._changes[system]), count(system)
        self.matched[system] = f"{words}: {number:,} parameters ({number / target - 1:+.2%})"

    def tries(self) -> list[Run]:
        """Returns the tries of all systems."""
        return [
            self._run(f"{TRIES}/{system}/{name_of(each)}", system, of_try(each))
            for system in self.systems
            for each in combinations(self._grid)
        ]

    def runs(self, console: Console) -> list[Run]:
        """Returns the tries until all have ended, and then the runs, with what was chosen.

        The runs of each seed are those of all systems, so that early results compare.

        Raises:
            ValueError: all tries of a system diverged.
        """
        tries = self.tries()
        if not all(run.result() for run in tries):
            return tries
        for system in self.systems if tries else ():
            label = f"{self.name} {system}" if self.name else system
            results = [run.result() for run in tries if run.recipe.system == system]
            self.tuned[system] = found = choose(label, self._grid, filter(None, results))
            chosen, best = combinations(self._grid)[found.chosen], found.tries[found.chosen]
            self._changes[system] += chosen
            loss = f"validation loss {best.validation_loss:.4g}, the best of {len(results)} tries"
            say(console, f"{label}: {in_words(chosen)}, {loss}", "dim")
            for note in found.notes:
                say(console, f"{label}: {note}", "yellow")
        return [
            self._run(f"{system}-seed{seed}", system, [(("training", "seed"), seed)])
            for seed in self._seeds
            for system in self.systems
        ]

    def _run(self, name: str, system: str, changes: Sequence[Change]) -> Run:
        return Run(self.folder / name, self.recipe(system, changes), self.task)

    def claim(self, runs: list[Run]) -> list[Run]:
        """Makes folders those of runs; whoever calls it has locked the folder of the comparison.

        Raises:
            FolderError: a folder holds a run of another recipe, or the data have changed.
        """
        claim(self.folder, self._base, _STAMP)
        check_inputs(self.folder, self.task.digest())
        for run in runs:
            claim(run.folder, run.recipe)
            encoder = run.folder / ENCODER
            if self._has_encoder and run.recipe.pretrained is None and not encoder.is_dir():
                with written_whole(encoder) as partial:  # also for a process of its own
                    partial.mkdir()
                    self.task.save(partial)
        return runs


def compare(
    planned: Sequence[OnData],
    folder: Path,
    command: str,
    console: Console,
    *,
    jobs: int = 1,
    nproc: int = 1,
    ray: Any = None,
    modules: Sequence[str] = (),
    write: Callable[[Path], object] = lambda folder: None,
) -> list[Run]:
    """Trains every system with every seed under one budget, and returns the runs.

    Args:
        planned: what `plan` has found for the folder.
        folder: of the comparison.
        command: that reproduces this.
        console: for bars and notes.
        jobs, nproc, ray, modules: how runs are started, see `train_all`.
        write: is called with the folder whenever a run has ended and `comparison.json` is up to
            date, as far as it goes, and at the end.

    Raises:
        FolderError: a folder holds something else.
        Interrupted: Ctrl-C came; the next call goes on.
        RunsFailed: some runs failed; all others are finished.
    """

    def train(runs: Sequence[Run], after_each: Callable[[], None]) -> None:
        how: dict[str, Any] = {"jobs": jobs, "nproc": nproc, "ray": ray, "modules": modules}
        train_all(runs, console, after_each=after_each, **how)

    def tidy() -> None:
        for run in tries:
            if run.result():  # no run starts from its weights
                for used in (run.folder / MODEL, *run.folder.glob("checkpoint-*")):
                    remove(used)

    def write_what_there_is(*, is_last: bool = False) -> None:
        if not any(run.result() for of_data in runs for run in of_data):
            return
        for of, of_data in zip(planned, runs, strict=True):
            # Runs at work would disturb measurements of times.
            found = _compared(of, of_data, command, _times(of, of_data) if is_last else {})
            write_text(of.folder / COMPARISON, found.model_dump_json(indent=1))
        if planned[0].name is not None:
            recipe, names = planned[0].file.recipe, [of.folder.name for of in planned]
            title = f"{recipe.title or recipe.task}: {', '.join(planned[0].systems)}"
            whole = Benchmark(title=title, datasets=names)
            write_text(folder / COMPARISON, whole.model_dump_json(indent=1))
        write(folder)

    with locked(folder):
        tries = [run for of in planned for run in of.claim(of.tries())]
        train(tries, tidy)
        runs = [of.claim(of.runs(console)) for of in planned]
        every = [run for of_data in runs for run in of_data]
        train(every, write_what_there_is)
        say(console, "timing steps and generation", "dim")
        write_what_there_is(is_last=True)
    return every


def _compared(
    of: OnData, runs: Sequence[Run], command: str, times: dict[str, dict[str, OverRounds]]
) -> Compared:
    recipe = of.recipe(of.systems[0])
    title = f"{recipe.title}, {of.name}" if recipe.title and of.name else recipe.called
    return Compared(
        title=f"{title}: {', '.join(of.systems)}",
        task=recipe.task,
        loss_name=of.task.loss_unit,
        item_name=of.task.item_name,
        systems={name: of.file.recipe.systems[name].description for name in of.systems},
        runs={run.folder.name: run.recipe.system for run in runs},
        matched=of.matched,
        tuning=of.tuned,
        facts=of.task.facts,
        recipe=of.file.yaml(),
        command=command,
        versions=versions(),
        machine=machine(),
        **times,
    )


def _times(of: OnData, runs: Sequence[Run]) -> dict[str, dict[str, OverRounds]]:
    """Measures the times of the first run of each system, in turns with the others."""
    first = {run.recipe.system: run for run in reversed(runs)}
    models = {name: read_model(first[name].folder) for name in of.systems}
    speeds, times = decoding_speeds(models)
    found = {"decoding_times": times, "decoding_speeds": speeds}
    settings = {name: first[name].recipe.training for name in of.systems}
    if settings[of.systems[0]].train == "nothing":
        return found  # there is no step of the baseline to compare with
    learning = {name: model for name, model in models.items() if settings[name].train != "nothing"}
    for name, model in learning.items():
        freeze_all_but(model, settings[name].train)
    some = [
        {name: tensor.to(model.device) for name, tensor in batch.items()}
        for batch in islice(batches(of.task, "train", settings[of.systems[0]], seed=0), 3)
    ]
    rules = {name: each.rules for name, each in settings.items()}
    return {**found, "step_times": relative_step_times(learning, rules, some)}
