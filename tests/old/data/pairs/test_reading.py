"""Readers of sentence pairs: their results, and the errors for data that cannot be read."""

import importlib.metadata
import struct

import pytest

from headwise.data.pairs import reading
from headwise.data.pairs.reading import read_interface_strings, read_text_pairs
from headwise.data.sources import CorpusError

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
    monkeypatch.setattr(reading.resources, "files", lambda name: tmp_path / "pack")
    monkeypatch.setattr(reading.metadata, "version", lambda name: "1.2")


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


@pytest.mark.parametrize("missing", [ModuleNotFoundError, importlib.metadata.PackageNotFoundError])
def test_a_missing_language_pack_is_named_with_the_command_to_install_it(monkeypatch, missing):
    def fail(name):
        raise missing(name)

    monkeypatch.setattr(reading.resources, "files", fail)
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


# --- files and datasets -----------------------------------------------------------------------


def test_different_line_counts_name_both_files_and_numbers(tmp_path):
    (tmp_path / "a.en").write_text("x\n" * 1200)
    (tmp_path / "a.de").write_text("x\n" * 1199)
    with pytest.raises(CorpusError, match=r"a\.en has 1,200 lines and .*a\.de has 1,199"):
        list(read_text_pairs(tmp_path / "a.en", tmp_path / "a.de"))


def test_lines_of_two_files_are_pairs(tmp_path):
    (tmp_path / "a.en").write_text("one\n\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    pairs = list(read_text_pairs(tmp_path / "a.en", tmp_path / "a.de"))
    assert pairs == [("one", "eins"), ("", "zwei")]
