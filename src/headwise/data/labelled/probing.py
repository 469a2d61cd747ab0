"""Corpora of probing tasks: SentEval's files, or examples that are made from any text."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

from headwise.data.division import PARTS
from headwise.data.labelled.corpus import LabelledCorpus, Reading, make_corpus
from headwise.data.labelled.probes import (
    balanced_parts,
    bigram_shift,
    sentence_length,
    usable_sentences,
    word_content,
)
from headwise.data.labelled.reading import Row, docstrings, read_senteval
from headwise.data.labelled.settings import (
    DocstringTexts,
    GeneratedProbe,
    ProbingSettings,
    SentEvalFile,
)
from headwise.data.running.corpus import load_text_corpus
from headwise.data.running.documents import lines_of
from headwise.data.running.reading import split_sentences
from headwise.data.sources import file_in_words, versions
from headwise.data.store import file_identity


def load_probing_corpus(settings: ProbingSettings) -> LabelledCorpus:
    """Reads the examples of a probing task, or makes them from a text.

    Raises:
        CorpusError: data that cannot be read, an unknown label, or too little text. The message
            names the file and line, and says how to mend it.
    """
    if isinstance(settings, SentEvalFile):
        identity, read = file_identity(settings.file), partial(_read_senteval, settings)
    else:
        identity, sentences = _sentences(settings)
        read = partial(_generate, settings, sentences, identity)
    made_of = [settings.model_dump_json(), identity]
    return make_corpus(made_of, read, train_fraction=settings.train_fraction)[0]


# --- SentEval's files -------------------------------------------------------------------------


def _read_senteval(settings: SentEvalFile) -> Reading:
    rows: dict[str, list[Row]] = {part: [] for part in PARTS}
    for part, row in read_senteval(settings.file, settings.max_bytes):
        rows[part].append(row)
    return Reading(
        rows,
        {"corpus": f"SentEval, {file_in_words(settings.file)}"},
        classes=settings.classes,
        label_hint="Check the second field of the lines, which is the label.",
    )


# --- generated probes -------------------------------------------------------------------------


def _generate(settings: GeneratedProbe, found: Callable[[], Sequence[str]], origin: str) -> Reading:
    sentences = usable_sentences(found(), settings.min_words, settings.max_words)
    if settings.probe == "SeLen":
        classes = sentence_length(sentences, settings.num_bins, settings.bins)
    elif settings.probe == "WC":
        classes = word_content(sentences, settings.num_words)
    else:
        classes = bigram_shift(sentences, settings.seed)
    parts = balanced_parts(
        classes, settings.validation_fraction, settings.test_fraction, settings.seed
    )
    rows = {
        part: [Row(part, sentence, None, label) for sentence, label in of_part]
        for part, of_part in parts.items()
    }
    used = sum(map(len, rows.values()))
    origin = (
        f"{settings.probe}, made from {origin}: {used:,} of {len(sentences):,} sentences with "
        f"{settings.min_words} to {settings.max_words} words, the same number in each class"
    )
    return Reading(rows, {"corpus": origin}, classes=list(classes))


def _sentences(settings: GeneratedProbe) -> tuple[str, Callable[[], Sequence[str]]]:
    """Returns words on where the text comes from, and what reads all of its sentences."""
    texts = settings.texts
    if isinstance(texts, DocstringTexts):
        origin = f"docstrings of {', '.join(versions(texts.packages))}"
        return origin, lambda: _split(t for package in texts.packages for t in docstrings(package))
    corpus = load_text_corpus(texts)
    documents = chain(corpus.train, corpus.validation, corpus.test)
    return corpus.notes["corpus"], lambda: _split(lines_of(documents))


def _split(paragraphs: Iterable[str]) -> list[str]:
    return [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]
