"""A model evaluated otherwise than it was trained, by the ablations that its systems declare."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, get_type_hints

from torch import nn

from headwise.heads.system import System
from headwise.messages import did_you_mean, one_of, shown
from headwise.models.plan import check_type, system_class
from headwise.models.sites import attention_sites, system_at
from headwise.plain_yaml import read_yaml

LEARNED = "learned"  # every system as it was trained
# Arguments of an ablation that are no options: which of the model's systems it is, of how many.
_NUMBERS = ("index", "count")

# The name of a system to the name of an ablation, or to a mapping with that `name` and its options.
Ablations = Mapping[str, str | Mapping[str, Any]]


@contextmanager
def ablated(
    model: nn.Module, where: str | Ablations, name: str | None = None, **options: Any
) -> Iterator[None]:
    """`headwise.ablated` of a model that holds systems.

    Raises:
        ValueError: there is no such path, system, ablation or option, or an option does not fit
            the sizes of the model; or, later, an ablated system computes in training mode.

    Example:
        >>> import torch
        >>> import headwise as hw
        >>> model = nn.ModuleDict({"first": hw.MixtureOfAttentiveExperts(16, 4)}).eval()
        >>> x = torch.randn(2, 5, 16)
        >>> with ablated(model, "first", "uniform"), ablated(model, "first", head=1):
        ...     without_head = model["first"](x).output
        >>> with ablated(hw.MultiHeadAttention(16, 4), {"standard": "uniform"}):
        ...     pass
        Traceback (most recent call last):
        ...
        ValueError: ablation of standard is 'uniform', expected one of learned, without-head, ...
    """
    if isinstance(where, str):
        changed = _changed_at(model, where, name, options)
    elif isinstance(where, Mapping) and name is None and not options:
        check_ablations(where)
        changed = {}
        for kind, asked in where.items():
            changed |= _changed(held_systems(model, kind), *split_ablation(asked))
    else:
        raise ValueError(
            f"ablated has {where!r}, expected the path of a system, its ablation and options, or a "
            f"mapping of names of systems to ablations, and nothing beside it"
        )
    with ExitStack() as stack:
        for system, ablation in changed.items():
            stack.callback(setattr, system, "ablation", system.ablation)
            stack.enter_context(system.register_forward_pre_hook(_refuse_training))
            system.ablation = ablation
        yield


def _changed_at(
    model: nn.Module, path: str, name: str | None, options: Mapping[str, Any]
) -> dict[System, Any]:
    """The system at a path, and what is to take the place of its `ablation`."""
    module = system_at(model, path).module
    system = type(module)
    if name is None:
        name = _removal(path, system, options)
    check_ablation(f"{path!r}" if path else system.__name__, system, name, options)
    # A random ablation is to be the same as where all systems of the model are under it.
    alike = [place.module for place in attention_sites(model) if type(place.module) is system]
    return _changed(alike, name, options, only=module)


def _changed(
    alike: Sequence[System], name: str, options: Mapping[str, Any], only: System | None = None
) -> dict[System, Any]:
    """All of a model's systems of a kind, or only one, and what their `ablation` is to be."""
    return {
        system: ablation_of(system, name, options, index, len(alike))
        for index, system in enumerate(alike)
        if name != LEARNED and only in (None, system)
    }


def _removal(path: str, system: type[System], options: Mapping[str, Any]) -> str:
    """The ablation that removes the unit that the one option numbers."""
    units = removable_units(system)
    if len(options) != 1 or not options.keys() <= set(units):
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "nothing"
        known = " or ".join(f"{unit}=0" for unit in units) or "none: it declares no without-UNIT"
        raise ValueError(
            f"ablation of {path!r} has {given}, expected the name of one of its ablations "
            f"({', '.join(system.ablations)}), or one unit to remove ({known})"
            f"{did_you_mean(next(iter(options), ''), units)}"
        )
    return f"without-{next(iter(options))}"


def held_systems(model: nn.Module, name: str) -> list[System]:
    """The systems of a model that a plan names so."""
    # A class may have several names: that of its module, and those of modules that import it.
    system = system_class(name)
    return [place.module for place in attention_sites(model) if type(place.module) is system]


def ablation_of(
    system: System, name: str, options: Mapping[str, Any], index: int = 0, count: int = 1
) -> Any:
    """Returns what `system.ablation` is to be under one of its `ablations`.

    `index` and `count` say which of a model's systems of its kind it is, and of how many.

    Raises:
        ValueError: the ablation does not fit the sizes of the system.
    """
    function = system.ablations[name]
    takes = inspect.signature(function).parameters
    numbers = {"index": index, "count": count}
    numbers = {key: number for key, number in numbers.items() if key in takes}
    return function(system, **options, **numbers)


def _refuse_training(system: nn.Module, _: Any) -> None:
    # A copy has this hook too, but no ablation.
    if system.training and system.ablation is not None:
        raise ValueError(
            f"a {type(system).__name__} is ablated and in training mode, in which an ablation "
            f"changes nothing: call eval() of the model before its forward pass"
        )


def ablation_names(system: type[System]) -> list[str]:
    """The ablations of a system, the one that changes nothing first."""
    return [LEARNED, *system.ablations]


def ablation_options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options that an ablation function takes behind the system: name to parameter."""
    behind = list(inspect.signature(function).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p for p in behind if p.kind in kinds and p.name not in _NUMBERS}


def removable_units(system: type[System]) -> list[str]:
    """Returns the units that the ablations `without-UNIT` of a system remove, one at a time."""
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
    """Reads ablations as the command line gives them: `SYSTEM=NAME[,OPTION=VALUE...]` each.

    Values are YAML.

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
            if key.strip() in asked:
                raise ValueError(
                    f"ablation is {text!r}, which gives {key.strip()} twice; give each option "
                    f"once, and the name of the ablation behind {system.strip()}="
                )
            try:
                asked[key.strip()] = read_yaml(value)
            except ValueError as error:
                raise ValueError(f"ablation is {shown(text)}: {error}") from None
        if not (equals and system.strip() and name.strip()):
            raise ValueError(
                f"ablation is {text!r}, expected SYSTEM=NAME, and options behind it as "
                f"SYSTEM=NAME,OPTION=VALUE"
            )
        if system.strip() in found:
            raise ValueError(
                f"ablation is {text!r}, but {system.strip()} has one already, expected one for "
                f"each system"
            )
        found[system.strip()] = asked
    check_ablations(found)
    return found


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
    """Raises `ValueError`, with this name of the system, unless it has such an ablation."""
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
        check_type(f"ablation {name!r} of {system_name}: {key}", value, hints.get(key, Any))
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise ValueError(
                f"ablation {name!r} of {system_name} lacks the option {key!r}: give it a number, "
                f"as in {system_name}={name},{key}=1"
            )
