"""Reads recipes: one YAML file per experiment, whose keys are all checked.

A recipe says which data are read, which model is built and how it is trained. It also names the
systems to compare: each is a set of changes to the rest of the recipe.

    data: {corpus: interface-strings, language: fr}
    model: {embed_dim: 128, num_heads: 8}
    training: {max_steps: 600}
    systems:
      standard: {}
      wide: {model: {ffn_dim: 2048}}
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError

from headwise.messages import cut, how_to_convert, shown
from headwise.recipes.catalogue import task_class
from headwise.recipes.errors import RecipeError, explain, unknown
from headwise.recipes.schema import Node, node_of
from headwise.recipes.shipped import shipped_recipes
from headwise.yaml import read_yaml

# What checks values stands on PyTorch, which takes seconds: the name of a recipe is checked first.
if TYPE_CHECKING:
    from headwise.recipes.settings import Recipe

Change = tuple[tuple[str, ...], Any]  # a path of keys, and the new value at this path

_KIND = "corpus"  # the key of `data` that decides which other keys `data` has
_ATTENTION = "attention"  # the plan of attention; changes replace it as a whole
# A path to what belongs to a system that is named by its module and class, such as
# training.package.module:Class.rate: the dots of the name divide nothing.
_NAMES_SYSTEM = re.compile(
    r"((?:systems\..+?\.)?training|evaluation\.ablation)\.([\w.]*:\w*)((?:\..*)?)"
)
_ANY = Node({}, {})  # settings of which nothing is known
_ONE_BUDGET = ("max_steps", "epochs")  # only one of these keys may be set


class RecipeFile:
    """A recipe file with the changes of the command line.

    The constructor checks every combination of a system and a data set that the recipe names.

    Args:
        name: name or path of the recipe, for messages.
        raw: the YAML document.
        changes: paths and values of `--set`; they take precedence over the changes of systems.

    Attributes:
        recipe: the checked recipe; if it has no data of its own, with those of its first data set.
        has_data: whether it has data of its own, besides those of its data sets.
    """

    def __init__(self, name: str, raw: dict[str, Any], changes: Sequence[Change]) -> None:
        self.name = name
        self._settings = _settings_of(raw, changes)
        self._raw = _assign(raw, changes, self._settings)
        self._changes = changes
        data, datasets = self._raw.get("data"), self._raw.get("datasets")
        # Data of no kind are keys that all data sets share; each data set gives the kind.
        self.has_data = not datasets or (isinstance(data, Mapping) and _KIND in data)
        first = (
            next(iter(datasets)) if isinstance(datasets, Mapping) and not self.has_data else None
        )
        where = f"{name}, data set {first}" if first else name
        self.recipe = _validate(where, {**self._raw, **self._data_of(first)})
        self._made: dict[tuple[str | None, str | None, str], Recipe] = {}
        named = {
            _first_key(self.recipe.systems, path[1:])[0]
            for path, _ in changes
            if path[:1] == ("systems",) and len(path) > 1
        }
        for system in [None, *self.recipe.systems]:
            # A run to start from fits its own system alone. A change of all systems has to fit
            # those that are trained, which `system` finds out.
            is_open = self.recipe.model.pretrained is not None
            is_open |= bool(changes) and system is not None and system not in named
            for dataset in [*([None] if self.has_data else []), *self.recipe.datasets]:
                with suppress(*([RecipeError] if is_open else [])):
                    self.system(system, dataset)

    def check_comparable(self) -> None:
        """Raises `RecipeError` if a `--set` gives all systems the same attention."""
        own = [name for name, system in self.recipe.systems.items() if _ATTENTION in system.model]
        changed = any(
            keys[:2] == ("model", _ATTENTION)
            or (keys == ("model",) and isinstance(value, Mapping) and _ATTENTION in value)
            for keys, value in self._changes
        )
        if own and changed:
            raise RecipeError(
                f"--set model.attention would give every system the same attention; change one "
                f"system with --set systems.{own[0]}.model.attention=..."
            )

    @property
    def system_names(self) -> list[str]:
        """The names of the recipe's systems; the first is the baseline."""
        return list(self.recipe.systems)

    @property
    def dataset_names(self) -> list[str]:
        """The names of the recipe's data sets; empty if `data` describes the only one."""
        return list(self.recipe.datasets)

    def system(
        self, name: str | None, dataset: str | None = None, changes: Sequence[Change] = ()
    ) -> "Recipe":
        """Returns the recipe of one system on one data set, without the lists of both.

        Raises:
            RecipeError: the recipe has no such system or data set, or no data of its own; or there
                is no key that `changes` name, or its value is wrong.
        """
        where = f"recipe {self.name}"
        self._check_system(name)
        if dataset is not None and dataset not in self.dataset_names:
            raise RecipeError(unknown("data set", dataset, self.dataset_names, where))
        if dataset is None and not self.has_data:
            raise RecipeError(
                f"{where} has no data of its own, expected the name of one of its data sets: "
                f"{', '.join(self.dataset_names)}"
            )
        key = (name, dataset, repr(list(changes)))
        if key not in self._made:  # to check a recipe takes a while
            self._made[key] = self._with_changes_of(name, dataset, changes)
        return self._made[key]

    def is_set(self, keys: Sequence[str], system: str | None = None) -> bool:
        """Whether a system sets a key, or a part of its value, or what the key is a part of.

        Raises:
            RecipeError: the recipe has no such system.
        """
        if system is None:
            return _has(_assign({}, self._changes), keys)
        self._check_system(system)
        return _has(self.recipe.systems[system].model_dump(), keys)

    def _check_system(self, name: str | None) -> None:
        if name is not None and name not in self.system_names:
            raise RecipeError(unknown("system", name, self.system_names, f"recipe {self.name}"))

    def yaml(self) -> str:
        """Returns the recipe as YAML, with all its values, the defaults included."""
        values = self.recipe.model_dump(mode="json", by_alias=True)
        if not self.has_data:
            values["data"] = self._raw.get("data") or {}
        return _dump(values)

    def _data_of(self, dataset: str | None) -> dict[str, Any]:
        """Returns the key `data` with the changes of a data set; nothing without a data set."""
        changes = self._raw["datasets"][dataset] if dataset else None
        if not isinstance(changes, Mapping):
            return {}
        before = self._raw.get("data") or {}
        if not isinstance(before, Mapping):
            return {}  # which is reported when the recipe is checked
        other = _KIND in changes and changes[_KIND] != before.get(_KIND, changes[_KIND])
        return {"data": _merge({} if other else before, changes)}

    def _with_changes_of(
        self, system: str | None, dataset: str | None, further: Sequence[Change] = ()
    ) -> "Recipe":
        lists = ("systems", "datasets", "seeds")
        base = {key: value for key, value in self._raw.items() if key not in lists}
        chosen = self._raw["systems"][system] or {} if system else {}
        parts = {part: chosen.get(part) for part in ("model", "training")}
        for part, changes in parts.items():
            if changes:
                base[part] = _merge(base.get(part) or {}, changes)
        base |= self._data_of(dataset)
        # `base` has the `--set` of whole parts already; again, it would undo a system's changes.
        changes = [
            (keys, value) for keys, value in self._changes if keys[0] not in lists and len(keys) > 1
        ]
        where = f", system {system}" if system else ""
        where += f", data set {dataset}" if dataset else ""
        changed = _with_system(_assign(base, [*changes, *further], self._settings), system)
        return _validate(self.name + where, changed)


def load_recipe(name: str, changes: Sequence[str] = ()) -> RecipeFile:
    """Reads a recipe that headwise ships, by its name, or one of your own, by its path.

    Args:
        name: `interface-strings`, or `my/recipe.yaml`.
        changes: arguments of `--set`, each `key.key=value`; the values are YAML.

    Raises:
        RecipeError: the recipe does not exist, or it has unknown keys or wrong values.

    >>> recipe = load_recipe("interface-strings", ["training.max_steps=100"]).recipe
    >>> recipe.training.max_steps
    100
    """
    raw = read_document(name)
    parsed = [_parse_change(change) for change in changes]
    parsed.sort(key=lambda change: change[0][-1] != _KIND)  # the kind first
    return RecipeFile(name, raw, parsed)


def read_document(name: str) -> dict[str, Any]:
    """Reads the YAML document of a recipe, which is not checked yet."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise RecipeError(f"there is no recipe file {cut(name)}")
        try:
            text = path.read_text(encoding="utf-8-sig")  # without the mark of Windows editors
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise RecipeError(
                f"recipe {path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x}). "
                f"{how_to_convert(error.object)}"
            ) from None
        except OSError as error:
            raise RecipeError(f"recipe {path}: cannot be read ({error.strerror})") from None
    else:
        shipped = shipped_recipes()
        if name not in shipped:
            hint = " (the name of a recipe file has to end in .yaml)" if path.is_file() else ""
            raise RecipeError(unknown("recipe", name, list(shipped)) + hint)
        text = shipped[name]
    try:
        raw = read_yaml(text)
    except ValueError as error:
        raise RecipeError(f"recipe {name}: {error}") from error
    if not isinstance(raw, dict):
        found = {list: "is a list", type(None): "is empty"}.get(type(raw), f"is {shown(raw)}")
        raise RecipeError(
            f"recipe {name} {found}, expected keys with values, such as "
            f"training: {{max_steps: 1000}}"
        )
    return raw


def to_yaml(recipe: BaseModel) -> str:
    """Returns a recipe as YAML, with all its values, the defaults included."""
    return _dump(recipe.model_dump(mode="json", by_alias=True))


def differences(old: str, new: str) -> list[str]:
    """Returns a line for each value that differs between two recipes in YAML.

    >>> differences("training: {seed: 1, max_steps: 5}", "training: {seed: 2, max_steps: 5}")
    ['training.seed: 1 before, 2 now']
    """
    before, now = flatten(read_yaml(old)), flatten(read_yaml(new))
    return [
        f"{key}: {before.get(key, 'not set')} before, {now.get(key, 'not set')} now"
        for key in [*before, *(key for key in now if key not in before)]
        if before.get(key, "not set") != now.get(key, "not set")
    ]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the values of a recipe by their keys with dots."""
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _dump(values: Mapping[str, Any]) -> str:
    return yaml.dump(values, Dumper=_dumper(), sort_keys=False, allow_unicode=True)


@cache
def _dumper() -> Any:
    from ruamel.yaml.resolver import implicit_resolvers  # imported here as by `read_yaml`

    # The same text from a library in C, where PyYAML was built with it.
    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Quotes what is no text in YAML 1.2 too, which is read; PyYAML writes YAML 1.1."""

    for versions, tag, pattern, first in implicit_resolvers:
        if (1, 2) in versions:
            Dumper.add_implicit_resolver(tag, pattern, first)
    return Dumper


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings key by key, but the plan of attention as a whole."""
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping) and key != _ATTENTION:
            merged[key] = _merge(inner, value)
        else:
            _put(merged, key, value)
    return merged


def _put(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set a key. A budget in steps removes one in epochs, and the reverse."""
    mapping[key] = value
    if key in _ONE_BUDGET and value is not None:
        for other in _ONE_BUDGET:
            if other != key:
                mapping.pop(other, None)


def _with_system(raw: Mapping[str, Any], system: str | None) -> dict[str, Any]:
    """Returns a recipe in whose `model.pretrained` a system's name has replaced `{system}`."""
    from headwise.recipes.pretrained import SYSTEM

    model = raw.get("model")
    if (
        system is None
        or not isinstance(model, Mapping)
        or SYSTEM not in str(model.get("pretrained"))
    ):
        return dict(raw)
    named = str(model["pretrained"]).replace(SYSTEM, system)
    return {**raw, "model": {**model, "pretrained": named}}


def _assign(
    raw: Mapping[str, Any], changes: Sequence[Change], settings: Node = _ANY
) -> dict[str, Any]:
    """Returns a copy of `raw`, what may stand in which is `settings`, with each path replaced."""
    changed = dict(raw)
    for keys, value in changes:
        key, rest = _first_key(changed, keys)
        inner = changed.get(key)
        if not rest:
            _put(changed, key, value)
            continue
        inner = inner if isinstance(inner, Mapping) else {}
        node = settings.behind(key)
        if rest == (_KIND,) and inner.get(_KIND) != value:
            inner = {name: inner[name] for name in _kept(node, value) if name in inner}
        changed[key] = _assign(inner, [(rest, value)], node)
    return changed


def _settings_of(raw: Mapping[str, Any], changes: Sequence[Change]) -> Node:
    """Returns what may stand in a recipe of the task that it has with changes."""
    task = dict(changes).get(("task",), raw.get("task", "translation"))
    try:
        return node_of(task_class(task).recipe_class)
    except ValueError:
        return _ANY  # which is reported when the recipe is checked


def _kept(data: Node, corpus: Any) -> list[str]:
    """Returns the keys that data of another kind, now `corpus`, keep: of numbers and choices.

    Paths, names and columns are those of the data that are replaced.
    """
    kinds = [kind for kind in data.kinds() if (tag := kind.tag()) and tag.value == corpus]
    return [key for kind in kinds for key, value in kind.keys().items() if not value.names_things()]


def _first_key(mapping: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Returns the key of a mapping that a path begins with, which may have dots, and the rest."""
    number = next((n for n in range(len(keys), 1, -1) if ".".join(keys[:n]) in mapping), 1)
    return ".".join(keys[:number]), tuple(keys[number:])


def split_path(path: str) -> tuple[str, ...]:
    """Returns the keys of a path, of which the name of a system may have dots.

    >>> split_path("training.max_steps"), split_path("training.package.module:Class.rate")
    (('training', 'max_steps'), ('training', 'package.module:Class', 'rate'))
    """
    if match := _NAMES_SYSTEM.fullmatch(path.strip()):
        before, system, after = match.groups()
        keys = (*before.split("."), system, *after.split(".")[1:])
    else:
        keys = tuple(path.split("."))
    return tuple(key.strip() for key in keys)


def _has(mapping: Any, keys: Sequence[str]) -> bool:
    """Whether a mapping has a value at a path of keys, or a plain value where the path goes on."""
    for key in keys:
        if not isinstance(mapping, Mapping):
            return True
        if key not in mapping:
            return False
        mapping = mapping[key]
    return True


def _parse_change(change: str) -> Change:
    path, equals, value = change.partition("=")
    keys = split_path(path)
    if not equals or not all(keys):
        raise RecipeError(
            f"--set is {shown(change)}, expected key.key=value, such as training.max_steps=100"
        )
    try:
        return keys, read_yaml(value)
    except ValueError as error:
        raise RecipeError(f"--set is {shown(change)}: {error}") from error


def _validate(name: str, raw: Mapping[str, Any]) -> "Recipe":
    from headwise.recipes.settings import with_rules

    try:
        kind = task_class(raw.get("task", "translation")).recipe_class
    except ValueError as error:
        raise RecipeError(f"recipe {name}:\n  task: {error}") from error
    try:
        kind = with_rules(kind, raw)
        return kind.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(f"recipe {name}:\n{explain(kind, error)}") from error
    except RecipeError as error:
        raise RecipeError(f"recipe {name}:\n  {error}") from error
