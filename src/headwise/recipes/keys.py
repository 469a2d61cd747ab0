"""The keys of recipes: of a task with its model and its installed data, or of a system."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

from headwise.heads.ablation import ablation_meaning, ablation_option
from headwise.heads.attention import MultiHeadAttention
from headwise.messages import expected_one_of, shown
from headwise.models.plan import SYSTEMS, plan_options, rule_name, system_class
from headwise.recipes.recipe import FROM_DATA, TASKS, task_class


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
        return list(_task_keys(name))
    if name not in SYSTEMS and ":" not in name:
        hint = expected_one_of(name, [*TASKS, *SYSTEMS])
        raise ValueError(f"there is no task and no system {shown(name)}, {hint}")
    try:
        return list(_system_keys(name))
    except ValueError:
        return list(_task_keys(name))


def _task_keys(name: str) -> Iterator[Key]:
    task = task_class(name)
    for key in _settings_keys(task.recipe_class, ""):
        yield key
        if key.name == "model":
            yield from _model_keys(task.model_class.config_class)
    for path, function in task.built_in.items():
        meaning = inspect.getdoc(function) or ""
        yield Key(f"data.path={path}", "–", meaning.partition("\n\n")[0].replace("\n", " "))
        names = list(inspect.signature(function).parameters)
        yield from _argument_keys(function, "data.options.", names)


def _settings_keys(settings_class: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in settings_class.model_fields.items():
        key = prefix + name
        inner = _without_none(field.annotation)
        if not _is_settings(inner):
            default = "required" if field.is_required() else _as_yaml(field.get_default())
            yield Key(key, default, " ".join((field.description or "").split()))
            inner, key = (get_args(inner) or [None])[-1], f"{key}.NAME"  # of dict[str, Settings]
        if _is_settings(inner):
            yield from _settings_keys(inner, f"{key}.")


def _is_settings(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _without_none(annotation: Any) -> Any:
    """Returns the type of a value that may also be None, or has constraints."""
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    members = [member for member in get_args(annotation) if member is not NoneType]
    is_optional = get_origin(annotation) in (Union, UnionType) and len(members) == 1
    return _without_none(members[0]) if is_optional else annotation


def _model_keys(config: Any) -> Iterator[Key]:
    meanings = _descriptions(config, "Attributes")
    for field in fields(config):
        if field.name in meanings and field.name not in FROM_DATA:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            yield Key(f"model.{field.name}", _as_yaml(default), meanings[field.name])


def _system_keys(name: str) -> Iterator[Key]:
    system = system_class(name)
    shared = _descriptions(MultiHeadAttention, "Args") | {"preset": f"{', '.join(system.presets)}."}
    for option, default, meaning in _argument_keys(system, "", plan_options(system)):
        if not meaning or meaning.startswith("as in `MultiHeadAttention`"):
            meaning = shared.get(option, meaning)
        yield Key(option, default.replace("required", "–"), meaning)  # the model has it then
    for option in inspect.signature(system.from_config).parameters:
        if option not in ("config", "site", "options"):
            meaning = inspect.getdoc(system.from_config) or ""
            yield Key(option, "–", meaning.partition("\n")[0])
    if system.rule is not None:
        prefix = f"training.rules.{rule_name(system)}."
        yield from _settings_keys(system.rule.settings_class, prefix)
    for ablation in system.supported_ablations:
        key = f"evaluation.ablation.{name}={ablation}"
        yield Key(key, ablation_option(ablation) or "–", ablation_meaning(ablation))


def _argument_keys(documented: Callable[..., Any], prefix: str, names: list[str]) -> Iterator[Key]:
    """Yields arguments of a function, or of a class and its bases."""
    meanings = _descriptions(documented, "Args")
    defaults: dict[str, Any] = {}
    for base in _bases(documented):
        if base is not object:
            defaults |= {p.name: p.default for p in inspect.signature(base).parameters.values()}
    for name in names:
        yield Key(f"{prefix}{name}", _as_yaml(defaults.get(name)), meanings.get(name, ""))


def _bases(documented: Any) -> list[Any]:
    if not isinstance(documented, type):
        return [documented]
    return list(reversed(inspect.getmro(documented)))


def _descriptions(documented: Any, heading: str) -> dict[str, str]:
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
    >>> _descriptions(sound, "Args")["high"], _descriptions(sound, "Args")["rate"]
    ('low, high: the lowest frequency, and the highest.', 'samples per second.')
    """
    meanings: dict[str, str] = {}
    for base in _bases(documented):
        text = vars(base).get("__doc__") if isinstance(base, type) else base.__doc__
        if (base.__module__ or "").startswith("transformers."):
            continue
        _, _, section = f"\n{inspect.cleandoc(text or '')}".partition(f"\n{heading}:\n")
        for entry in re.split(r"\n(?=    \S)", re.split(r"\n(?=\S)", section)[0]):
            names, _, meaning = " ".join(entry.split()).partition(": ")
            meaning = f"{names}: {meaning}" if ", " in names else meaning
            meanings |= dict.fromkeys(names.split(", "), meaning)
    return meanings


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
