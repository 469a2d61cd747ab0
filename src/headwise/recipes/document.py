"""The documents of recipes: unchecked keys and values of YAML files and of `--set`.

PyTorch is not imported here, so that the command line checks names at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from headwise.data.settings import merge_data
from headwise.messages import cut, expected_one_of, how_to_convert, shown
from headwise.settings import merge
from headwise.yaml import read_yaml

Document = dict[str, Any]
Change = tuple[tuple[str, ...], Any]  # the keys of a path, and its new value

_SUFFIXES = (".yaml", ".yml")
_INHERITED_WHOLE = ("systems", "datasets")  # a recipe does not inherit single entries of its base
# The names of data that are installed with headwise. They are written here because asking the tasks
# for their `built_in` takes seconds; a test compares both.
OFFLINE = {"interface-strings", "pydoc-topics", "package-docs", "docstrings", "generated", "pairs"}
OFFLINE |= {"digits", "photographs"}


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key and how to mend it."""


@cache
def shipped_recipes() -> dict[str, str]:
    """Returns the YAML of the recipes that headwise ships, by name, in alphabetical order."""
    files = (resources.files("headwise") / "recipes").iterdir()
    recipes = {Path(file.name): file for file in files if file.name.endswith(".yaml")}
    return {path.stem: recipes[path].read_text(encoding="utf-8") for path in sorted(recipes)}


def read_document(name: str, descendants: tuple[str, ...] = ()) -> Document:
    """Returns the keys of a recipe; it inherits the keys of its `base`.

    Args:
        name: the name of a recipe that headwise ships, or the path of a .yaml file.
        descendants: the recipes that inherit from it.

    Raises:
        RecipeError: there is no such recipe, or it cannot be read.
    """
    document = _read_keys(name)
    base = document.pop("base", None)
    if base is None:
        return document
    if Path(str(base)).suffix in _SUFFIXES:  # relative to the recipe that names it
        base = Path(name).parent / Path(str(base)).expanduser()
    try:
        if str(base) in (*descendants, name):
            raise RecipeError(f"{base} inherits from this recipe, expected no circle")
        inherited = read_document(str(base), (*descendants, name))
    except RecipeError as error:
        raise RecipeError(f"base of recipe {name}: {error}") from error
    for key in _INHERITED_WHOLE:
        if key in document:
            inherited.pop(key, None)
    return merge_documents(inherited, document)


def _read_keys(name: str) -> Document:
    path = Path(name).expanduser()
    if path.suffix not in _SUFFIXES and name not in shipped_recipes():
        raise RecipeError(
            f"there is no recipe {shown(name)}, {expected_one_of(name, shipped_recipes())}; or "
            f"give the path of a file that ends in .yaml"
        )
    try:
        if path.suffix in _SUFFIXES:
            text = path.read_text(encoding="utf-8-sig")  # without a byte order mark
        else:
            text = shipped_recipes()[name]
        document = read_yaml(text)
    except OSError as error:
        raise RecipeError(f"recipe {cut(str(path))} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        hint = how_to_convert(error.object)
        raise RecipeError(f"recipe {path}, line {line}: not UTF-8. {hint}") from None
    except ValueError as error:
        raise RecipeError(f"recipe {name}: {error}") from error
    if not isinstance(document, dict):
        raise RecipeError(
            f"recipe {name} is {shown(document)}, expected keys with values, such as "
            f"training: {{max_steps: 1000}}"
        )
    return document


def merge_documents(document: Mapping[str, Any], changes: Mapping[str, Any]) -> Document:
    """Returns the keys of two recipes; the values of the second one win."""
    merged = merge(document, changes)
    data, new_data = document.get("data"), changes.get("data")
    if isinstance(data, Mapping) and isinstance(new_data, Mapping):
        merged["data"] = merge_data(data, new_data)
    return merged


def check_names(
    recipe: str,
    systems: Iterable[str] = (),
    datasets: Iterable[str] = (),
    changes: Sequence[str] = (),
) -> None:
    """Raises `RecipeError` if there is no such recipe, or it has no such system or data set."""
    document = with_changes(read_document(recipe), list(map(parse_change, changes)))
    check_names_in(document, recipe, systems, datasets)


def check_names_in(
    document: Document, recipe: str, systems: Iterable[str], datasets: Iterable[str]
) -> None:
    """Raises `RecipeError` if the document of a recipe has no such system or data set."""
    for noun, key, names in (("system", "systems", systems), ("data set", "datasets", datasets)):
        known = document.get(key) or {}
        for name in names:
            if name not in known:
                hint = expected_one_of(name, known) if known else "and names none"
                raise RecipeError(f"recipe {recipe} has no {noun} {shown(name)}, {hint}")


# --- --set --------------------------------------------------------------------------------------


def parse_change(text: str) -> Change:
    """Returns the keys and the value of an argument of `--set`.

    >>> parse_change("training.learning_rate=1e-3"), parse_change("data.files.train=a #1.txt")
    ((('training', 'learning_rate'), 0.001), (('data', 'files', 'train'), 'a #1.txt'))
    """
    path, equals, value = text.partition("=")
    keys = split_path(path)
    if not equals or not all(keys):
        raise RecipeError(
            f"--set is {shown(text)}, expected key.key=value, such as training.max_steps=100"
        )
    if keys[0] == "base":
        raise RecipeError("--set names base, expected it in the recipe's file alone")
    if "#" in value and value.strip()[0] not in "[{\"'":
        return keys, value.strip()  # on a command line # begins no comment
    try:
        return keys, read_yaml(value)
    except ValueError as error:
        raise RecipeError(f"--set is {shown(text)}: {error}") from error


def split_path(path: str) -> tuple[str, ...]:
    """Returns the keys of a path.

    >>> split_path("training.max_steps")
    ('training', 'max_steps')
    """
    return tuple(key.strip() for key in path.split("."))


def with_changes(document: Mapping[str, Any], changes: Sequence[Change]) -> Document:
    """Returns a recipe with new values.

    >>> with_changes({"model": {"layers": 2}}, [(("model", "dropout"), 0.0)])
    {'model': {'layers': 2, 'dropout': 0.0}}
    """
    data: Document = {}  # all changes of data together decide whether the source is another
    for keys, value in changes:
        if keys[0] == "data":
            data = _with_value(data, keys, value)
    document = merge_documents(document, data)
    for keys, value in changes:
        document = _with_value(document, keys, value)
    return document


def _with_value(document: Any, keys: tuple[str, ...], value: Any) -> Document:
    document = dict(document) if isinstance(document, Mapping) else {}
    first, *rest = keys
    if rest:
        value = _with_value(document.get(first), tuple(rest), value)
    return merge({**document, first: None}, {first: value})


# --- comparing and listing ----------------------------------------------------------------------


def differences(old: str, new: str) -> list[str]:
    """Returns a line for each value that differs between two recipes in YAML.

    >>> differences("training: {seed: 1, max_steps: 5}", "training: {seed: 2, max_steps: 5}")
    ['training.seed: 1 before, 2 now']
    """
    before, now = flatten(read_yaml(old)), flatten(read_yaml(new))
    return [
        f"{key}: {before.get(key, 'not set')} before, {now.get(key, 'not set')} now"
        for key in {**before, **now}
        if before.get(key, "not set") != now.get(key, "not set")
    ]


def flatten(value: Any, prefix: str = "") -> Document:
    """Returns the values of a recipe by their paths.

    >>> flatten({"model": {"layers": 2}, "seeds": [1, 2]})
    {'model.layers': 2, 'seeds': [1, 2]}
    """
    if not isinstance(value, dict):
        return {prefix: value}
    flat: Document = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


class ListedRecipe(NamedTuple):
    """A line in the list of recipes."""

    name: str
    task: str
    budget: str  # the length of each run
    systems: int  # their number
    description: str
    is_offline: bool  # whether its data are installed with headwise


def listed_recipes() -> list[ListedRecipe]:
    """Returns the list of the recipes that headwise ships; the first ones run offline."""
    recipes = []
    for name in shipped_recipes():
        document = read_document(name)
        task, training = document["task"], document["training"]
        steps = training.get("max_steps")
        budget = f"{steps:,} steps" if steps else f"{training['epochs']} epochs"
        data = flatten({key: document.get(key) for key in ("data", "datasets")})
        sources = {data[key] for key in data if key.endswith("path") or ".files." in key}
        systems, description = len(document["systems"]), document["description"]
        is_offline = sources <= OFFLINE
        recipes.append(ListedRecipe(name, task, budget, systems, description, is_offline))
    return sorted(recipes, key=lambda recipe: not recipe.is_offline)
