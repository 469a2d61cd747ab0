"""Gives every system the same tries: values of keys, chosen by the loss on the validation part.

Without it all systems train with the settings that suit one of them, often the baseline. A try
trains a system with one combination of values and a seed that no run of the comparison has; it
never sees the test part. The best is chosen once for each system, and all of its seeds are trained
with it. So the chance of the choice itself is not in the spread over seeds: Bouthillier et al.
2021, *Accounting for Variance in Machine Learning Benchmarks*, https://arxiv.org/abs/2103.03098,
tell this procedure (`FixHOptEst`) from one that tunes anew for every seed.

    tries/SYSTEM/training.learning_rate=0.003/
        recipe.yaml     what it is a try of
        try.json        its validation loss; once it is there the try is finished
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from headwise.analysis.cost import count_parameters
from headwise.analysis.results import Tries, Try, TryResult
from headwise.comparison.candidates import Candidate
from headwise.comparison.grid import TUNING_SEED, Grid
from headwise.comparison.running import PlannedRun, train_runs
from headwise.comparison.summary import Experiment
from headwise.experiment import (
    FolderError,
    batches,
    changed_keys,
    claim_folder,
    curves,
    empty_model,
    is_main_process,
    read_record,
    train_model,
)
from headwise.files import write_text
from headwise.recipe.settings import Recipe
from headwise.tasks.task import Task
from headwise.training.checkpoints import checkpoints
from headwise.training.run import MODEL
from headwise.training.validation import validation_loss

TRIES, TRY = "tries", "try.json"


def tune(
    experiment: Experiment,
    tried: Mapping[str, Sequence[Candidate]],
    grid: Grid,
    dataset: str | None,
    console: Console,
) -> Experiment:
    """Trains the tries of every system; returns the experiment with the recipes that they chose.

    Finished tries are not trained again.

    Args:
        experiment: what is compared on a data set.
        tried: system to its candidates.
        grid: the tuned values.
        dataset: name of the data set, for the bars.
        console: for bars and for what was chosen.

    Raises:
        ValueError: all tries of a system diverged, or a tuned key changes sizes that
            `--match parameters` has made equal.
        FolderError: the folder of a try is that of another.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    if experiment.matched:
        tried = {name: _sized(name, of, experiment) for name, of in tried.items()}
    chosen: dict[str, Tries] = {}
    lost = []
    for name, of_system in tried.items():
        label = f"{dataset} {name}" if dataset else name
        if len(of_system) == 1:
            console.print(
                f"{label}: nothing to choose, since its model has no system with these settings",
                style="dim",
                highlight=False,
                markup=False,
            )
            continue
        tries = _train(experiment, name, of_system, grid.steps, label, console)
        best = _best(tries)
        if best is None:
            lost.append(name)
            continue
        chosen[name] = Tries(seed=TUNING_SEED, tries=tries, chosen=best, notes=_notes(tries, best))
        _report(label, chosen[name], console)
    if lost:
        raise ValueError(
            f"every try of {', '.join(lost)} diverged: add values to --tune, such as smaller "
            f"learning rates; finished tries are not trained again"
        )
    recipes = {name: tried[name][tries.chosen].recipe for name, tries in chosen.items()}
    return experiment._replace(recipes={**experiment.recipes, **recipes}, tries=chosen)


def check_runs(planned: Sequence[PlannedRun], tries: Mapping[str, Tries]) -> None:
    """Finds runs that were trained with values that the tries do not choose any more.

    Args:
        planned: the runs of a data set.
        tries: system to its tries.

    Raises:
        FolderError: there are some; the message says which, and what can be done.
    """
    stale: dict[Path, list[str]] = {}
    for run in planned:
        if run.system not in tries:
            continue
        tuned = tuple(f"{key}{end}" for key in tries[run.system].tries[0].values for end in ":.")
        changed = changed_keys(run.folder, run.recipe)
        if changed and all(line.startswith(tuned) for line in changed):
            stale[run.folder] = changed
    if stale:
        listed = [f"{folder}: {'; '.join(changed)}" for folder, changed in stale.items()]
        raise FolderError(
            "The tries choose other values than these runs were trained with:\n  "
            + "\n  ".join(listed)
            + "\nDelete these folders to train the runs with the values now chosen (no other run "
            "and no try is trained again), or use another output folder."
        )


def _train(
    experiment: Experiment,
    name: str,
    of_system: Sequence[Candidate],
    steps: int | None,
    label: str,
    console: Console,
) -> list[Try]:
    planned = [
        PlannedRun(
            recipe=candidate.recipe.model_copy(update={"training": candidate.training}),
            system=name,
            folder=experiment.folder / TRIES / name / candidate.folder_name(steps),
            task=experiment.task,
            label=f"{label} try {number}/{len(of_system)}",
        )
        for number, candidate in enumerate(of_system, 1)
    ]
    results = train_runs(planned, train_try, console)
    return [
        Try(values=candidate.values, **result.model_dump(exclude={"history"}))
        for candidate, result in zip(of_system, results, strict=True)
    ]


def train_try(
    recipe: Recipe, name: str, folder: Path, task: Task, console: Console, label: str
) -> TryResult:
    """Trains a try in `folder`, from wherever an earlier start got to, and keeps its figures alone.

    Nothing but the training and the validation part is looked at.

    Args:
        recipe: of the try.
        name: of the system.
        folder: of the try.
        task: the recipe's data.
        console: for the bars.
        label: what they call the try.

    Raises:
        FolderError: the folder is that of another try.
        Interrupted: Ctrl-C came; the next call goes on.
    """
    claim_folder(folder, recipe)
    if (folder / TRY).is_file():
        remedy = f"delete {folder}, and the same command trains the try again"
        return read_record(TryResult, folder / TRY, remedy)
    run = train_model(recipe, folder, task, console, label or name)
    result = TryResult(
        validation_loss=validation_loss(run.model, batches(task, task.validation, recipe.training)),
        steps=run.steps,
        seconds=run.history[-1]["seconds"],
        history=curves(run.history),
    )
    if is_main_process():
        write_text(folder / TRY, result.model_dump_json(indent=1))
        for used in (*checkpoints(folder), folder / MODEL):
            shutil.rmtree(used)
    return result


def _best(tries: Sequence[Try]) -> int | None:
    """The index of the first try with the lowest loss; None if all diverged."""
    sound = [n for n, each in enumerate(tries) if math.isfinite(each.validation_loss)]
    return min(sound, key=lambda n: tries[n].validation_loss, default=None)


def _notes(tries: Sequence[Try], best: int) -> list[str]:
    """A sentence for each chosen number that lies at the edge of those tried."""
    notes = []
    for key, value in tries[best].values.items():
        values = [each.values[key] for each in tries if key in each.values]
        if not all(isinstance(each, (int, float)) and type(each) is not bool for each in values):
            continue
        if value == max(values):
            notes.append(f"{key}={value} is the largest value tried; the best may be larger.")
        elif value == min(values) and value != 0:
            notes.append(f"{key}={value} is the smallest value tried; the best may be smaller.")
    return notes


def _report(label: str, tries: Tries, console: Console) -> None:
    best = tries.tries[tries.chosen]
    values = ", ".join(f"{key}={value}" for key, value in best.values.items())
    diverged = sum(not math.isfinite(each.validation_loss) for each in tries.tries)
    console.print(
        f"{label}: {values}, validation loss {best.validation_loss:.4g}, the best of "
        f"{len(tries.tries)} tries{f', {diverged} of which diverged' if diverged else ''}",
        style="dim",
        highlight=False,
        markup=False,
    )
    for note in tries.notes:
        console.print(f"{label}: {note}", style="yellow", highlight=False, markup=False)


def _sized(name: str, of_system: Sequence[Candidate], experiment: Experiment) -> list[Candidate]:
    """The candidates with the widths that `--match parameters` chose for their system."""
    matched = experiment.recipes[name].model
    widths = {"embed_dim": matched.embed_dim, "ffn_dim": matched.ffn_dim}
    target = count_parameters(empty_model(matched, experiment.task))
    sized = []
    for candidate in of_system:
        before = candidate.recipe.model
        model = type(before).model_validate({**before.model_dump(), **widths})
        parameters = count_parameters(empty_model(model, experiment.task))
        if parameters != target:
            values = ", ".join(f"{key}={value}" for key, value in candidate.values.items())
            raise ValueError(
                f"--tune {values}: {name} would have {parameters:,} parameters in place of the "
                f"{target:,} of --match parameters; leave one of the two options out"
            )
        sized.append(
            candidate._replace(recipe=candidate.recipe.model_copy(update={"model": model}))
        )
    return sized
