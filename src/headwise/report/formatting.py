"""Formats numbers and names for the tables, the verdict and the report."""

import math
from collections.abc import Sequence

NONE = "–"  # in place of a figure that does not exist

# Correlations are named after people, and keep their capital letters.
_PEOPLE = ("Pearson", "Spearman", "Matthews")


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
    """Returns a number with its sign, a true minus included; a number that rounds to 0 has none.

    >>> signed(-0.25), signed(1.0), signed(-0.04), signed(0.004, digits=2)
    ('−0.2', '+1.0', '0.0', '0.00')
    """
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
