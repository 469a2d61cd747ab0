"""Errors of recipes: each names the key, what it is, what was expected, and the nearest name."""

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from headwise.messages import one_of, shown

_EXPECTED = "Input should be "  # how pydantic begins most of its messages
_WORDS = {
    "string_type": "text",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "model_attributes_type": "keys with values",
    "int_parsing": "a whole number in digits, such as 1000",
    "int_from_float": "a whole number in digits, such as 1000",
    "int_type": "a whole number in digits, such as 1000",
    "float_parsing": "a number, such as 0.1 or 1e-3",
    "string_pattern_mismatch": "letters, digits and _ + - alone, the first a letter or a digit",
}


def explain(kind: type[BaseModel], error: ValidationError) -> str:
    """Returns a line for each problem that pydantic has found in settings of a kind."""
    lines: dict[str, str] = {}  # of each key; of a union pydantic lists the problem of each member
    for problem in error.errors(include_url=False):
        keys, siblings = _place(kind, problem["loc"])
        where = ".".join(keys)
        lines.setdefault(where, f"  {_line(where, siblings, problem)}")
    return "\n".join(lines.values())


def _line(where: str, siblings: Sequence[str], problem: Mapping[str, Any]) -> str:
    kind, message, value = problem["type"], problem["msg"], problem["input"]
    if kind == "extra_forbidden":
        name = where.rpartition(".")[2]
        hint = one_of(name, siblings)
        if where in ("data.train", "data.validation", "data.test"):
            hint = f"files stand under data.files.{name}"
        return f"there is no key {where}, {hint}"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "value_error":  # one of our own, which names the key inside of `where`
        return ": ".join(filter(None, (where, message.removeprefix("Value error, "))))
    expected = _WORDS.get(kind, message.removeprefix(_EXPECTED))
    if kind == "string_type" and not isinstance(value, (dict, list)):
        expected += "; put a text that YAML takes for something else in quotes: '\"007\"'"
    return f"{where} is {shown(value)}, expected {expected}"


def _place(kind: Any, location: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """Returns the keys of a place in settings, and the names of the fields beside it."""
    keys: list[str] = []
    siblings: list[str] = []
    for part in location:
        kind = without_none(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            siblings = list(kind.model_fields)
            kind = kind.model_fields[str(part)].annotation if part in siblings else None
        elif get_origin(kind) in (dict, list, tuple):
            kind = get_args(kind)[-1]
        elif get_origin(kind) in (Union, UnionType):
            break  # what is left is pydantic's name of a member of a union
        if part == "[key]":  # the problem is the name itself
            break
        keys.append(str(part))
    return keys, siblings


def without_none(kind: Any) -> Any:
    """Returns the type of a value that may also be None, or has constraints."""
    if get_origin(kind) is Annotated:
        return without_none(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not NoneType]
        return without_none(members[0]) if len(members) == 1 else kind
    return kind
