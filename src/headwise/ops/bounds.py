"""Checks of options: one of its values, or a size within bounds.

A mistyped size is an error before memory is taken for it. The bounds are larger than the sizes of
every model that has been trained, so nobody needs to change them.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from headwise.messages import shown_number

Init = TypeVar("Init", bound=Callable[..., None])

MOST_SIZE = 10**6  # of one dimension, or of a factor
MOST_LAYERS = 10_000  # of a stack
MOST_HEADS = 4096  # of an attention
MOST_EXPERTS = 100_000  # of a gate or a router


def check_positive(**sizes: float) -> None:
    """Raises `ValueError` for a number that is not above 0, or above a million."""
    for name, size in sizes.items():
        if not 0 < size <= MOST_SIZE:
            raise ValueError(f"{name} is {size}, expected a positive number, at most {MOST_SIZE:,}")


def check_number(name: str, number: int, most: int) -> None:
    """Raises `ValueError` if a number is above its upper bound."""
    if number > most:
        raise ValueError(f"{name} is {shown_number(number)}, expected at most {most:,}")


def check_among(name: str, value: object, known: Sequence[object]) -> None:
    """Raises `ValueError` unless an option has one of its values."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(map(repr, known))}")


def check_probability(name: str, value: float) -> None:
    """Raises `ValueError` unless a number may be that of a dropout: 1 would leave nothing."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} is {value}, expected a probability in [0, 1)")


def checked(init: Init) -> Init:
    """Has a constructor check its options: those with a `Literal` type, and the dropouts.

    >>> class Layer:
    ...     @checked
    ...     def __init__(self, norm: Literal["post", "pre"] = "post", dropout: float = 0.0): ...
    >>> Layer("middle")
    Traceback (most recent call last):
    ValueError: norm is 'middle', expected 'post' or 'pre'
    """
    signature = inspect.signature(init)
    types = {name: parameter.annotation for name, parameter in signature.parameters.items()}

    @functools.wraps(init)
    def checking(*args: Any, **kwargs: Any) -> None:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if get_origin(types[name]) is Literal:
                check_among(name, value, get_args(types[name]))
            elif name.endswith("dropout"):
                check_probability(name, value)
        init(*args, **kwargs)

    return checking  # type: ignore[return-value]
