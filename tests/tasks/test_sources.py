"""Readers: what comes out of each kind of data, and what a user is told when nothing can."""

import gettext
import gzip
import importlib.metadata
import json
import struct

import datasets
import pytest

from headwise.tasks import sources
from headwise.tasks.sources import (
    CorpusError,
    read_hub_pairs,
    read_interface_strings,
    read_lines,
    read_text_pairs,
)

# --- message catalogues -----------------------------------------------------------------------


def compiled_catalogue(messages: dict[str, str]) -> bytes:
    """The .mo format: a header, two tables of (length, offset), zero-terminated strings."""
    entries = sorted((k.encode(), v.encode()) for k, v in messages.items())
    tables, strings = [], b""
    start = 28 + 16 * len(entries)
    for column in (0, 1):
        for entry in entries:
            tables += [len(entry[column]), start + len(strings)]
            strings += entry[column] + b"\0"
    n = len(entries)
    return struct.pack(f"<7I{4 * n}I", 0x950412DE, 0, n, 28, 28 + 8 * n, 0, 0, *tables) + strings


@pytest.fixture
def language_pack(tmp_path, monkeypatch):
    """A French language pack with two catalogues."""
    folder = tmp_path / "pack" / "locale" / "fr_FR" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    header = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n>1);\n"
    (folder / "b.mo").write_bytes(
        compiled_catalogue({"": header, "Open": "Ouvrir", "menu\x04&Edit": "&Modifier"})
    )
    (folder / "a.mo").write_bytes(
        compiled_catalogue(
            {
                "": header,
                "%1 file\0%1 files": "%1 fichier\0%1 fichiers",
                "\nOpen\n": "Ouvrir ",
                "CoffeeScript": "CoffeeScript",
                "Open": "Ouverture",
            }
        )
    )
    (folder / "a.json").write_text("{}")
    monkeypatch.setattr(sources.resources, "files", lambda name: tmp_path / "pack")
    monkeypatch.setattr(sources.metadata, "version", lambda name: "1.2")


def test_catalogues_give_clean_pairs(language_pack):
    rows, origin = read_interface_strings("fr")
    assert rows == [
        ("Open", "Ouvrir"),  # line breaks of the layout gone, the header not a message
        ("%1 file", "%1 fichier"),  # the singular only
        ("Open", "Ouverture"),  # a second translation is no repetition
        ("&Edit", "&Modifier"),  # context cut off, accelerator kept
    ]
    assert origin == (
        "jupyterlab-language-pack-fr-FR 1.2: 6 messages, of which 1 untranslated and 1 repeated "
        "are left out"
    )


def test_the_hand_made_catalogue_is_one_that_gettext_reads(tmp_path):
    file = tmp_path / "x.mo"
    file.write_bytes(
        compiled_catalogue({"": "Content-Type: text/plain; charset=UTF-8\n", "a": "ä"})
    )
    with file.open("rb") as opened:
        assert gettext.GNUTranslations(opened).gettext("a") == "ä"


@pytest.mark.parametrize("missing", [ModuleNotFoundError, importlib.metadata.PackageNotFoundError])
def test_a_missing_language_pack_is_named_with_the_command_to_install_it(monkeypatch, missing):
    def fail(name):
        raise missing(name)

    monkeypatch.setattr(sources.resources, "files", fail)
    with pytest.raises(CorpusError, match="pip install jupyterlab-language-pack-zh-CN\n") as error:
        read_interface_strings("zh-CN")
    assert 'pip install "headwise[demo]"' in str(error.value)


@pytest.mark.parametrize(("language", "expected"), [("fr", 3000), ("de", 1000), ("zh-CN", 3000)])
def test_installed_language_packs(language, expected):
    rows, _ = read_interface_strings(language)
    # Packs grow from release to release; they would have to be rewritten to shrink much.
    assert expected * 0.8 < len(rows) == len(set(rows))
    assert not any(source == target for source, target in rows)
    assert not any("\x04" in text or "\n" in text or not text for row in rows for text in row)


# --- text files -------------------------------------------------------------------------------


def test_text_and_gzip_are_read_alike(tmp_path):
    (tmp_path / "a.en").write_bytes("\ufeffone\r\ntwo\n\nthree".encode())
    with gzip.open(tmp_path / "a.de.gz", "wb") as file:
        file.write(b"eins\nzwei\n\ndrei\n")
    rows = read_text_pairs(tmp_path / "a.en", tmp_path / "a.de.gz")
    assert rows == [("one", "eins"), ("two", "zwei"), ("", ""), ("three", "drei")]


def test_only_newlines_end_a_line(tmp_path):
    (tmp_path / "a").write_text("one\u2028still one\x0cstill\x85one\ntwo\n", encoding="utf-8")
    assert read_lines(tmp_path / "a") == ["one\u2028still one\x0cstill\x85one", "two"]


def test_an_empty_file_has_no_lines(tmp_path):
    (tmp_path / "a").touch()
    assert read_lines(tmp_path / "a") == []


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "a").write_text("here\n")
    assert read_lines(sources.Path("~/a")) == ["here"]


def test_different_line_counts_name_both_files_and_numbers(tmp_path):
    (tmp_path / "a.en").write_text("x\n" * 1200)
    (tmp_path / "a.de").write_text("x\n" * 1199)
    with pytest.raises(CorpusError, match=r"a\.en has 1,200 and .*a\.de has 1,199"):
        read_text_pairs(tmp_path / "a.en", tmp_path / "a.de")


def test_text_that_is_not_utf8_is_found_to_the_line(tmp_path):
    (tmp_path / "a").write_bytes(b"fine\nalso fine\nna\xefve\n")
    with pytest.raises(CorpusError, match=r"a, line 3: not UTF-8 \(byte 0xef at column 3\)"):
        read_lines(tmp_path / "a")


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
        read_lines(tmp_path / "a.gz")


@pytest.mark.parametrize("name", ["missing.txt", "missing.gz", "folder"])
def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CorpusError, match=f"{name}: cannot be read"):
        read_lines(tmp_path / name)


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


def test_fields_are_columns_or_dotted_paths_into_records(dataset_folder):
    rows = list(read_hub_pairs(dataset_folder, "train", "translation.en", "translation.de"))
    assert rows == [("one", "eins"), ("two", "")]
    rows = list(read_hub_pairs(dataset_folder, "test[:1]", "a.b", "translation.en"))
    assert rows == [("flat", "one")]


@pytest.mark.parametrize("field", ["translation.fr", "german", "id.de"])
def test_an_unknown_field_lists_those_there_are(dataset_folder, field):
    message = f"no field '{field}'; there are id, a.b, translation.en, translation.de"
    with pytest.raises(CorpusError, match=message):
        list(read_hub_pairs(dataset_folder, "train", "translation.en", field))


@pytest.mark.parametrize(("field", "kind"), [("id", "int"), ("translation", "dict")])
def test_a_field_that_is_no_text_is_an_error(dataset_folder, field, kind):
    with pytest.raises(CorpusError, match=f"'{field}' must be text, but is {kind}"):
        list(read_hub_pairs(dataset_folder, "train", "translation.en", field))


def test_an_unknown_split_lists_those_there_are(dataset_folder):
    message = r"split 'dev'.*\['train', 'test'\]\. Name one .* data.validation_split=null, "
    with pytest.raises(CorpusError, match=message):
        list(read_hub_pairs(dataset_folder, "dev", "a.b", "a.b"))


def test_an_unknown_config_lists_those_there_are(dataset_folder):
    with pytest.raises(CorpusError, match=r"config 'de-en'.*Available: \['default'\]"):
        list(read_hub_pairs(dataset_folder, "train", "a.b", "a.b", config="de-en"))


@pytest.mark.parametrize("name", ["{}/none", "~/no such folder"])
def test_a_dataset_that_does_not_exist_is_an_error_that_names_it(dataset_folder, name):
    name = name.format(dataset_folder)
    with pytest.raises(CorpusError, match=f"dataset '{name}' .* could not be loaded"):
        list(read_hub_pairs(name, "train", "a.b", "a.b"))
