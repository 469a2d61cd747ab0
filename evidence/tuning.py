"""Lets systems choose their settings before their seeds are trained: one key after the other.

A system tries the values of the first key, with all others at the middle of theirs, and keeps the
value of the lowest validation loss; then those of the next key. Where the best value is the largest
or the smallest, a key that may widens its values by one beyond it. Tries are as long as runs, have
a seed that no run has, and never look at the test part.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from evidence.experiments import Conditions, Key
from evidence.results import RecordedTries
from headwise.analysis.results import Try
from headwise.recipes.document import split_path
from headwise.runs.folder import claim, read_result, remove_models
from headwise.runs.launching import train_all
from headwise.runs.names import TRIES
from headwise.runs.tuning import TUNING_SEED, Grid, at_the_edge
from headwise.tasks.task import Task

Values = tuple[float, ...]  # of the keys, in their order


class Search(NamedTuple):
    """What a system has to try next; nothing, if it has chosen."""

    wanted: Sequence[Values]
    chosen: Values | None = None


def search(keys: Sequence[Key], losses: Mapping[Values, float]) -> Search:
    """Returns how the search goes on from the losses of finished tries.

    >>> rate = Key(key="training.learning_rate", values=(1.0, 2.0), factor=2.0)
    >>> search([rate], {(1.0,): 0.5, (2.0,): 0.4})
    Search(wanted=[(4.0,)], chosen=None)
    >>> search([rate], {(1.0,): 0.5, (2.0,): 0.4, (4.0,): 0.6})
    Search(wanted=[], chosen=(2.0,))
    """
    chosen = tuple(key.values[len(key.values) // 2] for key in keys)
    for place, key in enumerate(keys):
        values = list(key.values)
        while True:
            tries = {x: (*chosen[:place], x, *chosen[place + 1 :]) for x in values}
            if waiting := [each for each in tries.values() if each not in losses]:
                return Search(waiting)
            reached = {x: _or_infinite(losses[tries[x]]) for x in values}
            best = min(values, key=reached.__getitem__)
            if (beyond := key.beyond(best, values)) is None:
                break
            values = sorted([*values, beyond])
        enough = reached[best] + key.equal_within
        chosen = next(tries[x] for x in values if reached[x] <= enough)
    return Search([], chosen)


def _or_infinite(loss: float) -> float:
    """A loss that can be compared, also if the try diverged."""
    return math.inf if math.isnan(loss) else loss


def let_choose(
    conditions: Conditions, systems: Sequence[str], task: Task, console: Console, jobs: int
) -> None:
    """Trains the tries of systems that are not kept, and keeps each try and each choice."""
    keys = conditions.tune
    results: dict[str, dict[Values, Try]] = {
        name: {tuple(of.values[key.key] for key in keys): of for of in conditions.tried(name)}
        for name in systems
    }
    waiting = list(systems)
    while waiting:
        planned: dict[Path, tuple[str, Values]] = {}
        for name in list(waiting):
            losses = {of: result.validation_loss for of, result in results[name].items()}
            wanted, chosen = search(keys, losses)
            if chosen is not None:
                waiting.remove(name)
                tries = _tries(keys, results[name], chosen)
                conditions.table.put(conditions.choice_from(name, tries))
                for note in tries.notes:
                    console.print(f"{name}: {note}", style="yellow", highlight=False, markup=False)
            planned |= {_claimed(conditions, name, values): (name, values) for values in wanted}

        def keep(planned: Mapping[Path, tuple[str, Values]] = planned) -> None:
            for folder, (name, values) in planned.items():
                result = None if values in results[name] else read_result(folder)
                if result is not None:
                    named = dict(zip([key.key for key in keys], values, strict=True))
                    found = Try(values=named, **result.model_dump(include=_OF_TRY))
                    results[name][values] = found
                    conditions.table.put(conditions.tried_from(name, found))
                    remove_models(folder)

        data = dict.fromkeys(planned, task)
        train_all(list(planned), console, jobs=jobs, tasks=data, after_each=keep)
        keep()  # of those that were finished before


def _claimed(conditions: Conditions, name: str, values: Values) -> Path:
    """Returns the folder of a try, which has its recipe."""
    dataset = conditions.experiment.tune_on
    keys = zip(conditions.tune, values, strict=True)
    grid = Grid({split_path(key.key): [value] for key, value in keys})
    (combination,) = grid.combinations()
    tries = conditions.run_folder / (dataset or "") / TRIES / name
    folder = tries / grid.name(combination)
    claim(folder, conditions.file.system(name, dataset, grid.of_try(combination)))
    return folder


_OF_TRY = {"validation_loss", "steps", "seconds"}


def _tries(keys: Sequence[Key], results: Mapping[Values, Try], chosen: Values) -> RecordedTries:
    tries = list(results.values())
    number = list(results).index(chosen)
    if tries[number].diverged:
        raise ValueError(
            f"every try of {', '.join(key.key for key in keys)} diverged: declare smaller values "
            f"in evidence/catalogue/scales.yaml"
        )
    notes = at_the_edge(tries, number)
    return RecordedTries(seed=TUNING_SEED, tries=tries, chosen=number, notes=notes)
