"""Data that are there once headwise is installed: real, small, and read without a network.

A function is named by `data.path`, gets `data.options`, and returns the rows of `train`. The rows
depend on the release of Python or of the packages that they come from, which decides the cache.
"""

import ast
import gettext
import hashlib
import platform
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

from headwise.data.load import DataError, Row, generated, stamp
from headwise.data.settings import PARTS
from headwise.messages import expected_one_of, shown

# --- running text: a blank row divides two documents --------------------------------------------


def pydoc_topics() -> dict[str, datasets.Dataset]:
    """Returns the English of `pydoc_data.topics`, part of Python: the text of `help("with")`.

    A topic is a page of Python's reference manual, and a document; a row is a sentence. Topics are
    in the order of a hash, so that the held-out end is not all about words with one first letter.
    """
    return {"train": generated(_pydoc_topics, version=platform.python_version())}


def package_docs(packages: Sequence[str] = ("scipy",)) -> dict[str, datasets.Dataset]:
    """Returns the docstrings of installed packages as running text.

    A docstring of 20 words or more is a document, and a row one of its lines. They are in the order
    of a hash: the held-out end of the text must not be one module of its own.

    Args:
        packages: names of packages, as they are imported.
    """
    return {"train": generated(_package_docs, packages=packages, stamps=stamps_of(packages))}


def _pydoc_topics(**_: object) -> Iterator[Row]:
    from pydoc_data.topics import topics

    seen = {""}
    for name in sorted(topics, key=_place):
        sentences = []
        for paragraph in map(prose_of, re.split(r"\n\s*\n", topics[name].strip())):
            if paragraph not in seen:
                seen.add(paragraph)
                sentences += sentences_of(paragraph)
        yield from _document(sentences)


def _package_docs(packages: Sequence[str], **_: object) -> Iterator[Row]:
    texts = {text for package in packages for text in docstrings_of(package)}
    for text in sorted(texts, key=_place):
        if len(text.split()) >= 20:
            yield from _document(text.split("\n"))


def _document(lines: Sequence[str]) -> Iterator[Row]:
    lines = [line.strip() for line in lines if line.strip()]
    yield from ({"text": line} for line in (*lines, "") if lines)


def _place(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


_BULLET = re.compile(r"\s*(?:[*+-]|\d+\.|\[\d+\])\s+")
_SENTENCE_ENDS = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)\s+(?=[\"“‘(*]*[A-Z])"
    # A quotation mark or parenthesis after the full stop belongs to the sentence.
    r"|(?<=[.!?][\")”])\s+(?=[\"“‘(*]*[A-Z])"
)


def prose_of(block: str) -> str:
    """Returns a block between blank lines as one line if it is prose, else an empty text.

    Headings, signatures, grammars, code, tables and labels ("Note:") are none.
    """
    bullet = _BULLET.match(block)
    first, *others = block[bullet.end() if bullet else 0 :].split("\n")
    indents = {len(line) - len(line.lstrip()) for line in others}
    is_definition = bullet is None and max(indents, default=0) > len(first) - len(first.lstrip())
    words = " ".join(others if is_definition else [first, *others]).split()  # without its term
    text = " ".join(words)
    is_prose = (
        len(indents) <= 1
        and len(words) >= 5
        and text.endswith((".", ":", "!", "?", ")"))
        and (text[0].isupper() or text[0] in '"“‘(')
        # More than the two spaces after a full stop separate the columns of tables.
        and not re.search(r"::=|>>>", text)
        and not re.search(r"\S   +\S", block)
    )
    return text if is_prose else ""


def sentences_of(paragraph: str) -> list[str]:
    """Divides English prose into sentences, at `.`, `!` or `?` before a capital or a quote.

    >>> sentences_of('It is true. "None" is false, i.e. no value (see e.g. Python). So be it!')
    ['It is true.', '"None" is false, i.e. no value (see e.g. Python).', 'So be it!']
    """
    return _SENTENCE_ENDS.split(paragraph)


# --- docstrings ---------------------------------------------------------------------------------

# Packages that are installed with headwise, written in Python and well documented.
DOCUMENTED = ("huggingface_hub", "matplotlib", "networkx", "numpy", "pandas")


def docstrings(packages: Sequence[str] = DOCUMENTED) -> dict[str, datasets.Dataset]:
    """Returns the first paragraphs of docstrings; the label is the package in which they are.

    Each package gives as many as the one with the fewest. What two packages have is left out.

    Args:
        packages: names of packages, as they are imported.
    """
    return {"train": generated(_docstrings, packages=packages, stamps=stamps_of(packages))}


def _docstrings(packages: Sequence[str], **_: object) -> Iterator[Row]:
    found = {package: paragraphs_of(package) for package in packages}
    times = Counter(text for texts in found.values() for text in texts)
    alone = {name: [x for x in texts if times[x] == 1] for name, texts in found.items()}
    number = min(map(len, alone.values()))
    for package, texts in alone.items():
        # Another hash than that of the text alone, which decides its part.
        for text in sorted(texts, key=lambda text: _place(f"{package} {text}"))[:number]:
            yield {"text": text, "label": package}


def paragraphs_of(package: str) -> list[str]:
    """Returns the first paragraphs of docstrings that have 4 to 40 words, each once, as lines."""
    texts = (" ".join(text.split("\n\n")[0].split()) for text in docstrings_of(package))
    return list(dict.fromkeys(text for text in texts if 4 <= len(text.split()) <= 40))


def docstrings_of(package: str) -> list[str]:
    """Returns the docstrings of a package's functions and classes, file by file."""
    found = []
    for file in _modules(package):
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # a template, or code for another version of Python
            continue
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
        texts = filter(None, map(ast.get_docstring, nodes))
        found += [text for text in texts if not re.search("[\ud800-\udfff]", text)]  # no Unicode
    return found


def stamps_of(packages: Sequence[str]) -> str:
    """Returns what tells the files of packages from others, and from what they were before."""
    marks = [stamp(str(file)) for package in packages for file in _modules(package)]
    return hashlib.sha256("\n".join([platform.python_version(), *marks]).encode()).hexdigest()


def _modules(package: str) -> list[Path]:
    """Returns the source files of a package, without its modules of tests."""
    try:
        folder = Path(find_spec(package).submodule_search_locations[0])  # type: ignore
    except (ImportError, AttributeError, TypeError):
        raise DataError(
            f"data.options.packages has {package!r}, expected installed packages that are written "
            f"in Python: install it or name others"
        ) from None
    tests = {"test", "tests", "testing"}
    names = [(file, file.relative_to(folder).parts) for file in sorted(folder.rglob("*.py"))]
    return [file for file, own in names if tests.isdisjoint(x.strip("_") for x in own)]


# --- translation: message catalogues ------------------------------------------------------------

_LOCALES = {"fr": "fr_FR", "de": "de_DE", "zh-CN": "zh_CN"}


def interface_strings(language: str = "fr") -> dict[str, datasets.Dataset]:
    """Returns English interface strings of JupyterLab and their translations.

    They stand in its language packs, packages with a gettext catalogue for each extension.
    Accelerators (`&File`) and placeholders (`%1`) stay; text that is not translated, and repeated
    pairs are left out.

    Args:
        language: language into which English is translated, `fr`, `de` or `zh-CN`.
    """
    if language not in _LOCALES:
        raise DataError(
            f"data.options.language is {shown(language)}, {expected_one_of(language, _LOCALES)}"
        )
    locale = _LOCALES[language]
    try:
        version = metadata.version(f"jupyterlab_language_pack_{locale}")
    except metadata.PackageNotFoundError as error:
        raise DataError(f'{error}: pip install "headwise[demo]"') from None
    return {"train": generated(_interface_strings, locale=locale, version=version)}


def _interface_strings(locale: str, **_: object) -> Iterator[Row]:
    package = resources.files(f"jupyterlab_language_pack_{locale}")
    folder = package / "locale" / locale / "LC_MESSAGES"
    seen = set()
    for catalogue in sorted(folder.iterdir(), key=lambda file: file.name):
        if not catalogue.name.endswith(".mo"):
            continue
        with catalogue.open("rb") as file:
            # gettext looks messages up one by one; this attribute is its only list of all of them.
            messages = vars(gettext.GNUTranslations(file))["_catalog"]
        for key, translation in messages.items():
            # A key is the English, or with plurals the English singular and the number of a form.
            text, form = key if isinstance(key, tuple) else (key, 0)
            text = text.rpartition("\x04")[2]  # behind a note to translators on where it stands
            # Layout is not language.
            pair = " ".join(text.split()), " ".join(translation.split())
            # The header has an empty text.
            if text and form == 0 and pair[0] != pair[1] and pair not in seen:
                seen.add(pair)
                yield {"source": pair[0], "target": pair[1]}


# --- images -------------------------------------------------------------------------------------


def digits() -> dict[str, datasets.Dataset]:
    """Returns the 1,797 handwritten digits of scikit-learn, 8×8 pixels in 17 levels of grey."""
    return {"train": generated(_digits, version=metadata.version("scikit-learn"))}


def photographs(patch: int = 16) -> dict[str, datasets.Dataset]:
    """Returns square patches of the two sample photographs of scikit-learn, a temple and a flower.

    All patches of a region, three patches wide and high, are in one part. Training patches overlap
    by half; those of the other parts do not, since statistical tests take them as independent.

    Args:
        patch: height and width of a patch in pixels.
    """
    version = metadata.version("scikit-learn")
    return {part: generated(_patches, patch=patch, part=part, version=version) for part in PARTS}


def _digits(**_: object) -> Iterator[Row]:
    from sklearn.datasets import load_digits

    for digit in load_digits().images:  # (8, 8), 0 to 16
        yield {"image": Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))}


def _patches(patch: int, part: str, **_: object) -> Iterator[Row]:
    from sklearn.datasets import load_sample_images

    side = 3 * patch
    regions = np.concatenate([_squares(x, side, side) for x in load_sample_images().images])
    order = np.random.default_rng(1).permutation(len(regions))
    tenth = max(1, len(regions) // 10)
    validation, test, train = np.split(order, [tenth, 2 * tenth])
    chosen = {"train": train, "validation": validation, "test": test}[part]
    for region in regions[chosen]:
        for square in _squares(region, patch, max(1, patch // 2) if part == "train" else patch):
            yield {"image": Image.fromarray(square)}


def _squares(image: np.ndarray, side: int, step: int) -> np.ndarray:
    """Returns the squares of an image, row by row, `(squares, side, side, 3)`."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (side, side), axis=(0, 1))
    return np.moveaxis(windows[::step, ::step], 2, -1).reshape(-1, side, side, 3)
