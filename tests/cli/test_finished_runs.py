"""Finished runs are evaluated on any items, as they are or changed, and against one another."""

import json
import shutil

import pytest
from support.run_folders import headwise
from support.small_world import watched, write_part, write_world
from support.tiny_tasks import answer, run


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with the runs `gated` and `moa`, which have a further test set `valid`."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        recipe = write_world(folder)
        for system in ("gated", "moa"):
            tests = f"data.tests={{valid: {{files: {{test: {folder}/validation.tsv}}}}}}"
            line = ("train", recipe, "--system", system, "--output", folder / system)
            headwise(*line, "--set", tests)
        yield folder


@pytest.fixture
def moa(world, tmp_path):
    """A run that may be changed."""
    return shutil.copytree(world / "moa", tmp_path / "moa")


ONE_EXPERT = "moa=only-expert,expert=3"


def scores(*line: object) -> list[tuple[str, float]]:
    return [(score["name"], score["value"]) for score in answer("evaluate", *line)["scores"]]


def test_what_was_found_after_training_is_found_again(world):
    """On the test part, and on the items of another part under a name of their own."""
    result = json.loads((world / "moa" / "result.json").read_text(encoding="utf-8"))
    assert scores(world / "moa") == [(s["name"], s["value"]) for s in result["scores"]]
    validation = scores(world / "moa", "--split", "validation")
    assert validation == [(s["name"], s["value"]) for s in result["tests"]["valid"]]
    assert validation == scores(world / "moa", "--split", "valid")
    assert not any(score["rows"] for score in result["scores"])
    outcome = json.loads((world / "moa" / "outcome.json").read_text(encoding="utf-8"))
    assert len(outcome["scores"][0]["rows"]) == 80


@pytest.mark.parametrize("part", ["train", "validation"])
def test_other_data_are_evaluated_as_a_part_is(world, part):
    data = f"data.tests.more={{files: {{test: {world}/{part}.tsv}}, columns: {{text: text}}}}"
    options = ("--split", "more", "--set", data)
    assert scores(world / "moa", *options) == scores(world / "moa", "--split", part)


def test_an_ablation_changes_what_a_run_computes(world):
    """On the command line and in the recipe alike; of a system that it lacks it changes nothing."""
    run_folder = world / "moa"
    as_it_is, ablated = scores(run_folder), scores(run_folder, "--ablate", ONE_EXPERT)
    assert ablated != as_it_is
    change = "evaluation.ablation={moa: {name: only-expert, expert: 3}}"
    assert scores(run_folder, "--set", change) == ablated
    done = run("evaluate", run_folder, "--ablate", "mae=uniform", "--json")
    assert "mae" in done.stderr and json.loads(done.stdout)["scores"][0]["value"] == as_it_is[0][1]


def test_runs_are_compared_on_the_same_items(world, moa):
    document = answer("evaluate", moa, "--against", world / "gated")
    difference = document["scores"][0]["value"] - document["against"]["scores"][0]["value"]
    assert document["difference"]["value"] == pytest.approx(difference)
    pairs = ((moa, "--against", world / "gated"), (world / "gated", "--against", moa))
    shown = [run("evaluate", *pair).stdout.partition("difference of ")[2] for pair in pairs]
    lines = " ".join(text.splitlines()[0] for text in shown)
    assert "−" in lines and "-" not in lines
    itself = answer("evaluate", moa, "--against", moa)["difference"]
    assert (itself["value"], itself["p"], itself["variance_source"]) == (0, 1, "items")
    ablated = answer("evaluate", moa, "--against", world / "moa", "--ablate", ONE_EXPERT)
    assert ablated["against"]["scores"] == document["scores"] != ablated["scores"]


def test_runs_on_other_items_are_not_compared(world, moa, tmp_path):
    for part in ("train", "validation", "test"):
        shutil.copy(world / f"{part}.tsv", tmp_path)
    write_part(tmp_path, "test", seed=9)
    recipe = (moa / "recipe.yaml").read_text(encoding="utf-8")
    changed = recipe.replace(f"{world}/test.tsv", f"{tmp_path}/test.tsv")
    assert changed != recipe
    (moa / "recipe.yaml").write_text(changed, encoding="utf-8")
    with watched() as seen:
        done = run("evaluate", moa, "--against", world / "gated")
    assert done.exit_code == 2 and "same items" in done.stderr
    assert not seen  # it is found before anything is evaluated
    assert str(moa) in done.stderr and str(world / "gated") in done.stderr
    assert "other data" in done.output.replace("\n", " ")  # than it was trained on


def test_a_model_of_other_data_is_refused_by_what_differs(world, moa, tmp_path):
    rows = (world / "train.tsv").read_text(encoding="utf-8").replace("\tdull", "\tdim")
    (tmp_path / "dim.tsv").write_text(rows, encoding="utf-8")
    done = run("evaluate", moa, "--set", f"data.files.train={tmp_path}/dim.tsv", "--split", "train")
    assert done.exit_code == 2 and "dim" in done.stderr, done.output


def test_a_record_that_cannot_be_read_is_told_with_how_to_get_it_again(world, moa):
    (moa / "outcome-valid.json").write_text("{", encoding="utf-8")
    done = run("train", moa)
    assert done.exit_code == 2
    assert str(moa / "outcome-valid.json") in done.stderr and "result.json" in done.stderr
