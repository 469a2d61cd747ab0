"""The keys of recipes: of a task with its model and its built-in data, or of a system."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from headwise.heads.ablation import meaning_of, option_of
from headwise.heads.attention import MultiHeadAttention
from headwise.messages import expected_one_of, shown
from headwise.models.plan import SYSTEMS, options_of, rule_name, system_class
from headwise.recipes.errors import without_none
from headwise.recipes.recipe import OF_DATA, TASKS, task_class


class Key(NamedTuple):
    """One key of a recipe, or an option of something that recipes name."""

    name: str  # training.max_steps
    default: str  # as YAML writes it; a dash if there is none
    meaning: str


def keys_of(name: str) -> list[Key]:
    """Returns the keys of a task's recipes, or what recipes say of a system.

    Args:
        name: a task or a system, each by its short name or as module:Class.

    Raises:
        ValueError: there is neither.
    """
    if name in TASKS:
        return list(_of_task(name))
    if name not in SYSTEMS and ":" not in name:
        raise ValueError(
            f"there is no task and no system {shown(name)}, {expected_one_of(name, [*TASKS, *SYSTEMS])}"
        )
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
        inner, key = without_none(field.annotation), prefix + name
        if not _is_settings(inner):
            default = "required" if field.is_required() else _default(field.get_default())
            yield Key(key, default, " ".join((field.description or "").split()))
            inner, key = (get_args(inner) or [None])[-1], f"{key}.NAME"  # of dict[str, Settings]
        if _is_settings(inner):
            yield from _of_settings(inner, f"{key}.")


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _of_model(config: Any) -> Iterator[Key]:
    meanings: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not base.__module__.startswith("transformers."):
            meanings |= _described(base, "Attributes")
    for field in fields(config):
        if field.name in meanings and field.name not in OF_DATA:
            default: Any = field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            yield Key(f"model.{field.name}", _default(default), meanings[field.name])


def _of_system(name: str) -> Iterator[Key]:
    system = system_class(name)
    usual = _described(MultiHeadAttention, "Args") | {"preset": f"{', '.join(system.presets)}."}
    for option, default, meaning in _arguments(system, "", options_of(system)):
        if not meaning or meaning.startswith("as in `MultiHeadAttention`"):
            meaning = usual.get(option, meaning)
        yield Key(option, default.replace("required", "–"), meaning)  # it is the model's then
    for option in inspect.signature(system.from_config).parameters:
        if option not in ("config", "site", "options"):  # that only plans have
            meaning = inspect.getdoc(system.from_config) or ""
            yield Key(option, "–", meaning.partition("\n")[0])
    if system.rule is not None:
        yield from _of_settings(system.rule.settings_class, f"training.rules.{rule_name(system)}.")
    for edit in system.supported_ablations:
        asked = f"evaluation.ablation.{name}={edit}"
        yield Key(asked, option_of(edit) or "–", meaning_of(edit))


def _arguments(of: Callable[..., Any], prefix: str, names: list[str]) -> Iterator[Key]:
    """Yields arguments of a function, or of a class and those that it derives from."""
    meanings: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    for base in reversed(inspect.getmro(of)) if isinstance(of, type) else (of,):
        if base is not object:
            meanings |= _described(base, "Args")
            defaults |= {p.name: p.default for p in inspect.signature(base).parameters.values()}
    for name in names:
        yield Key(f"{prefix}{name}", _default(defaults.get(name)), meanings.get(name, ""))


def _described(of: Any, heading: str) -> dict[str, str]:
    """Returns what a docstring says of each name under a heading such as `Args`.

    What is said of several names together begins with them, since it may speak of each in turn.

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
    text = vars(of).get("__doc__") if isinstance(of, type) else of.__doc__  # no base's
    _, _, section = f"\n{inspect.cleandoc(text or '')}".partition(f"\n{heading}:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", re.split(r"\n(?=\S)", section)[0]):
        names, _, meaning = " ".join(entry.split()).partition(": ")
        said = f"{names}: {meaning}" if ", " in names else meaning
        found |= dict.fromkeys(names.split(", "), said)
    return found


def _default(value: Any) -> str:
    """A default as YAML writes it; a dash if it is empty or has keys of its own."""
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or isinstance(value, dict) or value in ([], ""):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
