"""Names that somebody has misspelled."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of an error message: the known name that is most like the given one.

    Args:
        name: what was given.
        known: the names that there are.

    Returns:
        `; did you mean 'batch_tokens'?`, or an empty text if no known name is like the given one.

    >>> did_you_mean("bach_tokens", ["seed", "batch_tokens"])
    "; did you mean 'batch_tokens'?"
    >>> did_you_mean("xyz", ["seed"])
    ''
    """
    near = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
