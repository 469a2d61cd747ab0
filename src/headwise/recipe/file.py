"""Recipes: one YAML file per experiment, checked key by key.

A recipe says what data to take, what model to build and how to train it, and names systems to
compare: each is a set of changes to the rest of the recipe.

    data: {corpus: interface-strings, language: fr}
    model: {embed_dim: 128, num_heads: 8}
    training: {max_steps: 600}
    systems:
      standard: {}
      mae-7: {model: {attention: mae}}
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from headwise.recipe.catalogue import task_class
from headwise.recipe.settings import Recipe
from headwise.recipe.systems import with_rules, without_former_keys

Change = tuple[tuple[str, ...], Any]  # a path of keys, and the value to put there


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key and how to mend it."""


class RecipeFile:
    """A recipe as it was written, with the command line's changes, and what it means.

    Everything that it names is checked at once: each system on each data set.

    Args:
        name: how it was asked for.
        raw: the YAML document.
        changes: `--set` paths and values; they win over what systems change.

    Attributes:
        recipe: the checked recipe.
        notes: what its author should know, such as keys that have another name by now.
    """

    def __init__(self, name: str, raw: dict[str, Any], changes: Sequence[Change]) -> None:
        self.name = name
        raw, self.notes = without_former_keys(raw)
        self._raw, more = without_former_keys(_assign(raw, changes))
        self.notes += more
        self._changes = changes
        self.recipe = _validate(name, self._raw)
        self._chosen = {
            (system, dataset): self._with_changes_of(system, dataset)
            for system in [None, *self.recipe.systems]
            for dataset in [None, *self.recipe.datasets]
        }

    def check_comparable(self) -> None:
        """Raise `RecipeError` if a `--set` has made all systems one."""
        own = [name for name, system in self.recipe.systems.items() if "attention" in system.model]
        changed = any(
            keys[:2] == ("model", "attention")
            or (keys == ("model",) and isinstance(value, Mapping) and "attention" in value)
            for keys, value in self._changes
        )
        if own and changed:
            raise RecipeError(
                f"--set model.attention would give every system the same attention; change one "
                f"system with --set systems.{own[0]}.model.attention=..."
            )

    @property
    def system_names(self) -> list[str]:
        """The systems that the recipe names; the first is the baseline."""
        return list(self.recipe.systems)

    @property
    def dataset_names(self) -> list[str]:
        """The data sets that the recipe names; none if there is but the one of `data`."""
        return list(self.recipe.datasets)

    def system(self, name: str | None, dataset: str | None = None) -> Recipe:
        """The recipe with the changes of one of its systems, and without the lists of them.

        Args:
            name: of a system; None for the recipe as it stands.
            dataset: of a data set; None for the recipe's `data` as they stand.

        Raises:
            RecipeError: there is no such system or data set.
        """
        where = f"recipe {self.name}"
        if name is not None and name not in self.system_names:
            raise RecipeError(_unknown("system", name, self.system_names, where))
        if dataset is not None and dataset not in self.dataset_names:
            raise RecipeError(_unknown("data set", dataset, self.dataset_names, where))
        return self._chosen[name, dataset]

    def _with_changes_of(self, system: str | None, dataset: str | None) -> Recipe:
        lists = ("systems", "datasets", "seeds")
        base = {key: value for key, value in self._raw.items() if key not in lists}
        chosen = self._raw["systems"][system] or {} if system else {}
        parts = {part: chosen.get(part) for part in ("model", "training")}
        parts["data"] = self._raw["datasets"][dataset] if dataset else None
        for part, changes in parts.items():
            if changes:
                before = base.get(part) or {}
                # The keys of one kind of corpus are not those of another.
                other = "corpus" in changes and changes["corpus"] != before.get("corpus")
                base[part] = _merge({} if other else before, changes)
        # A change of a whole part is in the base already, and leaves what systems change in it.
        changes = [
            (keys, value) for keys, value in self._changes if keys[0] not in lists and len(keys) > 1
        ]
        where = f", system {system}" if system else ""
        where += f", data set {dataset}" if dataset else ""
        changed, _ = without_former_keys(_assign(base, changes))
        return _validate(self.name + where, changed)


def load_recipe(name: str, changes: Sequence[str] = ()) -> RecipeFile:
    """A recipe by the name of one that headwise ships, or by a file's path.

    Args:
        name: `interface-strings`, or `my/recipe.yaml`.
        changes: `key.key=value` each, as `--set` takes them; values are YAML.

    Raises:
        RecipeError: no such recipe, unknown keys, wrong types.

    >>> recipe = load_recipe("interface-strings", ["training.max_steps=100"]).recipe
    >>> recipe.training.max_steps
    100
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise RecipeError(f"there is no recipe file {name}")
        try:
            text = path.read_text(encoding="utf-8-sig")  # without the mark of Windows editors
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise RecipeError(
                f"recipe {path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x}). "
                "Convert it, for example with `iconv -f LATIN1 -t UTF-8`."
            ) from None
        except OSError as error:
            raise RecipeError(f"recipe {path}: cannot be read ({error.strerror})") from None
    else:
        shipped = shipped_recipes()
        if name not in shipped:
            hint = " (a file's name has to end in .yaml)" if path.is_file() else ""
            raise RecipeError(_unknown("recipe", name, list(shipped)) + hint)
        text = shipped[name]
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"recipe {name} is no YAML: {error}") from error
    if not isinstance(raw, dict):
        raise RecipeError(f"recipe {name} holds no keys, expected at least training")
    parsed = [_parse_change(change) for change in changes]
    # Which kind of corpus it is goes first: other keys depend on it.
    parsed.sort(key=lambda change: change[0][-1] != "corpus")
    return RecipeFile(name, raw, parsed)


def shipped_recipes() -> dict[str, str]:
    """The recipes that come with headwise: name to YAML text, sorted by name."""
    folder = resources.files("headwise") / "recipes"
    texts = {
        file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }
    return dict(sorted(texts.items()))


def to_yaml(recipe: BaseModel) -> str:
    """A checked recipe with all its values, defaults too, as YAML."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(old: str, new: str) -> list[str]:
    """Which values differ between two recipes in YAML, one line each.

    >>> differences("training: {seed: 1, max_steps: 5}", "training: {seed: 2, max_steps: 5}")
    ['training.seed: 1 before, 2 now']
    """
    before, now = _flatten(yaml.safe_load(old)), _flatten(yaml.safe_load(new))
    return [
        f"{key}: {before.get(key, 'not set')} before, {now.get(key, 'not set')} now"
        for key in [*before, *(key for key in now if key not in before)]
        if before.get(key, "not set") != now.get(key, "not set")
    ]


def with_defaults(text: str) -> str:
    """A recipe in YAML with all keys that there are by now, as `to_yaml` writes it.

    A run that was started before a key came into being had what is its default.
    """
    try:
        raw, _ = without_former_keys(yaml.safe_load(text))
        return to_yaml(_recipe_class(raw).model_validate(raw))
    except ValueError:
        return text


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, mappings key by key; a plan of attention is replaced as a whole."""
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping) and key != "attention":
            merged[key] = _merge(inner, value)
        else:
            _put(merged, key, value)
    return merged


def _put(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set a key; a budget in steps takes the place of one in epochs, and the other way round."""
    mapping[key] = value
    for one, other in (("max_steps", "epochs"), ("epochs", "max_steps")):
        if key == one and value is not None:
            mapping.pop(other, None)


def _assign(raw: Mapping[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """A copy of `raw` with the value at each path replaced."""
    changed = dict(raw)
    for (key, *rest), value in changes:
        inner = changed.get(key)
        if not rest:
            _put(changed, key, value)
            continue
        inner = inner if isinstance(inner, Mapping) else {}
        # The keys of one kind of corpus are not those of another.
        if rest == ["corpus"] and inner.get("corpus") != value:
            inner = {}
        changed[key] = _assign(inner, [(tuple(rest), value)])
    return changed


def _parse_change(change: str) -> Change:
    path, equals, value = change.partition("=")
    keys = tuple(key.strip() for key in path.split("."))
    if not equals or not all(keys):
        raise RecipeError(f"--set {change!r}: expected key.key=value, as training.max_steps=100")
    try:
        return keys, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {change!r}: {value!r} is no YAML value") from error


def _recipe_class(raw: Mapping[str, Any]) -> type[Recipe]:
    return with_rules(task_class(raw.get("task", "translation")).recipe_class, raw)


def _validate(name: str, raw: Mapping[str, Any]) -> Recipe:
    try:
        kind = _recipe_class(raw)
    except ValueError as error:
        raise RecipeError(f"recipe {name}:\n  task: {error}") from error
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems = "\n".join(f"  {_explain(kind, problem)}" for problem in error.errors())
        raise RecipeError(f"recipe {name}:\n{problems}") from error


def _explain(kind: type[Recipe], problem: Any) -> str:
    """One problem that pydantic found, with the key, what came and what was expected."""
    keys, known = _walk(kind, problem["loc"])
    where = ".".join(keys)
    if problem["type"] == "extra_forbidden":
        return _unknown("key", where, known, compare=keys[-1])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"].startswith("union_tag"):
        field = problem["ctx"]["discriminator"].strip("'")
        expected = problem["ctx"].get("expected_tags", "").replace("'", "")
        return f"{where}.{field}: expected " + (f"one of {expected}" if expected else "a kind")
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} is {problem['input']!r}: {message[0].lower()}{message[1:]}"


def _walk(kind: type[Recipe], location: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """The keys on the way to a problem, and those that there are beside the last of them.

    A member of a union shows up on the way by its tag or its type, which is no key of the recipe.
    """
    keys: list[str] = []
    beside: list[str] = []
    annotation: Any = kind
    for step in location:
        members = _models(annotation)
        tagged = [member for member in members if step in _tags(member)]
        if tagged and len(members) > 1:
            annotation = tagged[0]
            continue
        if not members and keys and str(step) in ("str", "dict[str,any]", "list[int]"):
            continue
        keys.append(str(step))
        beside = sorted({name for member in members for name in member.model_fields})
        fields = [m.model_fields[str(step)] for m in members if str(step) in m.model_fields]
        if fields:
            annotation = fields[0].annotation
        elif get_origin(annotation) is dict:  # systems: a name, and behind it what it names
            annotation = get_args(annotation)[1]
    return keys, beside


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is dict:
        return []
    return [model for part in get_args(annotation) for model in _models(part)]


def _tags(model: type[BaseModel]) -> list[Any]:
    """What tells this member of a union from the others: its field of a single value."""
    return [
        get_args(field.annotation)[0]
        for field in model.model_fields.values()
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
    ]


def _unknown(
    what: str, name: str, known: Sequence[str], where: str = "", compare: str | None = None
) -> str:
    near = get_close_matches(compare or name, known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    place = f" in {where}" if where else ""
    return f"there is no {what} {name!r}{place}{hint}\n  known: {', '.join(known)}"
