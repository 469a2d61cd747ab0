"""`compare --tune`: trains the tries of every system and chooses one, by the validation loss.

Without it all systems train with the settings that suit one of them, often the baseline. A try
trains a system with one combination of values and a seed that no run of the comparison has. The
best is chosen once for each system, and all of its seeds are trained with it. So the chance of the
choice is not in the spread over seeds: Bouthillier et al. 2021, *Accounting for Variance in Machine
Learning Benchmarks*, https://arxiv.org/abs/2103.03098, call this estimator `FixHOptEst`. Their
ideal one tunes anew for every seed.

The folders of the tries are `OUTPUT/tries/SYSTEM/training.learning_rate=0.003`, and so on. Each has

    recipe.yaml     what it is a try of
    try.json        the loss; once it is there the try is finished

and until then the checkpoints that it goes on from. The test part is not looked at.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import Tries, Try, TryResult
from headwise.files import write_text
from headwise.runs.evaluating import loss_of_part
from headwise.runs.folder import FolderError, is_writer
from headwise.runs.grid import TUNING_SEED, Candidate, Grid, assignments
from headwise.runs.matching import Sizes
from headwise.runs.one_run import curves, train_model
from headwise.runs.preparing import (
    changed_keys,
    check_start,
    claim_folder,
    empty_model,
    with_model,
)
from headwise.runs.reading import DamagedError, discard, read_record
from headwise.runs.running import Experiment, PlannedRun, Start, train_runs
from headwise.training.checkpoints import checkpoints
from headwise.training.processes import everywhere
from headwise.training.run import MODEL, threads_of_run

TRIES, TRY = "tries", "try.json"

Experiments = Mapping[str | None, Experiment]  # by data set
Tried = Mapping[str | None, Mapping[str, Sequence[Candidate]]]  # by data set and system


class TryRun(PlannedRun[TryResult]):
    """A try, of which only the validation loss is computed."""

    def train(self, console: Console) -> TryResult:
        folder, task = self.folder, self.task
        claim_folder(folder, self.recipe)
        check_start(folder, self.recipe)
        finished = self.finished(console)
        if finished is not None:
            return finished
        with threads_of_run(folder, self.label, console):
            run = train_model(self, console)
            loss = loss_of_part(run.model, task, "validation", self.recipe.training)
        result = TryResult(
            validation_loss=loss,
            steps=run.steps,
            seconds=run.history[-1]["seconds"],
            history=curves(run.history),
        )
        if is_writer():
            write_text(folder / TRY, result.model_dump_json(indent=1))
            self._tidy_up()
        return result

    def finished(self, console: Console) -> TryResult | None:
        found = self._stored(console)
        if found is not None and is_writer():  # one that was killed may have left them
            self._tidy_up()
        return found if everywhere(found is not None) else None

    def _tidy_up(self) -> None:
        for used in (*checkpoints(self.folder), self.folder / MODEL):
            shutil.rmtree(used, ignore_errors=True)

    def _stored(self, console: Console) -> TryResult | None:
        path = self.folder / TRY
        if not path.is_file():
            return None
        try:
            return read_record(TryResult, path, "the try has to be trained again")
        except DamagedError as error:
            self.warn(console, f"{error.problem}: the try is trained again")
            discard(path)
            return None


def tune(
    experiments: Experiments,
    tried: Tried,
    grid: Grid,
    console: Console,
    jobs: int = 1,
    start: Start | None = None,
) -> dict[str | None, Experiment]:
    """Trains the tries of every system; returns the experiments with the recipes they chose.

    Finished tries are not trained again. A system of which all combinations are alike, since its
    model has nothing that the tuned keys set, has no tries.
    """
    tried = {
        dataset: {name: _sized(name, of, experiments[dataset]) for name, of in systems.items()}
        for dataset, systems in tried.items()
    }
    planned: list[TryRun] = []
    waiting: dict[tuple[str | None, str], slice] = {}  # the place of a system's tries among all
    for dataset, systems in tried.items():
        for name, of_system in systems.items():
            if len(of_system) > 1:
                plan = _plan(experiments[dataset], dataset, name, of_system, grid.steps)
                waiting[dataset, name] = slice(len(planned), len(planned) + len(plan))
                planned += plan
    chosen: dict[str | None, dict[str, Tries]] = {dataset: {} for dataset in experiments}
    lost = []

    def choose(results: Sequence[TryResult | None]) -> None:
        """Chooses for each system of which all tries have ended."""
        for (dataset, name), place in list(waiting.items()):
            of_system = [result for result in results[place] if result is not None]
            if len(of_system) < len(tried[dataset][name]):
                continue
            del waiting[dataset, name]
            tries = [
                Try(values=candidate.values, **result.model_dump(exclude={"history"}))
                for candidate, result in zip(tried[dataset][name], of_system, strict=True)
            ]
            label = _label(dataset, name)
            if all(each.diverged for each in tries):
                lost.append(label)
                continue
            chosen[dataset][name] = _choice(tries, grid.equal_within)
            _print(label, chosen[dataset][name], console)

    results = train_runs(planned, console, jobs=jobs, start=start, after_each=choose)
    choose(results)  # also where all tries were finished before
    if lost:
        raise ValueError(
            f"every try of {', '.join(lost)} diverged: add values to --tune, such as smaller "
            f"learning rates; finished tries are not trained again"
        )
    return {
        dataset: experiment._replace(
            recipes={
                name: tried[dataset][name][of.chosen].recipe if (of := found.get(name)) else recipe
                for name, recipe in experiment.recipes.items()
            },
            tries=found,
        )
        for (dataset, experiment), found in zip(experiments.items(), chosen.values(), strict=True)
    }


def check_runs(planned: Sequence[PlannedRun], tries: Mapping[str, Tries]) -> None:
    """Finds runs that were trained with other values than those that the tries choose now."""
    stale: dict[Path, list[str]] = {}
    for run in planned:
        if run.system in tries:
            # How a line begins that says that a tuned key, or a part of it, differs.
            tuned = tuple(
                f"{key}{end}" for key in tries[run.system].tries[0].values for end in ":."
            )
            changed = changed_keys(run.folder, run.recipe)
            if changed and all(line.startswith(tuned) for line in changed):
                stale[run.folder] = changed
    if stale:
        listed = [f"{folder}: {'; '.join(changed)}" for folder, changed in stale.items()]
        raise FolderError(
            "the tries choose other values than these runs were trained with:\n  "
            + "\n  ".join(listed)
            + "\nDelete these folders, and the same command trains the runs with the values that "
            "are chosen now, and nothing else again; or use another output folder."
        )


def _plan(
    experiment: Experiment,
    dataset: str | None,
    name: str,
    of_system: Sequence[Candidate],
    steps: int | None,
) -> list[TryRun]:
    return [
        TryRun(
            recipe=candidate.recipe.model_copy(update={"training": candidate.training}),
            system=name,
            folder=experiment.folder / TRIES / name / candidate.folder_name(steps),
            task=experiment.task,
            label=f"{_label(dataset, name)} try {number}/{len(of_system)}",
        )
        for number, candidate in enumerate(of_system, 1)
    ]


def _label(dataset: str | None, name: str) -> str:
    return f"{dataset} {name}" if dataset else name


def _choice(tries: list[Try], equal_within: float) -> Tries:
    """The tries with the first whose loss counts as equal to the lowest; some did not diverge."""
    found = Tries(seed=TUNING_SEED, tries=tries, chosen=0, equal_within=equal_within)
    lowest = tries[found.lowest]
    enough = lowest.validation_loss + equal_within
    chosen = next(number for number, each in enumerate(tries) if each.validation_loss <= enough)
    notes = at_the_edge(tries, found.lowest)
    if chosen != found.lowest:
        notes.insert(
            0,
            f"{assignments(lowest.values)} has the lowest validation loss, "
            f"{lowest.validation_loss:.4g}; of losses within {equal_within:g} of it, which "
            f"count as equal, the first is chosen.",
        )
    return found.model_copy(update={"chosen": chosen, "notes": notes})


def at_the_edge(tries: Sequence[Try], number: int) -> list[str]:
    """Returns a sentence for each value of a try that is the largest or the smallest of all."""
    notes = []
    for key, value in tries[number].values.items():
        values = [each.values[key] for each in tries if key in each.values]
        if not all(isinstance(each, (int, float)) and type(each) is not bool for each in values):
            continue
        if value == max(values):
            notes.append(f"{key}={value} is the largest value tried; the best may be larger.")
        elif value == min(values) and value != 0:
            notes.append(f"{key}={value} is the smallest value tried; the best may be smaller.")
    return notes


def _print(label: str, tries: Tries, console: Console) -> None:
    best = tries.tries[tries.chosen]
    diverged = sum(each.diverged for each in tries.tries)
    how = "the best of" if tries.chosen == tries.lowest else "chosen from"
    console.print(
        f"{label}: {assignments(best.values)}, validation loss {best.validation_loss:.4g}, "
        f"{how} {len(tries.tries)} tries"
        f"{f', {diverged} of which diverged' if diverged else ''}",
        style="dim",
        highlight=False,
        markup=False,
    )
    for note in tries.notes:
        console.print(f"{label}: {note}", style="yellow", highlight=False, markup=False)


def _sized(
    name: str, of_system: Sequence[Candidate], experiment: Experiment
) -> Sequence[Candidate]:
    """The candidates with the sizes that `--match` chose for their system."""
    if not experiment.matched:
        return of_system
    matched = experiment.recipes[name]
    sizes = {key: matched.model[key] for key in Sizes._fields if key in matched.model}
    target = count_parameters(empty_model(matched, experiment.task))
    sized = []
    for candidate in of_system:
        # With --match parameters the number of heads may be tuned.
        chosen = {k: v for k, v in sizes.items() if f"model.{k}" not in candidate.values}
        recipe = with_model(candidate.recipe, chosen)
        parameters = count_parameters(empty_model(recipe, experiment.task))
        if parameters != target:
            raise ValueError(
                f"--tune {assignments(candidate.values)}: {name} would have {parameters:,} "
                f"parameters in place of the {target:,} of --match; leave one of the two out"
            )
        sized.append(candidate._replace(recipe=recipe))
    return sized
