"""`compare --tune`: every system chooses among the same values, by validation loss.

A try is a run with one combination of the values, and with a seed that no run of the comparison
has. It is never evaluated on the test part. Each system chooses once, and all of its seeds are
trained with the choice: `FixHOptEst` of Bouthillier et al. 2021, *Accounting for Variance in
Machine Learning Benchmarks*, https://arxiv.org/abs/2103.03098, whose ideal tunes for every seed.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from itertools import product
from typing import Any, NamedTuple

from headwise.analysis.results import RunResult, Tries, Try
from headwise.messages import shown
from headwise.recipes.document import Change, split_path
from headwise.recipes.recipe import RecipeFile
from headwise.yaml import read_yaml

# The seed of every try. That of a run would favour what was chosen for its chance.
TUNING_SEED = 1_000_000
_EXAMPLE = "training.learning_rate=1e-3,3e-3"
_BUDGET = (("training", "max_steps"), ("training", "epochs"), ("training", "seed"))


class Grid(NamedTuple):
    """The values that every system tries."""

    values: dict[tuple[str, ...], list[Any]]  # the keys of a path to its values
    steps: int | None = None  # how many steps a try takes; None for as many as a run

    def combinations(self) -> list[list[Change]]:
        """Returns all combinations of values, each as changes of a recipe."""
        chosen = product(*self.values.values())
        return [list(zip(self.values, values, strict=True)) for values in chosen]

    def of_try(self, combination: Sequence[Change]) -> list[Change]:
        """Returns the changes that make the recipe of a try."""
        steps = [] if self.steps is None else [(("training", "max_steps"), self.steps)]
        own = [(("training", "seed"), TUNING_SEED), (("evaluation", "test"), False)]
        return [*combination, *steps, *own]

    def name(self, combination: Sequence[Change]) -> str:
        """Returns what the folder of a try is called: `training.learning_rate=0.003`."""
        wanted = in_words(combination) + ("" if self.steps is None else f", steps={self.steps}")
        wanted = wanted.replace(", ", ",")
        name = re.sub(r"[^\w.,=+-]+", "-", wanted)[:120]
        return name if name == wanted else f"{name}-{sha256(wanted.encode()).hexdigest()[:8]}"


def parse_grid(options: Sequence[str], steps: int | None = None) -> Grid | None:
    """Returns what `--tune` and `--tune-steps` ask for; None without any.

    >>> parse_grid(["training.adam_betas=[0.9, 0.98],[0.9, 0.999]"]).values
    {('training', 'adam_betas'): [[0.9, 0.98], [0.9, 0.999]]}
    """
    if not options and steps is not None:
        raise ValueError(f"--tune-steps is {steps}, but nothing is tuned: give --tune {_EXAMPLE}")
    values: dict[tuple[str, ...], list[Any]] = {}
    for option in options:
        key, equals, text = option.partition("=")
        path = split_path(key)
        if not equals or len(path) < 2 or path[0] not in ("model", "training") or path in _BUDGET:
            raise ValueError(
                f"--tune is {shown(option)}, expected a key of `model` or `training` with values, "
                f"such as {_EXAMPLE}; data, seeds and steps are the same for all systems"
            )
        if any(path[: len(other)] == other[: len(path)] for other in values):
            raise ValueError(f"--tune gives {key} twice, expected all its values in one --tune")
        given = read_yaml(f"[{text}]")
        if len({repr(value) for value in given}) < max(2, len(given)):
            raise ValueError(f"--tune is {shown(option)}, expected different values: {_EXAMPLE}")
        values[path] = given
    return Grid(values, steps) if options else None


def check_grid(
    grid: Grid,
    file: RecipeFile,
    systems: Sequence[str],
    seeds: Sequence[int],
    datasets: Sequence[str | None],
    *,
    match: bool,
) -> None:
    """Finds values that no recipe can have, and what of the user's wishes tuning would undo."""
    if TUNING_SEED in seeds:
        raise ValueError(f"--seeds has {TUNING_SEED}, expected others: the tries of --tune have it")
    for path in grid.values:
        key, sets = ".".join(path), [name for name in systems if file.is_set(path, name)]
        if file.is_set(path) or (match and path[0] == "model"):
            other = "--set" if file.is_set(path) else "--match"
            raise ValueError(f"{other} and --tune both give {key} a value: leave out one of them")
        if sets:
            raise ValueError(
                f"--tune names {key}, but the recipe sets it for {', '.join(sets)}, expected a "
                f"key that all systems share"
            )
    rises = file.recipe.training.warmup(grid.steps or 0)
    if grid.steps is not None and rises >= grid.steps:
        raise ValueError(
            f"--tune-steps is {grid.steps}, expected more than the {rises} steps of "
            f"training.warmup_steps"
        )
    for system, dataset, each in product(systems, datasets, grid.combinations()):
        file.system(system, dataset, grid.of_try(each))  # which says what is wrong


def choose(
    system: str, combinations: Sequence[Sequence[Change]], results: Sequence[RunResult]
) -> Tries:
    """Returns what the tries of a system, one of each combination, found, and the best of them.

    Raises:
        ValueError: all of them diverged.
    """
    tries = [
        Try(
            values={".".join(path): value for path, value in combination},
            **result.model_dump(include={"validation_loss", "steps", "seconds"}),
        )
        for combination, result in zip(combinations, results, strict=True)
    ]
    sound = [number for number, each in enumerate(tries) if not each.diverged]
    if not sound:
        raise ValueError(
            f"every try of {system} diverged: add values to --tune, such as smaller learning "
            f"rates; finished tries are not trained again"
        )
    best = min(sound, key=lambda number: tries[number].validation_loss)
    return Tries(seed=TUNING_SEED, tries=tries, chosen=best, notes=at_the_edge(tries, best))


def at_the_edge(tries: Sequence[Try], number: int) -> list[str]:
    """Returns a sentence for each number of a try that is the largest or the smallest of all."""
    notes = []
    for key, value in tries[number].values.items():
        values = [each.values[key] for each in tries]
        if all(type(each) in (int, float) for each in values):
            if value == max(values):
                notes.append(f"{key}={value} is the largest value tried; the best may be larger.")
            elif value == min(values) != 0:
                notes.append(f"{key}={value} is the smallest value tried; the best may be smaller.")
    return notes


def in_words(combination: Sequence[Change]) -> str:
    """Returns values as a user gives them: `model.dropout=0.1, model.norm=pre`."""
    return ", ".join(f"{'.'.join(path)}={value}" for path, value in combination)
