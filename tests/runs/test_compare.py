"""A comparison gives all systems one budget, keeps what is finished, and says what it found.

Everything goes through the command, in this process, on data of which a run takes a second.
"""

import json
import math
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import judged
from support.run_folders import (
    OWN_CODE,
    compare,
    comparison,
    files_of,
    found,
    headwise,
    missing,
    recipe_of,
    result,
    rows,
    runs,
    score,
    weights,
)
from support.small_world import (
    EVALUATE_EVERY,
    PARTS,
    STEPS,
    texts_of,
    tokens_of,
    watched,
    write_part,
)
from support.tiny_tasks import write_recipe

SEEDS = ("--seeds", "1,2")


@pytest.fixture(scope="module")
def compared(recipe, tmp_path_factory):
    """One system with one seed and then, in the same folder, two with two; what models were given.

    `batches` are those of each run, in the order in which they were trained.
    """
    folder = tmp_path_factory.mktemp("runs") / "compared"
    with watched() as seen:
        compare(recipe, folder, "standard", "--seeds", "1")
        first = files_of(folder / "standard-seed1")
        count = len(seen)
        compare(recipe, folder, "standard,gated", *SEEDS)
    earlier, later = (
        [each.batches for each in part if each.batches] for part in (seen[:count], seen[count:])
    )
    names = ["standard-seed1", "gated-seed1", "standard-seed2", "gated-seed2"]
    batches = dict(zip(names, [earlier[0], *later[:3]], strict=True))
    return SimpleNamespace(folder=folder, runs=runs(folder), batches=batches, first=first)


@pytest.fixture
def copied(compared, tmp_path):
    """A copy of the comparison, to go on in."""
    return shutil.copytree(compared.folder, tmp_path / "runs")


# The budget


def test_every_system_has_a_run_with_every_seed(compared):
    assert sorted(compared.runs) == sorted(compared.batches)
    for name, run in compared.runs.items():
        system, _, seed = name.partition("-seed")
        assert recipe_of(run)["training"]["seed"] == result(run)["seed"] == int(seed)
        assert recipe_of(run)["model"].get("attention", "standard") == system


@pytest.mark.parametrize("seed", [1, 2])
def test_all_systems_take_the_same_steps_on_the_same_batches(compared, recipe, seed):
    standard, gated = (compared.batches[f"{name}-seed{seed}"] for name in ("standard", "gated"))
    assert standard == gated
    assert len(standard) == result(compared.runs[f"gated-seed{seed}"])["steps"] == STEPS
    texts = tokens_of(recipe.parent, "train", compared.runs["standard-seed1"])
    assert all(text in texts for batch in standard for text in batch)


def test_each_seed_has_an_order_and_weights_of_its_own(compared):
    for name in ("standard", "gated"):
        first, second = (f"{name}-seed{seed}" for seed in (1, 2))
        assert compared.batches[first] != compared.batches[second]
        tensors = [weights(compared.runs[run]) for run in (first, second)]
        matrices = [key for key, weight in tensors[0].items() if weight.dim() == 2]
        assert matrices
        for key in matrices:  # far apart: other starts, and not some steps from the same one
            pair = torch.stack([tensors[0][key], tensors[1][key]]).flatten(1)
            assert torch.corrcoef(pair)[0, 1] < 0.9


# What it says


def right(run):
    """Whether each test item was found, in percent; the score is its mean."""
    return 100.0 * np.array(rows(run))[:, 0]


def test_all_runs_are_scored_on_the_test_part_and_their_rows_give_the_score(compared, recipe):
    labels = [*texts_of(recipe.parent, "test").values()]
    assert len(labels) == PARTS["test"]
    for run in compared.runs.values():
        outputs = (run / "outputs.txt").read_text(encoding="utf-8").splitlines()
        hits = [label == output for label, output in zip(labels, outputs, strict=True)]
        assert rows(run) == [[float(is_right), 1.0] for is_right in hits]
        assert score(run) == pytest.approx(right(run).mean(), abs=1e-9)
    assert len({score(run) for run in compared.runs.values()}) > 1


def test_means_and_intervals_over_seeds_and_items_follow_from_the_rows(compared):
    systems = {
        name: judged.by_items([right(compared.runs[f"{name}-seed{seed}"]) for seed in (1, 2)])
        for name in ("standard", "gated")
    }
    for name, system in systems.items():
        row, mean = found(compared.folder, name), judged.mean(system)
        assert row["value"] == pytest.approx(mean.value) and row["reason"] == mean.reason
        for end in ("low", "high"):
            assert row[end] == pytest.approx(getattr(mean, end), nan_ok=True)
    difference = judged.difference(systems["gated"], systems["standard"])
    assert row["difference"] == pytest.approx(difference.value)
    p = math.nan if difference.reason else difference.p  # too few seeds for an interval or a test
    for name in ("p", "corrected_p"):
        assert row[name] == pytest.approx(p, nan_ok=True)
    assert math.isnan(found(compared.folder, "standard")["difference"])


def test_comparison_json_says_what_is_compared_and_its_times(compared):
    document = comparison(compared.folder)
    assert document["runs"] == {name: name.partition("-seed")[0] for name in compared.runs}
    assert list(document["systems"]) == ["standard", "gated"] == list(document["step_times"])
    assert document["step_times"]["standard"]["value"] == 1.0
    assert all(size["rows"] == PARTS[part] for part, size in document["facts"].items())
    assert not document["decoding_times"]  # a classifier generates nothing


def test_the_history_of_a_run_has_a_row_for_each_step_at_which_something_was_recorded(compared):
    run = compared.runs["gated-seed1"]
    rows = json.loads((run / "result.json").read_text())["history"]
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps))
    validated = [row["step"] for row in rows if "eval_loss" in row]
    assert validated == list(range(EVALUATE_EVERY, STEPS + 1, EVALUATE_EVERY))
    assert all(type(value) in (int, float) for row in rows for value in row.values())


def test_what_systems_decide_is_followed_over_the_training(recipe, tmp_path):
    headwise("train", recipe, "--system", "gated", "--output", tmp_path / "run",
           "--set", "training.record_decisions=true", *OWN_CODE)  # fmt: skip
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(document["units"].values()) == {"head"}
    (place, *_), rows = document["units"], document["history"]
    snapshots = [row for row in rows if f"entropy {place}" in row]
    assert [row["step"] for row in snapshots] == list(range(0, STEPS + 1, EVALUATE_EVERY))
    for row in snapshots:
        shares = [value for key, value in row.items() if key.startswith(f"share {place}/")]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert 0 < row[f"entropy {place}"] <= row[f"even entropy {place}"]


# What is finished, and what fails


def test_only_what_is_new_is_trained_and_further_test_sets_are_scored(compared, copied, recipe):
    after = files_of(compared.folder / "standard-seed1")
    for name in ("result.json", "model/model.safetensors"):  # the first has what the clock measured
        assert after[name] == compared.first[name]
    with watched() as seen:
        compare(recipe, copied, "standard,gated", *SEEDS)
        assert not any(each.evaluated for each in seen)
    for part in ("validation", "train"):  # other texts under the same name are new
        change = f"data.tests.more.files.test={recipe.parent}/{part}.tsv"
        with watched() as seen:
            compare(recipe, copied, "standard,gated", *SEEDS, "--set", change)
        texts = {*tokens_of(recipe.parent, part, compared.runs["gated-seed1"])}
        assert [each.evaluated for each in seen if each.evaluated] == [texts] * 4  # no test text
    for name, run in runs(copied).items():
        assert result(run) == result(compared.runs[name])
    assert math.isfinite(found(copied, "gated", "more")["difference"])


def test_printed_commands_train_what_the_command_would(compared, recipe, tmp_path):
    folder = tmp_path / "runs"
    arguments = ("compare", recipe, "--systems", "standard,gated", "--output", folder, *OWN_CODE)
    printed = headwise(*arguments, "--print-commands").stdout.splitlines()
    assert len(printed) == 2 and not runs(folder)
    for line in printed:
        program, *words = shlex.split(line)
        assert program == "headwise"
        headwise(*words)
    for name, run in runs(folder).items():
        assert result(run) == result(compared.runs[name])
    assert headwise(*arguments, "--print-commands").stdout == ""
    headwise(*arguments)
    assert missing(folder) == []


def test_of_runs_that_raise_or_diverge_the_others_know_nothing(compared, copied, recipe, trouble):
    trouble("raises")
    text = compare(recipe, copied, "standard,troubled,diverging", status=1)
    assert "troubled" in text and "no heads today" in text
    assert missing(copied) == ["troubled-seed1"]
    run = result(copied / "diverging-seed1")
    assert math.isnan(float(run["validation_loss"]))
    assert run["steps"] == EVALUATE_EVERY  # it ends where it is seen
    # Its scores count for nothing, and are no difference.
    row = found(copied, "diverging")
    assert math.isnan(row["value"]) and math.isnan(row["difference"])
    assert found(copied, "standard")["value"] == score(compared.runs["standard-seed1"])
    assert result(copied / "standard-seed1") == result(compared.runs["standard-seed1"])


def test_an_interrupted_comparison_goes_on_to_the_same_result(compared, copied, recipe, trouble):
    systems = "standard,troubled"
    trouble("SIGINT")
    compare(recipe, copied, systems, status=130)
    assert "troubled-seed1" not in runs(copied)
    trouble(None)
    with watched() as seen:
        compare(recipe, copied, systems)
    # Its fourth step was the last before: the first to come is the fifth. All else is finished.
    trained = next(each.batches for each in seen if each.batches)
    assert trained == compared.batches["standard-seed1"][4:]
    # `troubled` is the standard system, once its trouble is over.
    assert result(copied / "troubled-seed1") == result(compared.runs["standard-seed1"])


def test_of_runs_side_by_side_those_that_raise_or_are_killed_take_no_other_with_them(
    compared, copied, recipe, trouble
):
    trouble("raises SIGKILL")  # with seeds 2 and 1
    shutil.rmtree(copied / "gated-seed2")
    text = compare(recipe, copied, "gated,troubled", *SEEDS, "--jobs", "3", status=1)
    assert "raise RuntimeError" in text  # the last lines of its log
    failed = {"troubled-seed1": "SIGKILL", "troubled-seed2": "no heads today"}
    for name, reason in failed.items():
        lines = [line for line in text.splitlines() if name in line and reason in line]
        assert len(lines) == 2  # when it failed, and at the end
    assert missing(copied) == list(failed)
    trouble(None)
    compare(recipe, copied, "gated,troubled", *SEEDS)
    assert missing(copied) == []
    # `troubled` is the standard system, once its trouble is over.
    for name, run in runs(copied).items():
        assert result(run) == result(compared.runs[name.replace("troubled", "standard")])
    tensors, expected = weights(copied / "gated-seed2"), weights(compared.runs["gated-seed2"])
    assert all(torch.equal(tensors[name], weight) for name, weight in expected.items())


# Of one size, on several data


def test_matched_systems_have_as_many_parameters_as_the_first(compared, recipe, tmp_path):
    before = {name: result(run)["parameters"] for name, run in compared.runs.items()}
    assert abs(before["gated-seed1"] / before["standard-seed1"] - 1) > 0.005
    compare(recipe, tmp_path / "runs", "standard,gated", "--match", "parameters")
    sizes = {}
    for name, run in runs(tmp_path / "runs").items():
        sizes[name] = sum(weight.numel() for weight in weights(run).values())
        assert result(run)["parameters"] == sizes[name]
    assert sizes["standard-seed1"] == before["standard-seed1"]
    assert abs(sizes["gated-seed1"] / sizes["standard-seed1"] - 1) <= 0.005
    depths = {recipe_of(run)["model"]["layers"] for run in runs(tmp_path / "runs").values()}
    assert len(depths) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("systems.moa.model.attention.size=2K4E512D", "seeds=[1]"), "moa"),
        (("datasets.same={}", "datasets.wrong.files.train=nowhere.tsv"), "nowhere.tsv"),
    ],
)
def test_what_cannot_be_compared_is_told_before_anything_is_trained(
    recipe, tmp_path, options, word
):
    """A size that no width gives, and data that cannot be read."""
    changes = [part for option in options for part in ("--set", option)]
    changes += ["--match", "parameters"]
    assert word in compare(recipe, tmp_path / "runs", "standard,moa", *changes, status=2)
    assert not list(tmp_path.rglob("*-seed1"))


def test_data_sets_side_by_side_are_those_alone(compared, recipe, tmp_path):
    (tmp_path / "other").mkdir()
    write_part(tmp_path / "other", "train", seed=9)
    other = f"datasets.other.files.train={tmp_path}/other/train.tsv"
    changes = ("--set", other, "--set", "datasets.same={}")
    compare(recipe, tmp_path / "runs", "standard", *changes)
    folders = {name: tmp_path / "runs" / name / "standard-seed1" for name in ("other", "same")}
    alone = result(compared.runs["standard-seed1"])
    assert result(folders["same"]) == alone
    assert result(folders["other"])["validation_loss"] != alone["validation_loss"]
    for name, files in (("other", tmp_path / "other"), ("same", recipe.parent)):
        trained_on = recipe_of(folders[name])["data"]["files"]["train"]
        assert trained_on == f"{files}/train.tsv"


def test_a_system_that_starts_afresh_is_encoded_as_the_one_that_does_not(tmp_path, monkeypatch):
    """Also by a process of its own, which sees nothing of the other system."""
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe("language-modelling", tmp_path)
    headwise("train", recipe, "--output", "pretrained")
    (tmp_path / "text.txt").write_text("other words than those before\n" * 200, encoding="utf-8")
    warm = "systems.warm.model.pretrained=pretrained"
    options = ("--systems", "standard,warm", "--set", warm, "--output", "runs")
    for line in headwise("compare", recipe, *options, "--print-commands").stdout.splitlines():
        headwise(*shlex.split(line)[1:])
    headwise("compare", recipe, *options)
    tokenizers = {run.name: run / "model" / "tokenizer.json" for run in runs(Path("runs")).values()}
    expected = Path("pretrained", "model", "tokenizer.json").read_text()
    assert {name: path.read_text() for name, path in tokenizers.items()} == {
        "standard-seed1": expected,
        "warm-seed1": expected,
    }
