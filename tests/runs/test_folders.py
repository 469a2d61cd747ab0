"""The folder of a run is enough, is of one recipe and one process, and is never half of itself."""

import errno
import multiprocessing
import shutil
import sys
import time
from contextlib import contextmanager

import pytest
import torch
from support.failing_disk import failing
from support.run_folders import OWN_CODE, READ_BY, headwise, result, score, weights
from support.small_world import STEPS, texts_of
from support.tiny_tasks import answer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

TEXTS = ["red green blue red", "old long square short round"]


def train(recipe, folder, *options, system="standard", status=0):
    given = ("--system", system, "--output", folder, *OWN_CODE, *options)
    return headwise("train", recipe, *given, status=status).output


def evaluated(run):
    return answer("evaluate", run)["scores"][0]["value"]


def predicted(run, texts=TEXTS):
    given = [each for text in texts for each in ("--text", text)]
    return answer("predict", run, *given)["predictions"]


def files_of(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    train(recipe, run)
    return run


@pytest.fixture(scope="module")
def writes(recipe, tmp_path_factory):
    """How many files a run opens to write, makes or renames in its folder."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with failing(folder, after=1_000_000) as disk:
        train(recipe, folder)
    return 1_000_000 - disk.left


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run, with which anything may be done."""
    return shutil.copytree(finished, tmp_path / "run")


def assert_same(run, other):
    """Two runs found the same, bit for bit."""
    assert result(run) == result(other)
    found, expected = weights(run), weights(other)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


# It is enough


@contextmanager
def away(folder):
    """Takes a folder away for a while."""
    hidden = folder.with_name("hidden")
    folder.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(folder)


@pytest.mark.parametrize("name", ["moved", "my runs – Übung [b] 走"])
def test_a_run_that_was_moved_is_evaluated_used_and_loaded(run, recipe, name):
    before, answered = score(run), predicted(run)
    moved = run.rename(run.parent / name)
    assert evaluated(moved) == pytest.approx(before, abs=1e-9)
    files = files_of(moved)
    train(recipe, moved)  # it is finished
    assert files_of(moved) == files
    with away(recipe.parent):  # neither the data nor the recipe
        assert predicted(moved) == answered
        tokenizer = AutoTokenizer.from_pretrained(moved / "model")
        model = AutoModelForSequenceClassification.from_pretrained(moved / "model").eval()
        for text, expected in zip(TEXTS, answered, strict=True):
            with torch.no_grad():
                found = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
            assert model.config.id2label[int(found.argmax())] == expected["label"]
            assert float(found.max()) == pytest.approx(expected["probability"], abs=1e-6)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_the_score_of_a_part_is_that_of_what_is_predicted_for_its_texts(finished, recipe, part):
    labels = texts_of(recipe.parent, part)
    made = predicted(finished, [*labels])
    right = [each["label"] == label for each, label in zip(made, labels.values(), strict=True)]
    value = answer("evaluate", finished, "--part", part)["scores"][0]["value"]
    assert value == pytest.approx(100 * sum(right) / len(right), abs=1e-9)


def test_what_a_file_manager_leaves_is_no_part_of_a_run(run, recipe, tmp_path):
    (tmp_path / "new").mkdir()
    for folder in (run, run / "model", tmp_path / "new"):
        (folder / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    before = result(run)
    train(recipe, run)
    assert result(run) == before and evaluated(run) == score(run) and predicted(run)
    train(recipe, tmp_path / "new")
    assert_same(tmp_path / "new", run)


# Whose it is


@pytest.mark.parametrize(
    ("key", "before", "now"),
    [("training.max_steps", STEPS, 9), ("model.dropout", 0.1, 0.25), ("data.max_length", 64, 32)],
)
def test_the_folder_of_another_recipe_is_refused_with_the_difference(run, recipe, key, before, now):
    files = files_of(run)
    said = train(recipe, run, "--set", f"{key}={now}", status=2)
    assert all(str(known) in said for known in (run, key, before, now))
    assert files_of(run) == files


def test_the_folder_of_a_run_on_other_data_is_refused(run, recipe):
    files, path = files_of(run), recipe.parent / "train.tsv"
    text = path.read_text()
    try:
        path.write_text(text + "blue blue blue\tbright\n")
        assert str(run) in train(recipe, run, status=2)
    finally:
        path.write_text(text)
    assert files_of(run) == files


def test_a_folder_of_other_things_is_refused_and_stays(recipe, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("all my work")
    assert "thesis.tex" in train(recipe, tmp_path / "thesis", status=2)
    assert [*files_of(tmp_path / "thesis").values()] == [b"all my work"]


def in_a_process(*arguments, said):
    """Starts `train` in a process of its own, forked from this one, which notes what it says."""

    def work():
        done = headwise("train", *arguments, status=None)
        said.write_text(done.output)
        sys.exit(done.exit_code)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def test_of_two_processes_one_is_refused_and_a_killed_one_holds_nothing(
    finished, recipe, tmp_path, trouble
):
    folder, said = tmp_path / "run", tmp_path / "said"
    command = (recipe, "--system", "troubled", "--output", folder, *OWN_CODE)
    at_work = trouble("waits")
    first = in_a_process(*command, said=tmp_path / "first")
    until = time.monotonic() + 240
    while not at_work.exists():
        assert first.is_alive() and time.monotonic() < until
        time.sleep(0.05)
    before = files_of(folder)
    second = in_a_process(*command, said=said)
    second.join(240)
    assert second.exitcode == 2
    assert str(folder) in said.read_text() and str(first.pid) in said.read_text()
    assert files_of(folder) == before
    first.kill()
    first.join()
    trouble(None)
    headwise("train", *command)
    # `troubled` is the standard system, once its trouble is over.
    assert result(folder) == result(finished)


# Never half of itself


@pytest.mark.parametrize("share", [0.02, 0.25, 0.6, 0.95])
def test_a_run_that_a_full_disk_ended_says_so_and_goes_on_where_there_is_room(
    finished, writes, recipe, tmp_path, share
):
    folder = tmp_path / "run"
    with failing(folder, errno.ENOSPC, after=round(share * writes)):
        assert "space" in train(recipe, folder, status=2)
    train(recipe, folder)
    assert_same(folder, finished)


def test_a_finished_run_in_a_read_only_folder_is_evaluated_and_used(run):
    before, answered = score(run), predicted(run)
    with failing(run):
        assert evaluated(run) == pytest.approx(before, abs=1e-9)
        assert predicted(run) == answered


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_read(recipe, tmp_path):
    with failing(tmp_path):
        assert str(tmp_path / "run") in train(recipe, tmp_path / "run", status=2)
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in train(recipe, tmp_path / "file", status=2)
    assert files_of(tmp_path) == {(tmp_path / "file").relative_to(tmp_path): b""}


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def binary(path):
    path.write_bytes(bytes(range(256)))


@pytest.mark.parametrize("damage", [cut, binary])
@pytest.mark.parametrize("name", READ_BY)
def test_a_damaged_file_is_named_or_made_anew(run, recipe, name, damage):
    expected, answered = result(run), predicted(run)
    commands = {
        "train": lambda: headwise("train", recipe, *given, status=None),
        "evaluate": lambda: headwise("evaluate", run, "--json", status=None),
        "predict": lambda: headwise("predict", run, "--text", TEXTS[0], status=None),
    }
    given = ("--system", "standard", "--output", run, *OWN_CODE)
    damage(run / name)
    for command in READ_BY[name]:
        done = commands[command]()
        if done.exit_code == 0:  # then it has mended the file, and found what was there before
            assert command == "train"
            assert result(run) == expected and predicted(run) == answered
        else:
            assert name.rpartition("/")[2] in done.output or str(run / name) in done.output
