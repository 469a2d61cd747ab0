"""Several systems of a recipe under one budget, side by side; on one data set or on several.

A comparison is a folder of runs `SYSTEM-seedN`, and of trials of `--tune` in `trials/SYSTEM/`. A
comparison on several data sets has one such folder for each data set. Finished runs are not trained
again, and other systems and seeds may join them. `comparison.json` says what is compared; the
results are in the folders of the runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import ComparisonRecord, Trials, machine, versions
from headwise.analysis.speed import OverRounds, relative_decoding_times, relative_step_times
from headwise.data.splits import format_facts
from headwise.files import remove, write_text, written_whole
from headwise.models.parameters import freeze_all_but
from headwise.recipes.document import Change, RecipeError
from headwise.recipes.recipe import SYSTEM, Recipe, RecipeFile, task_class
from headwise.runs import tuning
from headwise.runs.folder import (
    check_inputs,
    check_run_folder,
    init_run_folder,
    locked,
    read_model,
    read_result,
)
from headwise.runs.launching import Launcher, Run, threads_per_run, train_all
from headwise.runs.names import COMPARISON, ENCODER, MODEL, RESULT, TRIALS
from headwise.runs.run import batches
from headwise.tasks.task import Task
from headwise.training.console import say

_RECIPE_FILE = "comparison.yaml"  # of a comparison's folder, in place of recipe.yaml
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
    grid: tuning.Grid | None = None,
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
    if not all(file.system(system, name).evaluation.test for system in systems for name in names):
        raise RecipeError("evaluation.test is false, expected true: test scores are compared")
    grid = grid or {}
    tuning.check_grid(grid, file, systems, names, match=match)
    planned = []
    for name in names:
        say(console, f"reading {name or 'the data'}", "dim")
        comparison = DatasetComparison(file, systems, seeds, folder / (name or ""), name, grid)
        comparison.read_data()
        say(console, "\n".join(format_facts(comparison.task.facts)), "dim")
        for system in systems[1:] if match else ():
            comparison.match(system)
            say(console, f"{system}: {comparison.matched[system]}", "dim")
        planned.append(comparison)
    return planned


@dataclass
class DatasetComparison:
    """A comparison on one data set, or on `data` of the recipe as they stand."""

    file: RecipeFile
    systems: Sequence[str]
    seeds: Sequence[int]
    folder: Path
    dataset: str | None
    grid: tuning.Grid
    task: Task = field(init=False)  # the data, as all systems read them
    matched: dict[str, str] = field(default_factory=dict)  # the new widths of a system, in words
    tuned: dict[str, Trials] = field(default_factory=dict)
    # Matched widths and tuned values, as changes to the recipe of each system.
    changes: dict[str, list[Change]] = field(default_factory=dict)

    def read_data(self) -> None:
        """Reads the data; raises `FolderError` if the folder holds something else."""
        check_run_folder(self.folder, self.system_recipe(None), _RECIPE_FILE)
        recipes = [self.system_recipe(system) for system in (*self.systems, None)]
        pretrained = [r for r in recipes if r.pretrained is not None and SYSTEM not in r.pretrained]
        # All data are encoded as by the model that one of them starts from, or has become.
        finished_model = next(iter(sorted(self.folder.glob(f"*/{MODEL}"))), None)
        self.task = task_class(recipes[0].task)([*pretrained, *recipes][0], finished_model)
        self._shares_encoder = bool(pretrained)

    def system_recipe(self, system: str | None, changes: Sequence[Change] = ()) -> Recipe:
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
            config = self.task.config(self.system_recipe(system, changes), self.task)
            with torch.device("meta"):  # its model takes no memory
                return count_parameters(self.task.model_class(config))

        def width_changes(embed_dim: int, ffn_dim: int) -> list[Change]:
            return [(("model", "embed_dim"), embed_dim), (("model", "ffn_dim"), ffn_dim)]

        config = self.task.config(self.system_recipe(system), self.task)
        sizes, target = (config.embed_dim, config.ffn_dim, config.num_heads), count(self.systems[0])
        try:
            matched = match_parameters(
                *sizes, target, lambda *widths: count(system, width_changes(*widths))
            )
        except ValueError as error:
            raise ValueError(f"--match parameters: {system}: {error}") from None
        self.changes[system] = width_changes(*matched)
        text, number = tuning.format_values(self.changes[system]), count(system)
        self.matched[system] = f"{text}: {number:,} parameters ({number / target - 1:+.2%})"

    def trials(self) -> list[Run]:
        """Returns the trials of all systems."""
        return [
            self._run(
                f"{TRIALS}/{system}/{tuning.trial_name(each)}", system, tuning.trial_changes(each)
            )
            for system in self.systems
            for each in tuning.combinations(self.grid)
        ]

    def next_runs(self, console: Console) -> list[Run]:
        """Returns the trials until all have ended, and then the runs with the chosen values.

        The runs of the first seed come first, so that early results compare the systems.
        """
        trials = self.trials()
        if not all(run.result() for run in trials):
            return trials
        for system in self.systems if trials else ():
            label = f"{self.dataset} {system}" if self.dataset else system
            results = [run.result() for run in trials if run.recipe.system == system]
            self.tuned[system] = choice = tuning.choose(label, self.grid, filter(None, results))
            values = tuning.combinations(self.grid)[choice.chosen]
            self.changes[system] = [*self.changes.get(system, ()), *values]
            loss = f"validation loss {choice.trials[choice.chosen].validation_loss:.4g}"
            text = f"{tuning.format_values(values)}, {loss}, the best of {len(results)} trials"
            say(console, f"{label}: {text}", "dim")
            for note in choice.notes:
                say(console, f"{label}: {note}", "yellow")
        return [
            self._run(f"{system}-seed{seed}", system, [(("training", "seed"), seed)])
            for seed in self.seeds
            for system in self.systems
        ]

    def _run(self, name: str, system: str, changes: Sequence[Change]) -> Run:
        return Run(self.folder / name, self.system_recipe(system, changes), self.task)

    def init_folders(self, runs: list[Run]) -> list[Run]:
        """Makes the folders of runs; the caller has locked the folder of the comparison."""
        # Other systems and seeds may join later, but on the same data and vocabularies.
        init_run_folder(self.folder, self.system_recipe(None), _RECIPE_FILE)
        check_inputs(self.folder, self.task.content_hash())
        for run in runs:
            init_run_folder(run.folder, run.recipe)
            scored = read_result(run.folder)
            if scored is not None and run.result() is None:  # on test sets that have changed since
                forgotten = scored.model_copy(update={"tests": {}, "test_hashes": {}})
                write_text(run.folder / RESULT, forgotten.model_dump_json(indent=1))
            encoder = run.folder / ENCODER
            if self._shares_encoder and run.recipe.pretrained is None and not encoder.is_dir():
                with written_whole(encoder) as partial:  # also for a process of its own
                    partial.mkdir()
                    self.task.save(partial)
        return runs

    def describe(self, runs: Sequence[Run], command: str, times: Times) -> ComparisonRecord:
        """Returns what `comparison.json` says."""
        recipe = self.system_recipe(self.systems[0])
        has_both = recipe.title and self.dataset
        title = f"{recipe.title}, {self.dataset}" if has_both else recipe.display_name
        return ComparisonRecord(
            title=f"{title}: {', '.join(self.systems)}",
            task=recipe.task,
            loss_name=self.task.loss_unit,
            item_name=self.task.item_name,
            systems={name: self.file.recipe.systems[name].description for name in self.systems},
            runs={run.folder.name: run.recipe.system for run in runs},
            matched=self.matched,
            tuning=self.tuned,
            facts=self.task.facts,
            recipe=self.file.yaml(),
            command=command,
            versions=versions(),
            machine=machine(),
            **times,
        )

    def measure_times(self, runs: Sequence[Run]) -> Times:
        """Measures the times of the first run of each system, in turns with the others."""
        first_runs = {run.recipe.system: run for run in reversed(runs)}
        models = {name: read_model(first_runs[name].folder) for name in self.systems}
        times = {"decoding_times": relative_decoding_times(models)}
        settings = {name: first_runs[name].recipe.training for name in self.systems}
        baseline = settings[self.systems[0]]
        if baseline.trainable == "nothing":
            return times  # there is no step of the baseline to compare with
        trained = {name: models[name] for name in models if settings[name].trainable != "nothing"}
        for name, model in trained.items():
            freeze_all_but(model, settings[name].trainable)
        samples = [
            {key: tensor.to(model.device) for key, tensor in batch.items()}
            for batch in islice(batches(self.task, "train", baseline, seed=0), 3)
        ]
        rules = {name: training.rules for name, training in settings.items()}
        return {**times, "step_times": relative_step_times(trained, rules, samples)}


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
    candidates = []
    for width in range(num_heads * first, num_heads * last + 1, num_heads):
        try:
            small, large = count(width, ffn_dim), count(width, 2 * ffn_dim)
            hidden = ffn_dim
            if large > small:  # else the plan sets the width of every feed-forward
                exact = ffn_dim + ffn_dim * (target - small) / (large - small)
                hidden = max(1, round(exact / num_heads)) * num_heads
            if abs(count(width, hidden) / target - 1) <= TOLERANCE:
                ratio = (hidden / ffn_dim) / (width / embed_dim)
                candidates.append((max(ratio, 1 / ratio), width, hidden))
        except ValueError:
            continue  # a system needs other widths
    if not candidates:
        raise ValueError(
            f"no width near {embed_dim} gives {target:,} parameters within {TOLERANCE:.1%}: the "
            f"model has {start:,} at embed_dim {embed_dim} and ffn_dim {ffn_dim}; choose sizes for "
            f"it in the recipe, or compare without --match"
        )
    return min(candidates)[1:]


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
        Interrupted: Ctrl-C came; the next call resumes.
        RunsFailed: some runs failed; all others are finished.
    """
    launcher = launcher or Launcher()

    def remove_weights_of_trials() -> None:
        for run in trials:
            if run.result():  # no run starts from its weights
                for path in (run.folder / MODEL, *run.folder.glob("checkpoint-*")):
                    remove(path)

    def write_results(*, is_last: bool = False) -> None:
        if not any(run.result() for run in all_runs):
            return
        for comparison, runs in zip(planned, runs_by_data, strict=True):
            # Runs at work would disturb measurements of times.
            times = comparison.measure_times(runs) if is_last else {}
            document = comparison.describe(runs, command, times).model_dump_json(indent=1)
            write_text(comparison.folder / COMPARISON, document)
            write(comparison.folder)

    with locked(folder):
        trials = [run for each in planned for run in each.init_folders(each.trials())]
        train_all(trials, console, launcher, after_each=remove_weights_of_trials)
        remove_weights_of_trials()  # also of those that --print-commands had trained before
        runs_by_data = [each.init_folders(each.next_runs(console)) for each in planned]
        all_runs = [run for runs in runs_by_data for run in runs]
        train_all(all_runs, console, launcher, after_each=write_results)
        say(console, "timing steps and generation", "dim")
        threads = torch.get_num_threads()
        torch.set_num_threads(threads_per_run(launcher.jobs))  # as many as a run has had
        try:
            write_results(is_last=True)
        finally:
            torch.set_num_threads(threads)
    return all_runs
