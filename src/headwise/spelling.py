"""Suggests the right spelling of misspelled names."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns the end of an error message that suggests the known name most like a given one.

    Args:
        name: the name that was given.
        known: the names that exist.

    Returns:
        `; did you mean 'batch_tokens'?`, or an empty text if no known name is similar.

    >>> did_you_mean("bach_tokens", ["seed", "batch_tokens"])
    "; did you mean 'batch_tokens'?"
    >>> did_you_mean("xyz", ["seed"])
    ''
    """
    near = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
