"""The keys of recipes: of a task with its model and its installed data, or of a system."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

from headwise.heads.ablation import meaning_of, option_of
from headwise.heads.attention import MultiHeadAttention
from headwise.messages import expected_one_of, shown
from headwise.models.plan import SYSTEMS, options_of, rule_name, system_class
from headwise.recipes.recipe import OF_DATA, TASKS, task_class


class Key(NamedTuple):
    """A key of a recipe, or an option of a system or of installed data."""

    name: str  # training.max_steps
    default: str  # as YAML; a dash without a default
    meaning: str


def keys_of(name: str) -> list[Key]:
    """Returns the keys of a task's recipes, or those that recipes have for a system.

    Args:
        name: a task or a system, by its short name or as module:Class.

    Raises:
        ValueError: there is no such task or system.
    """
    if name in TASKS:
        return list(_of_task(name))
    if name not in SYSTEMS and ":" not in name:
        hint = expected_one_of(name, [*TASKS, *SYSTEMS])
        raise ValueError(f"there is no task and no system {shown(name)}, {hint}")
    try:
        return list(_of_system(name))
    except ValueError:
        return list(_of_task(name))


def _of_task(name: str) -> Iterator[Key]:
    task = task_class(name)
    for key in _of_settings(task.recipe_class, ""):
        yield key
        if key.name == "model":
            yield from _of_model(task.model_class.config_class)
    for path, rows in task.built_in.items():
        meaning = inspect.getdoc(rows) or ""
        yield Key(f"data.path={path}", "–", meaning.partition("\n\n")[0].replace("\n", " "))
        yield from _arguments(rows, "data.options.", list(inspect.signature(rows).parameters))


def _of_settings(kind: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in kind.model_fields.items():
        inner, key = _without_none(field.annotation), prefix + name
        if not _is_settings(inner):
            default = "required" if field.is_required() else _as_yaml(field.get_default())
            yield Key(key, default, " ".join((field.description or "").split()))
            inner, key = (get_args(inner) or [None])[-1], f"{key}.NAME"  # of dict[str, Settings]
        if _is_settings(inner):
            yield from _of_settings(inner, f"{key}.")


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _without_none(kind: Any) -> Any:
    """Returns the type of a value that may also be None, or has constraints."""
    if get_origin(kind) is Annotated:
        return _without_none(get_args(kind)[0])
    members = [member for member in get_args(kind) if member is not NoneType]
    is_optional = get_origin(kind) in (Union, UnionType) and len(members) == 1
    return _without_none(members[0]) if is_optional else kind


def _of_model(config: Any) -> Iterator[Key]:
    meanings = _described(config, "Attributes")
    for field in fields(config):
        if field.name in meanings and field.name not in OF_DATA:
            made = field.default if field.default_factory is MISSING else field.default_factory()
            yield Key(f"model.{field.name}", _as_yaml(made), meanings[field.name])


def _of_system(name: str) -> Iterator[Key]:
    system = system_class(name)
    usual = _described(MultiHeadAttention, "Args") | {"preset": f"{', '.join(system.presets)}."}
    for option, default, meaning in _arguments(system, "", options_of(system)):
        if not meaning or meaning.startswith("as in `MultiHeadAttention`"):
            meaning = usual.get(option, meaning)
        yield Key(option, default.replace("required", "–"), meaning)  # the model has it then
    for option in inspect.signature(system.from_config).parameters:
        if option not in ("config", "site", "options"):
            meaning = inspect.getdoc(system.from_config) or ""
            yield Key(option, "–", meaning.partition("\n")[0])
    if system.rule is not None:
        yield from _of_settings(system.rule.settings_class, f"training.rules.{rule_name(system)}.")
    for ablation in system.supported_ablations:
        key = f"evaluation.ablation.{name}={ablation}"
        yield Key(key, option_of(ablation) or "–", meaning_of(ablation))


def _arguments(of: Callable[..., Any], prefix: str, names: list[str]) -> Iterator[Key]:
    """Yields arguments of a function, or of a class and its bases."""
    meanings = _described(of, "Args")
    defaults: dict[str, Any] = {}
    for base in _bases(of):
        if base is not object:
            defaults |= {p.name: p.default for p in inspect.signature(base).parameters.values()}
    for name in names:
        yield Key(f"{prefix}{name}", _as_yaml(defaults.get(name)), meanings.get(name, ""))


def _bases(of: Any) -> list[Any]:
    return list(reversed(inspect.getmro(of))) if isinstance(of, type) else [of]


def _described(of: Any, heading: str) -> dict[str, str]:
    """Returns the descriptions of names under a heading of a docstring, such as `Args`.

    A class has those of its bases, too, without transformers' classes.

    >>> def sound(low, high, rate):
    ...     '''Makes one.
    ...
    ...     Args:
    ...         low, high: the lowest frequency, and
    ...             the highest.
    ...         rate: samples per second.
    ...     '''
    >>> _described(sound, "Args")["high"], _described(sound, "Args")["rate"]
    ('low, high: the lowest frequency, and the highest.', 'samples per second.')
    """
    found: dict[str, str] = {}
    for base in _bases(of):
        text = vars(base).get("__doc__") if isinstance(base, type) else base.__doc__
        if (base.__module__ or "").startswith("transformers."):
            continue
        _, _, section = f"\n{inspect.cleandoc(text or '')}".partition(f"\n{heading}:\n")
        for entry in re.split(r"\n(?=    \S)", re.split(r"\n(?=\S)", section)[0]):
            names, _, meaning = " ".join(entry.split()).partition(": ")
            meaning = f"{names}: {meaning}" if ", " in names else meaning
            found |= dict.fromkeys(names.split(", "), meaning)
    return found


def _as_yaml(value: Any) -> str:
    """Returns a default as YAML; a dash if it is empty or has keys of its own."""
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or isinstance(value, dict) or value in ([], ""):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
