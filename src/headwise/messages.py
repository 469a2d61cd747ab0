"""Parts of error messages: names that exist, and values that are not too long."""

import codecs
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
