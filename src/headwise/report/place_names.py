"""What the places of systems are called in titles, figures and tables."""

from collections.abc import Sequence
from itertools import takewhile

from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.snapshots import AttentionRecord
from headwise.analysis.results import Course

SITES = {
    "encoder_self": "Encoder self-attention",
    "decoder_self": "Decoder self-attention",
    "decoder_cross": "Decoder cross-attention",
}


def site_name(record: AttentionRecord | Course | Where, *, alone: bool = False) -> str:
    """Returns the site of a system for titles; in a model that is none of headwise's, `Systems`."""
    site = record.site
    if not site:
        return "Systems"
    if record.whole_layer:
        return "Layers" if alone else f"{site.partition('_')[0].capitalize()} layers"
    if alone and site.endswith("_self"):
        return "Self-attention"
    return SITES.get(site, site)


def place_name(where: Where) -> str:
    """Returns the site and the layer of a system; its path in a model that is none of headwise's.

    >>> place_name(Where(path="a.b", site="", layer=0, system="standard", whole_layer=False))
    'a.b'
    """
    if not where.site:
        return where.path or "the model"
    return f"{site_name(where)}, layer {where.layer}"


def place_names(places: Sequence[Where]) -> list[str]:
    """Returns a name for each system, as short as tells them apart.

    Example:
        >>> def at(site, layer, path=""):
        ...     return Where(path=path, site=site, layer=layer, system="", whole_layer=False)
        >>> place_names([at("decoder_self", 0), at("decoder_self", 1)])
        ['layer 0', 'layer 1']
        >>> place_names([at("encoder_self", 0), at("decoder_self", 0), at("decoder_cross", 0)])
        ['encoder 0', 'decoder self 0', 'decoder cross 0']

        In a model that is none of headwise's, it is what differs of the paths.

        >>> place_names([at("", 0, "net.blocks.3.attention"), at("", 1, "net.blocks.7.attention")])
        ['3', '7']
    """
    alone = len({place.site for place in places}) == 1
    paths = list(dict.fromkeys(place.path for place in places if not place.site))
    short = dict(zip(paths, _different(paths), strict=True))
    return [_name(place, alone) if place.site else short[place.path] for place in places]


def _name(place: Where, alone: bool) -> str:
    if alone:
        return f"layer {place.layer}"
    stack, _, kind = place.site.partition("_")
    if stack == "encoder" or place.whole_layer:
        return f"{stack} {place.layer}"
    return f"{stack} {kind} {place.layer}"


def _different(paths: list[str]) -> list[str]:
    """The paths without the parts with which all of them begin, or end."""
    if len(paths) < 2:
        return paths
    split = [path.split(".") for path in paths]
    begin = _alike(split)
    end = _alike([parts[begin:][::-1] for parts in split])
    return [
        ".".join(parts[begin : len(parts) - end]) or path
        for parts, path in zip(split, paths, strict=True)
    ]


def _alike(rows: list[list[str]]) -> int:
    """How many parts all rows have in common at their beginning."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*rows, strict=False))))
