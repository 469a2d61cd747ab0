"""Where the systems of a model stand."""

from typing import Any, NamedTuple

from torch import nn

from headwise.models.inspect import attentions, systems
from headwise.models.plan import system_name


class Place(NamedTuple):
    """A system and its place in a model.

    In a model that is none of headwise's, the site is empty, and the layer is the number of the
    system in the order in which they stand.
    """

    path: str
    site: str
    layer: int
    module: Any

    @property
    def stack(self) -> str:
        """The stack of the site: `encoder` or `decoder`; empty in any other model."""
        return stack_of(self.site)

    @property
    def name(self) -> str:
        """The system's name in plans."""
        return system_name(type(self.module))


def stack_of(site: str) -> str:
    """The stack of a site: `decoder` of `decoder_cross`."""
    return site.partition("_")[0]


def places_of(model: nn.Module) -> list[Place]:
    """All systems of a model, in the order in which they stand; parts of others are not listed."""
    return [
        Place(path, system.site, system.layer if system.site else number, system)
        for number, (path, system) in enumerate(systems(model).items())
    ]


def attentions_of(model: nn.Module) -> dict[Place, Place]:
    """All attentions of a model, each with the system that it is, or is a part of."""
    whole = places_of(model)
    found = {}
    for path, attention in attentions(model).items():
        system = next(place for place in whole if _is_within(path, place.path))
        site = attention.site or system.site
        if site and path.endswith("cross_attention"):  # of a system that is a whole layer
            site = f"{system.stack}_cross"
        found[Place(path, site, system.layer, attention)] = system
    return found


def _is_within(path: str, other: str) -> bool:
    return not other or path == other or path.startswith(f"{other}.")
