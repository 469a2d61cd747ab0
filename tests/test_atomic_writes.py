"""Files and folders are written whole or not at all."""

import errno
import resource
import shutil
from pathlib import Path

import pytest
from support import toy_training as toy
from support.processes import forked, killed_at, unwritable

# --- folders that take the place of others ----------------------------------------------------


def write_folder(path: Path, name: str) -> None:
    with toy.written_whole(path) as new:
        (new / "inside").mkdir(parents=True)
        for file in ("a", "inside/b"):
            (new / file).write_text(name)


def read_folder(path: Path) -> list[str]:
    return [(path / file).read_text() for file in ("a", "inside/b")]


@pytest.mark.parametrize("end", ["kill", "error"])
@pytest.mark.parametrize("next_start", ["of a command", "of a writer"])
def test_a_folder_that_takes_the_place_of_another_is_never_lost(tmp_path, end, next_start):
    """Ended at each thing that is done with files, one of the two is whole, or is put back."""
    contents = []
    for moment in range(1, 60):
        path = tmp_path / str(moment) / "model"
        write_folder(path, "old")
        stop = killed_at(moment, path.parent)
        if end == "error":
            stop = unwritable(path.parent, errno.EIO, moment - 1)
        ended = forked(lambda path=path: write_folder(path, "new"), stop)
        if next_start == "of a command":
            toy.clear_leftovers(list(path.parent.iterdir()))
        else:
            with pytest.raises(ZeroDivisionError), toy.written_whole(path):
                raise ZeroDivisionError
        contents.append(read_folder(path))
        assert len(set(contents[-1])) == 1
        assert [file.name for file in path.parent.iterdir()] == ["model"]
        if ended.status == 0:
            break
    old = contents.count(["old"] * 2)
    assert ended.status == 0 and old > 5
    assert contents == [["old"] * 2] * old + [["new"] * 2] * (len(contents) - old)


def test_a_folder_that_is_half_removed_is_not_put_back(tmp_path):
    """Where a process is killed while it removes the old folder, and a user removes the new one."""
    for moment in range(1, 60):
        path = tmp_path / str(moment) / "model"
        write_folder(path, "old")
        ended = forked(lambda path=path: write_folder(path, "new"), killed_at(moment, path.parent))
        if path.is_dir() and read_folder(path)[0] == "new":
            shutil.rmtree(path)
        toy.clear_leftovers(list(path.parent.iterdir()))
        assert not path.exists() or read_folder(path) == ["old"] * 2
        if ended.status == 0:
            break
    assert ended.status == 0 and moment > 5


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
