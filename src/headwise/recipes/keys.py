"""Lists the keys of recipes by task, as the classes of settings describe them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headwise.models.ablation import ablation_names, ablation_options
from headwise.models.plan import SET_BY_MODEL, SYSTEMS, options_of
from headwise.recipes.catalogue import TASKS, task_class
from headwise.recipes.names import Key, Section
from headwise.recipes.schema import kinds, named_value, tag
from headwise.recipes.settings import EvaluationSettings, ModelSettings, Recipe

# The sections of keys that all tasks share; a task's own classes add keys to these.
_SHARED: Mapping[str, type[BaseModel]] = {
    "": Recipe,
    "model": ModelSettings,
    "evaluation": EvaluationSettings,
}
_PLACEHOLDERS = ("data", "model", "evaluation", "task")  # keys of Recipe that each task defines


def shared_sections() -> list[Section]:
    """Returns the keys that the recipes of all tasks have."""
    sections = [Section("recipe", _keys("", _own(Recipe, None, _PLACEHOLDERS)))]
    sections += _nested("", Recipe, skip=_PLACEHOLDERS)
    for prefix in ("model", "evaluation"):
        sections.append(Section(prefix, _keys(prefix, _SHARED[prefix].model_fields)))
    sections.append(Section("evaluation.ablation", list(_ablations())))
    return sections


def _ablations() -> Iterator[Key]:
    """Yields every ablation of headwise's systems, its options in the place of a default."""
    for name, system in SYSTEMS.items():
        for ablation, function in system.ablations.items():
            options = [
                option if parameter.default is parameter.empty else f"{option}={parameter.default}"
                for option, parameter in ablation_options(function).items()
            ]
            meaning = (function.__doc__ or "").partition("\n")[0]
            yield Key(f"evaluation.ablation.{name}={ablation}", ", ".join(options) or "–", meaning)


def task_sections(task: str) -> list[Section]:
    """Returns the keys that only the recipes of one task have, or that differ in them.

    >>> [section.title for section in task_sections("translation")][:3]
    ['recipe', 'data', 'data, corpus: interface-strings']
    """
    recipe = task_class(task).recipe_class
    sections = [Section("recipe", _keys("", _own(recipe, Recipe)))]
    return sections + _nested("", recipe, skip=tuple(_own(Recipe, None, _PLACEHOLDERS)))


def keys_page() -> str:
    """Returns all keys as a page in Markdown: docs/keys.md."""
    lines = [
        "# The keys of a recipe",
        "",
        "Made by `headwise keys --markdown`. `headwise keys TASK` prints those of one task.",
        "",
        "## All tasks",
        *_markdown(shared_sections()),
    ]
    for task in TASKS:
        lines += ["", f"## {task}", *_markdown(task_sections(task))]
    return "\n".join(lines) + "\n"


def known_json() -> str:
    """Returns recipe/known.json: what `headwise.recipes.names` knows without the classes."""
    parts = []
    for part, content in _known().items():
        pairs = content.items() if isinstance(content, dict) else ()
        inner = [f"{json.dumps(name)}: {_compact(value)}" for name, value in pairs]
        text = "{\n" + ",\n".join(inner) + "\n}" if inner else _compact(content)
        parts.append(f"{json.dumps(part)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _known() -> dict[str, Any]:
    tasks = {task: task_class(task) for task in TASKS}
    return {
        "sections": {"": shared_sections(), **{task: task_sections(task) for task in TASKS}},
        "tasks": {
            name: {
                "sites": list(task.model_class.config_class().depths()),
                "read by finished runs": task.evaluation_keys,
                "keys": _tree(task.recipe_class),
            }
            for name, task in tasks.items()
        },
        "systems": {
            name: {
                "options": sorted({"layers", *options_of(system)} - SET_BY_MODEL),
                "ablations": ablation_names(system),
            }
            for name, system in SYSTEMS.items()
        },
        "set by models": sorted(SET_BY_MODEL),
    }


def _tree(annotation: Any) -> Any:
    """The keys that a value may have, and those inside it; None for a plain value.

    >>> _tree(dict[str, Section])
    >>> sorted(_tree(ModelSettings)["kinds"][0]["keys"])[0]
    'attention'
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (dict, list):
        inside = _tree(named_value(annotation) if origin is dict else parts[0])
        return {"each": inside} if inside else None
    found = kinds(annotation)
    tags = [tag(kind) for kind in found]
    fields = {told.field if told else None for told in tags}
    # What no key tells apart is left to the check of the whole recipe.
    if not found or (len(found) > 1 and (len(fields) > 1 or None in fields)):
        return None
    if any(get_origin(part) in (dict, list) for part in parts):
        return None
    return {
        "tag": fields.pop() if len(found) > 1 else None,
        "kinds": [
            {
                "is": told.value if told else None,
                "keys": {
                    field.alias or name: _tree(field.annotation)
                    for name, field in kind.model_fields.items()
                },
            }
            for kind, told in zip(found, tags, strict=True)
        ],
    }


def _markdown(sections: list[Section]) -> Iterator[str]:
    for section in sections:
        yield from ("", f"### {section.title}")
        if section.keys:
            yield from ("", "| key | default | meaning |", "|---|---|---|")
        for key in section.keys:
            yield f"| `{key.name}` | {key.default} | {key.meaning} |"


def _own(
    settings: type[BaseModel], base: type[BaseModel] | None, skip: tuple[str, ...] = ()
) -> dict[str, FieldInfo]:
    """The fields that a class adds to its base, or whose description or default differs."""
    inherited = {} if base is None else base.model_fields
    return {
        name: field
        for name, field in settings.model_fields.items()
        if name not in skip and (name not in inherited or _shown(field) != _shown(inherited[name]))
    }


def _keys(prefix: str, fields: Mapping[str, FieldInfo]) -> list[Key]:
    return [
        Key(f"{prefix}.{name}" if prefix else name, *_shown(field))
        for name, field in fields.items()
    ]


def _nested(
    prefix: str,
    settings: type[BaseModel],
    skip: tuple[str, ...] = (),
    told: dict[type[BaseModel], str] | None = None,
) -> list[Section]:
    """Returns a section for each settings class among the fields, and for those inside it.

    `told` has the title of the section of each class that was listed already.
    """
    told = {} if told is None else told
    sections = []
    for name, field in settings.model_fields.items():
        if name in skip:
            continue
        path = f"{prefix}.{name}" if prefix else name
        annotation = field.annotation
        if (values := named_value(annotation)) is not None:
            annotation, path = values, f"{path}.NAME"
        members = kinds(annotation)
        again = {told[member] for member in members if member in told}
        if again:
            sections += _said_again(path, sorted(again))
        new = [member for member in members if member not in told]
        common = _common(new) if len(new) > 1 else {}
        if common:
            sections.append(Section(path, _keys(path, common)))
        for member in new:
            own = _own(member, _SHARED.get(path), tuple(common))
            told[member] = path
            if len(members) > 1 and (told_by := tag(member)) is not None:
                told[member] = f"{path}, {told_by}"
                # What tells the kinds apart comes first.
                own = {key: own[key] for key in (told_by.field, *own) if key in own}
            if own:
                sections.append(Section(told[member], _keys(path, own)))
            sections += _nested(path, member, told=told)
    return sections


def _said_again(path: str, titles: list[str]) -> list[Section]:
    """Returns a section without keys that refers to others; none if it would refer to itself.

    >>> _said_again("data.left", ["data, corpus: files", "data, corpus: hub"])[0].title
    'data.left: as data, corpus: files, hub'
    """
    if all(title.partition(",")[0] == path for title in titles):
        return []
    first, *others = titles
    values = [title.rpartition(": ")[2] for title in others]
    return [Section(f"{path}: as {', '.join([first, *values])}", [])]


def _common(members: list[type[BaseModel]]) -> dict[str, FieldInfo]:
    """The fields that all kinds have with the same description and default."""
    first, *others = members
    return {
        name: field
        for name, field in first.model_fields.items()
        if all(
            name in other.model_fields and _shown(field) == _shown(other.model_fields[name])
            for other in others
        )
    }


def _shown(field: FieldInfo) -> tuple[str, str]:
    """The default and the meaning of a key."""
    return _default(field), field.description or ""


def _default(field: FieldInfo) -> str:
    """The default as YAML writes it; a dash if it is empty or has keys of its own."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or isinstance(value, BaseModel) or value in ([], {}, ""):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(str(each) for each in value)}]"
    return str(value)
