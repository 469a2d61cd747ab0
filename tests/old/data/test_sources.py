"""Readers: what comes out of each kind of data, and what a user is told when nothing can."""

import bz2
import gzip
import io
import json
import lzma
import os
from pathlib import Path

import datasets
import pytest

from headwise.data import sources
from headwise.data.labelled.corpus import load_labelled_corpus
from headwise.data.labelled.probing import load_probing_corpus
from headwise.data.labelled.settings import GeneratedProbe, Glue, LabelledFiles, SentEvalFile
from headwise.data.pairs.corpus import load_parallel_corpus
from headwise.data.pairs.settings import ParallelFiles
from headwise.data.running.corpus import load_text_corpus
from headwise.data.running.settings import TextFiles
from headwise.data.sources import (
    CorpusError,
    decoded_lines,
    file_in_words,
    files_below,
    load_hub_split,
    read_lines,
    text_fields,
)


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, monkeypatch):
    for name in ("b/2", "b/1", "a/.3", "4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files_below(tmp_path) == [tmp_path / name for name in ("4", "a/.3", "b/1", "b/2")]
    scandir = os.scandir

    def refused(path):
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)  # root may read everything
    with pytest.raises(CorpusError, match=rf"{tmp_path}/b: cannot be read \(Permission denied"):
        files_below(tmp_path)


# --- text files -------------------------------------------------------------------------------


def lines_of(*arguments):
    return list(read_lines(*arguments))


def test_text_and_gzip_are_read_alike(tmp_path):
    (tmp_path / "a.en").write_bytes("\ufeffone\r\ntwo\n\nthree".encode())
    with gzip.open(tmp_path / "a.de.gz", "wb") as file:
        file.write(b"eins\nzwei\n\ndrei\n")
    assert lines_of(tmp_path / "a.en") == ["one", "two", "", "three"]
    with (tmp_path / "a.en").open("rb") as file:  # as standard input is read
        assert list(decoded_lines(file, "standard input")) == ["one", "two", "", "three"]
    assert lines_of(tmp_path / "a.de.gz") == ["eins", "zwei", "", "drei"]


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "a").write_text("here\n")
    assert lines_of(sources.Path("~/a")) == ["here"]


def test_text_that_is_not_utf8_is_found_to_the_line(tmp_path):
    (tmp_path / "a").write_bytes(b"fine\nalso fine\nna\xefve\n")
    with pytest.raises(CorpusError, match=r"a, line 3: not UTF-8 \(byte 0xef at column 3\)"):
        lines_of(tmp_path / "a")


@pytest.mark.parametrize(
    ("content", "unpack"),
    [
        (bz2.compress(b"line\n" * 20), "bunzip2"),
        (lzma.compress(b"line\n" * 20), "unxz"),
        (b"\x28\xb5\x2f\xfd\x04\x58", "unzstd"),
    ],
)
def test_other_compression_is_told_to_be_compression(tmp_path, content, unpack):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CorpusError, match=rf"a, line 1: .* unpack it by `{unpack}`, .* by gzip"):
        lines_of(tmp_path / "a")


def test_gzip_by_another_name_is_told_to_be_gzip(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"line\n" * 20))
    with pytest.raises(CorpusError, match=r"a, line 1: .* It is gzip: .* end its name in \.gz"):
        lines_of(tmp_path / "a")


def test_docstrings_that_are_no_unicode_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "halves").mkdir()
    (tmp_path / "halves" / "__init__.py").write_text(
        'def a():\n    "Half of a pair, \\ud800."\n\n\ndef b():\n    "A whole text."\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert list(sources.docstrings_of("halves")) == ["A whole text."]


@pytest.mark.parametrize("damage", ["plain text", "cut short", "bytes changed"])
def test_a_damaged_gzip_file_is_an_error_that_names_it(tmp_path, damage):
    whole = gzip.compress(b"".join(b"line %d\n" % n for n in range(20_000)))
    data = {
        "plain text": b"line 1\nline 2\n",
        "cut short": whole[: len(whole) // 2],
        "bytes changed": whole[:2000] + b"\xff" * 200 + whole[2200:],
    }[damage]
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(CorpusError, match=r"a\.gz: not a sound gzip file after [\d,]+ lines"):
        lines_of(tmp_path / "a.gz")


@pytest.mark.parametrize("name", ["missing.txt", "missing.gz", "folder"])
def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CorpusError, match=f"{name}: cannot be read"):
        lines_of(tmp_path / name)


# --- Hugging Face datasets --------------------------------------------------------------------


@pytest.fixture
def dataset_folder(tmp_path, monkeypatch):
    """A dataset as one finds it on the hub, in a local folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    records = [
        {"id": 1, "a.b": "flat", "translation": {"en": "one", "de": "eins"}},
        {"id": 2, "a.b": "flat", "translation": {"en": "two", "de": None}},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "train.jsonl").write_text(lines)
    (folder / "test.jsonl").write_text(lines)
    return str(folder)


def texts(folder, split, field):
    rows = load_hub_split(folder, split)
    return [text for (text,) in text_fields(rows, [field], "here", "Name one.")]


def test_fields_are_columns_or_dotted_paths_into_records(dataset_folder):
    assert texts(dataset_folder, "train", "translation.en") == ["one", "two"]
    assert texts(dataset_folder, "train", "translation.de") == ["eins", ""]
    assert texts(dataset_folder, "test[:1]", "a.b") == ["flat"]


@pytest.mark.parametrize("field", ["translation.fr", "german", "id.de"])
def test_an_unknown_field_lists_those_there_are(dataset_folder, field):
    message = f"no field '{field}', expected one of id, a.b, translation.en, translation.de"
    with pytest.raises(CorpusError, match=message):
        texts(dataset_folder, "train", field)


@pytest.mark.parametrize(("field", "kind"), [("id", "int"), ("translation", "dict")])
def test_a_field_that_is_no_text_is_an_error(dataset_folder, field, kind):
    message = f"'{field}' is of type {kind}, expected text. Name another of the fields id, a.b, "
    with pytest.raises(CorpusError, match=message):
        texts(dataset_folder, "train", field)


def test_an_unknown_split_lists_those_there_are(dataset_folder):
    message = r"split 'dev'.*\['train', 'test'\]\. Name one .* data.validation_split=null, "
    with pytest.raises(CorpusError, match=message):
        load_hub_split(dataset_folder, "dev")


def test_an_unknown_config_lists_those_there_are(dataset_folder):
    with pytest.raises(CorpusError, match=r"config 'de-en'.*Available: \['default'\]"):
        load_hub_split(dataset_folder, "train", config="de-en")


@pytest.mark.parametrize("name", ["{}/none", "~/no such folder"])
def test_a_dataset_that_does_not_exist_is_an_error_that_names_it(dataset_folder, name):
    name = name.format(dataset_folder)
    with pytest.raises(CorpusError, match=f"dataset '{name}' .* could not be loaded"):
        load_hub_split(name, "train")


def test_a_file_that_is_too_large_is_no_text(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BOMB_BYTES", 300_000)
    bomb, text, plain = (tmp_path / name for name in ("bomb.gz", "text.gz", "plain.txt"))
    for content in (b"0" * 10**6, b"0\n" * 10**6):
        bomb.write_bytes(gzip.compress(content))
        most = max(300_000, 20 * bomb.stat().st_size)
        with pytest.raises(
            CorpusError, match=rf"bomb.gz expands to .* expected at most {most:,}: .*data.max_bytes"
        ):
            lines_of(bomb)
        assert sum(map(len, lines_of(bomb, 10**7))) == 10**6  # who asks for it
    lines = [f"line {number} " + "of many" * (number % 50) for number in range(1_000)]
    data = "\n".join(lines).encode()
    text.write_bytes(gzip.compress(data))
    plain.write_bytes(data)
    for path in (text, plain):
        assert lines_of(path) == lines_of(path, len(data)) == lines
        with pytest.raises(CorpusError, match=rf"{path} .* expected at most {len(data) - 1:,}: "):
            lines_of(path, len(data) - 1)
    with pytest.raises(CorpusError, match=r"standard input has 1,0.. bytes or more, expected at"):
        list(decoded_lines(io.BytesIO(data), "standard input", 1000))


def recipe_data(path, kind):
    """Settings of data whose files are all one file, and who reads them."""
    files = {"corpus": "files", "train": path, "tests": {"further": path}, "max_bytes": 10}
    if kind == "running":
        return load_text_corpus(TextFiles(**files))
    if kind == "examples":
        return load_labelled_corpus(LabelledFiles(**files))
    if kind == "glue":
        for name in ("train.tsv", "dev.tsv"):
            path.with_name(name).write_text(path.read_text())
        return load_labelled_corpus(Glue(task="SST-2", folder=path.parent, max_bytes=10))
    if kind == "generated":
        texts = {"corpus": "files", "train": path}
        return load_probing_corpus(GeneratedProbe(texts=texts, max_bytes=10))
    if kind == "probe":
        return load_probing_corpus(SentEvalFile(file=path, max_bytes=10))
    pair = {"source": path, "target": path}
    return load_parallel_corpus(ParallelFiles(train=pair, tests={"further": pair}, max_bytes=10))


@pytest.mark.parametrize("kind", ["running", "parallel", "examples", "glue", "probe", "generated"])
def test_a_recipe_says_how_many_bytes_a_file_may_have(tmp_path, kind):
    path = tmp_path / "data.txt"
    path.write_text("twelve bytes")
    with pytest.raises(CorpusError, match=r"has 11 bytes or more, expected at most 10: .*max_byt"):
        recipe_data(path, kind)


def test_pipes_and_devices_are_no_text(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        for read in (lines_of, file_in_words):
            with pytest.raises(CorpusError, match=f"{path} is a pipe or a device, expected a reg"):
                read(path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(CorpusError, match="loop: cannot be read"):
        lines_of(tmp_path / "loop")


def test_what_ends_a_line_is_the_same_in_every_file(tmp_path):
    """Or a source and its translation would not have equal numbers of lines."""
    path = tmp_path / "text"
    path.write_bytes("\ufeffa\u2028b\x85c\x0bd\r\n\0\r\ne\rf\n\n\ufeffg".encode())
    assert lines_of(path) == ["a\u2028b\x85c\x0bd", "\0", "e\rf", "", "\ufeffg"]


def test_pickles_are_no_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.pkl").write_bytes(b"")
    with pytest.raises(CorpusError, match="'pandas' is not read: it would unpickle"):
        load_hub_split("pandas", "train")
