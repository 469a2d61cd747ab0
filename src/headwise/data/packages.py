"""The docstrings in the source files of installed Python packages."""

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from headwise.data.sources import CorpusError

Documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def docstrings_of(package: str) -> Iterator[str]:
    """Yields the docstrings of a package's functions and classes, file by file.

    Modules of tests are left out, and so are files that this version of Python cannot read.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CorpusError(
            f"data.packages has {package!r}, expected installed packages: install it or name others"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    for file in sorted(folder.rglob("*.py")):
        if any(name.strip("_") in ("test", "tests", "testing") for name in file.parts):
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # a template, or code for another version of Python
            continue
        for node in ast.walk(tree):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                yield text


def versions(packages: Sequence[str]) -> Iterator[str]:
    """Yields the name and version of each package, whose distribution may have another name."""
    distributions = metadata.packages_distributions()
    for package in packages:
        top = package.partition(".")[0]
        # Python 3.10 does not know of distributions without a list of their top-level packages.
        names = distributions.get(top, [top])
        try:
            yield f"{package} {metadata.version(names[0])}"
        except metadata.PackageNotFoundError:  # of the standard library
            yield package
