"""Texts of errors: the names that exist, what a misspelled one may have meant, short values."""

import codecs
from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from operator import index
from typing import Any

_LIMIT = 200  # characters of a value in a message


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of an error message that suggests the known name most like a given one, if any is.

    >>> did_you_mean("bach_tokens", ["seed", "batch_tokens"])
    "; did you mean 'batch_tokens'?"
    """
    matches = get_close_matches(str(name)[:_LIMIT], list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def expected_one_of(name: object, known: Iterable[str]) -> str:
    """The end of an error message that lists the names that exist, and suggests one.

    >>> expected_one_of("sed", ["seed", "batch_tokens"])
    "expected one of seed, batch_tokens; did you mean 'seed'?"
    """
    known = list(known)
    return f"expected one of {', '.join(known)}{did_you_mean(name, known)}"


def check_choice(name: str, value: Any, known: Iterable[Any]) -> None:
    """Raises `ValueError` unless a value is among those that it may be.

    >>> check_choice("gate", "lerned", ("learned", "uniform"))
    Traceback (most recent call last):
    ...
    ValueError: gate is 'lerned', expected one of 'learned', 'uniform'; did you mean 'learned'?
    """
    choices = list(known)  # not a dictionary, in which a list cannot be looked for
    if value not in choices:
        texts = [choice for choice in choices if isinstance(choice, str)]
        expected, hint = ", ".join(map(repr, choices)), did_you_mean(value, texts)
        raise ValueError(f"{name} is {value!r}, expected one of {expected}{hint}")


def check_range(name: str, value: float, minimum: float, maximum: float = inf) -> None:
    """Raises `ValueError` unless a value is in a range, both ends included.

    >>> check_range("top_k", 9, 1, 8)
    Traceback (most recent call last):
    ...
    ValueError: top_k is 9, expected 1 to 8
    """
    if not minimum <= value <= maximum:
        expected = f"{minimum} or more" if maximum == inf else f"{minimum} to {maximum}"
        raise ValueError(f"{name} is {value}, expected {expected}")


def checked_index(name: str, value: Any, minimum: int, maximum: int) -> int:
    """The value as an int, also of NumPy or PyTorch; raises `ValueError` out of range.

    >>> checked_index("head", 1.5, 0, 3)
    Traceback (most recent call last):
    ...
    ValueError: head is 1.5, expected a whole number from 0 to 3, or several
    """
    try:
        number = index(value)
    except TypeError:
        raise ValueError(
            f"{name} is {value!r}, expected a whole number from {minimum} to {maximum}, or several"
        ) from None
    check_range(name, number, minimum, maximum)
    return number


def shown(value: object) -> str:
    """A value as Python writes it, cut after 200 characters."""
    return cut(repr(value))


def cut(text: str) -> str:
    """A text, or its first 200 characters and how many it has if it is longer."""
    return text if len(text) <= _LIMIT else f"{text[:_LIMIT]}… ({len(text):,} characters)"


def how_to_convert(file: bytes) -> str:
    """Returns how to mend a file that is not UTF-8, from its first bytes or all of them.

    >>> how_to_convert("café".encode("utf-16"))
    'Convert it by `iconv -f UTF-16 -t UTF-8`.'
    """
    if file.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "Convert it by `iconv -f UTF-16 -t UTF-8`."
    if file.startswith(b"\x1f\x8b"):
        return "It is gzip: unpack it by `gunzip`, or, if it is data, end its name in .gz."
    if b"\0" in file:
        return "It has bytes that are zero, so that it is no text, or has been converted wrongly."
    return "Convert it, for example with `iconv -f LATIN1 -t UTF-8`."
