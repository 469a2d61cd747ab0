"""The ablations that systems declare: their names and options, and what is wrong with others."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from headwise.heads.system import System
from headwise.messages import did_you_mean, one_of, shown
from headwise.models.plan import system_class
from headwise.plain_yaml import read_yaml

LEARNED = "learned"  # every system as it was trained
# Arguments of an ablation that are no options: which of the model's systems it is, of how many.
_NUMBERS = ("index", "count")

# The name of a system to the name of an ablation, or to a mapping with that `name` and its options.
Ablations = Mapping[str, str | Mapping[str, Any]]


def ablation_names(system: type[System]) -> list[str]:
    """The ablations of a system, the one that changes nothing first.

    >>> ablation_names(system_class("standard"))
    ['learned', 'without-head', 'only-head']
    """
    return [LEARNED, *system.ablations]


def ablation_options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the options that an ablation function takes: name to parameter."""
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in _NUMBERS
    }


def removable_units(system: type[System]) -> list[str]:
    """Returns what units of a system can be removed one by one, as its ablations are named.

    >>> removable_units(system_class("standard"))
    ['head']
    """
    return [
        option
        for name, function in system.ablations.items()
        for option in ablation_options(function)
        if name == f"without-{option}"
    ]


def check_ablations(ablations: Ablations) -> None:
    """Raise `ValueError` unless these are systems, ablations and options that there are."""
    for name, asked in ablations.items():
        try:
            system = system_class(name)
        except ValueError as error:
            raise ValueError(f"ablation: {error}") from None
        check_ablation(name, system, *split_ablation(asked))


def parse_ablations(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Reads ablations as the command line gives them.

    Args:
        texts: `SYSTEM=NAME[,OPTION=VALUE...]` each; values are YAML.

    Raises:
        ValueError: a text of another form, or what it names is not there.

    >>> parse_ablations(["standard=learned"])
    {'standard': {'name': 'learned'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        first, *options = text.split(",")
        system, equals, name = first.partition("=")
        asked: dict[str, Any] = {"name": name.strip()}
        for option in options:
            key, has_value, value = option.partition("=")
            equals = equals and has_value
            asked[key.strip()] = _value(text, value)
        if not (equals and system.strip() and name.strip()):
            raise ValueError(
                f"ablation is {text!r}, expected SYSTEM=NAME, and options behind it as "
                f"SYSTEM=NAME,OPTION=VALUE"
            )
        found[system.strip()] = asked
    check_ablations(found)
    return found


def _value(text: str, value: str) -> Any:
    try:
        return read_yaml(value)
    except ValueError as error:
        raise ValueError(f"ablation is {shown(text)}: {error}") from None


def split_ablation(asked: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of an ablation, and its options."""
    if isinstance(asked, str):
        return asked, {}
    options = dict(asked)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(
            f"ablation is {dict(asked)!r}, expected a mapping with the key `name`, whose value is "
            f"the name of an ablation"
        )
    return name, options


def check_ablation(
    system_name: str, system: type[System], name: str, options: Mapping[str, Any]
) -> None:
    """Raises `ValueError` unless a system has this ablation with these options.

    Args:
        system_name: how the message names the system.
        system: its class.
        name: of the ablation.
        options: of the ablation.
    """
    known = ablation_names(system)
    if name not in known:
        raise ValueError(f"ablation of {system_name} is {name!r}, {one_of(name, known)}")
    if name == LEARNED:
        if options:
            raise ValueError(f"ablation {LEARNED!r} takes no options, but has {dict(options)!r}")
        return
    function = system.ablations[name]
    hints = get_type_hints(function)
    parameters = ablation_options(function)
    for key, value in options.items():
        if key not in parameters:
            expected = f"one of {', '.join(parameters)}" if parameters else "none"
            raise ValueError(
                f"ablation {name!r} of {system_name} has the option {key!r}, expected {expected}"
                f"{did_you_mean(key, parameters)}"
            )
        try:
            TypeAdapter(hints.get(key, Any)).validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise ValueError(
                f"ablation {name!r} of {system_name}: {key} is {value!r}: {message[0].lower()}"
                f"{message[1:]}"
            ) from None
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise ValueError(
                f"ablation {name!r} of {system_name} lacks the option {key!r}: give it a number, "
                f"as in {system_name}={name},{key}=1"
            )
