"""Files and folders that are written whole or not at all."""

import os
import resource
from contextlib import contextmanager

import pytest
import soundfile
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from headwise.checksums import find_damage, is_changed, write_summed, write_sums
from headwise.files import NoSpaceError, write_text, written_whole


def test_a_folder_takes_the_place_of_another(tmp_path):
    for content in ("old", "new"):
        with written_whole(tmp_path / "runs" / "model") as partial:
            partial.mkdir()
            (partial / f"{content}.txt").write_text(content)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "runs" / "model").iterdir()] == ["new.txt"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_everything_is_as_before(tmp_path, error):
    with written_whole(tmp_path / "model") as partial:
        partial.mkdir()
        (partial / "weights").write_text("old")
    with pytest.raises(error), written_whole(tmp_path / "model") as partial:
        partial.mkdir()
        (partial / "weights").write_text("half")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    for name in ("file", "folder"):
        (tmp_path / name).symlink_to(tmp_path / f"other {name}")
    (tmp_path / "other file").write_text("kept")
    (tmp_path / "other folder").mkdir()
    write_text(tmp_path / "file", "new")
    with written_whole(tmp_path / "folder") as partial:
        partial.mkdir()
    assert (tmp_path / "other file").read_text() == "kept"
    assert (tmp_path / "other folder").is_dir()
    assert not any((tmp_path / name).is_symlink() for name in ("file", "folder"))


# A full disk


@contextmanager
def no_space():
    """No file can have more than 10,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


TENSOR = torch.zeros(100_000)
WORDS = Tokenizer(models.WordLevel({f"word {n}": n for n in range(10_000)}, "word 0"))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text("1" * 100_000),
        lambda path: save_file({"weight": TENSOR}, path),
        lambda path: torch.save(TENSOR, path),
        lambda path: torch.save([TENSOR] * 3, path),
        lambda path: WORDS.save(str(path)),
        lambda path: soundfile.write(path, TENSOR.numpy(), 8_000, format="WAV"),
    ],
)
def test_where_no_space_is_left_every_library_says_so(tmp_path, write):
    write_text(tmp_path / "file", "old")
    said = rf"no space to write {tmp_path}/file: .* MB are free on the file system of {tmp_path}"
    with no_space(), pytest.raises(NoSpaceError, match=said), written_whole(tmp_path / "file") as p:
        write(p)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(RuntimeError, match="a layer"), written_whole(tmp_path / "file"):
        raise RuntimeError("a layer")
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "file"):
        pass


# A power cut


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced = []

    def sync(descriptor):
        synced.append((os.fstat(descriptor).st_ino, (tmp_path / "run").exists()))

    monkeypatch.setattr("os.fsync", sync)
    with written_whole(tmp_path / "run") as partial:
        (partial / "inside").mkdir(parents=True)
        for name in ("a", "inside/b"):
            (partial / name).touch()
    inside = [(tmp_path / "run" / name).stat().st_ino for name in ("", "a", "inside", "inside/b")]
    assert sorted(synced[:-1]) == sorted((number, False) for number in inside)
    assert synced[-1] == (tmp_path.stat().st_ino, True)


# Sums


def test_sums_are_those_that_sha256sum_writes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "inside").mkdir()
    write_sums(tmp_path)
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (tmp_path / "SHA256SUMS").read_text() == f"{of_abc}  a\n"
    write_summed(tmp_path / "b", "abc")
    write_summed(tmp_path / "a", "abc")
    assert (tmp_path / "SHA256SUMS").read_text() == f"{of_abc}  a\n{of_abc}  b\n"
    assert find_damage(tmp_path) == "" and find_damage(tmp_path / "inside", ["a"]) == ""
    assert find_damage(tmp_path, ["c"]) == "c is missing"
    (tmp_path / "b").write_text("abd")
    assert find_damage(tmp_path) == "b is not as it was written"
    assert is_changed(tmp_path / "b")
    assert not is_changed(tmp_path / "a") and not is_changed(tmp_path / "c")


def test_a_kill_before_the_sum_is_written_leaves_none_that_is_wrong(tmp_path, monkeypatch):
    write_summed(tmp_path / "a", "abc")
    write_summed(tmp_path / "b", "abc")
    with monkeypatch.context() as patched:
        patched.setattr("headwise.checksums.sha256_of", None)
        with pytest.raises(TypeError):
            write_summed(tmp_path / "a", "abd")
    assert (tmp_path / "a").read_text() == "abd" and not is_changed(tmp_path / "a")
    assert find_damage(tmp_path, ["b"]) == ""


@pytest.mark.parametrize(
    ("sums", "said"),
    [(b"", "SHA256SUMS has no line for a"), (b"\xff\x00", "SHA256SUMS has a line without a name")],
)
def test_damaged_sums_are_named_and_not_the_files(tmp_path, sums, said):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "SHA256SUMS").write_bytes(sums)
    assert find_damage(tmp_path, ["a"]) == said
