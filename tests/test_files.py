"""Files and folders that are written whole or not at all."""

import pytest

from headwise.files import write_text, written_whole


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


def test_what_a_killed_writer_left_is_not_mixed_in(tmp_path):
    left = tmp_path / ".partial-model"
    left.mkdir()
    (left / "half").touch()
    with written_whole(tmp_path / "model") as partial:
        assert not partial.exists()
        partial.mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not list((tmp_path / "model").iterdir())


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
