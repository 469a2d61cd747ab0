"""Scores against a key of recipes: means, intervals, levels, and the page."""

import math
import re

import pytest
import scipy.stats
import yaml
from synthetic import comparison

from headwise.analysis.score_curve import score_curve
from headwise.report.score_curve import curve_rows, render_curve
from headwise.runs.reading import gather_runs


def run(system, bleu, seed=1, **changes):
    """A made-up result."""
    made = comparison(("standard",)).systems[0].runs[0]
    scores = [made.scores[0].model_copy(update={"value": bleu}), *made.scores[1:]]
    changes = {"history": [], **changes}
    return made.model_copy(update={"system": system, "seed": seed, "scores": scores, **changes})


def history(*losses):
    return [{"step": 10.0 * (n + 1), "eval_loss": loss} for n, loss in enumerate(losses)]


def test_means_and_intervals_over_seeds():
    seeds = [20.0, 22.0, 27.0]
    runs = [(0.5, run("a", bleu, seed)) for seed, bleu in enumerate(seeds)]
    runs += [(0.1, run("a", 5.0)), (0.5, run("a", 99.0, validation_loss=float("nan")))]
    curve = score_curve("data.train_fraction", runs)
    low, high = scipy.stats.ttest_1samp(seeds, 0.0).confidence_interval(0.95)
    single, several = curve.points  # in the order of the values
    assert (single.value, single.score, single.low, single.seeds) == (0.1, 5.0, None, 1)
    assert several.score == pytest.approx(23.0)
    assert (several.low, several.high) == pytest.approx((low, high))
    assert several.seeds == 3  # without the one that diverged


def test_a_score_that_is_no_number_is_left_out():
    bleu = {("a", 1): 2.0, ("a", 2): math.nan, ("b", 1): math.nan}
    runs = [(1.0, run(name, b, seed)) for (name, seed), b in bleu.items()]
    curve = score_curve("x", runs)
    assert [(point.seeds, point.low) for point in curve.points] == [(1, None), (0, None)]
    assert [row[2] for row in curve_rows(curve)] == ["2.0", "–"]
    curve = score_curve("x", [*runs, (2.0, run("a", math.nan))])  # a line, not a level
    assert not re.search(r"\bnan\b", render_curve(curve))


def test_trained_parameters_and_the_steps_to_the_best_loss():
    runs = [
        (1.0, run("part", 1.0, 1, trained_parameters=7, history=history(3.0, 1.0, 2.0))),
        (1.0, run("part", 1.0, 2, trained_parameters=7, history=history(3.0, 2.0, 1.0, 4.0))),
        (1.0, run("whole", 1.0)),
    ]
    part, whole = score_curve("x", runs).points
    assert (part.trained, part.best_step) == (7, 25.0)
    assert (whole.trained, whole.best_step) == (runs[-1][1].parameters, 0)


def test_other_scores_by_name():
    runs = [(1.0, run("a", 3.0, validation_loss=1.5))]
    assert score_curve("x", runs, "validation loss").points[0].score == 1.5
    second = runs[0][1].scores[1]
    assert score_curve("x", runs, second.name).points[0].score == second.value
    with pytest.raises(ValueError, match="--score is 'BLUE', expected one of BLEU"):
        score_curve("x", runs, "BLUE")
    with pytest.raises(ValueError, match="1 runs were given and all diverged"):
        score_curve("x", [(1.0, run("a", 3.0, validation_loss=float("inf")))])


def test_runs_that_differ_in_more_than_the_key_are_no_seeds():
    runs = [(16.0, run("a", 1.0, 1)), (16.0, run("a", 2.0, 2)), (16.0, run("a", 3.0, 2))]
    with pytest.raises(ValueError, match="runs of a with width = 16 have the seeds 1, 2, 2"):
        score_curve("width", runs)


@pytest.fixture
def folder(tmp_path):
    """Two runs as a comparison on data sets leaves them, as far as it matters here."""

    for share in (0.1, 1.0):
        at = tmp_path / f"share-{share}" / "a-seed1"
        (at / "model").mkdir(parents=True)
        (at / "result.json").write_text(run("a", share).model_dump_json())
        recipe = {"task": "images", "training": {"max_steps": 3}}
        recipe["data"] = {"corpus": "digits", "train_fraction": share}
        (at / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


def test_runs_are_found_with_the_value_of_the_key(folder):
    found = gather_runs([folder], "data.train_fraction")
    assert [(value, of.scores[0].value) for value, of in found] == [(0.1, 0.1), (1.0, 1.0)]
    # A run that two of the folders hold counts once.
    assert len(gather_runs([folder, folder / "share-1.0"], "data.train_fraction")) == 2


def test_keys_without_a_number_and_folders_without_runs(folder, tmp_path):
    with pytest.raises(ValueError, match=r"--over is data.corpus, .*'digits', expected a key with"):
        gather_runs([folder], "data.corpus")
    with pytest.raises(ValueError, match=r"has None, .*; did you mean 'data.train_fraction'\?"):
        gather_runs([folder], "data.fraction")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no finished run"):
        gather_runs([tmp_path / "empty"], "model.layers")
