"""How reports write numbers, names, and the places of systems in a model."""

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands write numbers before they have anything slow imported
    from headwise.analysis.decisions.observing import Where
    from headwise.analysis.decisions.snapshots import AttentionRecord
    from headwise.analysis.results import Course

NONE = "–"  # in place of a figure that does not exist

# Correlations are named after people, and keep their capital letters.
_PEOPLE = ("Pearson", "Spearman", "Matthews")

SITES = {
    "encoder_self": "Encoder self-attention",
    "decoder_self": "Decoder self-attention",
    "decoder_cross": "Decoder cross-attention",
}


def listed(names: list[str]) -> str:
    """Joins names as in a sentence.

    >>> listed(["wide"]), listed(["wide", "deep"]), listed(["wide", "deep", "small"])
    ('wide', 'wide and deep', 'wide, deep and small')
    >>> listed(["accuracy, matched", "accuracy, mismatched"])
    'accuracy, matched; accuracy, mismatched'
    """
    if any("," in name for name in names):
        return "; ".join(names)
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def heading(name: str) -> str:
    """Returns a name as a header or at the start of a sentence; abbreviations do not change.

    >>> heading("word perplexity"), heading("chrF"), heading("half_share")
    ('Word perplexity', 'chrF', 'Half share')
    """
    words = name.replace("_", " ")
    first = words.split(maxsplit=1)[0] if words.split() else ""
    return words[0].upper() + words[1:] if first.islower() else words


def in_words(name: str) -> str:
    """Returns the name of a score within a sentence.

    >>> in_words("Bits per dimension"), in_words("BLEU"), in_words("chrF"), in_words("Pearson")
    ('bits per dimension', 'BLEU', 'chrF', 'Pearson')
    """
    first = name.split(maxsplit=1)[0].rstrip(",") if name.split() else ""
    is_word = first[1:].islower() and first not in _PEOPLE
    return name[0].lower() + name[1:] if is_word else name


def signed(value: float, digits: int = 1) -> str:
    """Returns a number with its sign, a true minus included; one that rounds to 0 has none.

    A number that is not finite is a dash.

    >>> signed(-0.25), signed(1.0), signed(-0.04), signed(0.004, digits=2), signed(math.nan)
    ('−0.2', '+1.0', '0.0', '0.00', '–')
    """
    if not math.isfinite(value):
        return NONE
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


def decimals(value: float | None, digits: int = 2) -> str:
    """Returns a number with a true minus; a dash for none, or one that is not finite.

    >>> decimals(0.125), decimals(-0.5, 1), decimals(-0.001), decimals(None), decimals(math.nan)
    ('0.12', '−0.5', '0.00', '–', '–')
    """
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{value:.{digits}f}".replace("-", "−")
    return text if text.strip("−0.") else text.removeprefix("−")


def fixed(value: float, digits: int) -> str:
    """Returns a number with so many decimals."""
    return f"{value:.{digits}f}"


def count(value: float) -> str:
    """Returns a large number with three digits and a unit.

    >>> count(1_534_208), count(930), count(61_200_000_000), count(999_999)
    ('1.53M', '930', '61.2G', '1.00M')
    """
    for unit in ("", "k", "M", "G", "T"):
        text = f"{value:.3g}" if unit == "" else f"{value:#.3g}".rstrip(".")
        if float(text) < 1000:
            return text + unit
        value /= 1000
    return f"{value:.0f}P"


def compact(values: Sequence[float], digits: int) -> list[str]:
    """Returns numbers with `digits` decimals, or all as powers of ten if one of them is long.

    >>> compact([5563.6, 5512.0], 1), compact([98_345.2, 101_234.5], 1)
    (['5563.6', '5512.0'], ['9.8e+04', '1.0e+05'])
    """
    are_long = any(abs(value) >= 1e5 for value in values if math.isfinite(value))
    return [f"{value:.1e}" if are_long else f"{value:.{digits}f}" for value in values]


def p_value(value: float) -> str:
    """Returns a p-value as it stands in a text.

    >>> p_value(0.0123), p_value(0.0001)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def bare_p_value(value: float) -> str:
    """Returns a p-value as it stands in a column of p-values.

    >>> bare_p_value(0.0123), bare_p_value(0.0001)
    ('0.012', '< 0.001')
    """
    return p_value(value).removeprefix("p ").removeprefix("= ")


# --- the places of systems --------------------------------------------------------------------


def site_name(record: "AttentionRecord | Course | Where", *, alone: bool = False) -> str:
    """Returns the site of a system for titles; in a model that is none of headwise's, `Systems`."""
    site = record.site
    if not site:
        return "Systems"
    if record.whole_layer:
        return "Layers" if alone else f"{site.partition('_')[0].capitalize()} layers"
    if alone and site.endswith("_self"):
        return "Self-attention"
    return SITES.get(site, site)


def place_name(where: "Where") -> str:
    """Returns the site and the layer of a system; its path in a model that is none of headwise's.

    >>> from headwise.analysis.decisions.observing import Where
    >>> place_name(Where(path="a.b", site="", layer=0, system="standard", whole_layer=False))
    'a.b'
    """
    if not where.site:
        return where.path or "the model"
    return f"{site_name(where)}, layer {where.layer}"


def place_names(places: "Sequence[Where]") -> list[str]:
    """Returns a name for each system, as short as tells them apart.

    Example:
        >>> from headwise.analysis.decisions.observing import Where
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


def _name(place: "Where", alone: bool) -> str:
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
