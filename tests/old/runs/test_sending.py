"""A run and its files on their way to another machine and back."""

import os

import numerals
import pytest
from rich.console import Console

from headwise.data.store import cache_folder
from headwise.recipes import load_recipe
from headwise.runs import sending
from headwise.runs.preparing import prepare_task
from headwise.runs.running import PlannedRun
from headwise.runs.sending import SentRun, forget_half, news, pickled, pieces, states, take, write


class Told(PlannedRun):
    """Tells what it was given, and trains nothing."""

    finished = None

    def train(self, console):
        return self.folder, self.task.digest(), [self.task.train[i] for i in range(3)]


def contents(folder):
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path.read_bytes() for name, path in files.items() if path.is_file()}


def send(source, known, target):
    for sent in news(source, known):
        take(sent, target)


@pytest.fixture
def there(tmp_path):
    """A run's folder on another machine, and `here`, where its copy is."""
    folder = tmp_path / "there" / "run"
    for name in ("recipe.yaml", "checkpoint-3/model", "checkpoint-3/state"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_a_run_reads_its_data_from_the_cache_of_another_machine(tmp_path, monkeypatch):
    recipe = load_recipe(str(numerals.write_recipe(tmp_path))).system("standard")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))
    task = prepare_task(recipe, tmp_path / "run", Console(quiet=True))
    run = Told(recipe, "standard", tmp_path / "run", task, "standard")
    sent, places = pickled(run)
    assert places
    files = {place: list(pieces(cache_folder() / place)) for place in places}
    before = run.make(Console(quiet=True))

    (tmp_path / "cache").rename(tmp_path / "gone")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "another"))
    for place, of_place in files.items():
        sending.write(of_place, tmp_path / "another" / place)
    folder = tmp_path / "elsewhere"
    assert SentRun(sent, folder).make(Console(quiet=True)) == (folder, *before[1:])


@pytest.mark.parametrize("size", [2, 1000])
def test_a_folder_is_copied_in_pieces(tmp_path, there, monkeypatch, size):
    monkeypatch.setattr(sending, "_PIECE", size)
    (there / "empty").touch()
    before = contents(there)
    (there / ".lock").write_text("1")
    (there / ".partial-result.json").write_text("1")
    write(pieces(there), tmp_path / "copy")
    assert contents(tmp_path / "copy") == before


def test_what_changes_in_a_folder_is_copied_and_nothing_else(tmp_path, there):
    here, known = tmp_path / "here", {}
    send(there, known, here)
    assert contents(here) == contents(there)
    assert list(news(there, known)) == []

    (there / "checkpoint-3").rename(there / "checkpoint-6")
    new = there / "recipe.new"
    new.write_text("recipe.new!")
    new.replace(there / "recipe.yaml")
    *sent, whole = news(there, known)
    assert {piece.path for piece in sent} == {
        "recipe.yaml",
        "checkpoint-6/model",
        "checkpoint-6/state",
    }
    (here / ".lock").touch()
    for each in (*sent, whole):
        take(each, here)
    assert (here / ".lock").is_file()
    assert contents(here) == {**contents(there), ".lock": b""}
    assert list(there.parent.iterdir()) == [there]


def test_what_is_removed_while_it_is_sent_comes_all_the_same(tmp_path, there):
    before = contents(there)
    known = {}
    sent = news(there, known)
    take(next(sent), tmp_path / "here")
    os.rename(there / "checkpoint-3", there / "checkpoint-6")  # noqa: PTH104
    assert not [path for path in (tmp_path / "here").iterdir() if path.name[0] != "."]
    for each in sent:
        take(each, tmp_path / "here")
    assert contents(tmp_path / "here") == before
    send(there, known, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(there)


def test_half_of_what_a_lost_machine_has_sent_is_forgotten(tmp_path, there):
    here = tmp_path / "here"
    known = states(there)
    del known["checkpoint-3"]
    take(next(news(there, known)), here)
    forget_half(here)
    send(there, {}, here)
    assert contents(here) == contents(there)
