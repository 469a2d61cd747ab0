"""What the places of systems are called in figures and tables."""

from collections.abc import Sequence

from headwise.analysis.behaviour.where import Where


def place_names(places: Sequence[Where]) -> list[str]:
    """Returns a name of each place, as short as tells the sites apart.

    Example:
        >>> def at(site, layer):
        ...     return Where(path="", site=site, layer=layer, system="", whole_layer=False)
        >>> place_names([at("decoder_self", 0), at("decoder_self", 1)])
        ['layer 0', 'layer 1']
        >>> place_names([at("encoder_self", 0), at("decoder_self", 0), at("decoder_cross", 0)])
        ['encoder 0', 'decoder self 0', 'decoder cross 0']
    """
    alone = len({place.site for place in places}) == 1
    return [_name(place, alone) for place in places]


def _name(place: Where, alone: bool) -> str:
    if not place.site:
        return place.path
    if alone:
        return f"layer {place.layer}"
    stack, _, kind = place.site.partition("_")
    if stack == "encoder" or place.whole_layer:
        return f"{stack} {place.layer}"
    return f"{stack} {kind} {place.layer}"
