"""The cache of what is made of data."""

import json
import multiprocessing
import os
import time

import pytest

from headwise.data import store
from headwise.data.store import cache_folder, file_identity, stored


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))


def making(text, calls):
    def make(folder):
        calls.append(text)
        (folder / "inner").mkdir()
        (folder / "inner" / "text").write_text(text)

    return make


def test_a_folder_is_made_once_for_what_it_is_made_of():
    calls = []
    one = stored("texts", ["a", 1], making("one", calls))
    assert stored("texts", ["a", 1], making("two", calls)) == one
    assert (one / "inner" / "text").read_text() == "one"
    others = [
        stored("texts", ["a", 2], making("three", calls)),
        stored("other", ["a", 1], making("four", calls)),
        stored("texts", ["a", "1"], making("five", calls)),
    ]
    assert len({one, *others}) == 4
    assert calls == ["one", "three", "four", "five"]


def test_other_code_makes_a_folder_of_its_own(monkeypatch):
    calls = []
    stored("texts", ["a"], making("old", calls))
    monkeypatch.setattr(store, "_code", lambda: "other")
    assert (stored("texts", ["a"], making("new", calls)) / "inner" / "text").read_text() == "new"


@pytest.mark.parametrize("damage", ["cut", "missing", "no sizes"])
def test_what_was_cut_is_made_anew(damage):
    calls = []
    file = stored("texts", ["a"], making("whole", calls)) / "inner" / "text"
    if damage == "cut":
        os.truncate(file, 2)
    elif damage == "missing":
        file.unlink()
    else:
        (file.parent.parent / "sizes.json").write_text("{")
    stored("texts", ["a"], making("whole", calls))
    assert file.read_text() == "whole" and calls == ["whole"] * 2


def test_an_error_leaves_nothing_behind():
    def fail(folder):
        (folder / "half").write_text("half")
        raise ValueError("bad data")

    with pytest.raises(ValueError, match="bad data"):
        stored("texts", ["a"], fail)
    left = [path for path in cache_folder().rglob("*") if path.suffix != ".lock"]
    assert left == [cache_folder() / "texts"]


def slowly(queue, number):
    def make(folder):
        queue.put(number)
        time.sleep(0.5)
        (folder / "number").write_text(str(number))

    queue.put((stored("texts", ["a"], make) / "number").read_text())


def test_of_two_processes_one_makes_it_and_the_other_waits():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    both = [context.Process(target=slowly, args=(queue, number)) for number in (1, 2)]
    for process in both:
        process.start()
    maker, *read = [queue.get(timeout=60) for _ in range(3)]
    for process in both:
        process.join()
    assert read == [str(maker)] * 2


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"cache of prepared data is .*file, .*HEADWISE_CACHE"):
        stored("texts", ["a"], making("one", []))


def test_the_cache_stands_where_the_user_wants_it(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("HEADWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "headwise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "headwise"


def test_a_file_that_was_changed_is_another_one(tmp_path):
    path = tmp_path / "folder" / "text"
    path.parent.mkdir()
    identities, of_folder = [file_identity(path)], [file_identity(tmp_path)]
    for text in ("one", "two ", "two"):
        path.write_text(text)
        os.utime(path, ns=(0, len(identities)))
        identities.append(file_identity(path))
        of_folder.append(file_identity(tmp_path))
    assert len(set(identities)) == len(set(of_folder)) == 4
    assert json.dumps(identities)
