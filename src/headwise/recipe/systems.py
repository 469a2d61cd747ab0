"""What recipes say of systems: settings of their rules of training, and keys of older recipes."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, create_model

from headwise.heads.rule import Rule
from headwise.models.plan import SYSTEMS, rules_by_name, system_class
from headwise.recipe.settings import Recipe
from headwise.training.settings import settings_with_rules


def with_rules(kind: type[Recipe], raw: Mapping[str, Any]) -> type[Recipe]:
    """The class of a recipe that also knows the rules of the systems of a user's own in it.

    Args:
        kind: the class of a task's recipes.
        raw: the YAML document. Whatever its `training`, or that of one of its `systems`, has
            under a name `module:Class` is taken for the settings of that system's rule.

    Returns:
        The class itself if there are none.
    """
    foreign: dict[str, type[Rule]] = {}
    for training in _trainings(raw):
        for name in training:
            if ":" in str(name):
                # A name that cannot be loaded stays an unknown key, and is reported as one.
                try:
                    rule = system_class(name).rule
                except ValueError:
                    continue
                if rule is not None:
                    foreign[str(name)] = rule
    if not foreign:
        return kind
    settings = settings_with_rules({**rules_by_name(), **foreign})
    field = Field(description=Recipe.model_fields["training"].description)
    fields: dict[str, Any] = {"training": (settings, field)}
    return create_model(kind.__name__, __base__=kind, **fields)


def without_former_keys(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A recipe in which keys of older recipes have their new names.

    Args:
        raw: the YAML document.

    Returns:
        The document, and a note for each key that has another name by now.

    >>> without_former_keys({"training": {"max_steps": 5}})
    ({'training': {'max_steps': 5}}, [])
    """
    changed, notes = dict(raw), []
    for path, training in _at(raw, "training"):
        renamed, of_training = _training(training, ".".join(path))
        notes += of_training
        changed = _put(changed, path, renamed)
    evaluation = raw.get("evaluation")
    if isinstance(evaluation, Mapping):
        changed["evaluation"], of_evaluation = _evaluation(evaluation)
        notes += of_evaluation
    return changed, list(dict.fromkeys(notes))


def _training(training: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """Settings of training with the names of systems in place of older names."""
    renamed, notes = dict(training), []
    for name, rule in rules_by_name().items():
        if not rule.former_key or rule.former_key not in renamed:
            continue
        given = renamed.pop(rule.former_key)
        notes.append(f"{where}.{rule.former_key} is now {where}.{name}")
        own = renamed.get(name)
        if isinstance(given, Mapping) and isinstance(own, Mapping):
            given = {**own, **given}
        renamed[name] = given
    return renamed, notes


def _evaluation(evaluation: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings of evaluation with `ablation` in place of older keys."""
    renamed, notes = dict(evaluation), []
    for name, system in SYSTEMS.items():
        keys, asked = system.read_former_evaluation(renamed)
        for key in sorted(keys):
            del renamed[key]
            notes.append(f"evaluation.{key} is now evaluation.ablation.{name}")
        if asked is not None:
            renamed["ablation"] = {name: asked, **(renamed.get("ablation") or {})}
    return renamed, notes


def _trainings(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for _, training in _at(raw, "training"):
        yield training


def _at(raw: Mapping[str, Any], part: str) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """A part of the recipe, and of each system that changes it, with the path to it."""
    if isinstance(raw.get(part), Mapping):
        yield (part,), raw[part]
    systems = raw.get("systems")
    for name, system in systems.items() if isinstance(systems, Mapping) else ():
        if isinstance(system, Mapping) and isinstance(system.get(part), Mapping):
            yield ("systems", str(name), part), system[part]


def _put(raw: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of a document with another value at a path."""
    key, *rest = path
    return {**raw, key: _put(raw[key], tuple(rest), value) if rest else value}
