"""Readers of sentence pairs: message catalogues and text files.

Each reader gives pairs of raw strings in the order of the data.
"""

import gettext
from collections.abc import Iterator
from importlib import metadata, resources
from itertools import zip_longest
from pathlib import Path

from headwise.data.sources import CorpusError, read_lines

RawPair = tuple[str, str]


# --- message catalogues -----------------------------------------------------------------------


_LOCALES = {"fr": "fr_FR", "de": "de_DE", "zh-CN": "zh_CN"}


def language_pack(language: str) -> str:
    """Returns the name and the version of the package with the strings of a language."""
    distribution = f"jupyterlab-language-pack-{_LOCALES[language].replace('_', '-')}"
    try:
        resources.files(f"jupyterlab_language_pack_{_LOCALES[language]}")
        return f"{distribution} {metadata.version(distribution)}"
    except ImportError:  # PackageNotFoundError is a subclass of it
        raise CorpusError(
            f"data.language is {language!r}, whose interface strings are in the package "
            f"{distribution}, which is not installed. Install it with\n"
            f"    pip install {distribution}\n"
            'or all three languages with\n    pip install "headwise[demo]"'
        ) from None


def read_interface_strings(language: str) -> tuple[list[RawPair], str]:
    """Reads English interface strings and their translations from a JupyterLab language pack.

    The pack is an installed Python package with one compiled gettext catalogue per extension.
    The reader leaves out the headers of catalogues, plural forms other than the first (gettext
    keeps only the English singular), entries whose translation is the English text itself (not
    translated, or a name such as "CoffeeScript"), and pairs that an earlier catalogue has. It cuts
    off context markers, which tell translators where a string is used. Accelerators (`&File`) and
    placeholders (`%1`) stay, so that a system has to learn them.

    Returns:
        The pairs, in the order of the catalogues, and a sentence on where they come from.
    """
    distribution = language_pack(language)
    locale = _LOCALES[language]
    package = resources.files(f"jupyterlab_language_pack_{locale}")
    messages = untranslated = 0
    pairs: dict[RawPair, None] = {}  # a dict keeps the order and drops repetitions
    folder = package / "locale" / locale / "LC_MESSAGES"
    for catalogue in sorted(folder.iterdir(), key=lambda file: file.name):
        if not catalogue.name.endswith(".mo"):
            continue
        with catalogue.open("rb") as file:
            translations = gettext.GNUTranslations(file)
        for source, target in _entries(translations):
            messages += 1
            # Strings are compared and counted as they will be used: layout is not language.
            pair = " ".join(source.split()), " ".join(target.split())
            if pair[0] == pair[1]:
                untranslated += 1
            else:
                pairs[pair] = None
    repeated = messages - untranslated - len(pairs)
    origin = (
        f"{distribution}: {messages:,} messages, of which {untranslated:,} untranslated "
        f"and {repeated:,} repeated are left out"
    )
    return list(pairs), origin


def _entries(translations: gettext.GNUTranslations) -> Iterator[RawPair]:
    """Yields the messages of one catalogue, without its header and further plural forms."""
    # gettext looks messages up one by one; this attribute is its only list of all of them.
    for key, translation in vars(translations)["_catalog"].items():
        if isinstance(key, tuple):  # (singular, number of the plural form)
            key, form = key
            if form > 0:
                continue
        if key:  # the header has the empty key
            yield key.rpartition("\x04")[2], translation


# --- text files -------------------------------------------------------------------------------


def read_text_pairs(source: Path, target: Path, max_bytes: int | None = None) -> Iterator[RawPair]:
    """Yields the pairs of two text files; line n of one translates line n of the other."""
    counts = [0, 0]
    for pair in zip_longest(read_lines(source, max_bytes), read_lines(target, max_bytes)):
        for side, line in enumerate(pair):
            counts[side] += line is not None
        if None not in pair:
            yield pair
    if counts[0] != counts[1]:
        raise CorpusError(
            f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}, expected equal "
            "numbers: line n of one must be the translation of line n of the other; look for a "
            "line that was lost or broken in two."
        )
