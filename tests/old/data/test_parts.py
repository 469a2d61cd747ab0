"""Rows in parts on the disk."""

from pathlib import Path

from headwise.data import parts
from headwise.data.division import parts_of
from headwise.data.pairs.corpus import PAIRS, Pair


def pairs(name, number):
    return [Pair(f"{name} {i}", f"{name} {i} translated") for i in range(number)]


def test_only_what_something_is_taken_from_is_written_again(tmp_path, monkeypatch):
    written: list[Path] = []
    write_rows = parts.write_rows
    monkeypatch.setattr(
        parts, "write_rows", lambda path, *rest: written.append(path) or write_rows(path, *rest)
    )
    given = {"train": pairs("train", 40), "test": pairs("test", 3)}
    names = ("train", "validation", "test")
    facts = parts.write_parts(
        tmp_path, PAIRS, given, names, divide=lambda keys: parts_of(keys, 0.1, 0)
    )
    assert [path.stem for path in written] == ["train", "validation"]
    assert PAIRS.open(tmp_path, "test") == given["test"]
    divided = [list(PAIRS.open(tmp_path, name)) for name in ("train", "validation")]
    assert [len(part) for part in divided] == [36, 4]
    assert sorted(divided[0] + divided[1]) == sorted(given["train"])
    for name in names:
        rows = list(PAIRS.open(tmp_path, name))
        assert facts.parts[name].digest == parts.digest_of(rows, PAIRS)
    assert {path.suffix for path in tmp_path.iterdir()} == {".arrow", ".npy"}
