"""How messages name what was given: misspelled names with the right spelling, long values cut."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200  # characters of a value in a message
_UNBROKEN = re.compile(r"\S{250,}")


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
    if len(str(name)) > _LONGEST:
        return ""
    near = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def shown(value: object) -> str:
    """Returns a value as messages show it: as Python writes it, at most 200 characters of that.

    >>> shown("batch_tokens")
    "'batch_tokens'"
    >>> shown([0] * 1000)[-22:]
    ' 0… (3,000 characters)'
    """
    return cut(repr(value))


def cut(text: str) -> str:
    """Returns the first 200 characters of a text, and says how many it has if these are not all."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text):,} characters)"


def with_words_cut(text: str) -> str:
    """Returns a message in which no word is so long that nobody reads it, such as a path.

    >>> with_words_cut(f"there is no file {'x' * 5000}")[-23:]
    'xxx… (5,000 characters)'
    """
    return _UNBROKEN.sub(lambda found: cut(found[0]), text)
