"""The ablations that an analysis makes of the systems of a model, one by one."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import nn

from headwise.analysis.decisions.places import Place, places_of
from headwise.heads.ablation import option_of
from headwise.models.inspect import ablated

# Each level has what those before it have.
Level = Literal["none", "model", "units", "all"]
_LEVELS: tuple[str, ...] = get_args(Level)
_DRAWS = 5  # of which the result of a random ablation is the mean
_REMOVES, _ISOLATES = "without-", "only-"


@dataclass(frozen=True)
class Ablation:
    """An ablation of all systems of a kind in a model, or of a single one."""

    name: str  # one of the system's `edits`
    options: Mapping[str, Any]  # with their values; a seed is not among them
    places: tuple[Place, ...]  # the systems that are changed
    # The option that numbers the unit that is removed or left alone in force; None if the
    # ablation changes all units.
    unit: str | None = None
    draws: int = 0  # how many random draws its result is the mean of; 0 if it draws nothing

    @property
    def system(self) -> str:
        """The name of the systems in plans."""
        return self.places[0].name

    @property
    def alone(self) -> bool:
        """Whether the unit is left alone in force, rather than removed."""
        return self.name.startswith(_ISOLATES)

    def __str__(self) -> str:
        options = "".join(f", {key}={value}" for key, value in self.options.items())
        where = f" at {self.places[0].path or 'the model'}" if self.unit else ""
        return f"{self.system}={self.name}{options}{where}"

    @contextmanager
    def in_force(self, model: nn.Module, draw: int = 0) -> Iterator[None]:
        """While this context is open, the systems compute otherwise in evaluation."""
        options = {**self.options, "seed": draw} if self.draws else self.options
        with ExitStack() as stack:
            for place in self.places:
                stack.enter_context(ablated(model, place.path, self.name, **options))
            yield


def declared_ablations(model: nn.Module, level: Level = "units") -> list[Ablation]:
    """Returns the ablations of the systems of a model, with the values of their options.

    Args:
        model: a headwise model, or any module that holds systems.
        level: `model` is what changes all systems of a kind at once; `units` also removes each unit
            of each system in turn; `all` also leaves each unit alone in force; `none` is nothing.

    Raises:
        ValueError: there is no such level.
    """
    if level not in _LEVELS:
        raise ValueError(f"level is {level!r}, expected one of {', '.join(_LEVELS)}")
    found: list[Ablation] = []
    kinds: dict[type, list[Place]] = {}
    for place in places_of(model) if level != "none" else []:
        kinds.setdefault(type(place.module), []).append(place)
    for system, places in kinds.items():
        for name in system.edits:  # type: ignore[attr-defined]
            needed = "all" if name.startswith(_ISOLATES) else "units"
            if (option := option_of(name)) in (None, "seed", "top_k"):
                found += _of_all(name, option, places)
            elif _LEVELS.index(level) >= _LEVELS.index(needed):
                found += _of_each(name, str(option), places)
    return sorted(found, key=lambda ablation: (ablation.unit is not None, ablation.alone))


def units_of(name: str, place: Place) -> range:
    """The numbers that the option of an ablation may have in a system, if it takes a unit's."""
    system = place.module
    count = system.num_heads if option_of(name) == "head" else system.num_units
    leaves_nothing = name.startswith(_REMOVES) and count == 1
    return range(0 if leaves_nothing else count)


def fewer_units(place: Place) -> range:
    """The values of `top_k` with which a system has fewer units in force than without."""
    return range(1, getattr(place.module, "top_k", None) or place.module.num_units)


def _of_all(name: str, option: str | None, places: list[Place]) -> list[Ablation]:
    """An ablation of all systems of a kind, with each value that fits all of them."""
    if option == "top_k":
        fits = min((fewer_units(place) for place in places), key=len)
        return [Ablation(name, {option: value}, tuple(places)) for value in fits]
    return [Ablation(name, {}, tuple(places), draws=_DRAWS if option == "seed" else 0)]


def _of_each(name: str, unit: str, places: list[Place]) -> list[Ablation]:
    """An ablation of one unit after the other, in one system after the other."""
    return [
        Ablation(name, {unit: number}, (place,), unit)
        for place in places
        for number in units_of(name, place)
    ]
