"""`compare --tune`: for every system the best of the same values is chosen by validation loss.

A trial is a run with one combination of the values, and with a seed that no run of the comparison
has. It is never evaluated on the test split. One combination is chosen for each system, and all of
its seeds are trained with it: `FixHOptEst` of Bouthillier et al. 2021, *Accounting for Variance in
Machine Learning Benchmarks*, https://arxiv.org/abs/2103.03098, whose ideal tunes for every seed.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import product
from typing import Any

from headwise.analysis.results import RunResult, Trial, Trials
from headwise.messages import shown
from headwise.recipes.document import Change, split_path
from headwise.recipes.recipe import SEED, RecipeFile
from headwise.yaml import read_yaml

# The seed of every trial. With the seed of a run, the choice would favour the chance of that run.
TUNING_SEED = 1_000_000
_EXAMPLE = "training.learning_rate=1e-3,3e-3"
_BUDGET = (("training", "max_steps"), ("training", "epochs"), ("training", "seed"))
Grid = dict[tuple[str, ...], list[Any]]  # path of a key to its values


def parse_grid(options: Sequence[str]) -> Grid:
    """Returns the keys and values of the options `--tune`.

    >>> parse_grid(["training.adam_betas=[0.9, 0.98],[0.9, 0.999]"])
    {('training', 'adam_betas'): [[0.9, 0.98], [0.9, 0.999]]}
    """
    grid: Grid = {}
    for option in options:
        key, equals, text = option.partition("=")
        path = split_path(key)
        if not equals or len(path) < 2 or path[0] not in ("model", "training") or path in _BUDGET:
            raise ValueError(
                f"--tune is {shown(option)}, expected a key of `model` or `training` with values, "
                f"such as {_EXAMPLE}; data, seeds and steps are the same for all systems"
            )
        if any(path[: len(other)] == other[: len(path)] for other in grid):
            raise ValueError(f"--tune gives {key} twice, expected all its values in one --tune")
        values = read_yaml(f"[{text}]")
        if len({repr(value) for value in values}) < max(2, len(values)):
            raise ValueError(f"--tune is {shown(option)}, expected different values: {_EXAMPLE}")
        grid[path] = values
    return grid


def check_grid(
    grid: Grid,
    file: RecipeFile,
    systems: Sequence[str],
    datasets: Sequence[str | None],
    *,
    match: bool,
) -> None:
    """Raises `ValueError` for a value or a start that no trial can have, or a key set elsewhere."""
    for path in grid:
        setters = [f"system {name}" for name in systems if file.is_set(path, name)]
        setters += ["--set"] if file.is_set(path) else []
        setters += ["--match"] if match and path[0] == "model" else []
        if setters:
            raise ValueError(
                f"--tune names {'.'.join(path)}, to which {', '.join(setters)} gives a value too: "
                f"expected a key that all systems share"
            )
    for system, dataset, combination in product(systems, datasets, combinations(grid)):
        # Raises where a value is wrong.
        recipe = file.system(system, dataset, trial_changes(combination))
        folder = recipe.pretrained_folder()
        if folder is not None and SEED in str(recipe.pretrained) and not folder.is_dir():
            raise ValueError(
                f"model.pretrained is {recipe.pretrained}, and trials of --tune have the seed "
                f"{TUNING_SEED}: pretrain a run with that seed too, or name one run for all seeds, "
                f"without {SEED}"
            )


def combinations(grid: Grid) -> list[list[Change]]:
    """Returns all combinations of values, each as changes of a recipe; none without values."""
    return [list(zip(grid, each, strict=True)) for each in product(*grid.values())] if grid else []


def trial_changes(combination: Sequence[Change]) -> list[Change]:
    """Returns the changes that make the recipe of a trial."""
    return [*combination, (("training", "seed"), TUNING_SEED), (("evaluation", "test"), False)]


def trial_name(combination: Sequence[Change]) -> str:
    """Returns the name of the folder of a trial, such as `training.learning_rate=0.003`."""
    text = format_values(combination).replace(", ", ",")
    name = re.sub(r"[^\w.,=+-]+", "-", text)[:120]
    return name if name == text else f"{name}-{sha256(text.encode()).hexdigest()[:8]}"


def choose(system: str, grid: Grid, results: Iterable[RunResult]) -> Trials:
    """Returns the trials of a system, one for each combination, with the best of them.

    Raises:
        ValueError: all of them diverged.
    """
    trials = [
        Trial(
            values={".".join(path): value for path, value in combination},
            **result.model_dump(include={"validation_loss", "steps", "seconds"}),
        )
        for combination, result in zip(combinations(grid), results, strict=True)
    ]
    converged = [index for index, each in enumerate(trials) if not each.diverged]
    if not converged:
        raise ValueError(
            f"every trial of {system} diverged: add values to --tune, such as smaller learning "
            f"rates; finished trials are not trained again"
        )
    best = min(converged, key=lambda index: trials[index].validation_loss)
    notes = []
    for (key, value), values in zip(trials[best].values.items(), grid.values(), strict=True):
        if all(type(each) in (int, float) for each in values):
            if value == max(values):
                notes.append(f"{key}={value} is the largest value tried; the best may be larger.")
            elif value == min(values) != 0:
                notes.append(f"{key}={value} is the smallest value tried; the best may be smaller.")
    return Trials(seed=TUNING_SEED, trials=trials, chosen=best, notes=notes)


def format_values(combination: Sequence[Change]) -> str:
    """Returns values as a user writes them: `model.dropout=0.1, model.norm=pre`."""
    return ", ".join(f"{'.'.join(path)}={value}" for path, value in combination)
