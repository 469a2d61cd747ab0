"""Data that are installed with headwise: real, small, and read without a network.

A recipe names a function by `data.path` and its arguments by `data.options`; it returns the rows of
the split `train`, which depend on the release of Python or of the packages that have the data.
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

from headwise.data.load import DataError, Row, file_signature, from_generator
from headwise.data.settings import SPLITS
from headwise.messages import expected_one_of, shown

# --- running text: a blank row separates two documents ------------------------------------------


def pydoc_topics() -> dict[str, datasets.Dataset]:
    """Returns `pydoc_data.topics`, the English text of Python's `help("with")`.

    A topic, a page of Python's reference manual, is a document; a row is a sentence. Topics are in
    the order of a hash, so that the held-out end has topics of all letters.
    """
    return {"train": from_generator(_pydoc_topics, version=platform.python_version())}


def package_docs(packages: Sequence[str] = ("scipy",)) -> dict[str, datasets.Dataset]:
    """Returns the docstrings of installed packages as running text.

    A docstring of 20 words or more is a document; a row is one of its lines. Docstrings are in the
    order of a hash, so that the held-out end has docstrings of all modules.

    Args:
        packages: names of packages, as they are imported.
    """
    signature = package_signature(packages)
    return {"train": from_generator(_package_docs, packages=packages, signature=signature)}


def _pydoc_topics(**_: object) -> Iterator[Row]:
    from pydoc_data.topics import topics

    seen = {""}
    for name in sorted(topics, key=_sort_key):
        sentences = []
        for paragraph in map(prose_of, re.split(r"\n\s*\n", topics[name].strip())):
            if paragraph not in seen:
                seen.add(paragraph)
                sentences += sentences_of(paragraph)
        yield from _document(sentences)


def _package_docs(packages: Sequence[str], **_: object) -> Iterator[Row]:
    texts = {text for package in packages for text in docstrings_of(package)}
    for text in sorted(texts, key=_sort_key):
        if len(text.split()) >= 20:
            yield from _document(text.split("\n"))


def _document(lines: Sequence[str]) -> Iterator[Row]:
    lines = [line.strip() for line in lines if line.strip()]
    yield from ({"text": line} for line in (*lines, "") if lines)


def _sort_key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


_BULLET = re.compile(r"\s*(?:[*+-]|\d+\.|\[\d+\])\s+")
_SENTENCE_ENDS = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)\s+(?=[\"“‘(*]*[A-Z])"
    # A quotation mark or parenthesis after the full stop belongs to the sentence.
    r"|(?<=[.!?][\")”])\s+(?=[\"“‘(*]*[A-Z])"
)


def prose_of(block: str) -> str:
    """Returns a block of prose as one line, and an empty text for any other block.

    Headings, signatures, grammars, code, tables and labels ("Note:") are not prose.
    """
    bullet = _BULLET.match(block)
    first, *rest = block[bullet.end() if bullet else 0 :].split("\n")
    indents = {len(line) - len(line.lstrip()) for line in rest}
    is_definition = bullet is None and max(indents, default=0) > len(first) - len(first.lstrip())
    words = " ".join(rest if is_definition else [first, *rest]).split()  # without its term
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
    """Splits English prose into sentences, at `.`, `!` or `?` before a capital or a quote.

    >>> sentences_of('It is true. "None" is false, i.e. no value (see e.g. Python). So be it!')
    ['It is true.', '"None" is false, i.e. no value (see e.g. Python).', 'So be it!']
    """
    return _SENTENCE_ENDS.split(paragraph)


# --- docstrings ---------------------------------------------------------------------------------

# Packages that are installed with headwise, written in Python and well documented.
DOCUMENTED = ("huggingface_hub", "matplotlib", "networkx", "numpy", "pandas")


def docstrings(packages: Sequence[str] = DOCUMENTED) -> dict[str, datasets.Dataset]:
    """Returns the first paragraphs of docstrings, with the name of the package as their label.

    All packages have the same number of rows. A paragraph that two packages have is left out.

    Args:
        packages: names of packages, as they are imported.
    """
    signature = package_signature(packages)
    return {"train": from_generator(_docstrings, packages=packages, signature=signature)}


def _docstrings(packages: Sequence[str], **_: object) -> Iterator[Row]:
    paragraphs = {package: paragraphs_of(package) for package in packages}
    counts = Counter(text for texts in paragraphs.values() for text in texts)
    unique = {name: [x for x in texts if counts[x] == 1] for name, texts in paragraphs.items()}
    number = min(map(len, unique.values()))
    for package, texts in unique.items():
        # The hash of the text alone decides its split.
        for text in sorted(texts, key=lambda text: _sort_key(f"{package} {text}"))[:number]:
            yield {"text": text, "label": package}


def paragraphs_of(package: str) -> list[str]:
    """Returns the different first paragraphs of docstrings that have 4 to 40 words, in one line."""
    texts = (" ".join(text.split("\n\n")[0].split()) for text in docstrings_of(package))
    return list(dict.fromkeys(text for text in texts if 4 <= len(text.split()) <= 40))


def docstrings_of(package: str) -> list[str]:
    """Returns the docstrings of the functions and classes of a package, file by file."""
    texts: list[str] = []
    for file in _modules(package):
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # a template, or code for another version of Python
            continue
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
        found = filter(None, map(ast.get_docstring, nodes))
        # Lone surrogates cannot be encoded.
        texts += [text for text in found if not re.search("[\ud800-\udfff]", text)]
    return texts


def package_signature(packages: Sequence[str]) -> str:
    """Returns a hash of the sizes and the times of change of packages' files, for the cache."""
    files = [file_signature(str(file)) for package in packages for file in _modules(package)]
    return hashlib.sha256("\n".join([platform.python_version(), *files]).encode()).hexdigest()


def _modules(package: str) -> list[Path]:
    """Returns the source files of a package, without those of its tests."""
    try:
        folder = Path(find_spec(package).submodule_search_locations[0])  # type: ignore
    except (ImportError, AttributeError, TypeError):
        raise DataError(
            f"data.options.packages has {package!r}, expected installed packages that are written "
            f"in Python: install it or name others"
        ) from None
    tests = {"test", "tests", "testing"}
    names = [(file, file.relative_to(folder).parts) for file in sorted(folder.rglob("*.py"))]
    return [file for file, parts in names if tests.isdisjoint(part.strip("_") for part in parts)]


# --- translation: message catalogues ------------------------------------------------------------

_LOCALES = {"fr": "fr_FR", "de": "de_DE", "zh-CN": "zh_CN"}


def interface_strings(language: str = "fr") -> dict[str, datasets.Dataset]:
    """Returns English interface strings of JupyterLab and their translations.

    The strings come from JupyterLab's language packs, which have a gettext catalogue for each
    extension. Accelerators (`&File`) and placeholders (`%1`) are kept; untranslated strings and
    repeated pairs are left out.

    Args:
        language: the language of the translations, `fr`, `de` or `zh-CN`.
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
    return {"train": from_generator(_interface_strings, locale=locale, version=version)}


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
            # A key is the English text, or the English singular and the number of a plural form.
            text, form = key if isinstance(key, tuple) else (key, 0)
            text = text.rpartition("\x04")[2]  # without gettext's context
            pair = " ".join(text.split()), " ".join(translation.split())
            # The header of a catalogue has an empty text.
            if text and form == 0 and pair[0] != pair[1] and pair not in seen:
                seen.add(pair)
                yield {"source": pair[0], "target": pair[1]}


# --- images -------------------------------------------------------------------------------------


def digits() -> dict[str, datasets.Dataset]:
    """Returns the 1,797 handwritten digits of scikit-learn, 8×8 pixels in 17 levels of grey."""
    return {"train": from_generator(_digits, version=metadata.version("scikit-learn"))}


def photographs(patch: int = 16) -> dict[str, datasets.Dataset]:
    """Returns square patches of the two sample photographs of scikit-learn, a temple and a flower.

    All patches of a region, three patches wide and high, are in one split. Training patches overlap
    by half. Those of the other splits do not, since tests of significance need independent items.

    Args:
        patch: height and width of a patch in pixels.
    """
    version = metadata.version("scikit-learn")
    return {
        split: from_generator(_patches, patch=patch, split=split, version=version)
        for split in SPLITS
    }


def _digits(**_: object) -> Iterator[Row]:
    from sklearn.datasets import load_digits

    for digit in load_digits().images:  # (8, 8), 0 to 16
        yield {"image": Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))}


def _patches(patch: int, split: str, **_: object) -> Iterator[Row]:
    from sklearn.datasets import load_sample_images

    side = 3 * patch
    regions = np.concatenate([_squares(image, side, side) for image in load_sample_images().images])
    order = np.random.default_rng(1).permutation(len(regions))
    tenth = max(1, len(regions) // 10)
    validation, test, train = np.split(order, [tenth, 2 * tenth])
    chosen = {"train": train, "validation": validation, "test": test}[split]
    for region in regions[chosen]:
        for square in _squares(region, patch, max(1, patch // 2) if split == "train" else patch):
            yield {"image": Image.fromarray(square)}


def _squares(image: np.ndarray, side: int, step: int) -> np.ndarray:
    """Returns the squares of an image, row by row, `(squares, side, side, 3)`."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (side, side), axis=(0, 1))
    return np.moveaxis(windows[::step, ::step], 2, -1).reshape(-1, side, side, 3)
