"""Errors of recipes: each names the key, its value, and what was expected."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from headwise.messages import did_you_mean, shown

_WHOLE_NUMBER = "a whole number in digits, such as 1000"
_EXPECTED = {
    "string_type": "text; put a text that YAML reads as something else in quotes: '\"007\"'",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "keys with values"),
    **dict.fromkeys(("int_parsing", "int_from_float", "int_type"), _WHOLE_NUMBER),
    "float_parsing": "a number, such as 0.1 or 1e-3",
    "string_pattern_mismatch": "letters, digits and _ + - alone, the first a letter or a digit",
}


def explain(
    error: ValidationError, document: Any, settings_class: type[BaseModel], prefix: str = ""
) -> str:
    """Returns a line for each key that is wrong.

    Args:
        error, document: the error of pydantic, and the keys and values that were checked.
        settings_class: the class of settings that checked them.
        prefix: the path of the document in a recipe, such as `data.options.`.
    """
    whole = settings_class.model_json_schema()
    schemas = [whole, *whole.get("$defs", {}).values()]
    known = {name for schema in schemas for name in schema.get("properties", {})}
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        keys = _key_path(problem["loc"], document, is_missing=problem["type"] == "missing")
        path, message = prefix + ".".join(keys), problem["msg"]
        if problem["type"] == "extra_forbidden":
            is_file = path in ("data.train", "data.validation", "data.test")
            hint = f", expected data.files.{keys[-1]}" if is_file else did_you_mean(keys[-1], known)
            line = f"there is no key {path}{hint}"
        elif problem["type"] == "missing":
            line = f"{path} is missing"
        elif problem["type"] == "value_error":  # one of our own errors, which names the key
            line = ": ".join(filter(None, (path, message.removeprefix("Value error, "))))
        else:
            expected = _EXPECTED.get(problem["type"], message.removeprefix("Input should be "))
            line = f"{path} is {shown(problem['input'])}, expected {expected}"
        # Of a union, pydantic lists a problem of each member: the first is told.
        lines.setdefault(path, line)
    return "\n  ".join(lines.values())


def _key_path(location: tuple[int | str, ...], value: Any, *, is_missing: bool) -> list[str]:
    """Returns the keys of a location of pydantic, without its names of members of unions."""
    keys = []
    for key in location:
        known = range(len(value)) if isinstance(value, list | tuple) else value
        if isinstance(known, range | Mapping) and key in known:
            value = value[key]
        elif not is_missing:
            break
        keys.append(str(key))
    return keys
