"""Which keys a recipe may have: a walk over the JSON schema that pydantic makes of its settings.

The list of all keys and the errors of a recipe are made with it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel

# How pydantic's location of an error ends if the error is in the name of a key.
_NAME_OF_KEY = "[key]"


class Tag(NamedTuple):
    """What tells one kind of settings from the others: `corpus: files`."""

    field: str
    value: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value}"


class Node(NamedTuple):
    """What may stand at one place of a recipe."""

    schema: Mapping[str, Any]  # of the value
    definitions: Mapping[str, Any]  # what it names by `$ref`

    @property
    def name(self) -> str:
        """The name of the class of settings."""
        return str(self.schema["title"])

    def members(self) -> list["Node"]:
        """Returns the kinds of values that there may be, besides null."""
        if "$ref" in self.schema:
            name = self.schema["$ref"].rpartition("/")[2]
            return self._at(self.definitions[name]).members()
        parts = self.schema.get("anyOf") or self.schema.get("oneOf")
        if parts:
            return [member for part in parts for member in self._at(part).members()]
        return [] if self.schema.get("type") == "null" else [self]

    def kinds(self) -> list["Node"]:
        """Returns the settings that there may be; none for a plain value or a mapping."""
        return [member for member in self.members() if "properties" in member.schema]

    def tag(self) -> Tag | None:
        """Returns the first key of settings that has a single possible value."""
        for name, field in self.schema["properties"].items():
            if "const" in field:
                return Tag(name, field["const"])
        return None

    def keys(self) -> dict[str, "Node"]:
        """Returns what may stand under each key of settings."""
        return {name: self._at(field) for name, field in self.schema["properties"].items()}

    def named_value(self) -> "Node | None":
        """Returns what may stand under the names of a mapping; None if it is no mapping."""
        for member in self.members():
            of_any = member.schema.get("additionalProperties")
            values = [*member.schema.get("patternProperties", {}).values(), of_any]
            if "properties" not in member.schema and isinstance(values[0], Mapping):
                return self._at(values[0])
        return None

    def names_things(self) -> bool:
        """Whether a value has texts that are none of a few choices, or keys."""
        inner = [
            self._at(schema)
            for each in self.members()
            for schema in [*each.schema.get("prefixItems", []), each.schema.get("items")]
            if schema
        ]
        return any(node.names_things() for node in inner) or any(
            each.schema.get("type") in ("string", "object")
            and not {"enum", "const"} & set(each.schema)
            for each in self.members()
        )

    def behind(self, key: str) -> "Node":
        """Returns what may stand behind a key or number; anything if it is unknown."""
        for kind in self.kinds():
            if key in kind.schema["properties"]:
                return kind.keys()[key]
        items = [each.schema["items"] for each in self.members() if "items" in each.schema]
        return self.named_value() or self._at(items[0] if items else {})

    def _at(self, schema: Mapping[str, Any]) -> "Node":
        return Node(schema, self.definitions)


@cache
def node_of(settings: type[BaseModel]) -> Node:
    """Returns what may stand where a class of settings is expected."""
    schema = settings.model_json_schema()
    return Node(schema, schema.get("$defs", {}))


class Location(NamedTuple):
    """A place in a recipe."""

    keys: list[str]  # on the way to it
    siblings: list[str]  # the keys that may stand beside the last of them, sorted
    node: Node  # what may stand there


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
    node = node_of(settings)
    for step in location:
        if step == _NAME_OF_KEY:
            continue
        members = node.members()
        if len(members) > 1:  # the step names one of them
            chosen = [kind for kind in node.kinds() if (tag := kind.tag()) and tag.value == step]
            node = chosen[0] if chosen else Node({}, node.definitions)
            continue
        keys.append(str(step))
        siblings = sorted({key for kind in node.kinds() for key in kind.schema["properties"]})
        node = node.behind(str(step))
    return Location(keys, siblings, node)
