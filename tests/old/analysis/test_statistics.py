"""Intervals and tests of chance: against scipy, against loops, and by simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from headwise.analysis.statistics.estimates import (
    POWER,
    SIGNIFICANT,
    Difference,
    Estimate,
    corrected,
    holm,
    mean_difference,
    mean_estimate,
)
from headwise.analysis.statistics.seeds_and_items import (
    Resampled,
    compare_outcomes,
    contrast,
    difference,
    estimate,
    resampled,
)
from headwise.tasks.outcome import Outcome, Score
from headwise.tasks.significance import LEAST_ITEMS, resampled_scores

OURS, THEIRS = [5.0, 5.4, 4.7, 5.2], [4.0, 4.9, 4.1]


def mean_of(rows, counts):
    """The mean of resamples, all at once."""
    return counts @ rows[:, 0] / len(rows)


def of_scores(scores, resamples=50):
    """Seeds that have the same score on every resample: the items add nothing."""
    values = np.array(scores)
    return Resampled(values, np.repeat(values[:, None], resamples, axis=1), 100)


def of_items(runs):
    """The means of runs, each a list of a number per item."""
    rows = [np.array(run)[:, None] for run in runs]
    return Resampled(
        np.array([r.mean() for r in rows]), resampled_scores(rows, mean_of), len(rows[0])
    )


def outcome(values, name="accuracy", has_items=True):
    rows = np.array(values)[:, None]
    score = Score.of(name, rows, mean_of)
    return Outcome.of([(score, rows)]) if has_items else Outcome(scores=[score])


def made(value, p=0.5, source="seeds and items"):
    return Difference(value=value, low=value - 1, high=value + 1, error=0.4, freedom=3.0,
                      source=source, p_value=p, corrected_p_value=p, detectable=1.0)  # fmt: skip


# --- seeds alone ------------------------------------------------------------------------------


@pytest.mark.parametrize("has_items", [True, False])
def test_seeds_alone_are_judged_by_welchs_test(has_items):
    ours, theirs = of_scores(OURS), of_scores(THEIRS)
    if not has_items:
        ours, theirs = (each._replace(resamples=None, items=0) for each in (ours, theirs))
    expected = scipy.stats.ttest_ind(OURS, THEIRS, equal_var=False)
    found = difference(ours, theirs)
    assert found.value == pytest.approx(np.mean(OURS) - np.mean(THEIRS))
    assert found.p_value == found.corrected_p_value == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.freedom == pytest.approx(expected.df)
    assert found.source == ("seeds and items" if has_items else "seeds")


@pytest.mark.parametrize("has_items", [True, False])
def test_the_mean_of_seeds_alone_has_students_interval(has_items):
    system = of_scores(OURS)
    if not has_items:
        system = system._replace(resamples=None, items=0)
    found = estimate(system)
    low, high = scipy.stats.t.interval(0.95, 3, np.mean(OURS), scipy.stats.sem(OURS))
    assert (found.value, found.error) == pytest.approx((np.mean(OURS), scipy.stats.sem(OURS)))
    assert (found.low, found.high, found.freedom) == pytest.approx((low, high, 3))
    assert (found.source, found.seeds) == ("seeds and items" if has_items else "seeds", 4)


# --- items ------------------------------------------------------------------------------------


def test_seeds_that_agree_leave_the_bootstrap_of_items():
    generator = np.random.default_rng(0)
    ours, theirs = generator.normal([[0.4], [0.0]], 1.0, size=(2, 50))
    found = difference(of_items([ours] * 3), of_items([theirs] * 3))
    scores = resampled_scores([(ours - theirs)[:, None]], mean_of)
    error = scores.std(ddof=1)
    half = error * scipy.stats.t.ppf(0.975, 49)
    value = (ours - theirs).mean()
    assert (found.value, found.error) == pytest.approx((value, error))
    assert (found.low, found.high) == pytest.approx((value - half, value + half))
    assert found.p_value == pytest.approx(2 * scipy.stats.t.sf(abs(value) / error, 49))


def test_both_parts_add_up_as_the_definition_says():
    """V_items + Σ max(0, s² − e) / S, with e from what is a seed's own in the resamples."""
    generator = np.random.default_rng(1)
    items = generator.normal(size=60)
    runs = {
        name: [items + shift + generator.normal(size=60) for shift in shifts]
        for name, shifts in (("ours", (0.9, 0.2, 1.4)), ("theirs", (0.1, -0.2)))
    }
    systems = {name: of_items(of) for name, of in runs.items()}
    found = difference(systems["ours"], systems["theirs"])
    means = {name: system.resamples.mean(0) for name, system in systems.items()}
    by_items = np.var(means["ours"] - means["theirs"], ddof=1)
    variance, doubt = by_items, by_items**2 / 59
    for name, system in systems.items():
        seeds = len(runs[name])
        own = sum(np.var(of_seed - means[name], ddof=1) for of_seed in system.resamples)
        among = np.var([np.mean(run) for run in runs[name]], ddof=1)
        variance += max(0.0, among - own / (seeds - 1)) / seeds
        doubt += (among / seeds) ** 2 / (seeds - 1)
    assert found.error == pytest.approx(math.sqrt(variance))
    assert found.freedom == pytest.approx(variance**2 / doubt)


def test_a_single_seed_has_the_percentiles_of_the_items_and_is_never_significant():
    generator = np.random.default_rng(2)
    ours, theirs = generator.normal([[3.0], [0.0]], 1.0, size=(2, 100))
    one, other = of_items([ours]), of_items([theirs])
    found, mean = difference(one, other), estimate(one)
    scores = resampled_scores([(ours - theirs)[:, None]], mean_of)[0]
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(scores, [2.5, 97.5])))
    assert (mean.low, mean.high) == tuple(np.percentile(one.resamples[0], [2.5, 97.5]))
    assert found.source == mean.source == "items"
    assert found.p_value == pytest.approx(1 / 1001)
    assert not found.significant and found.detectable is None
    assert not corrected({"ours": found})["ours"].significant
    three = difference(of_items([ours] * 3), other)  # one of the two is still a single run
    assert three.source == "items" and not three.significant and three.detectable is None
    level = difference(one, one)
    assert (level.value, level.p_value, level.low, level.high) == (0.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize("seeds", [1, 3])
def test_few_items_judge_nothing(seeds):
    generator = np.random.default_rng(3)
    for items, judges in ((LEAST_ITEMS - 1, False), (LEAST_ITEMS, True)):
        ours, theirs = (of_items(generator.normal(size=(seeds, items))) for _ in range(2))
        assert (difference(ours, theirs) is not None) == judges
        assert estimate(ours).low is not None
    alone = estimate(of_items(generator.normal(size=(seeds, 1))))
    assert alone.seeds == seeds and alone.low is None and alone.error is None


# --- scores that are missing ------------------------------------------------------------------


def test_scores_that_are_no_numbers_and_runs_without_the_score_do_not_count():
    rows = np.random.default_rng(4).normal(5.0, 1.0, size=(4, 30))
    runs = [outcome(row) for row in rows]
    runs[1].scores[0].value = math.nan
    runs[2] = outcome(rows[2], "F1")
    found = resampled(runs, "accuracy", mean_of)
    assert found.scores.tolist() == [runs[0].scores[0].value, runs[3].scores[0].value]
    expected = resampled_scores([rows[0][:, None], rows[3][:, None]], mean_of)
    np.testing.assert_array_equal(found.resamples, expected)
    nothing = resampled(runs[1:2], "accuracy", mean_of)
    assert nothing.seeds == 0 and estimate(nothing) is None
    assert difference(found, nothing) is None and difference(nothing, found) is None


def test_a_score_of_which_a_run_has_no_items_is_judged_by_the_seeds():
    rows = np.random.default_rng(5).normal(size=(3, 30))
    runs = [outcome(row, has_items=number != 1) for number, row in enumerate(rows)]
    found = resampled(runs, "accuracy", mean_of)
    assert found.resamples is None and found.seeds == 3
    assert estimate(found).source == "seeds"
    one = resampled(runs[1:2], "accuracy", mean_of)
    assert estimate(one).low is None
    assert difference(one, found) is None


def test_two_scores_without_any_variance():
    ours, theirs = of_scores([5.0, 5.0]), of_scores([4.0, 4.0])
    assert difference(ours, theirs) is None  # nothing says how much would be chance
    level = difference(ours, ours)
    assert (level.value, level.p_value, level.significant, level.detectable) == (0, 1, False, None)
    assert (estimate(ours).low, estimate(ours).high) == (5.0, 5.0)


# --- a table ----------------------------------------------------------------------------------


def test_a_table_has_all_estimates_and_the_differences_of_the_first_score():
    generator = np.random.default_rng(7)
    outcomes = {}
    for name, better in (("standard", 0.0), ("wide", 2.0), ("deep", 0.05), ("lost", 0.0)):
        outcomes[name] = []
        for _ in range(0 if name == "lost" else 3):
            rows = generator.normal(better, 1.0, size=(40, 1))
            scores = [(Score.of(score, rows, mean_of), rows) for score in ("first", "second")]
            outcomes[name].append(Outcome.of(scores))
    asked = []
    estimates, differences = compare_outcomes(
        outcomes, "standard", lambda name: asked.append(name) or mean_of
    )
    assert set(asked) == {"first", "second"}
    assert {name: list(of) for name, of in estimates.items()} == {
        "standard": ["first", "second"],
        "wide": ["first", "second"],
        "deep": ["first", "second"],
        "lost": [],
    }
    assert list(differences) == ["wide", "deep", "lost"] and differences["lost"] is None
    assert differences["wide"].significant and not differences["deep"].significant
    alone = difference(*(resampled(outcomes[n], "first", mean_of) for n in ("wide", "standard")), 3)
    assert differences["wide"].p_value == alone.p_value
    assert differences["wide"].detectable == alone.detectable
    assert differences["wide"].corrected_p_value == pytest.approx(2 * alone.p_value)
    _, none = compare_outcomes({"wide": outcomes["wide"]}, "standard", lambda _: mean_of)
    assert none == {}


def test_holms_correction_is_that_of_its_definition():
    generator = np.random.default_rng(8)
    for number in (1, 2, 5, 12):
        p_values = [*generator.uniform(0, 0.3, number - 1), 0.02]
        for each, found in zip(p_values, holm(p_values), strict=True):
            # The largest of the products of all p-values up to this one in ascending order.
            expected = max(
                (number - sum(p < smaller for p in p_values)) * smaller
                for smaller in p_values
                if smaller <= each
            )
            assert found == pytest.approx(min(1.0, expected))
    assert holm([]) == []
    assert holm([0.02, 0.02, 0.9]) == pytest.approx([0.06, 0.06, 0.9])  # ties


def test_differences_that_there_are_not_do_not_count_in_the_correction():
    found = corrected({"a": made(1.0, p=0.02), "b": None, "c": made(1.0, p=0.04)})
    assert found["b"] is None
    assert found["a"].corrected_p_value == found["c"].corrected_p_value == pytest.approx(0.04)
    assert found["a"].p_value == 0.02  # the uncorrected one stays


# --- power ------------------------------------------------------------------------------------


@pytest.mark.parametrize("comparisons", [1, 5])
def test_the_detectable_difference_is_found_with_the_power_that_is_said(comparisons):
    found = difference(of_scores(OURS), of_scores(THEIRS), comparisons)
    generator = np.random.default_rng(9)
    true = found.detectable / found.error
    spread = np.sqrt(generator.chisquare(found.freedom, 40_000) / found.freedom)
    t = (generator.normal(size=40_000) + true) / spread
    critical = scipy.stats.t.ppf(1 - 0.05 / comparisons / 2, found.freedom)
    assert np.mean(t > critical) == pytest.approx(POWER, abs=0.008)


# --- the mean over data sets ------------------------------------------------------------------


def test_the_variance_of_a_mean_over_data_sets_is_the_sum_over_the_square_of_their_number():
    parts = [
        made(value).model_copy(update={"error": error, "freedom": freedom})
        for value, error, freedom in ((1.0, 0.3, 2.0), (2.0, 0.4, 5.0), (0.0, 1.2, 4.0))
    ]
    found = mean_difference(parts)
    variance = (0.3**2 + 0.4**2 + 1.2**2) / 9
    freedom = (9 * variance) ** 2 / (0.3**4 / 2 + 0.4**4 / 5 + 1.2**4 / 4)
    assert (found.value, found.error) == pytest.approx((1.0, math.sqrt(variance)))
    assert found.freedom == pytest.approx(freedom)
    assert found.p_value == pytest.approx(2 * scipy.stats.t.sf(1 / found.error, freedom))
    half = scipy.stats.t.ppf(0.975, freedom) * found.error
    estimates = [
        Estimate(**part.model_dump(include={"value", "low", "high", "error", "freedom", "source"}),
                 seeds=seeds) for part, seeds in zip(parts, (3, 2, 3), strict=True)
    ]  # fmt: skip
    mean = mean_estimate(estimates)
    assert (mean.low, mean.high) == pytest.approx((1.0 - half, 1.0 + half))
    assert (mean.low, mean.high) == pytest.approx((found.low, found.high))
    assert (mean.value, mean.seeds, mean.source) == (pytest.approx(1.0), 2, "seeds and items")
    estimates[1] = Estimate(value=2.0, source="seeds", seeds=1)
    assert mean_estimate(estimates).low is None and mean_estimate(estimates).value == mean.value


# --- contrasts of several means ---------------------------------------------------------------


def test_the_variance_of_a_change_is_that_of_four_means():
    generator = np.random.default_rng(4)
    several = [of_scores(generator.normal(mean, 1.0, 5)) for mean in (3.0, 1.0, 2.0, 1.5)]
    last, base, first, base_before = (each._replace(resamples=None, items=0) for each in several)
    found = contrast([last, base, first, base_before])
    a, b, c, d = (system.scores.mean() for system in several)
    parts = [system.scores.var(ddof=1) / 5 for system in several]
    assert found.value == pytest.approx((a - b) - (c - d))
    assert found.error == pytest.approx(np.sqrt(sum(parts))) and found.source == "seeds"
    assert found.freedom == pytest.approx(sum(parts) ** 2 / sum(p**2 / 4 for p in parts))
    single = last._replace(scores=last.scores[:1])
    assert contrast([single, base, first, base_before]) is None


def test_what_items_do_to_all_runs_is_no_part_of_a_change():
    generator = np.random.default_rng(5)
    items = generator.normal(0, 5.0, 100)  # easy and hard ones, for all runs alike
    rows = [mean + items + generator.normal(0, 0.1, (4, 100)) for mean in (2.0, 1.0, 1.5, 1.0)]
    last, base, first, base_before = map(of_items, rows)
    found = contrast([last, base, first, base_before])
    assert found.value == pytest.approx(0.5, abs=0.1) and found.error < 0.05
    # With one baseline at both points the trend is the difference of the system's own means.
    alone = difference(last, first)
    assert contrast([last, base, first, base]).value == pytest.approx(alone.value)


def test_a_change_that_is_none_is_seldom_significant():
    """Of many questions without a true change at most about 5% find one; here it is 4%."""
    generator = np.random.default_rng(6)
    picks = generator.integers(40, size=(100, 40))

    def scores(items):
        rows = items + generator.normal(0, 1.0, (3, 40)) + generator.normal(0, 0.3, (3, 1))
        return Resampled(rows.mean(1), rows[:, picks].mean(2), 40)

    p_values = []
    for _ in range(200):
        items = generator.normal(0, 2.0, 40)
        several = [scores(items) for _ in range(4)]
        p_values.append(contrast(several).p_value)
    assert 0.0 < np.mean(np.array(p_values) < 0.05) < 0.09


# --- simulation -------------------------------------------------------------------------------


def _simulated(generator, systems=2, seeds=3, items=40):
    """Equally good systems: items, a system's way with them, seeds, and a seed's way with them."""
    shared = generator.normal(size=items)
    own = shared + 0.4 * generator.normal(size=(systems, 1, items))
    by_seed = 0.25 * generator.normal(size=(systems, seeds, 1))
    return own + by_seed + 0.6 * generator.normal(size=(systems, seeds, items))


def test_it_errs_as_seldom_as_it_says_and_the_first_seed_alone_does_not():
    generator = np.random.default_rng(10)
    trials, found, of_first, missed = 400, 0, 0, 0
    for _ in range(trials):
        ours, theirs = map(of_items, _simulated(generator))
        judged_both = difference(ours, theirs)
        found += judged_both.significant
        missed += not judged_both.low <= 0 <= judged_both.high
        first = [Resampled(s.scores[:1], s.resamples[:1], s.items) for s in (ours, theirs)]
        of_first += difference(*first).p_value < SIGNIFICANT
        for system in (ours, theirs):
            mean = estimate(system)
            assert mean.low < mean.value < mean.high
    # Of 400 true hypotheses 20 may fail; 29 are two standard errors more.
    assert found == missed <= 29
    assert of_first > 60
