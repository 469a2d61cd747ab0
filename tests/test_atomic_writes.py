"""Files and folders are written whole or not at all."""

import resource
from pathlib import Path

import datasets
import pytest
from support import toy_training as toy
from support.processes import forked, killed_at

from headwise.data.encode import cached_folder
from headwise.runs.folder import locked

# --- whole or not at all ----------------------------------------------------------------------


def write(path: Path, is_folder: bool) -> None:
    with toy.written_whole(path) as new:
        if is_folder:
            (new / "inside").mkdir(parents=True)
        for file in (new / "a", new / "inside/b") if is_folder else (new,):
            file.write_text("new")


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_killed_while_it_is_written_leaves_what_was_there(tmp_path, is_folder):
    """Killed at each thing that is done with files; the next that locks the folder clears it."""
    contents = []
    for moment in range(1, 60):
        path = tmp_path / str(moment) / "model"
        path.parent.mkdir()
        if not is_folder:
            path.write_text("old")
        ended = forked(lambda path=path: write(path, is_folder), killed_at(moment, path.parent))
        toy.clear_leftovers(list(path.parent.iterdir()))
        files = (path / "a", path / "inside/b") if path.is_dir() else (path,)
        contents.append([file.read_text() for file in files] if path.exists() else [])
        assert [file.name for file in path.parent.iterdir()] == ["model"] * path.exists()
        if ended.status == 0:
            break
    old, new = ([], ["new"] * 2) if is_folder else (["old"], ["new"])
    count = contents.count(old)
    assert ended.status == 0 and count > 2
    assert contents == [old] * count + [new] * (len(contents) - count)


def test_two_processes_that_write_one_file_at_once_leave_it_whole(tmp_path):
    with toy.written_whole(tmp_path / "a") as new:
        new.write_text("first")
        assert forked(lambda: write(tmp_path / "a", is_folder=False)).status == 0
        assert (tmp_path / "a").read_text() == "new"
    assert (tmp_path / "a").read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_whoever_locks_a_folder_clears_what_killed_processes_have_left(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    cached = cached_folder("kind", ["key"], lambda folder: None)
    cached.rmdir()
    left = [tmp_path / ".partial-1-result.json", cached.with_name(f".partial-1-{cached.name}")]
    for path in left:
        path.touch()
    with locked(tmp_path):
        assert [path.exists() for path in left] == [False, True]
    cached_folder("kind", ["key"], lambda folder: None)
    assert cached.is_dir() and not left[-1].exists()


# --- a full disk ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, is_folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    target = tmp_path / "model"
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError), toy.written_whole(target) as new:
            if is_folder:
                new.mkdir()
            (new / "weights" if is_folder else new).write_text("1" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
