"""Files and folders are written whole or not at all, and a full disk is told as what it is."""

import errno
import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import soundfile
import torch
from safetensors.torch import save_file
from support import toy_training as toy
from support.processes import forked, killed_at, unwritable
from tokenizers import Tokenizer, models

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
    found = []
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
        found.append(read_folder(path))
        assert len(set(found[-1])) == 1
        assert [each.name for each in path.parent.iterdir()] == ["model"]
        if ended.status == 0:
            break
    old = found.count(["old"] * 2)
    assert ended.status == 0 and old > 5
    assert found == [["old"] * 2] * old + [["new"] * 2] * (len(found) - old)


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


@contextmanager
def no_space():
    """No file can have more than 10,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


TENSOR = torch.zeros(100_000)
WORDS = Tokenizer(models.WordLevel({f"word {n}": n for n in range(10_000)}, "word 0"))
WRITERS = {
    "python": lambda path: path.write_text("1" * 100_000),
    "safetensors": lambda path: save_file({"weight": TENSOR}, path),
    "torch": lambda path: torch.save([TENSOR] * 3, path),
    "tokenizers": lambda path: WORDS.save(str(path)),
    "soundfile": lambda path: soundfile.write(path, TENSOR.numpy(), 8_000, format="WAV"),
}


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("library", WRITERS)
def test_a_full_disk_is_told_whichever_library_writes(tmp_path, library, is_folder):
    target = tmp_path / "model"
    with no_space(), pytest.raises(toy.NoSpaceError) as told, toy.written_whole(target) as new:
        if is_folder:
            new.mkdir()
        WRITERS[library](new / "weights" if is_folder else new)
    assert str(target) in str(told.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at inline_container.cc:672] unexpected pos"),
        RuntimeError("basic_ios::clear: iostream error"),
        soundfile.LibsndfileError(2, "Error opening 'x': "),  # "System error."
        OSError(errno.EACCES, os.strerror(errno.EACCES)),
        ValueError("os error 28"),
    ],
)
def test_an_error_on_a_disk_with_space_stays_what_it_is(tmp_path, error):
    """Of a full disk it would end all other runs too."""
    with pytest.raises(type(error)) as told, toy.written_whole(tmp_path / "model") as new:
        new.write_text("half")
        raise error
    assert told.value is error and list(tmp_path.iterdir()) == []
