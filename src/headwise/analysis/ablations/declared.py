"""The ablations that the systems of a model declare, one by one."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

from torch import nn

from headwise.heads.system import System
from headwise.models.ablation import ablated, ablation_of, ablation_options
from headwise.models.plan import system_name
from headwise.models.sites import AttentionSite, attention_sites

# Each level has what those before it have.
Level = Literal["none", "model", "units", "all"]
_LEVELS: tuple[str, ...] = get_args(Level)
_SEED = "seed"  # the option of ablations that draw
_DRAWS = 5  # of which the result of such an ablation is the mean
_REMOVES, _ISOLATES = "without-", "only-"


@dataclass(frozen=True)
class Ablation:
    """An ablation of all systems of a kind in a model, or of a single one."""

    name: str  # as the system declares it
    options: Mapping[str, Any]  # with their values; an option of random draws is not among them
    places: tuple[AttentionSite, ...]  # the systems that are changed
    # The option that numbers the unit that is removed or left alone in force; None if the
    # ablation changes all units.
    unit: str | None = None
    draws: int = 0  # how many random draws its result is the mean of; 0 if it draws nothing

    @property
    def system(self) -> str:
        """The name of the systems in plans."""
        return system_name(type(self.places[0].module))

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
        options = {**self.options, _SEED: draw} if self.draws else self.options
        with ExitStack() as stack:
            for place in self.places:
                stack.enter_context(ablated(model, place.path, self.name, **options))
            yield


def declared_ablations(model: nn.Module, level: Level = "units") -> list[Ablation]:
    """Returns the ablations that the systems of a model declare, with the values of their options.

    Ablations with an option that has neither a default nor a range (`System.ablation_ranges`) are
    left out, as are those that a system refuses.

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
    kinds: dict[type[System], list[AttentionSite]] = {}
    for place in attention_sites(model):
        kinds.setdefault(type(place.module), []).append(place)
    for system, places in kinds.items():
        for name in system.ablations:
            unit = _unit_of(system, name)
            if unit is None:
                found += _of_all(system, name, places)
                continue
            needed = "all" if name.startswith(_ISOLATES) else "units"
            if _LEVELS.index(level) >= _LEVELS.index(needed):
                found += _of_each(name, unit, places)
    found = [ablation for ablation in found if _fits(ablation)] if level != "none" else []
    return sorted(found, key=lambda ablation: (ablation.unit is not None, ablation.alone))


def _unit_of(system: type[System], name: str) -> str | None:
    """The option that numbers the unit that an ablation removes, or leaves alone in force."""
    options = ablation_options(system.ablations[name])
    units = (name.removeprefix(prefix) for prefix in (_REMOVES, _ISOLATES))
    return next((unit for unit in units if unit in options), None)


def _of_all(system: type[System], name: str, places: list[AttentionSite]) -> list[Ablation]:
    """An ablation of all systems of a kind, with each value that fits all of them."""
    options = ablation_options(system.ablations[name])
    ranges = [place.module.ablation_ranges() for place in places]
    values: dict[str, list[int]] = {}
    for option, parameter in options.items():
        if all(option in each for each in ranges):
            values[option] = [v for v in ranges[0][option] if all(v in r[option] for r in ranges)]
        elif parameter.default is parameter.empty:
            return []
    return [
        Ablation(
            name,
            dict(zip(values, chosen, strict=True)),
            tuple(places),
            draws=_DRAWS if _SEED in options else 0,
        )
        for chosen in product(*values.values())
    ]


def _of_each(name: str, unit: str, places: list[AttentionSite]) -> list[Ablation]:
    """An ablation of one unit after the other, in one system after the other."""
    return [
        Ablation(name, {unit: number}, (place,), unit)
        for place in places
        for number in place.module.ablation_ranges().get(unit, ())
    ]


def _fits(ablation: Ablation) -> bool:
    """Whether no system refuses the ablation, and some would compute otherwise."""
    try:
        made = [ablation_of(p.module, ablation.name, ablation.options) for p in ablation.places]
    except ValueError:
        return False
    return any(changed is not None for changed in made)
