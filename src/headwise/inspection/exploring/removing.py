"""The changes of a model that a reader of the page can ask for: the removal of a unit, and more."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import nn

from headwise.inspection.exploring.payload import Ablation
from headwise.models.ablation import ablation_of, ablation_options
from headwise.models.sites import attention_sites

_WITHOUT = "without-"


def possible_ablations(model: nn.Module) -> list[Ablation]:
    """Returns the ablations of each system of a model: removals of a unit, and those for all units.

    Args:
        model: a headwise model, or any module that holds systems.
    """
    found = []
    for place in attention_sites(model):
        ranges = place.module.ablation_ranges()  # type: ignore[operator]
        for name, function in place.module.ablations.items():
            options = ablation_options(function)
            option = name.removeprefix(_WITHOUT)
            if name.startswith(_WITHOUT) and option in options:
                for value in ranges.get(option, ()):
                    found.append(
                        Ablation(
                            path=place.path,
                            label=f"without {option} {value}",
                            name=name,
                            options={option: value},
                            unit=value if option == place.module.words.unit else None,
                            head=value if option == "head" else None,
                        )
                    )
            elif all(each.default is not each.empty for each in options.values()):
                found.append(Ablation(path=place.path, label=name.replace("-", " "), name=name))
    return found


@contextmanager
def in_force(model: nn.Module, ablations: Sequence[Ablation]) -> Iterator[None]:
    """While this context is open, some systems of a model are ablated.

    Args:
        model: a headwise model, or any module that holds systems.
        ablations: at most one for each system.

    Raises:
        ValueError: there is no such system or ablation, or there are two for one system.
    """
    systems = {place.path: place.module for place in attention_sites(model)}
    paths = [asked.path for asked in ablations]
    if len(set(paths)) < len(paths):
        raise ValueError(f"ablations are of {', '.join(paths)}, expected at most one of each")
    with ExitStack() as stack:
        for asked in ablations:
            system = systems[asked.path]
            stack.callback(setattr, system, "ablation", system.ablation)
            system.ablation = ablation_of(system, asked.name, asked.options)
        yield


def chosen_ablation(
    possible: Sequence[Ablation], path: str, name: str, options: dict[str, object]
) -> Ablation:
    """Returns the one of the possible ablations that is asked for.

    Raises:
        ValueError: it is none of them.
    """
    for each in possible:
        if (each.path, each.name, each.options) == (path, name, options):
            return each
    of_path = [each.label for each in possible if each.path == path]
    if not of_path:
        raise ValueError(f"path is {path!r}, expected that of a system that can be ablated")
    raise ValueError(
        f"the ablation of {path} is {name!r} with {options!r}, expected one of {', '.join(of_path)}"
    )
