"""Names that a command is given, checked before PyTorch is loaded, so that a slip is told at once.

All else of a recipe, such as values and the keys of its task, is checked when it is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from headwise.data.settings import Data
from headwise.messages import one_of, shown
from headwise.recipes.document import RecipeError, parse_change, read_document, with_changes
from headwise.training.settings import TrainingSettings

# The keys of every recipe; tasks add others, to these and to `data`.
_KEYS = (
    *("title", "description", "base", "system", "task", "data", "model", "training"),
    *("evaluation", "systems", "datasets", "seeds"),
)
_OF_SYSTEM = ("description", "model", "training")


def check_names(
    recipe: str,
    systems: Iterable[str] = (),
    datasets: Iterable[str] = (),
    changes: Sequence[str] = (),
) -> None:
    """Finds names that a recipe does not have.

    Args:
        recipe: its name, or its path.
        systems, datasets: names that are asked for.
        changes: arguments of `--set`.

    Raises:
        RecipeError: there is no such recipe, system, data set or key.
    """
    document = with_changes(read_document(recipe), [parse_change(change) for change in changes])
    all_systems, all_datasets = (_keys(document.get(key)) for key in ("systems", "datasets"))
    asked = [("system", name, all_systems) for name in systems]
    asked += [("data set", name, all_datasets) for name in datasets]
    for what, name, known in asked:
        if name not in known:
            hint = one_of(name, known) if known else "and names none"
            raise RecipeError(f"recipe {recipe} has no {what} {shown(name)}, {hint}")
    if ":" not in str(document.get("task")):  # a task of the user's may have any keys
        _check_keys(recipe, "", document, _KEYS, complete=False)
        _check_keys(recipe, "data.", document.get("data"), Data.model_fields, complete=False)
    settings = {"training.": document.get("training")}
    for name, system in all_systems.items():
        _check_keys(recipe, f"systems.{name}.", system, _OF_SYSTEM)
        settings[f"systems.{name}.training."] = _keys(system).get("training")
    for prefix, given in settings.items():
        _check_keys(recipe, prefix, given, TrainingSettings.model_fields)


def _check_keys(
    recipe: str, prefix: str, given: Any, known: Iterable[str], *, complete: bool = True
) -> None:
    """Raises if a key is not known; if there are others, only if it is nearly one that is."""
    for key in _keys(given).keys() - set(known):
        if complete or get_close_matches(str(key), list(known), n=1, cutoff=0.8):
            hint = one_of(key, known)
            raise RecipeError(f"recipe {recipe}:\n  there is no key {prefix}{key}, {hint}")


def _keys(given: Any) -> Mapping[str, Any]:
    """What should be a mapping; what it is instead is told when the recipe is read."""
    return given if isinstance(given, Mapping) else {}
