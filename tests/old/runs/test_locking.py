"""Two processes in one folder: the second is refused and told of the first."""

import multiprocessing
import os
import signal
import socket

import numerals
import pytest
from typer.testing import CliRunner

from headwise.checksums import write_sums
from headwise.cli import app
from headwise.recipes import load_recipe
from headwise.runs import locking
from headwise.runs.comparing import compare_systems
from headwise.runs.locking import LOCK, LockedError, locked
from headwise.runs.preparing import claim_folder
from headwise.runs.running import RunsFailed
from headwise.training.progress import Relay


def hold(folder, told):
    with locked(folder):
        (folder / ".partial-figures.txt").write_text("1, 2")
        told.set()
        signal.pause()


@pytest.fixture
def holder(tmp_path):
    """A process that is at work in the folder `run`."""
    context = multiprocessing.get_context("fork")
    told = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "run", told))
    process.start()
    assert told.wait(60)
    yield process
    process.kill()
    process.join()


def refused(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_second_is_told_who_is_at_work(tmp_path, holder, command):
    recipe = numerals.write_recipe(tmp_path)
    before = sorted((tmp_path / "run").iterdir())
    said = refused(command, recipe, "--output", tmp_path / "run")
    host = socket.gethostname()
    assert f"run is in use by process {holder.pid} on the computer {host}" in said
    assert f"delete {tmp_path / 'run' / LOCK}" in said
    assert sorted((tmp_path / "run").iterdir()) == before


def test_what_a_killed_process_left_is_removed(tmp_path, holder):
    holder.kill()
    holder.join()
    folder = tmp_path / "run"
    assert sorted(path.name for path in folder.iterdir()) == [LOCK, ".partial-figures.txt"]
    with locked(folder):
        assert (folder / LOCK).read_text().split()[0] == str(os.getpid())
        assert [path.name for path in folder.iterdir()] == [LOCK]


def test_what_was_left_in_folders_inside_is_removed_but_not_what_is_being_written(tmp_path):
    left = [".partial-a", "model/.partial-b/c", "some/.partial-d", "link/.partial-e"]
    kept = ["run/.partial-f", "run/model/.partial-g", "run/.lock", "a.partial-"]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "elsewhere")
    for name in (*left, *kept):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def there():
        paths = (tmp_path / "folder").rglob("*")
        return {path.relative_to(tmp_path / "folder").as_posix() for path in paths}

    before = there()
    with locked(tmp_path / "folder"):  # which may hold anything
        assert there() == before - {".partial-a"} | {LOCK}
    write_sums(tmp_path / "folder")
    with locked(tmp_path / "folder"):
        of_others = {"model/.partial-b", "model/.partial-b/c", "some/.partial-d"}
        assert there() == before - {".partial-a"} - of_others | {LOCK, "SHA256SUMS"}
    assert (tmp_path / "elsewhere" / ".partial-e").is_file()


def test_the_mark_of_another_computer_stays(tmp_path):
    (tmp_path / LOCK).write_text("7\nelsewhere\n")
    with (
        pytest.raises(LockedError, match="in use by process 7 on the computer elsewhere, since 2"),
        locked(tmp_path),
    ):
        pass
    assert (tmp_path / LOCK).read_text() == "7\nelsewhere\n"
    (tmp_path / LOCK).write_text("\x00")  # cut by a crash of that computer
    with (
        pytest.raises(LockedError, match=rf"by another process: .* delete {tmp_path / LOCK}"),
        locked(tmp_path),
    ):
        pass


def test_nothing_is_left_of_a_lock(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("old", "new"):
        with pytest.raises(ValueError, match="an error"), locked(tmp_path / name):
            raise ValueError("an error")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]


def test_of_processes_that_share_a_run_the_main_one_holds_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(locking, "join", lambda: None)  # no other process is there to be met
    with locked(tmp_path / "run"):
        assert not (tmp_path / "run").exists()


def test_a_run_that_another_process_trains_fails_alone(tmp_path, monkeypatch, few_rounds):
    recipe = load_recipe(str(numerals.write_recipe(tmp_path)))
    folder = tmp_path / "runs"
    written = []
    claim_folder(folder, recipe.system(None), "comparison.yaml")
    with (
        locked(folder / "mae-seed1"),
        pytest.raises(RunsFailed, match="1 of 2 runs failed; the others are finished") as caught,
    ):
        compare_systems(
            *(recipe, ["mae", "standard"], [1], folder, "", Relay(lambda message: None, False)),
            write=written.append,
        )
    assert f"mae-seed1 is in use by process {os.getpid()}" in caught.value.failures["mae"].reason
    assert [system.name for system in written[-1].systems] == ["standard"]
