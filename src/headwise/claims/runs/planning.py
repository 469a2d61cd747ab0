"""How long the runs of claims take: a table of minutes, from kept runs or from single steps.

Where runs of a system are kept, a step of a further one takes their median time. Where there is
none, some steps tell, on the recipe's own data and in processor time, so that other work on the
machine hardly counts; `headwise claims plan --measure` measures them. They are kept with the
evidence, and where they are missing too the table says so.
"""

import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from headwise.claims.catalogue.declared import Scale, Subject
from headwise.claims.catalogue.experiments import Places, find_experiment, grid_of, read_recipe
from headwise.claims.catalogue.needed import Needed, models_to_start_from
from headwise.claims.evidence.conditions import Conditions
from headwise.claims.evidence.kept_runs import kept_runs
from headwise.claims.evidence.records import StoredRun, read_seconds, write_seconds
from headwise.claims.evidence.tries import tries_of
from headwise.claims.runs.running import read_task
from headwise.claims.why.questions import Question
from headwise.heads.watching import UntrainedRuleWarning
from headwise.models.base import HeadwiseModel
from headwise.recipe.settings import Recipe
from headwise.runs.preparing import batches, build_model
from headwise.tasks.task import Task
from headwise.training.rules import TrainingRules
from headwise.training.run import MODEL

_STEPS = 4  # measured of each system, after one that is not counted
_OVERHEAD = 1.15  # validations, over the steps alone


class PlannedMinutes(NamedTuple):
    """The minutes of one system of an experiment on one core.

    Attributes:
        experiment: its name; of a question with the question and the value of its key.
        system: name of the system.
        runs: how many runs there are, over data sets and seeds.
        tries: how many tries choose the tuned values.
        steps: of a run; None if the budget is in epochs.
        seconds: of a step; None if not measured.
        each: minutes of one run, the longest of the tries and runs; None if not known.
        total: minutes of all runs and tries.
        left: minutes of those runs and tries that are not there yet.
        kept: how many of the runs are there already.
    """

    experiment: str
    system: str
    runs: int
    tries: int
    steps: int | None
    seconds: float | None
    each: float | None
    total: float | None
    left: float | None
    kept: int


def plan(
    needed: Mapping[str, Needed], scale: Scale, seeds: int, places: Places
) -> list[PlannedMinutes]:
    """Returns the minutes of all systems of all experiments.

    Args:
        needed: what claims need, by experiment.
        scale: the scale.
        seeds: how many seeds each system is trained with.
        places: the folders of this machine, of which the evidence counts.
    """
    return [
        row
        for name, of in needed.items()
        for row in _under(Conditions(scale, name, places), of, seeds)
    ]


def plan_question(question: Question, seeds: int, places: Places) -> list[PlannedMinutes]:
    """Returns the minutes of the runs of a question; shared ones included.

    Args:
        question: the question.
        seeds, places: as in `plan`.
    """
    return [
        row
        for conditions, systems in question.runs(places)
        for row in _under(conditions, Needed({question.dataset: systems}, {}, {}, []), seeds)
    ]


def _under(conditions: Conditions, needed: Needed, seeds: int) -> list[PlannedMinutes]:
    """The minutes of systems under conditions, at the seconds of the experiment."""
    found = []
    grid = grid_of(conditions.experiment) if conditions.chooses else None
    measured = read_seconds(conditions.unchanged.own.evidence)
    name = conditions.title.partition(" ")[2]
    for system in conditions.plain.system_names:
        datasets = [dataset for dataset, names in needed.systems.items() if system in names]
        if not datasets:
            continue
        steps = conditions.plain.system(system, datasets[0]).training.max_steps
        tries = 0 if grid is None else len(grid.combinations())
        chosen = tries_of(conditions.plain, conditions.own.evidence, system, grid) is not None
        of_each = 1 if needed.models else seeds  # others start from the first alone
        runs = of_each * len(datasets)
        kept = sum(run.seed <= of_each for run in _kept(conditions, system, datasets))
        seconds = measured.get(system)
        each = _minutes(conditions, system, datasets, steps, seconds)
        total = left = None
        if each is not None:
            length = 1.0  # of a try, in runs
            if grid is not None and grid.steps is not None and steps is not None:
                length = grid.steps / steps
            total = each * (runs + tries * length)
            left = each * (runs - kept + (0 if chosen else tries) * length)
        found.append(
            PlannedMinutes(name, system, runs, tries, steps, seconds, each, total, left, kept)
        )
    return found


def _minutes(
    conditions: Conditions,
    system: str,
    datasets: Sequence[str | None],
    steps: int | None,
    seconds: float | None,
) -> float | None:
    """The minutes of a run, as runs under these conditions took, or else the experiment's own."""
    for known in (conditions, conditions.unchanged):
        if runs := _kept(known, system, datasets):
            of_a_step = statistics.median(run.minutes / run.steps for run in runs)
            return of_a_step * (steps or statistics.median(run.steps for run in runs))
    return None if steps is None or seconds is None else steps * seconds * _OVERHEAD / 60


def _kept(conditions: Conditions, system: str, datasets: Sequence[str | None]) -> list[StoredRun]:
    return [
        kept.run
        for dataset in datasets
        for kept in kept_runs(
            conditions.own.evidence,
            Subject(system=system, dataset=dataset),
            conditions.recipe(system, dataset),
        )
    ]


def measure_seconds(
    scale: Scale, name: str, needed: Needed, places: Places, console: Console
) -> None:
    """Measures the seconds of a step of those systems of an experiment that have none yet."""
    own = places.of(scale, name)
    experiment = find_experiment(scale, name)
    for other, before in experiment.needs.items():
        folder = places.of(scale, other).runs
        if not all((folder / f"{system}-seed1" / MODEL).is_dir() for system in before):
            console.print(f"{name}: not measured before the runs of {other} are there")
            return
    seconds = read_seconds(own.evidence)
    file = read_recipe(experiment, own)
    for dataset, systems in needed.systems.items():
        wanted = [system for system in systems if system not in seconds]
        if not wanted:
            continue
        task = read_task(file, own, wanted[0], dataset, Console(quiet=True))
        for system in wanted:
            seconds[system] = _seconds(file.system(system, dataset), task)
            console.print(f"{name} {system}: {seconds[system]:.3f} s a step", highlight=False)
            write_seconds(own.evidence, seconds)


def with_needs(needed: Mapping[str, Needed], scale: Scale) -> dict[str, Needed]:
    """Returns what claims need, with the experiments from whose models theirs start."""
    found: dict[str, Needed] = {}
    for name, of in needed.items():
        for other, systems in find_experiment(scale, name).needs.items():
            alone = models_to_start_from(scale, other, systems)
            found.setdefault(other, needed.get(other, alone))
        found.setdefault(name, of)
    return found


def _seconds(recipe: Recipe, task: Task) -> float:
    model = build_model(recipe, task).train()
    rules = TrainingRules(model, recipe.training.of_rules())
    optimizer = torch.optim.Adam(rules.parameter_groups(lr=1e-4, weight_decay=0.0))
    times = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedRuleWarning)  # it is timed, not trained
        for batch in islice(batches(task, task.train, recipe.training, seed=1), _STEPS + 1):
            passes = rules.step_seconds(partial(_passes, model, batch))
            start = time.process_time()
            optimizer.step()
            optimizer.zero_grad()
            times.append(passes + time.process_time() - start)
    return sum(times[1:]) / max(1, len(times) - 1)


def _passes(model: HeadwiseModel, batch: Mapping[str, Tensor]) -> float:
    start = time.process_time()
    model(**batch).loss.backward()
    return time.process_time() - start
