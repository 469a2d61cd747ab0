"""Walks over the classes of settings: which keys there are, and where they stand in a recipe.

Both the list of all keys and the errors of a recipe are made with it. A key's value may be

- a plain value, such as a number or a list of names;
- settings, which have keys of their own;
- one of several kinds of settings, which a field with a single value tells apart, such as
  `corpus: files`;
- a mapping from names to any of these.
"""

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

# How pydantic's location of an error ends if the error is in the name of a key.
_NAME_OF_KEY = "[key]"


class Tag(NamedTuple):
    """What tells one kind of settings from the others: `corpus: files`."""

    field: str
    value: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value}"


def tag(settings: type[BaseModel]) -> Tag | None:
    """Returns the first field that has a single possible value, or None if there is none."""
    for name, field in settings.model_fields.items():
        values = get_args(field.annotation)
        if get_origin(field.annotation) is Literal and len(values) == 1:
            return Tag(name, values[0])
    return None


def kinds(annotation: Any) -> list[type[BaseModel]]:
    """Returns the classes of settings that a value may have; none for a plain value or a mapping.

    >>> from headwise.recipes.settings import Recipe, SystemSettings
    >>> [kind.__name__ for kind in kinds(SystemSettings | None)]
    ['SystemSettings']
    >>> kinds(Recipe.model_fields["systems"].annotation)
    []
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is dict:
        return []
    return [kind for part in get_args(annotation) for kind in kinds(part)]


def named_value(annotation: Any) -> Any | None:
    """Returns the annotation of the values of a mapping; None if the value is no mapping.

    >>> named_value(dict[str, int])
    <class 'int'>
    """
    if get_origin(annotation) is not dict:
        return None
    value = get_args(annotation)[1]
    return get_args(value)[0] if get_origin(value) is Annotated else value


class Location(NamedTuple):
    """A place in a recipe.

    Attributes:
        keys: the keys on the way to it.
        siblings: the keys that may stand beside the last of them, sorted.
        annotation: what the value there may be.
    """

    keys: list[str]
    siblings: list[str]
    annotation: Any


def locate(settings: type[BaseModel], location: Sequence[int | str]) -> Location:
    """Returns the place at which pydantic has found an error.

    Args:
        settings: the class that was validated.
        location: `loc` of the error. Besides keys, it has a step for each member of a union on the
            way: the member's tag, or the name of its type.

    >>> from headwise.recipes.settings import Recipe
    >>> locate(Recipe, ("systems", "wide", "modle")).siblings
    ['description', 'model', 'training']
    """
    keys: list[str] = []
    siblings: list[str] = []
    annotation: Any = settings
    for step in location:
        if step == _NAME_OF_KEY:
            continue
        if _is_union(annotation):
            annotation = _member(annotation, step)
            continue
        keys.append(str(step))
        siblings = sorted({key for kind in kinds(annotation) for key in _fields(kind)})
        annotation = _behind(annotation, str(step))
    return Location(keys, siblings, annotation)


def _fields(settings: type[BaseModel]) -> dict[str, FieldInfo]:
    """Returns the fields of a class of settings, by the keys that they have in a recipe."""
    return {field.alias or name: field for name, field in settings.model_fields.items()}


def _is_union(annotation: Any) -> bool:
    """Whether it is a union of several types besides None, for which pydantic takes no step."""
    if get_origin(annotation) not in (Union, UnionType):
        return False
    return sum(member is not NoneType for member in get_args(annotation)) > 1


def _member(annotation: Any, step: int | str) -> Any:
    """The settings that a step names by their tag; any value if it names a plain type."""
    for kind in kinds(annotation):
        found = tag(kind)
        if found is not None and found.value == step:
            return kind
    return Any


def _behind(annotation: Any, key: str) -> Any:
    """What may stand behind a key; any value if the key is unknown."""
    for kind in kinds(annotation):
        if key in (fields := _fields(kind)):
            return fields[key].annotation
    if (values := named_value(annotation)) is not None:
        return values
    if get_origin(annotation) is list:
        return get_args(annotation)[0]
    return Any
