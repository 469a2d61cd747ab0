"""The tries by which a system has chosen its tuned values, as far as they hold today."""

from pathlib import Path

from headwise.claims.catalogue.experiments import recipe_hash
from headwise.claims.evidence.records import StoredTries, read_tries, tuning_path
from headwise.recipe import RecipeFile
from headwise.runs.grid import Grid


def tries_of(
    plain: RecipeFile, evidence: Path, system: str, grid: Grid | None
) -> StoredTries | None:
    """Returns the finished tries that decided a system's tuned values; None without any.

    Tries of another recipe, or of other values than those of the grid, count for nothing.

    Args:
        plain: the recipe of the experiment, with the names of folders as `read_recipe` leaves them.
        evidence: the folder with the evidence of the experiment.
        system: name of the system.
        grid: what the systems of the experiment choose from; None without tuning.
    """
    if grid is None or (kept := read_tries(tuning_path(evidence, system))) is None:
        return None
    return kept if kept.are_from(hash_before(plain, system), grid) else None


def hash_before(plain: RecipeFile, system: str) -> str:
    """A hash of the recipe of a system before it chose."""
    dataset = None if plain.has_data else plain.dataset_names[0]
    return recipe_hash(plain.system(system, dataset))
