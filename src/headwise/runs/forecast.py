"""What a comparison would train, and about how long: nothing is trained, and nothing is written."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console

from headwise.runs.folder import check_claim, read_result
from headwise.runs.plan import OneDataset, Run
from headwise.runs.run import batches, build_model
from headwise.runs.tuning import Grid
from headwise.training.trainer import Trainer, accelerator_for
from headwise.training.watching import last_progress


class Forecast(NamedTuple):
    """What is left to train of one system on one data set.

    Attributes:
        dataset: its name; None for `data` of the recipe as they stand.
        system: its name.
        parameters: number of parameters.
        steps: number of steps of a run; fewer if `training.patience` ends it.
        finished, runs: number of runs that are finished, and of all.
        finished_tries, tries: the same of tries.
        steps_left: number of steps that runs and tries have yet to take.
        step_seconds: seconds of a step: of finished runs with their validations, or else measured
            here; None if no step is left.
    """

    dataset: str | None
    system: str
    parameters: int
    steps: int
    finished: int
    runs: int
    finished_tries: int
    tries: int
    steps_left: int
    step_seconds: float | None


def forecast(
    planned: Sequence[OneDataset], seeds: Sequence[int], grid: Grid | None, console: Console
) -> list[Forecast]:
    """Returns what is left of each system on each data set.

    Raises:
        FolderError: a folder holds a run of another recipe.
    """
    found = []
    for of in planned:
        tries = of.tries(grid) if grid else []
        are_tried = all(read_result(run.folder) for run in tries)
        if grid and are_tried:
            of.choose(grid, console)
        runs = of.runs(seeds)
        for run in [*tries, *(runs if are_tried else ())]:  # else nobody knows their values yet
            check_claim(run.folder, run.recipe)
        for system in of.systems:
            console.print(f"{system}: takes some steps", style="dim", highlight=False)
            found.append(
                _of_system(
                    of,
                    [r for r in runs if r.system == system],
                    [r for r in tries if r.system == system],
                    grid,
                )
            )
    return found


def _of_system(
    of: OneDataset, runs: Sequence[Run], tries: Sequence[Run], grid: Grid | None
) -> Forecast:
    results = [[r for run in each if (r := read_result(run.folder))] for each in (runs, tries)]
    recipe, task = runs[0].recipe, runs[0].task
    settings = recipe.training.model_copy(update={"report_to": []})
    with TemporaryDirectory() as nowhere:
        trainer = Trainer(
            build_model(recipe, task),
            batches(task, "train", settings, seed=settings.seed),
            batches(task, "validation", settings),
            settings,
            Path(nowhere),
            accelerator_for(settings, Path(nowhere)),
            console=Console(quiet=True),
        )
        total = trainer.now.total
        of_try = (grid and grid.steps) or total
        left = sum(_left(run, total) for run in runs) + sum(_left(run, of_try) for run in tries)
        known = [r.seconds / r.steps for r in (*results[0], *results[1]) if r.steps]
        seconds = median(known) if known else trainer.seconds_of_step() if left else None
    finished, finished_tries = map(len, results)
    return Forecast(
        *(of.name, runs[0].system, of.parameters(runs[0].system), total, finished, len(runs)),
        *(finished_tries, len(tries), left, seconds if left else None),
    )


def _left(run: Run, total: int) -> int:
    """How many steps a run has yet to take, which may stand at a checkpoint."""
    if read_result(run.folder) is not None:
        return 0
    return max(0, total - int((last_progress(run.folder) or {}).get("step", 0)))
