"""What recipes say of systems: the settings of their rules of training.

The settings of a rule have one name in a recipe, that of the class that declares the rule. A user
may also write the name of a subclass, or of a module that imports the class; it is replaced.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, create_model

from headwise.heads.rule import Rule
from headwise.models.plan import SYSTEMS, rule_name, rules_by_name, system_class
from headwise.recipes.errors import RecipeError
from headwise.recipes.settings import Recipe
from headwise.training.settings import settings_with_rules


def with_rules(kind: type[Recipe], raw: Mapping[str, Any]) -> type[Recipe]:
    """The class of a recipe that also knows the rules of the systems of a user's own in it.

    Args:
        kind: the class of a task's recipes.
        raw: the YAML document, as `with_rule_names` returns it. Whatever its `training`, or that
            of one of its `systems`, has under a name `module:Class` is taken for the settings of
            that system's rule.

    Returns:
        The class itself if there are none.
    """
    foreign: dict[str, type[Rule]] = {}
    for _, training in _at(raw, "training"):
        for name in training:
            if _is_foreign(name) and (rule := system_class(name).rule) is not None:
                foreign[name] = rule
    if not foreign:
        return kind
    settings = settings_with_rules({**rules_by_name(), **foreign})
    field = Field(description=Recipe.model_fields["training"].description)
    fields: dict[str, Any] = {"training": (settings, field)}
    return create_model(kind.__name__, __base__=kind, **fields)


def with_rule_names(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe in which the settings of each rule of training stand under the rule's name.

    Args:
        raw: the YAML document.

    Raises:
        RecipeError: `training` names a system that cannot be loaded or has no rule, or one rule
            twice.

    >>> with_rule_names({"training": {"max_steps": 5}})
    {'training': {'max_steps': 5}}
    """
    changed = dict(raw)
    for path, training in _at(raw, "training"):
        changed = _put(changed, path, _by_rule(training, ".".join(map(str, path))))
    return changed


def _by_rule(training: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings of training with those of each rule under the rule's name."""
    named: dict[str, Any] = {}
    given: dict[type[Rule], str] = {}
    for key, value in training.items():
        name = rule_key(key, where)
        rule = system_class(name).rule if name in SYSTEMS or _is_foreign(name) else None
        if rule in given:
            raise RecipeError(
                f"{where} has settings under {given[rule]} and under {key}, which have the same "
                f"rule of training: give all of its settings under one of the two"
            )
        if rule is not None:
            given[rule] = key
        named[name] = value
    return named


def rule_key(key: Any, where: str) -> Any:
    """The name of the rule of training that a key of `training` gives settings of.

    Args:
        key: any key; one that names no system by module and class is returned as it is.
        where: the path to its mapping, for messages.

    Raises:
        RecipeError: the system cannot be loaded, or it has no settings of training.

    >>> rule_key("max_steps", "training")
    'max_steps'
    """
    if not _is_foreign(key):
        return key
    try:
        system = system_class(key)
    except ValueError as error:
        raise RecipeError(f"{where}.{key}: {error}") from error
    if system.rule is None or not system.rule.settings_class.model_fields:
        raise RecipeError(
            f"{where}.{key}: the system has no rule of training with settings; leave the key out"
        )
    return rule_name(system)


def _is_foreign(key: Any) -> bool:
    """Whether a key names a system by its module and class."""
    return isinstance(key, str) and ":" in key


def _at(raw: Mapping[str, Any], part: str) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """A part of the recipe, and of each system that changes it, with the path to it."""
    if isinstance(raw.get(part), Mapping):
        yield (part,), raw[part]
    systems = raw.get("systems")
    for name, system in systems.items() if isinstance(systems, Mapping) else ():
        if isinstance(system, Mapping) and isinstance(system.get(part), Mapping):
            yield ("systems", name, part), system[part]


def _put(raw: Mapping[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy of a document with another value at a path."""
    key, *rest = path
    return {**raw, key: _put(raw[key], tuple(rest), value) if rest else value}
