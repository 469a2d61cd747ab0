"""The changes of a model that a reader of the page can ask for: the removal of a unit, and more."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from headwise.models.ablation import ablated
from headwise.models.ablation_names import ablation_options
from headwise.models.sites import AttentionSite, attention_sites
from headwise.report.explorer.payload import Ablation


def possible_ablations(model: nn.Module) -> list[Ablation]:
    """Returns the ablations of each system of a model, one for each value of its option.

    Args:
        model: a headwise model, or any module that holds systems.
    """
    return [
        ablation
        for place in attention_sites(model)
        for name in place.module.ablations
        for ablation in _of_system(place, name)
    ]


def _of_system(place: AttentionSite, name: str) -> list[Ablation]:
    options = ablation_options(place.module.ablations[name])
    needed = [key for key, option in options.items() if option.default is option.empty]
    words = name.replace("-", " ")
    if not needed:
        return [Ablation(path=place.path, label=words, name=name)]
    if len(needed) > 1:  # which of their values belong together is not declared
        return []
    (option,) = needed
    removes = name == f"without-{option}"
    return [
        Ablation(
            path=place.path,
            label=f"{words} {value}" if name.endswith(option) else f"{words}: {option} {value}",
            name=name,
            options={option: value},
            unit=value if removes and option == place.module.words.unit else None,
            head=value if removes and option == "head" else None,
        )
        for value in place.module.ablation_ranges().get(option, ())
    ]


@contextmanager
def in_force(model: nn.Module, ablations: Sequence[Ablation]) -> Iterator[None]:
    """While this context is open, some systems of a model are ablated.

    Args:
        model: a headwise model, or any module that holds systems.
        ablations: at most one for each system.

    Raises:
        ValueError: there are two for one system, or a system cannot be ablated so.
    """
    paths = [asked.path for asked in ablations]
    if len(set(paths)) < len(paths):
        raise ValueError(f"ablations are of {', '.join(paths)}, expected at most one of each")
    with ExitStack() as stack:
        for asked in ablations:
            stack.enter_context(ablated(model, asked.path, asked.name, **asked.options))
        yield


def chosen_ablation(
    possible: Sequence[Ablation], path: str, name: str, options: Mapping[str, Any]
) -> Ablation:
    """Returns the one of the possible ablations that is asked for.

    Raises:
        ValueError: it is none of them.
    """
    of_path = [each for each in possible if each.path == path]
    for each in of_path:
        if (each.name, each.options) == (name, options):
            return each
    if not of_path:
        known = ", ".join(dict.fromkeys(each.path for each in possible)) or "none"
        raise ValueError(f"the path of an ablation is {path!r}, expected one of {known}")
    labels = ", ".join(each.label for each in of_path)
    raise ValueError(
        f"the ablation of {path} is {name!r} with {dict(options)}, expected one of {labels}"
    )
