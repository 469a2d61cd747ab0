"""The documents of recipes: what YAML files and `--set` say, which is not checked yet.

PyTorch is not imported here, so that the name of a recipe is checked at once.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from headwise.data.settings import merge_data
from headwise.messages import cut, how_to_convert, one_of, shown
from headwise.settings import merge
from headwise.yaml import read_yaml

Document = dict[str, Any]
Change = tuple[tuple[str, ...], Any]  # the keys of a path, and the new value there

_SUFFIXES = (".yaml", ".yml")
_LISTED = ("systems", "datasets")  # what is compared: a change lists it as a whole
# The dots of `module:Class` divide nothing: training.rules.package.module:Class.rate.
_NAMES_CLASS = re.compile(r"(.*\b(?:rules|ablation))\.([\w.]*:\w*)(?:\.(.*))?")


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key and how to mend it."""


@cache
def shipped_recipes() -> dict[str, str]:
    """Returns the recipes that headwise ships: name to YAML text, sorted by name."""
    files = (resources.files("headwise") / "recipes").iterdir()
    found = {Path(file.name): file for file in files if file.name.endswith(".yaml")}
    return {path.stem: found[path].read_text(encoding="utf-8") for path in sorted(found)}


def read_document(name: str) -> Document:
    """Returns the keys of a recipe, and those of its `base` where it has none.

    Args:
        name: the name of a recipe that headwise ships, or the path of a .yaml file.

    Raises:
        RecipeError: there is no such recipe, or it cannot be read.
    """
    read: list[Document] = []
    names = [name]
    while True:
        try:
            read.append(_read(names[-1]))
        except RecipeError as error:
            raise RecipeError(
                f"base of recipe {names[-2]}: {error}" if read else str(error)
            ) from error
        base = read[-1].pop("base", None)
        if base is None:
            break
        if Path(str(base)).suffix in _SUFFIXES:  # from the folder of the recipe that names it
            base = Path(names[-1]).parent / Path(str(base)).expanduser()
        if str(base) in names:
            raise RecipeError(
                f"base of recipe {names[-1]} is {base}, expected one without a circle"
            )
        names.append(str(base))
    document: Document = {}
    for over in reversed(read):
        document = joined(document, over)
        document |= {key: over[key] for key in _LISTED if key in over}
    return document


def _read(name: str) -> Document:
    path = Path(name).expanduser()
    if path.suffix in _SUFFIXES:
        text = _text_of(path)
    elif name in shipped_recipes():
        text = shipped_recipes()[name]
    else:
        hint = ""
        if path.is_file():
            hint = ", or the path of a file that ends in .yaml"
        elif len(path.parts) > 1 and not path.exists():
            hint = f"; there is no file or folder {name} either"
        raise RecipeError(
            f"there is no recipe {shown(name)}, {one_of(name, shipped_recipes())}{hint}"
        )
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise RecipeError(f"recipe {name}: {error}") from error
    if not isinstance(document, dict):
        raise RecipeError(
            f"recipe {name} is {shown(document)}, expected keys with values, such as "
            f"training: {{max_steps: 1000}}"
        )
    return document


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # without the mark of Windows editors
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"recipe {path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x}). "
            f"{how_to_convert(error.object)}"
        ) from None
    except OSError as error:
        raise RecipeError(f"recipe {cut(str(path))} cannot be read ({error.strerror})") from None


def joined(document: Mapping[str, Any], *changes: Mapping[str, Any]) -> Document:
    """Returns a recipe with the keys of others, of which later ones win."""
    for over in changes:
        before, data = document.get("data"), over.get("data")
        document = merge(document, over)
        if isinstance(before, Mapping) and isinstance(data, Mapping):
            document["data"] = merge_data(before, data)
    return dict(document)


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
    if "#" in value and value.strip()[0] not in "[{\"'":
        return keys, value.strip()  # on a command line # begins no comment
    try:
        return keys, read_yaml(value)
    except ValueError as error:
        raise RecipeError(f"--set is {shown(text)}: {error}") from error


def split_path(path: str) -> tuple[str, ...]:
    """Returns the keys of a path.

    >>> split_path("training.max_steps"), split_path("training.rules.package.module:Class.rate")
    (('training', 'max_steps'), ('training', 'rules', 'package.module:Class', 'rate'))
    """
    keys = path.split(".")
    if match := _NAMES_CLASS.fullmatch(path.strip()):
        before, name, after = match.groups()
        keys = [*before.split("."), name, *(after.split(".") if after else [])]
    return tuple(key.strip() for key in keys)


def with_changes(document: Mapping[str, Any], changes: Sequence[Change]) -> Document:
    """Returns a recipe with values in the places of others; those of whole parts are merged.

    >>> with_changes({"model": {"layers": 2}}, [(("model", "dropout"), 0.0)])
    {'model': {'layers': 2, 'dropout': 0.0}}
    """
    data: Any = {}  # all changes of data together decide whether it is another source
    for keys, value in changes:
        data = _put(data, keys, value) if keys[0] == "data" else data
    document = joined(document, data)
    for keys, value in changes:
        document = _put(document, keys, value)
    return document


def _put(under: Any, keys: tuple[str, ...], value: Any, *, is_inner: bool = False) -> Document:
    under = dict(under) if isinstance(under, Mapping) else {}
    first, rest = keys[0], keys[1:]
    if rest:
        return {**under, first: _put(under.get(first), rest, value, is_inner=True)}
    if first in under and (is_inner or first in _LISTED):
        under[first] = None
    return merge(under, {first: value})


# --- comparing ----------------------------------------------------------------------------------


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
    """Returns the values of a recipe by their keys with dots.

    >>> flatten({"model": {"layers": 2}, "seeds": [1, 2]})
    {'model.layers': 2, 'seeds': [1, 2]}
    """
    if not isinstance(value, dict):
        return {prefix: value}
    flat: Document = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
