"""How long the runs of claims and questions take, as runs of the same systems have taken."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from evidence.claims import Scale
from evidence.experiments import Conditions, Needed, Places
from evidence.questions import Question
from evidence.results import Run
from evidence.training import Systems
from headwise.analysis.results import machine


class PlannedMinutes(NamedTuple):
    """The minutes of one system of an experiment on one core; None where no run tells."""

    experiment: str
    system: str
    runs: int  # over data sets and seeds
    kept: int
    tries: int
    steps: int | None  # None if the budget is in epochs
    each: float | None
    total: float | None  # of runs and tries
    left: float | None


def plan(
    needed: Mapping[str, Needed],
    questions: Iterable[Question],
    scale: Scale,
    seeds: Sequence[int],
    places: Places,
) -> list[PlannedMinutes]:
    """Returns the minutes of all systems of all experiments, each once."""
    rows: dict[tuple[str, str], PlannedMinutes] = {}
    for name, of in needed.items():
        conditions = Conditions(scale, name, places)
        rows |= _by_system(conditions, of.systems, seeds)
    for question in questions:
        for conditions, some in question.runs(places):
            more = _by_system(conditions, {question.dataset: some}, seeds)
            rows |= {key: row for key, row in more.items() if key not in rows}
    return list(rows.values())


def _by_system(
    conditions: Conditions, systems: Systems, seeds: Sequence[int]
) -> dict[tuple[str, str], PlannedMinutes]:
    found = {}
    keys = conditions.tune
    # A key's values, less the one that is known from the key before it.
    most = sum(len(key.values) for key in keys) - max(0, len(keys) - 1)
    name = conditions.title.partition(" ")[2]
    for system in conditions.plain.system_names:
        datasets = [dataset for dataset, names in systems.items() if system in names]
        if not datasets:
            continue
        steps = conditions.plain.system(system, datasets[0]).training.max_steps
        chosen = conditions.chosen(system)
        tries = most if chosen is None else len(chosen.tries.tries)
        to_try = 0 if chosen else max(0, tries - len(conditions.tried(system)))
        runs = len(seeds) * len(datasets)
        # As runs under these conditions took, or else the experiment's own.
        found_runs, of_experiment = (
            [run for dataset in datasets for run in known.runs(system, dataset)]
            for known in (conditions, conditions.unchanged)
        )
        kept = sum(run.seed in seeds for run in found_runs)
        each = _minutes(found_runs or of_experiment, steps)
        total = left = None
        if each is not None:
            total, left = each * (runs + tries), each * (runs - kept + to_try)
        found[name, system] = PlannedMinutes(
            name, system, runs, kept, tries, steps, each, total, left
        )
    return found


def _minutes(runs: Sequence[Run], steps: int | None) -> float | None:
    """The minutes that runs of so many steps take, if there are any."""
    if not runs:
        return None
    # A GPU's minutes tell little of a CPU's.
    kind = machine().split(",")[0]
    alike = [run for run in runs if run.machine.split(",")[0] == kind] or runs
    of_a_step = statistics.median(run.minutes / run.steps for run in alike)
    return of_a_step * (steps or statistics.median(run.steps for run in runs))
