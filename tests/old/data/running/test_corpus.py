"""Texts of one language: documents, parts, and what a user is told when there are none."""

import gzip
import json
from itertools import chain

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.data.running.corpus import (
    _LINES,
    _cut,
    load_text_corpus,
)
from headwise.data.running.documents import lines_of, marked_rows
from headwise.data.running.settings import (
    PydocTopics,
    TextFiles,
    TextHub,
)
from headwise.data.sources import CorpusError

PARTS = ("train", "validation", "test")

# As in wiki.train.tokens: every line begins and ends with a space, and a blank line is one space.
WIKITEXT = "".join(
    f" {line} \n" if line else " \n"
    for line in (
        "",
        "= Homarus gammarus =",
        "",
        "Homarus gammarus , known as the European lobster , is a species of <unk> lobster .",
        "It may grow to 60 cm ( 24 in ) .",
        "",
        "= = Description = =",
        "",
        "It is a large <unk> , 38 – 89 @-@ mm wide .",
        "",
        "= 2007 =",
        "",
        "A year .",
    )
)


@pytest.fixture
def write(tmp_path):
    def write_text(name, text):
        path = tmp_path / name
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_text


def numbered(count, words=4):
    return "".join(f"line {i} {'word ' * (words - 2)}\n" for i in range(count))


# --- documents --------------------------------------------------------------------------------


def test_documents_of_wikitext_begin_at_titles(write):
    path = write("wiki.train.tokens", WIKITEXT)
    texts = load_text_corpus(TextFiles(train=path, validation=path, test=path, documents="title"))
    first, second = texts.train
    assert first[:3] == ["", "= Homarus gammarus =", ""] and "= = Description = =" in first
    assert second == ["= 2007 =", "", "A year ."]
    assert texts.notes["train"].startswith("2 documents, 7 lines, ")
    assert "of which 7 lines are also in the training part" in texts.notes["test"]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("blank-line", [["a", "b", ""], ["c", "", ""], ["d"]]),
        ("line", [["a"], ["b", ""], ["c", "", ""], ["d"]]),
        ("none", [["a", "b", "", "c", "", "", "d"]]),
    ],
)
def test_where_documents_end(write, documents, expected):
    path = write("a.txt", "a\nb\n\nc\n\n \nd\n")
    texts = load_text_corpus(TextFiles(train=path, validation=path, test=path, documents=documents))
    assert texts.train == texts.validation == texts.test == expected


@given(
    st.lists(st.sampled_from(["", "a", "= b =", "= = c = =", "d e", "= ="])),
    st.sampled_from(["blank-line", "title", "line", "none"]),
)
def test_the_lines_of_all_documents_are_those_of_the_file(lines, documents):
    if any(lines):
        found = []
        for line, begins in marked_rows("x", lines, documents):
            found += [[]] if begins else []
            found[-1].append(line)
        assert list(chain(*found)) == lines
        assert all(any(document) for document in found)  # none is blank


def test_every_row_of_a_dataset_may_be_a_document_of_several_lines(tmp_path):
    rows = [{"page": {"text": "= A =\n\nOne.\n"}}, {"page": {"text": "= B =\nTwo."}}]
    for split in ("train", "test", "validation"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{split}.jsonl").write_text(text)
    texts = load_text_corpus(TextHub(name=str(tmp_path), field="page.text", documents="line"))
    assert texts.train == [["= A =", "", "One."], ["= B =", "Two."]]


def test_several_files_are_read_in_their_order(write):
    parts = [write("b.txt", "One.\nTwo.\n"), write("a.txt.gz", "Three.")]
    held_out = write("c.txt", "x\n")
    texts = load_text_corpus(TextFiles(train=parts, validation=held_out, test=held_out))
    assert texts.train == [["One.", "Two."], ["Three."]]
    assert texts.notes["corpus"] == "text files b.txt, a.txt.gz"


# --- parts ------------------------------------------------------------------------------------


def test_missing_parts_are_cut_off_the_end(write):
    path = write("a.txt", numbered(100))
    texts = load_text_corpus(TextFiles(train=path, validation_fraction=0.2, test_fraction=0.1))
    assert [len(list(lines_of(getattr(texts, part)))) for part in PARTS] == [70, 20, 10]
    together = chain.from_iterable(lines_of(getattr(texts, part)) for part in PARTS)
    assert list(together) == [line.strip() for line in numbered(100).splitlines()]


def test_a_given_part_is_not_touched_and_the_other_is_cut_off(write):
    train, test = write("a.txt", numbered(100)), write("b.txt", "x\n")
    texts = load_text_corpus(TextFiles(train=train, test=test))
    assert texts.test == [["x"]]
    assert [len(list(lines_of(getattr(texts, part)))) for part in PARTS] == [90, 10, 1]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1), min_size=1, max_size=6), st.floats(0, 200))
def test_a_cut_loses_nothing_and_is_as_near_as_lines_allow(counts, words):
    lines = np.array(
        [(count, number == 0, 0) for document in counts for number, count in enumerate(document)],
        _LINES,
    )
    cut = _cut(lines, words)
    assert 0 <= cut <= len(lines)
    total = sum(map(sum, counts))
    reached = lines["words"][:cut].sum()
    longest = max((count for document in counts for count in document), default=0)
    assert abs(reached - min(words, total)) <= longest / 2


def test_the_digest_tells_texts_documents_and_parts_apart(write):
    path = write("a.txt", numbered(30) + "\n" + numbered(30))
    settings = [
        TextFiles(train=path),
        TextFiles(train=path, documents="none"),
        TextFiles(train=path, test_fraction=0.2),
        TextFiles(train=write("b.txt", numbered(60))),
    ]
    digests = [load_text_corpus(each).digest for each in settings]
    assert len(set(digests)) == 4
    assert load_text_corpus(settings[0]).digest == digests[0]


# --- what cannot be read ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt: there is no text"),
        ("a.txt", b" \n\n", r"a\.txt: there is no text"),
        ("a.txt", b"only one line\n", r"a\.txt: too little text, no line for the"),
        ("a.txt", b"a\nb\nc " + b"d " * 99, r"a\.txt: too little text, no line for the validation"),
        ("a.txt", b"caf\xe9\n", r"a\.txt, line 1: not UTF-8 .*-f LATIN1"),
        ("a.txt", "café\n".encode("utf-16"), r"a\.txt, line 1: not UTF-8 .*-f UTF-16"),
        ("a.txt", b"c\0a\0\n", r"a\.txt, line 1: not text .* zero"),
        ("a.txt.gz", b"plain text\n", r"a\.txt\.gz: not a sound gzip file"),
    ],
)
def test_bad_files_are_errors_that_name_them(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        load_text_corpus(TextFiles(train=tmp_path / name))


def test_an_empty_split_is_an_error_that_names_it(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": ""}\n{"text": null}\n')
    settings = TextHub(name=str(tmp_path), validation_split=None, test_split=None)
    with pytest.raises(CorpusError, match="split 'train': there is no text"):
        load_text_corpus(settings)


def test_wikitext_of_the_hub_is_read_as_its_files_are(monkeypatch, write):
    """Rows of Salesforce/wikitext are lines with their line end; blank lines are empty rows."""
    rows = ["" if not line.strip() else f"{line}\n" for line in WIKITEXT.splitlines()]
    asked = []

    def load_dataset(path, name=None, *, split, revision=None):
        asked.append((path, name, split))
        return datasets.Dataset.from_dict({"text": rows})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    hub = TextHub(name="Salesforce/wikitext", config="wikitext-103-v1", documents="title")
    texts = load_text_corpus(hub)
    name = "Salesforce/wikitext", "wikitext-103-v1"
    assert asked == [(*name, split) for split in PARTS]  # each once: for identity and rows
    path = write("wiki.tokens", WIKITEXT)
    files = TextFiles(train=path, validation=path, test=path, documents="title")
    assert texts.train == load_text_corpus(files).train
    assert texts.notes["corpus"] == "dataset Salesforce/wikitext wikitext-103-v1"


# --- the built-in text ------------------------------------------------------------------------


def test_the_built_in_text_is_english_prose_of_some_size():
    texts = load_text_corpus(PydocTopics())
    lines = list(lines_of([*texts.train, *texts.validation, *texts.test]))
    words = [word for line in lines for word in line.split()]
    assert len(lines) > 1500 and len(words) > 25_000
    assert not any(sign in line for line in lines for sign in (">>>", "::=", "****", "===="))
    common = sum(word in {"the", "a", "is", "of", "to", "and", "in"} for word in words)
    assert common / len(words) > 0.2
