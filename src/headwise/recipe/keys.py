"""The keys that recipes have, task by task, as the settings themselves describe them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headwise.recipe.catalogue import TASKS, task_class
from headwise.recipe.settings import EvaluationSettings, ModelSettings, Recipe

# What all tasks share is told once; a task's own class of it adds to these.
_SHARED: Mapping[str, type[BaseModel]] = {
    "": Recipe,
    "model": ModelSettings,
    "evaluation": EvaluationSettings,
}
_PLACEHOLDERS = ("data", "model", "evaluation", "task")  # of Recipe; each task fills them


class Key(NamedTuple):
    """One key of a recipe."""

    name: str  # from the top: training.max_steps
    default: str
    meaning: str


class Section(NamedTuple):
    """Keys that stand beside each other."""

    title: str
    keys: list[Key]


def shared_sections() -> list[Section]:
    """The keys that the recipes of all tasks have."""
    sections = [Section("recipe", _keys("", _own(Recipe, None, _PLACEHOLDERS)))]
    sections += _nested("", Recipe, skip=_PLACEHOLDERS)
    for prefix in ("model", "evaluation"):
        sections.append(Section(prefix, _keys(prefix, _SHARED[prefix].model_fields)))
    return sections


def task_sections(task: str) -> list[Section]:
    """The keys that only the recipes of one task have, or that mean something else in them.

    >>> [section.title for section in task_sections("translation")][:3]
    ['recipe', 'data', 'data, corpus: interface-strings']
    """
    recipe = task_class(task).recipe_class
    sections = [Section("recipe", _keys("", _own(recipe, Recipe)))]
    return sections + _nested("", recipe, skip=tuple(_own(Recipe, None, _PLACEHOLDERS)))


def keys_page() -> str:
    """All keys as a page in Markdown."""
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
    """The fields that a class adds to its base, or describes otherwise."""
    inherited = {} if base is None else base.model_fields
    return {
        name: field
        for name, field in settings.model_fields.items()
        if name not in skip
        and (
            name not in inherited
            or (field.description, _default(field))
            != (inherited[name].description, _default(inherited[name]))
        )
    }


def _keys(prefix: str, fields: Mapping[str, FieldInfo]) -> list[Key]:
    return [
        Key(f"{prefix}.{name}" if prefix else name, _default(field), field.description or "")
        for name, field in fields.items()
    ]


def _nested(
    prefix: str,
    settings: type[BaseModel],
    skip: tuple[str, ...] = (),
    told: dict[type[BaseModel], str] | None = None,
) -> list[Section]:
    """A section for each mapping among the values of a class, and for those in it.

    `told` has the classes that have their section already, and where.
    """
    told = {} if told is None else told
    sections = []
    for name, field in settings.model_fields.items():
        if name in skip:
            continue
        path = f"{prefix}.{name}" if prefix else name
        in_mapping = get_origin(field.annotation) is dict
        members = _models(get_args(field.annotation)[1] if in_mapping else field.annotation)
        path += ".NAME" if in_mapping else ""
        again = {told[member] for member in members if member in told}
        if again:
            sections += _said_again(path, sorted(again))
        new = [member for member in members if member not in told]
        common = _common(new) if len(new) > 1 else {}
        if common:
            sections.append(Section(path, _keys(path, common)))
        for member in new:
            kind = _kind(member) if len(members) > 1 else None
            title = f"{path}, {kind}" if kind else path
            told[member] = title
            own = _own(member, _SHARED.get(path), tuple(common))
            own = dict(sorted(own.items(), key=lambda item: item[0] != _telling_field(member)))
            if own:
                sections.append(Section(title, _keys(path, own)))
            sections += _nested(path, member, told=told)
    return sections


def _said_again(path: str, titles: list[str]) -> list[Section]:
    """A section without keys that says where they stand; none where that is right above.

    >>> _said_again("data.left", ["data, corpus: files", "data, corpus: hub"])[0].title
    'data.left: as data, corpus: files, hub'
    """
    if titles == [path]:
        return []
    first, *others = titles
    kinds = [title.rpartition(": ")[2] for title in others]
    return [Section(f"{path}: as {', '.join([first, *kinds])}", [])]


def _common(members: list[type[BaseModel]]) -> dict[str, FieldInfo]:
    """The fields that all members of a union have, described alike."""
    first, *others = members
    return {
        name: field
        for name, field in first.model_fields.items()
        if all(
            name in other.model_fields
            and (field.description, _default(field))
            == (other.model_fields[name].description, _default(other.model_fields[name]))
            for other in others
        )
    }


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _telling_field(settings: type[BaseModel]) -> str | None:
    """The field that tells a member of a union from the others."""
    for name, field in settings.model_fields.items():
        if field.default is not PydanticUndefined and get_args(field.annotation) == (
            field.default,
        ):
            return name
    return None


def _kind(settings: type[BaseModel]) -> str | None:
    """What tells a member of a union from the others, as `corpus: files`."""
    name = _telling_field(settings)
    return None if name is None else f"{name}: {settings.model_fields[name].default}"


def _default(field: FieldInfo) -> str:
    """As YAML would have it, where it is short."""
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
