"""Parts of error messages: suggestions for misspelled names, and values that are not too long."""

import codecs
from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 200  # characters of a value in a message


# The first bytes of compressed files that are not read, and what unpacks them.
_OTHER_PACKERS = {b"BZh": "bunzip2", b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns the end of an error message that suggests the known name most like a given one.

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


def one_of(name: object, known: Iterable[str]) -> str:
    """Returns the end of an error message that lists the names that exist, and suggests one.

    >>> one_of("sed", ["seed", "batch_tokens"])
    "expected one of seed, batch_tokens; did you mean 'seed'?"
    """
    known = list(known)
    return f"expected one of {', '.join(known)}{did_you_mean(name, known)}"


def shown(value: object) -> str:
    """Returns a value as Python writes it, cut after 200 characters.

    >>> shown("batch_tokens")
    "'batch_tokens'"
    >>> shown([0] * 1000)[-22:]
    ' 0… (3,000 characters)'
    """
    return cut(repr(value))


def cut(text: str) -> str:
    """Returns a text, or its first 200 characters and how many it has if it is longer."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text):,} characters)"


def shown_number(number: int) -> str:
    """Returns a whole number, rounded down to a power of ten from 10^18 on.

    >>> shown_number(225_792_840), shown_number(4 * 10**30)
    ('225,792,840', '10^30')
    """
    return f"{number:,}" if number < 10**18 else f"10^{len(str(number)) - 1}"


def how_to_convert(file: bytes) -> str:
    """Returns how to mend a file that is not UTF-8, from its first bytes or all of them.

    >>> how_to_convert("café".encode("utf-16"))
    'Convert it by `iconv -f UTF-16 -t UTF-8`.'
    """
    if file.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "Convert it by `iconv -f UTF-16 -t UTF-8`."
    if file.startswith(b"\x1f\x8b"):
        return "It is gzip: unpack it by `gunzip`, or, if it is data, end its name in .gz."
    for begin, unpack in _OTHER_PACKERS.items():
        if file.startswith(begin):
            return (
                f"It is compressed: unpack it by `{unpack}`, or, if it is data, compress it by "
                f"gzip and end its name in .gz."
            )
    if b"\0" in file:
        return "It has bytes that are zero, so that it is no text, or has been converted wrongly."
    return "Convert it, for example with `iconv -f LATIN1 -t UTF-8`."
