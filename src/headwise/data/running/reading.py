"""Readers of the built-in running text: the documentation of Python and of packages.

Files and datasets are read by `data.sources`.
"""

import hashlib
import platform
import re
from collections.abc import Sequence

from headwise.data.sources import CorpusError, docstrings_of, versions

# --- Python's documentation -------------------------------------------------------------------


def read_pydoc_topics() -> tuple[list[list[str]], str]:
    """Reads the English of `pydoc_data.topics`, part of Python: the text of `help("with")`.

    A topic is a page of Python's reference manual as plain text. The reader takes its blocks
    between blank lines, keeps those of prose and divides them into sentences. It leaves out
    headings, signatures, grammars, code, tables and labels ("Note:"): every block that does not
    begin with a capital or a quotation mark, does not end as a sentence does, has fewer than five
    words, is indented unevenly, or shows `::=` or `>>>`. Topics overlap (the one on compound
    statements has all of the one on `with`), so a paragraph of an earlier topic is left out too.

    The text differs between versions of Python. Topics are in the order of a hash of their
    names, so that consecutive topics are not all about words with the same first letter.

    Returns:
        The topics as lists of sentences, and a sentence on where they come from.
    """
    from pydoc_data.topics import topics

    def place(name: str) -> bytes:
        return hashlib.sha256(name.encode()).digest()

    blocks = repeated = 0
    seen: set[str] = set()
    documents: list[list[str]] = []
    for name in sorted(topics, key=place):
        sentences: list[str] = []
        for block in re.split(r"\n\s*\n", topics[name].strip()):
            blocks += 1
            paragraph = _prose(block)
            if paragraph in seen:
                repeated += 1
            elif paragraph:
                seen.add(paragraph)
                sentences += split_sentences(paragraph)
        if sentences:
            documents.append(sentences)
    other = blocks - repeated - len(seen)
    origin = (
        f"pydoc_data.topics of {python_version()}: {len(seen):,} paragraphs of prose in "
        f"{len(documents)} topics; {other:,} blocks of headings, code, grammars and tables and "
        f"{repeated:,} repeated paragraphs are left out"
    )
    return documents, origin


def python_version() -> str:
    """Returns the release of Python, on which its documentation depends."""
    return f"Python {platform.python_version()}"


_LEAST_WORDS = 20  # of a docstring that is read


def read_package_docs(packages: Sequence[str]) -> tuple[list[list[str]], str]:
    """Reads the docstrings of installed packages, those that are repeated once.

    Shorter ones than 20 words are left out. Docstrings are in the order of their hash: held-out
    parts are the end of a text, which must not be one module of its own.

    Returns:
        The docstrings as lists of lines, and a sentence on where they come from.
    """
    texts: dict[str, None] = {}
    for package in packages:
        before = len(texts)
        for text in docstrings_of(package):
            if len(text.split()) >= _LEAST_WORDS:
                texts[text] = None
        if len(texts) == before:
            raise CorpusError(
                f"data.packages has {package!r}, expected packages with docstrings in their source "
                "files: name packages that are written in Python and documented"
            )
    ordered = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    documents = [[line.strip() for line in text.split("\n")] for text in ordered]
    return documents, f"{len(documents):,} docstrings of {', '.join(versions(packages))}"


_BULLET = re.compile(r"\s*(?:[*+-]|\d+\.|\[\d+\])\s+")


def _prose(block: str) -> str:
    """Returns a block as one line if it is prose, else an empty text."""
    first, *others = (
        _BULLET.sub("", block, count=1).split("\n") if _BULLET.match(block) else (block.split("\n"))
    )
    indents = {_indent(line) for line in others}
    if len(indents) > 1:
        return ""
    if not _BULLET.match(block) and any(indent > _indent(first) for indent in indents):
        first = ""  # a term, with its definition below it
    text = " ".join(" ".join([first, *others]).split())
    if len(text.split()) < 5 or text[-1] not in ".:!?)":
        return ""
    if not (text[0].isupper() or text[0] in '"“‘('):
        return ""
    # More than the two spaces after a full stop separate the columns of tables.
    if any(sign in text for sign in ("::=", ">>>")) or re.search(r"\S   +\S", block):
        return ""
    return text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def split_sentences(paragraph: str) -> list[str]:
    """Splits English prose into sentences, at `.`, `!` or `?` before a capital or a quote.

    >>> split_sentences('It is true. "None" is false, i.e. no value (see e.g. Python). So be it!')
    ['It is true.', '"None" is false, i.e. no value (see e.g. Python).', 'So be it!']
    """
    ends = r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)\s+(?=[\"“‘(*]*[A-Z])"
    # A quotation mark or parenthesis after the full stop belongs to the sentence.
    return re.split(f'{ends}|(?<=[.!?][")”])\\s+(?=["“‘(*]*[A-Z])', paragraph)
