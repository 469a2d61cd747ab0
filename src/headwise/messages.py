"""Parts of error messages: names that exist, and values that are not too long."""

from collections.abc import Iterable

from headwise.ops.checks import did_you_mean

_LONGEST = 200  # characters of a value in a message


def one_of(name: object, known: Iterable[str]) -> str:
    """The end of an error message that lists the names that exist, and suggests one.

    >>> one_of("sed", ["seed", "batch_tokens"])
    "expected one of seed, batch_tokens; did you mean 'seed'?"
    """
    known = list(known)
    return f"expected one of {', '.join(known)}{did_you_mean(name, known)}"


def shown(value: object) -> str:
    """A value as Python writes it, cut after 200 characters."""
    return cut(repr(value))


def cut(text: str) -> str:
    """A text, or its first 200 characters and how many it has if it is longer."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
