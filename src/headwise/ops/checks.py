"""Errors about values that are one of a few, and what a misspelled name may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from math import inf
from typing import Any


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of an error message that suggests the known name most like a given one, if any is.

    >>> did_you_mean("bach_tokens", ["seed", "batch_tokens"])
    "; did you mean 'batch_tokens'?"
    """
    near = get_close_matches(str(name)[:200], list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def one_of(**values: tuple[Any, tuple[Any, ...]]) -> None:
    """Raises `ValueError` unless each value is among those that it may be.

    >>> one_of(gate=("lerned", ("learned", "uniform")))
    Traceback (most recent call last):
    ...
    ValueError: gate is 'lerned', expected one of 'learned', 'uniform'; did you mean 'learned'?
    """
    for name, (value, known) in values.items():
        if value not in known:
            names = [each for each in known if isinstance(each, str)]
            expected = ", ".join(map(repr, known))
            raise ValueError(
                f"{name} is {value!r}, expected one of {expected}{did_you_mean(value, names)}"
            )


def in_range(**values: tuple[float, float, float]) -> None:
    """Raises `ValueError` unless each value is between the two that follow it, both included.

    >>> in_range(top_k=(9, 1, 8))
    Traceback (most recent call last):
    ...
    ValueError: top_k is 9, expected 1 to 8
    """
    for name, (value, least, most) in values.items():
        if not least <= value <= most:
            expected = f"{least} or more" if most == inf else f"{least} to {most}"
            raise ValueError(f"{name} is {value}, expected {expected}")
