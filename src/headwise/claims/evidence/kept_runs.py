"""The runs that are kept of a system, those that count of them, and whether they are stale."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from headwise.claims.catalogue.declared import Subject
from headwise.claims.catalogue.experiments import recipe_hash
from headwise.claims.evidence.fingerprint import computes_alike, fingerprint
from headwise.claims.evidence.quantities import Kept
from headwise.claims.evidence.records import read_run, run_path
from headwise.recipe.settings import Recipe

_MOST_SEEDS = 100  # that are looked for
_COMPUTED: dict[str, list[float]] = {}  # hash of a recipe to its fingerprint


def kept_runs(folder: Path, here: Subject, recipe: Recipe) -> list[Kept]:
    """Returns the runs of a system that were made with a recipe, by their seeds.

    Args:
        folder: with the evidence of the experiment.
        here: names the system and its data set.
        recipe: of the system on these data; runs of other recipes are left out.

    Raises:
        ValueError: the runs were made on different data.
    """
    expected = recipe_hash(recipe)
    found = [
        Kept(path, run)
        for seed in range(1, _MOST_SEEDS + 1)
        if (path := run_path(folder / (here.dataset or ""), here.system, seed)).is_file()
        and (run := read_run(path)) is not None
        and run.recipe == expected
    ]
    check_data(found)
    return found


def check_data(runs: Sequence[Kept]) -> None:
    """Raises `ValueError` if runs were made on different data: no test may rest on both."""
    for one, other in pairwise(runs):
        if one.run.data != other.run.data:
            raise ValueError(
                f"{one.path} and {other.path} were made on different data, expected the same: keep "
                f"the runs on one of them in another folder, with --evidence"
            )


def sound(runs: Sequence[Kept]) -> list[Kept]:
    """Returns those runs that did not diverge."""
    return [each for each in runs if math.isfinite(each.run.validation_loss)]


def fingerprint_today(recipe: Recipe) -> Sequence[float]:
    """Returns what the code computes today for a recipe; once for all who ask for it."""
    key = recipe_hash(recipe)
    if key not in _COMPUTED:
        _COMPUTED[key] = fingerprint(recipe)
    return _COMPUTED[key]


def is_stale(runs: Sequence[Kept], recipe: Recipe) -> bool:
    """Whether one of the runs was made by code that computes otherwise than today's."""
    return any(not computes_alike(each.run.fingerprint, fingerprint_today(recipe)) for each in runs)
