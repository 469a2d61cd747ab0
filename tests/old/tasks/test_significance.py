"""Scores of resamples, against plain loops over repeated items and closed forms."""

import math

import numpy as np
import pytest

from headwise.tasks import significance
from headwise.tasks.outcome import Score
from headwise.tasks.significance import (
    bootstrap_interval,
    of_rows,
    of_totals,
    resampled_scores,
    score_of,
)

MEAN = of_rows(np.mean)
RATIO = of_totals(lambda totals: totals[0] / totals[1])


def correlation(rows):
    return float(np.corrcoef(rows.T)[0, 1])


def loop(runs, score, resamples):
    """Each resample drawn, and each run scored on it, one after the other."""
    generator = np.random.default_rng(significance._SEED)
    items = len(runs[0])
    scores = np.empty((len(runs), resamples))
    for number in range(resamples):
        drawn = generator.integers(items, size=items)
        for run, rows in enumerate(runs):
            scores[run, number] = score(np.array([rows[item] for item in drawn]))
    return scores


def squares(rows):
    return rows**2


@pytest.mark.parametrize(
    ("statistic", "score"),
    [
        (RATIO, lambda rows: rows[:, 0].sum() / rows[:, 1].sum()),
        (of_totals(lambda totals: totals[1], squares), lambda rows: (rows[:, 1] ** 2).sum()),
        (of_rows(correlation), correlation),
    ],
    ids=["totals", "totals of other numbers", "rows"],
)
def test_all_runs_have_the_scores_of_the_same_repeated_items(statistic, score):
    runs = np.random.default_rng(0).uniform(1, 2, size=(3, 12, 2))
    found = resampled_scores(list(runs), statistic, resamples=40)
    assert found.shape == (3, 40)
    np.testing.assert_allclose(found, loop(runs, score, 40), rtol=1e-9)
    assert score_of(runs[0], statistic) == pytest.approx(score(runs[0]))
    # The resamples of a run do not depend on the runs beside it.
    np.testing.assert_array_equal(found[1:2], resampled_scores([runs[1]], statistic, resamples=40))


@pytest.mark.parametrize("at_once", [1, 30, 100])
def test_the_draws_do_not_depend_on_the_memory(monkeypatch, at_once):
    runs = list(np.random.default_rng(1).random((2, 10, 1)))
    expected = resampled_scores(runs, MEAN, resamples=25)
    monkeypatch.setattr(significance, "_DRAWN_AT_ONCE", at_once)  # 1, 3 and 10 resamples
    np.testing.assert_array_equal(resampled_scores(runs, MEAN, resamples=25), expected)


def test_the_interval_of_a_mean_is_the_normal_one():
    values = np.random.default_rng(0).normal(5.0, 2.0, size=(2000, 1))
    low, high = bootstrap_interval(values.tolist(), MEAN)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.02)
    assert high == pytest.approx(values.mean() + half, abs=0.02)
    assert bootstrap_interval(values, MEAN) == (low, high)


@pytest.mark.parametrize("items", [[], [1.0, 2.0]])
def test_what_is_no_list_of_rows_is_refused(items):
    with pytest.raises(ValueError, match="items has the shape"):
        bootstrap_interval(items, MEAN)
    with pytest.raises(ValueError, match="items has the shape"):
        score_of(items, MEAN)


def test_different_numbers_of_items_are_refused():
    with pytest.raises(ValueError, match="runs have 1 and 2 items, expected equal numbers"):
        resampled_scores([[[1.0], [2.0]], [[1.0]]], MEAN)
    with pytest.raises(ValueError, match="runs have no items"):
        resampled_scores([], MEAN)


def test_a_score_has_the_interval_of_its_statistic():
    rows = np.arange(100.0)[:, None]
    score = Score.of("mean", rows, of_rows(np.mean), digits=3, note="of numbers")
    assert score.value == 49.5 and score.low < 45 < 54 < score.high
    assert (score.digits, score.note, score.higher_is_better) == (3, "of numbers", True)
    assert score.interval == bootstrap_interval(rows, of_rows(np.mean))
    assert score == Score.of("mean", rows.tolist(), of_rows(np.mean), digits=3, note="of numbers")


def test_what_is_no_number_has_no_interval():
    score = Score.of("mean", [[1.0], [math.nan]], of_rows(np.mean))
    assert math.isnan(score.value) and score.interval is None
    # Each resample that has not the first item has no score.
    known = of_totals(lambda totals: totals[0] or math.nan)
    score = Score.of("sum", [[1.0], [0.0], [0.0]], known)
    assert score.value == 1.0 and score.interval is None
