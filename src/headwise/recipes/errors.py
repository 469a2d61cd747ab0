"""Errors of recipes: each names the key, what it is, what was expected, and the nearest name."""

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from headwise.messages import expected_one_of, shown

_WHOLE = "a whole number in digits, such as 1000"
_WORDS = {
    "string_type": "text; put a text that YAML takes for something else in quotes: '\"007\"'",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "keys with values"),
    **dict.fromkeys(("int_parsing", "int_from_float", "int_type"), _WHOLE),
    "float_parsing": "a number, such as 0.1 or 1e-3",
    "string_pattern_mismatch": "letters, digits and _ + - alone, the first a letter or a digit",
}


def explain(kind: type[BaseModel], error: ValidationError, prefix: str = "") -> str:
    """Returns a line for each key of which pydantic has found that it is wrong.

    Args:
        kind: the settings that were read.
        error: what pydantic has found.
        prefix: what stands before the keys, such as `data.options.`.
    """
    lines: dict[str, str] = {}  # of a union pydantic lists the problem of each member: take one
    for problem in error.errors(include_url=False):
        keys, siblings = _place(kind, problem["loc"])
        where, message, value = prefix + ".".join(keys), problem["msg"], problem["input"]
        if problem["type"] == "extra_forbidden":
            hint = expected_one_of(keys[-1], siblings)
            if where in ("data.train", "data.validation", "data.test"):
                hint = f"files stand under data.files.{keys[-1]}"
            line = f"there is no key {where}, {hint}"
        elif problem["type"] == "missing":
            line = f"{where} is missing"
        elif problem["type"] == "value_error":  # one of our own, which names the key inside
            line = ": ".join(filter(None, (where, message.removeprefix("Value error, "))))
        else:
            expected = _WORDS.get(problem["type"], message.removeprefix("Input should be "))
            line = f"{where} is {shown(value)}, expected {expected}"
        lines.setdefault(where, f"  {line}")
    return "\n".join(lines.values())


def _place(kind: Any, location: tuple[int | str, ...]) -> tuple[list[str], list[str]]:
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
    members = [member for member in get_args(kind) if member is not NoneType]
    is_optional = get_origin(kind) in (Union, UnionType) and len(members) == 1
    return without_none(members[0]) if is_optional else kind
