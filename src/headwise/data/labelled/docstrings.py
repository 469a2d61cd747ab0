"""The docstrings of installed Python packages: English text that every machine has."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from headwise.data.labelled.reading import Row
from headwise.data.packages import docstrings_of, versions
from headwise.data.sources import CorpusError


def read_docstrings(packages: Sequence[str]) -> tuple[list[Row], str]:
    """Reads the first paragraphs of the docstrings of packages, labelled with their package.

    A paragraph that occurs in two packages is left out. Each package gives as many paragraphs as
    the package with the fewest; a hash chooses them.

    Returns:
        The rows, package by package, and a sentence on where they come from.
    """
    found = {package: docstrings(package) for package in packages}
    times = Counter(text for texts in found.values() for text in texts)
    for package, texts in found.items():
        found[package] = _shuffled(package, [text for text in texts if times[text] == 1])
    smallest = min(map(len, found.values()))
    if not smallest:
        empty = next(package for package, texts in found.items() if not texts)
        raise CorpusError(
            f"data.packages has {empty!r}, expected packages with docstrings in their source "
            "files: name packages that are written in Python and documented"
        )
    rows = [
        Row(f"package {package}", text, None, package)
        for package, texts in found.items()
        for text in texts[:smallest]
    ]
    each = ", ".join(versions(packages))
    return rows, f"first paragraphs of docstrings, {smallest:,} each of {each}"


def _shuffled(package: str, texts: Sequence[str]) -> list[str]:
    """Sorts texts by a hash of package and text; the hash of the text alone decides its part."""
    return sorted(texts, key=lambda text: hashlib.sha256(f"{package} {text}".encode()).digest())


def docstrings(package: str) -> list[str]:
    """Returns the first paragraphs of a package's docstrings that have 4 to 40 words, each once."""
    texts: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    for docstring in docstrings_of(package):
        text = " ".join(docstring.split("\n\n")[0].split())
        if 4 <= len(text.split()) <= 40:
            texts[text] = None
    return list(texts)
