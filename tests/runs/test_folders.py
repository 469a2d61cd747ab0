"""The folder of a run is enough, is of one recipe and one process, and is never half of itself."""

import shutil
from contextlib import contextmanager

import pytest
import torch
from support.processes import begun, forked, unwritable, wait_for
from support.run_folders import OWN_CODE, READ_BY, files_of, headwise, result, score
from support.small_world import STEPS, texts_of
from support.tiny_tasks import answer, read_json
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from headwise.cli import app

TEXTS = ["red green blue red", "old long square short round"]


def train(recipe, folder, *options, system="standard", status=0):
    options = ("--system", system, "--output", folder, *OWN_CODE, *options)
    return headwise("train", recipe, *options, status=status).output


def evaluate(run):
    return answer("evaluate", run)["scores"][0]["value"]


def predict(run, texts=TEXTS):
    options = [word for text in texts for word in ("--text", text)]
    lines = [line.split("\t") for line in answer("predict", run, *options)["predictions"]]
    return [{"label": label, "probability": float(number)} for label, number in lines]


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    train(recipe, run)
    return run


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run, with which anything may be done."""
    return shutil.copytree(finished, tmp_path / "run")


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
    before, predictions = score(run), predict(run)
    moved = run.rename(run.parent / name)
    assert evaluate(moved) == pytest.approx(before, abs=1e-9)
    files = files_of(moved)
    train(recipe, moved)  # it is finished
    assert files_of(moved) == files
    with away(recipe.parent):  # neither the data nor the recipe
        assert predict(moved) == predictions
        tokenizer = AutoTokenizer.from_pretrained(moved / "model")
        model = AutoModelForSequenceClassification.from_pretrained(moved / "model").eval()
        for text, expected in zip(TEXTS, predictions, strict=True):
            with torch.no_grad():
                shares = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
            assert model.config.id2label[int(shares.argmax())] == expected["label"]
            assert float(shares.max()) == pytest.approx(expected["probability"], abs=6e-5)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_the_score_of_a_part_is_that_of_what_is_predicted_for_its_texts(finished, recipe, part):
    labels = texts_of(recipe.parent, part)
    pairs = zip(predict(finished, [*labels]), labels.values(), strict=True)
    right = [prediction["label"] == label for prediction, label in pairs]
    value = answer("evaluate", finished, "--split", part)["scores"][0]["value"]
    assert value == pytest.approx(100 * sum(right) / len(right), abs=1e-9)


def test_what_a_file_manager_leaves_is_no_part_of_a_run(run, recipe, tmp_path):
    (tmp_path / "new").mkdir()
    for folder in (run, run / "model", tmp_path / "new"):
        (folder / ".DS_Store").write_bytes(b"\x00\x00\x00\x01Bud1")
    before = result(run)
    train(recipe, run)
    assert result(run) == before and evaluate(run) == score(run) and predict(run)
    train(recipe, tmp_path / "new")
    assert result(tmp_path / "new") == result(run)


# Whose it is


@pytest.mark.parametrize(
    ("key", "before", "now"),
    [
        ("training.max_steps", STEPS, 9),
        ("model.dropout", "not set", 0.25),
        ("data.max_length", 64, 32),
    ],
)
def test_the_folder_of_another_recipe_is_refused_with_the_difference(run, recipe, key, before, now):
    files = files_of(run)
    text = train(recipe, run, "--set", f"{key}={now}", status=2)
    assert all(str(part) in text for part in (run, key, before, now))
    assert files_of(run) == files


def test_a_folder_of_other_things_is_refused_and_stays(recipe, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("all my work")
    assert "thesis.tex" in train(recipe, tmp_path / "thesis", status=2)
    assert files_of(tmp_path / "thesis") == {"thesis.tex": b"all my work"}


def test_of_two_processes_one_is_refused_and_a_killed_one_holds_nothing(
    finished, recipe, tmp_path, trouble
):
    folder, at_work = tmp_path / "run", trouble("waits")

    def work():
        app(["train", str(recipe), "--system", "troubled", "--output", str(folder), *OWN_CODE])

    first = begun(work, tmp_path / "said")
    wait_for(at_work.exists, first)
    before = files_of(folder)
    second = forked(work)
    assert second.status == 2
    assert f"{folder} is in use by another process" in second.said
    assert files_of(folder) == before
    first.kill()
    first.join()
    trouble(None)
    train(recipe, folder, system="troubled")
    # `troubled` is the standard system, once its trouble is over.
    assert result(folder) == result(finished)


# Never half of itself


def test_a_finished_run_in_a_read_only_folder_is_evaluated_and_used(run):
    before, predictions = score(run), predict(run)

    def work():
        assert evaluate(run) == pytest.approx(before, abs=1e-9)
        assert predict(run) == predictions

    ended = forked(work, unwritable(run))
    assert ended.status == 0, ended.said


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_read(recipe, tmp_path):
    run = tmp_path / "run"

    def work():
        assert str(run) in train(recipe, run, status=2)

    ended = forked(work, unwritable(tmp_path))
    assert ended.status == 0, ended.said
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in train(recipe, tmp_path / "file", status=2)
    assert files_of(tmp_path) == {"file": b""}


def test_results_are_json_also_of_a_run_that_has_diverged(recipe, tmp_path):
    assert "diverged" in train(recipe, tmp_path / "run", system="diverging", status=1)
    for name in ("result.json", "outcome.json"):
        read_json((tmp_path / "run" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("damage", ["cut", "binary"])
@pytest.mark.parametrize("name", READ_BY)
def test_a_damaged_file_is_named_or_made_anew(run, recipe, name, damage):
    expected, predictions, content = result(run), predict(run), (run / name).read_bytes()
    commands = {
        "train": (recipe, "--system", "standard", "--output", run, *OWN_CODE),
        "evaluate": (run, "--json"),
        "predict": (run, "--text", TEXTS[0]),
    }
    # Within a line: whole lines of YAML may be a recipe with fewer keys.
    half = content[: len(content) // 2].rpartition(b":")[0]
    damaged = half if damage == "cut" else bytes(range(256))
    (run / name).write_bytes(damaged)
    for command in READ_BY[name]:
        done = headwise(command, *commands[command], status=None)
        if done.exit_code == 0:  # then it has mended the file, and found what was there before
            assert command == "train"
            assert result(run) == expected and predict(run) == predictions
        else:
            assert str((run / name).parent) in done.output
