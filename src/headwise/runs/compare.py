"""Several systems of a recipe under one budget, side by side; on one data set or on several.

A comparison is a folder of runs `SYSTEM-seedN`, and of tries of `--tune` in `tries/SYSTEM/`. A
comparison on several data sets has one such folder for each data set. Finished runs are not trained
again, and other systems and seeds may join them. `comparison.json` says what is compared; the
results stand in the folders of the runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import Compared, Tries, machine, versions
from headwise.analysis.speed import OverRounds, relative_decoding_times, relative_step_times
from headwise.data.splits import format_facts
from headwise.files import remove, write_text, written_whole
from headwise.models.parameters import freeze_all_but
from headwise.recipes.document import Change, RecipeError
from headwise.recipes.recipe import SYSTEM, Recipe, RecipeFile, task_class
from headwise.runs.folder import check_inputs, check_run_folder, init_run_folder, locked, read_model
from headwise.runs.launching import Launcher, Run, threads_of, train_all
from headwise.runs.names import COMPARISON, ENCODER, MODEL, TRIES
from headwise.runs.run import batches
from headwise.runs.tuning import Grid, check_grid, choose, combinations, in_words, name_of, of_try
from headwise.tasks.task import Task
from headwise.training.console import say

_RECIPE = "comparison.yaml"  # of a comparison's folder, in place of recipe.yaml
TOLERANCE = 0.005  # of --match: the largest relative difference in the number of parameters
Times = dict[str, dict[str, OverRounds]]


def plan_comparison(
    file: RecipeFile,
    systems: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    console: Console,
    *,
    datasets: Sequence[str] = (),
    match: bool = False,
    grid: Grid | None = None,
) -> "list[DatasetComparison]":
    """Reads all data that are compared on, so that an error shows before anything is trained.

    Args:
        file: the recipe.
        systems, seeds: what to train; the first system is the baseline.
        folder: of the runs; with several data sets each has a folder in it.
        console: for notes.
        datasets: names of the recipe's data sets; without any, its `data` as they stand.
        match: whether all systems get as many parameters as the first has, by their width.
        grid: values from which every system chooses before its seeds are trained.

    Raises:
        FolderError: a folder holds something else.
        ValueError: a recipe is wrong, data cannot be read, no width gives a system its number of
            parameters, or tuning would undo what the user has set.
    """
    file.check_comparable()
    names: list[str | None] = [*datasets] or [None]
    if not all(file.system(of, name).evaluation.test for of in systems for name in names):
        raise RecipeError("evaluation.test is false, expected true: test scores are compared")
    if grid:
        check_grid(grid, file, systems, names, match=match)
    planned = []
    for name in names:
        say(console, f"reading {name or 'the data'}", "dim")
        of = DatasetComparison(file, systems, seeds, folder / (name or ""), name, grid or {})
        of.read_data()
        say(console, "\n".join(format_facts(of.task.facts)), "dim")
        for system in systems[1:] if match else ():
            of.match(system)
            say(console, f"{system}: {of.matched[system]}", "dim")
        planned.append(of)
    return planned


@dataclass
class DatasetComparison:
    """A comparison on one data set, or on `data` of the recipe as they stand."""

    file: RecipeFile
    systems: Sequence[str]
    seeds: Sequence[int]
    folder: Path
    dataset: str | None
    grid: Grid
    task: Task = field(init=False)  # the data, as all systems read them
    matched: dict[str, str] = field(default_factory=dict)  # the new widths of a system, in words
    tuned: dict[str, Tries] = field(default_factory=dict)
    # Matched widths and tuned values, as changes to the recipe of each system.
    changes: dict[str, list[Change]] = field(default_factory=dict)

    def read_data(self) -> None:
        """Reads the data; raises `FolderError` if the folder holds something else."""
        check_run_folder(self.folder, self.recipe_of(None), _RECIPE)
        recipes = [self.recipe_of(system) for system in (*self.systems, None)]
        starts = [r for r in recipes if r.pretrained is not None and SYSTEM not in r.pretrained]
        # All data are encoded as by the model that one of them starts from, or has become.
        finished = next(iter(sorted(self.folder.glob(f"*/{MODEL}"))), None)
        self.task = task_class(recipes[0].task)([*starts, *recipes][0], finished)
        self._shares_encoder = bool(starts)

    def recipe_of(self, system: str | None, changes: Sequence[Change] = ()) -> Recipe:
        """Returns the recipe of a system, with the values that were matched and tuned."""
        return self.file.system(
            system, self.dataset, [*self.changes.get(system or "", ()), *changes]
        )

    def match(self, system: str) -> None:
        """Gives a system as many parameters as the first has, by its width.

        Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent Mechanisms*,
        https://arxiv.org/abs/2103.00336, compare systems at one size in this way.
        """

        def count(system: str, changes: Sequence[Change] = ()) -> int:
            config = self.task.config(self.recipe_of(system, changes), self.task)
            with torch.device("meta"):  # its model takes no memory
                return count_parameters(self.task.model_class(config))

        def of_widths(embed_dim: int, ffn_dim: int) -> list[Change]:
            return [(("model", "embed_dim"), embed_dim), (("model", "ffn_dim"), ffn_dim)]

        config, target = self.task.config(self.recipe_of(system), self.task), count(self.systems[0])
        widths = config.embed_dim, config.ffn_dim
        try:
            found = match_parameters(
                *widths, config.num_heads, target, lambda *new: count(system, of_widths(*new))
            )
        except ValueError as error:
            raise ValueError(f"--match parameters: {system}: {error}") from None
        self.changes[system] = of_widths(*found)
        words, number = in_words(self.changes[system]), count(system)
        self.matched[system] = f"{words}: {number:,} parameters ({number / target - 1:+.2%})"

    def tries(self) -> list[Run]:
        """Returns the tries of all systems."""
        return [
            self._run(f"{TRIES}/{system}/{name_of(each)}", system, of_try(each))
            for system in self.systems
            for each in combinations(self.grid)
        ]

    def next_runs(self, console: Console) -> list[Run]:
        """Returns the tries until all have ended, and then the runs with the chosen values.

        The runs of the first seed come first, so that early results compare the systems.
        """
        tries = self.tries()
        if not all(run.result() for run in tries):
            return tries
        for system in self.systems if tries else ():
            label = f"{self.dataset} {system}" if self.dataset else system
            results = [run.result() for run in tries if run.recipe.system == system]
            self.tuned[system] = found = choose(label, self.grid, filter(None, results))
            chosen, best = combinations(self.grid)[found.chosen], found.tries[found.chosen]
            self.changes[system] = [*self.changes.get(system, ()), *chosen]
            loss = f"validation loss {best.validation_loss:.4g}, the best of {len(results)} tries"
            say(console, f"{label}: {in_words(chosen)}, {loss}", "dim")
            for note in found.notes:
                say(console, f"{label}: {note}", "yellow")
        return [
            self._run(f"{system}-seed{seed}", system, [(("training", "seed"), seed)])
            for seed in self.seeds
            for system in self.systems
        ]

    def _run(self, name: str, system: str, changes: Sequence[Change]) -> Run:
        return Run(self.folder / name, self.recipe_of(system, changes), self.task)

    def init_folders(self, runs: list[Run]) -> list[Run]:
        """Makes the folders of runs; the caller has locked the folder of the comparison."""
        # Other systems and seeds may join later, but on the same data and vocabularies.
        init_run_folder(self.folder, self.recipe_of(None), _RECIPE)
        check_inputs(self.folder, self.task.content_hash())
        for run in runs:
            init_run_folder(run.folder, run.recipe)
            encoder = run.folder / ENCODER
            if self._shares_encoder and run.recipe.pretrained is None and not encoder.is_dir():
                with written_whole(encoder) as partial:  # also for a process of its own
                    partial.mkdir()
                    self.task.save(partial)
        return runs


def match_parameters(
    embed_dim: int, ffn_dim: int, num_heads: int, target: int, count: Callable[[int, int], int]
) -> tuple[int, int]:
    """Returns the widths at which a model has `target` parameters, within half a percent.

    The width of the model, a multiple of its number of heads, and that of its feed-forward change
    together, as nearly in proportion as the number of parameters allows; nothing else changes.

    Args:
        embed_dim, ffn_dim: the widths to start from.
        count: returns the number of parameters of a model of two such widths, or raises
            `ValueError` if there is no such model.

    Raises:
        ValueError: no width gives this number.
    """
    start = count(embed_dim, ffn_dim)
    if abs(start / target - 1) <= TOLERANCE / 5:
        return embed_dim, ffn_dim
    # Parameters grow with the width (embeddings) or with its square (all else). Some more widths
    # on both sides: a system may need one that more than the number of heads divides.
    low, high = sorted([embed_dim * target / start, embed_dim * (target / start) ** 0.5])
    first, last = max(1, int(low // num_heads) - 4), int(high // num_heads) + 4
    found = []
    for width in range(num_heads * first, num_heads * last + 1, num_heads):
        try:
            small, large = count(width, ffn_dim), count(width, 2 * ffn_dim)
            inner = ffn_dim
            if large > small:  # else the plan sets the width of every feed-forward
                wanted = ffn_dim + ffn_dim * (target - small) / (large - small)
                inner = max(1, round(wanted / num_heads)) * num_heads
            if abs(count(width, inner) / target - 1) <= TOLERANCE:
                ratio = (inner / ffn_dim) / (width / embed_dim)
                found.append((max(ratio, 1 / ratio), width, inner))
        except ValueError:
            continue  # a system needs other widths
    if not found:
        raise ValueError(
            f"no width near {embed_dim} gives {target:,} parameters within {TOLERANCE:.1%}: the "
            f"model has {start:,} at embed_dim {embed_dim} and ffn_dim {ffn_dim}; choose sizes for "
            f"it in the recipe, or compare without --match"
        )
    return min(found)[1:]


def run_comparison(
    planned: Sequence[DatasetComparison],
    folder: Path,
    command: str,
    console: Console,
    *,
    launcher: Launcher | None = None,
    write: Callable[[Path], object] = lambda folder: None,
) -> list[Run]:
    """Trains every system with every seed under one budget, and returns the runs.

    Args:
        planned: the result of `plan_comparison` for the folder.
        folder: of the comparison.
        command: that reproduces the comparison.
        console: for bars and notes.
        launcher: how runs are started; by default one after the other.
        write: is called with the folder of each data set whenever a run has ended and
            `comparison.json` is up to date, as far as it goes, and at the end.

    Raises:
        FolderError: a folder holds something else.
        Interrupted: Ctrl-C came; the next call goes on.
        RunsFailed: some runs failed; all others are finished.
    """
    launcher = launcher or Launcher()

    def remove_weights_of_tries() -> None:
        for run in tries:
            if run.result():  # no run starts from its weights
                for used in (run.folder / MODEL, *run.folder.glob("checkpoint-*")):
                    remove(used)

    def write_results(*, is_last: bool = False) -> None:
        if not any(run.result() for of_data in runs for run in of_data):
            return
        for of, of_data in zip(planned, runs, strict=True):
            # Runs at work would disturb measurements of times.
            found = _compared(of, of_data, command, _times(of, of_data) if is_last else {})
            write_text(of.folder / COMPARISON, found.model_dump_json(indent=1))
            write(of.folder)

    with locked(folder):
        tries = [run for of in planned for run in of.init_folders(of.tries())]
        train_all(tries, console, launcher, after_each=remove_weights_of_tries)
        runs = [of.init_folders(of.next_runs(console)) for of in planned]
        every = [run for of_data in runs for run in of_data]
        train_all(every, console, launcher, after_each=write_results)
        say(console, "timing steps and generation", "dim")
        threads = torch.get_num_threads()
        torch.set_num_threads(threads_of(launcher.jobs))  # as many as a run has had
        try:
            write_results(is_last=True)
        finally:
            torch.set_num_threads(threads)
    return every


def _compared(of: DatasetComparison, runs: Sequence[Run], command: str, times: Times) -> Compared:
    recipe = of.recipe_of(of.systems[0])
    title = f"{recipe.title}, {of.dataset}" if recipe.title and of.dataset else recipe.display_name
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


def _times(of: DatasetComparison, runs: Sequence[Run]) -> Times:
    """Measures the times of the first run of each system, in turns with the others."""
    first = {run.recipe.system: run for run in reversed(runs)}
    models = {name: read_model(first[name].folder) for name in of.systems}
    found = {"decoding_times": relative_decoding_times(models)}
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
