"""Errors of recipes: each names the key, what it is, and what was expected."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headwise.messages import one_of, shown
from headwise.ops.checks import did_you_mean
from headwise.recipes.schema import Node, locate

if TYPE_CHECKING:
    from pydantic import ValidationError

    from headwise.recipes.settings import Recipe

_EXPECTED = "Input should be "  # how pydantic begins most of its messages
# Which errors of pydantic say that keys were expected.
_NO_MAPPING = ("dict_type", "model_type", "model_attributes_type")
_WHOLE_NUMBER = ("int_parsing", "int_parsing_size", "int_from_float", "int_type")
_NAME_PATTERN = "string_pattern_mismatch"  # no value has a pattern but the names of `Name`


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key and how to mend it."""


def unknown(what: str, name: str, known: Sequence[str], where: str = "") -> str:
    """Returns the message for a name that does not exist, with those that do."""
    place = f" in {where}" if where else ""
    return f"there is no {what} {shown(name)}{place}{did_you_mean(name, known)}\n{_known(known)}"


def _unknown_key(where: str, siblings: Sequence[str]) -> str:
    hint = did_you_mean(where.rpartition(".")[2], siblings)
    return f"there is no key {shown(where)}{hint}\n{_known(siblings)}"


def explain(recipe: "type[Recipe]", error: "ValidationError") -> str:
    """Returns a line for each problem that pydantic has found in a recipe."""
    return "\n".join(f"  {_explain(recipe, problem)}" for problem in error.errors())


def _explain(recipe: "type[Recipe]", problem: Any) -> str:
    keys, siblings, node = locate(recipe, problem["loc"])
    where, kind, message = ".".join(keys), problem["type"], problem["msg"]
    if kind == "extra_forbidden":
        return _unknown_key(where, siblings)
    if kind == "missing":
        return f"{where} is missing"
    if kind.startswith("union_tag"):
        return _wrong_kind(where, problem["input"], node)
    if kind == "value_error":  # one of our own, which names the key already
        message = message.removeprefix("Value error, ")
        return f"{where}: {message}" if where else message
    value = f"{where} is {shown(problem['input'])}"
    if kind == "path_type":
        return f"{value}, expected the path of a file or a folder, which is text; put it in quotes"
    if kind in _NO_MAPPING:
        return f"{value}, expected keys with values"
    if kind in _WHOLE_NUMBER:
        return f"{value}, expected a whole number in digits, such as 1000"
    if kind == "float_parsing":
        return f"{value}, expected a number, such as 0.1 or 1e-3"
    if kind == _NAME_PATTERN:
        return (
            f"{'.'.join(keys[:-1])} has the name {shown(problem['input'])}, expected one of "
            f"letters, digits and . _ + - alone, which begins with a letter of A to Z or a digit"
        )
    if message.startswith(_EXPECTED):
        expected = message.removeprefix(_EXPECTED).partition(", unable to parse")[0]
        number = "a number " if expected.startswith(("greater", "less")) else ""
        return f"{value}, expected {number}{expected}"
    return f"{value}: {message[0].lower()}{message[1:]}"


def _wrong_kind(where: str, value: Any, node: Node) -> str:
    """The message for settings that do not say, or say wrongly, of which kind they are."""
    tags = [found for kind in node.kinds() if (found := kind.tag()) is not None]
    field, known = tags[0].field, [each.value for each in tags]
    given = value.get(field) if isinstance(value, dict) else None
    if given is None:
        return f"{where}.{field} is missing, expected one of {', '.join(known)}"
    return f"{where}.{field} is {shown(given)}, {one_of(given, known)}"


def _known(names: Sequence[str]) -> str:
    return f"  known: {', '.join(names)}"
