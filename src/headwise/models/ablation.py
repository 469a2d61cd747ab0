"""A model evaluated otherwise than it was trained: the ablations that its systems declare."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError
from torch import nn

from headwise.heads.system import System
from headwise.models.plan import system_class
from headwise.models.sites import attention_sites
from headwise.spelling import did_you_mean

LEARNED = "learned"  # every system as it was trained
# Arguments of an ablation that are no options: which of the model's systems it is, of how many.
_NUMBERS = ("index", "count")

# The name of a system to the name of an ablation, or to a mapping with that `name` and its options.
Ablations = Mapping[str, str | Mapping[str, Any]]


@contextmanager
def ablated(model: nn.Module, ablations: Ablations) -> Iterator[None]:
    """While this context is open, the systems of a model compute otherwise in evaluation.

    Training is not changed.

    Args:
        model: a headwise model, or any module that holds systems.
        ablations: the name of a system, as plans have it, to the name of one of its ablations, or
            to a mapping with the key `name` and the ablation's options. `"learned"` changes
            nothing. Systems that the model does not hold are passed over.

    Raises:
        ValueError: there is no such system, ablation or option, or an option does not fit the
            sizes of the model.

    Example:
        >>> import headwise as hw
        >>> with ablated(hw.MultiHeadAttention(16, 4), {"standard": "uniform"}):
        ...     pass
        Traceback (most recent call last):
        ...
        ValueError: ablation of standard is 'uniform', expected one of learned, without-head, ...
    """
    check_ablations(ablations)
    with ExitStack() as stack:
        for name, asked in ablations.items():
            stack.enter_context(_ablated(held_systems(model, name), asked))
        yield


def held_systems(model: nn.Module, name: str) -> list[System]:
    """The systems of a model that a plan names so.

    Raises:
        ValueError: there is no such system.
    """
    # A class may have several names: that of its module, and those of modules that import it.
    system = system_class(name)
    return [place.module for place in attention_sites(model) if type(place.module) is system]


def check_ablations(ablations: Ablations) -> None:
    """Raise `ValueError` unless these are systems, ablations and options that there are."""
    for name, asked in ablations.items():
        try:
            system = system_class(name)
        except ValueError as error:
            raise ValueError(f"ablation: {error}") from None
        _check(name, system, *_split(asked))


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
            asked[key.strip()] = yaml.safe_load(value)
        if not (equals and system.strip() and name.strip()):
            raise ValueError(
                f"ablation is {text!r}, expected SYSTEM=NAME, and options behind it as "
                f"SYSTEM=NAME,OPTION=VALUE"
            )
        found[system.strip()] = asked
    check_ablations(found)
    return found


def ablation_options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the options that an ablation function takes: name to parameter."""
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in _NUMBERS
    }


def ablation_of(
    system: System, name: str, options: Mapping[str, Any], index: int = 0, count: int = 1
) -> Any:
    """Returns what `system.ablation` is to be under an ablation that the system declares.

    Args:
        system: the system, which is not changed.
        name: one of the names in its `ablations`.
        options: the ablation's options.
        index, count: which of a model's systems of its kind it is, and of how many.

    Raises:
        ValueError: the ablation does not fit the system.
    """
    function = system.ablations[name]
    takes = inspect.signature(function).parameters
    numbers = {"index": index, "count": count}
    numbers = {key: number for key, number in numbers.items() if key in takes}
    return function(system, **options, **numbers)


def ablation_names(system: type[System]) -> list[str]:
    """The ablations of a system, the one that changes nothing first.

    >>> ablation_names(system_class("standard"))
    ['learned', 'without-head', 'only-head']
    """
    return [LEARNED, *system.ablations]


def _split(asked: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
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


def _check(system_name: str, system: type[System], name: str, options: Mapping[str, Any]) -> None:
    known = ablation_names(system)
    if name not in known:
        raise ValueError(
            f"ablation of {system_name} is {name!r}, expected one of {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
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


@contextmanager
def _ablated(systems: list[System], asked: str | Mapping[str, Any]) -> Iterator[None]:
    name, options = _split(asked)
    if name == LEARNED:
        yield
        return
    before = [system.ablation for system in systems]
    try:
        for index, system in enumerate(systems):
            system.ablation = ablation_of(system, name, options, index, len(systems))
        yield
    finally:
        for system, previous in zip(systems, before, strict=True):
            system.ablation = previous
