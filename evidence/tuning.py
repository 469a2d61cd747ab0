"""Lets systems choose their settings before their seeds are trained: one key after the other.

A system tries the values of the first key, with all others at the middle of theirs, and keeps the
value of the lowest validation loss; then those of the next key. Where the best value is the largest
or the smallest, a key that may widens its values by one beyond it. Tries are as long as runs, have
a seed that no run has, and never look at the test part.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console

from evidence.experiments import Conditions, Key
from headwise.analysis.results import Tries, Try, TryResult
from headwise.recipes.document import split_path
from headwise.runs.grid import TUNING_SEED, candidates
from headwise.runs.grid import Grid as OfOneTry
from headwise.runs.running import Experiment, train_runs
from headwise.runs.tuning import TRIES, TryRun, at_the_edge

Values = tuple[float, ...]  # of the keys, in their order
Planned = tuple[str, Values, TryRun]  # a system, what it tries, and how


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


def let_choose(conditions: Conditions, experiment: Experiment, console: Console, jobs: int) -> None:
    """Trains the tries of systems that are not kept, and keeps each try and each choice."""
    keys = conditions.tune
    results: dict[str, dict[Values, Try]] = {
        name: {tuple(of.values[key.key] for key in keys): of for of in conditions.tried(name)}
        for name in experiment.recipes
    }
    waiting = list(experiment.recipes)
    while waiting:
        planned: list[Planned] = []
        for name in list(waiting):
            losses = {of: result.validation_loss for of, result in results[name].items()}
            wanted, chosen = search(keys, losses)
            if chosen is not None:
                waiting.remove(name)
                tries = _tries(keys, results[name], chosen)
                conditions.table.put(conditions.choice_from(name, tries))
                for note in tries.notes:
                    console.print(f"{name}: {note}", style="yellow", highlight=False, markup=False)
            for values in wanted:
                planned.append((name, values, _try(conditions, name, values, experiment)))

        def ended(done: Sequence[TryResult | None], planned: Sequence[Planned] = planned) -> None:
            for (name, values, _), result in zip(planned, done, strict=True):
                if result is not None and values not in results[name]:
                    named = dict(zip([key.key for key in keys], values, strict=True))
                    found = Try(values=named, **result.model_dump(exclude={"history"}))
                    results[name][values] = found
                    conditions.table.put(conditions.tried_from(name, found))

        runs = [run for *_, run in planned]
        done: list[TryResult] = train_runs(runs, console, jobs=jobs, after_each=ended)
        ended(done)


def _try(conditions: Conditions, name: str, values: Values, experiment: Experiment) -> TryRun:
    keys, dataset = conditions.tune, conditions.experiment.tune_on
    grid = {split_path(key.key): [value] for key, value in zip(keys, values, strict=True)}
    (candidate,) = candidates(conditions.file, name, dataset, OfOneTry(grid))
    return TryRun(
        recipe=candidate.recipe.model_copy(update={"training": candidate.training}),
        system=name,
        folder=experiment.folder / TRIES / name / candidate.folder_name(None),
        task=experiment.task,
        label=f"{name} {candidate.folder_name(None)}",
    )


def _tries(keys: Sequence[Key], results: Mapping[Values, Try], chosen: Values) -> Tries:
    tries = list(results.values())
    number = list(results).index(chosen)
    if tries[number].diverged:
        raise ValueError(
            f"every try of {', '.join(key.key for key in keys)} diverged: declare smaller values "
            f"in evidence/catalogue/scales.yaml"
        )
    of = Tries(seed=TUNING_SEED, tries=tries, chosen=number)
    return of.model_copy(update={"notes": at_the_edge(tries, number)})
