"""The docstrings of installed Python packages: English text that every machine has."""

import ast
import hashlib
import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from headwise.tasks.sources import CorpusError
from headwise.tasks.text.labelled.reading import Row


def read_docstrings(packages: Sequence[str]) -> tuple[list[Row], str]:
    """Reads the first paragraphs of the docstrings of packages, labelled with their package.

    A paragraph that occurs in two packages is left out. Each package gives as many paragraphs as
    the package with the fewest; a hash chooses them.

    Args:
        packages: names of installed packages, as they are imported.

    Returns:
        The rows, package by package, and a sentence on where they come from.

    Raises:
        CorpusError: a package is not installed, or has no docstrings.
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
    """Returns the first paragraphs of a package's docstrings that have 4 to 40 words, each once.

    Modules of tests are left out.

    Raises:
        CorpusError: the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CorpusError(
            f"data.packages has {package!r}, expected installed packages: install it or name others"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    texts: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    for file in sorted(folder.rglob("*.py")):
        if any(name.strip("_") in ("test", "tests", "testing") for name in file.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # a template, or code for another version of Python
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if 4 <= len(text.split()) <= 40:
                    texts[text] = None
    return list(texts)


def versions(packages: Sequence[str]) -> Iterator[str]:
    """Yields the name and version of each package, whose distribution may have another name."""
    distributions = metadata.packages_distributions()
    for package in packages:
        names = distributions.get(package.partition(".")[0], [])
        yield f"{package} {metadata.version(names[0])}" if names else package
