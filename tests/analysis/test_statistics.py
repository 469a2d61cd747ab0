"""Intervals and tests: scipy's where there are seeds or items alone, the definition for both."""

import math

import numpy as np
import pytest
import scipy.stats
from support import judged

from headwise.tasks.scores import Score

SYSTEM, BASELINE = [3.1, 2.4, 3.9, 2.8], [2.0, 2.7, 1.6]
# A correlation has no value in a resample in which one of the numbers is always the same.
ONE_IN_FIFTY = [[float(n == 0), float(n)] for n in range(50)]
ONE_CASE = judged.by_items([ONE_IN_FIFTY], "pearson")


def right(*numbers):
    """A system of whose runs so many of 20 items are right."""
    runs = [[[float(n < number), 1.0] for n in range(20)] for number in numbers]
    return judged.by_items(runs, "accuracy")


def interval(result):
    return result.low, result.high


def drawn(*shape, mean=0.0, seed=0):
    return np.random.default_rng(seed).normal(mean, 1.0, shape)


# --- one source of chance ---------------------------------------------------------------------


def test_without_items_a_difference_is_welchs_and_a_mean_has_students_interval():
    expected = scipy.stats.ttest_ind(SYSTEM, BASELINE, equal_var=False)
    change = judged.difference(judged.by_seeds(SYSTEM), judged.by_seeds(BASELINE))
    assert change.value == pytest.approx(np.mean(SYSTEM) - np.mean(BASELINE))
    assert change.p == pytest.approx(expected.pvalue)
    assert interval(change) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert change.dof == pytest.approx(expected.df)
    mean, error = judged.mean(judged.by_seeds(SYSTEM)), scipy.stats.sem(SYSTEM)
    assert (mean.value, mean.error) == pytest.approx((np.mean(SYSTEM), error))
    assert interval(mean) == pytest.approx(scipy.stats.t.interval(0.95, 3, mean.value, error))


def test_seeds_that_agree_leave_the_bootstrap_of_items():
    system, baseline = drawn(50, mean=0.4), drawn(50, seed=1)
    result = judged.difference(judged.by_items([system] * 3), judged.by_items([baseline] * 3))
    error = judged.resamples_of(system - baseline).std(ddof=1)
    # Resampled means have the variance of the mean, but for the chance of a thousand resamples.
    assert error == pytest.approx(scipy.stats.sem(system - baseline), rel=0.1)
    value = (system - baseline).mean()
    assert (result.value, result.error) == pytest.approx((value, error))
    assert result.p == pytest.approx(2 * scipy.stats.t.sf(abs(value) / error, 49))


# --- both -------------------------------------------------------------------------------------


def test_seeds_and_items_add_up_as_defined():
    """V_items + Σ max(0, s² − e) / S, with e from what is a seed's own in the resamples."""
    generator = np.random.default_rng(1)
    items = generator.normal(size=60)
    systems = [
        [items + shift + generator.normal(size=60) for shift in shifts]
        for shifts in ((0.9, 0.2, 1.4), (0.1, -0.2))
    ]
    result = judged.difference(*map(judged.by_items, systems))
    resamples = [np.array([judged.resamples_of(run) for run in runs]) for runs in systems]
    means = [each.mean(0) for each in resamples]
    variance = np.var(means[0] - means[1], ddof=1)
    terms = variance**2 / 59
    for runs, resampled, mean in zip(systems, resamples, means, strict=True):
        number = len(runs)
        by_items = sum(np.var(seed - mean, ddof=1) for seed in resampled) / (number - 1)
        by_seeds = np.var([np.mean(run) for run in runs], ddof=1)
        variance += max(0.0, by_seeds - by_items) / number
        terms += (by_seeds / number) ** 2 / (number - 1)
    assert result.error == pytest.approx(math.sqrt(variance))
    assert result.dof == pytest.approx(variance**2 / terms)


def test_what_items_do_to_all_systems_is_no_part_of_a_difference():
    hard = 5.0 * drawn(100)  # easy and hard items, for all runs alike
    system, baseline = (
        judged.by_items(mean + hard + 0.1 * drawn(4, 100, seed=seed))
        for seed, mean in enumerate((2.0, 1.0), start=1)
    )
    assert judged.difference(system, baseline).error < 0.05 < judged.mean(system).error


def test_a_change_of_one_model_is_paired_over_the_items_and_its_draws():
    plain = drawn(40, mean=1.0)
    change = 0.3 + 0.2 * drawn(40, seed=1)
    result = judged.paired_change(judged.by_items([plain + change]), judged.by_items([plain]))
    assert result.error == pytest.approx(judged.resamples_of(change).std(ddof=1))
    half = scipy.stats.t.ppf(0.975, 39) * result.error
    assert interval(result) == pytest.approx((change.mean() - half, change.mean() + half))
    assert result.variance_source == "items"
    draws = [plain + change, plain - change, plain + 3 * change]
    drawn_anew = judged.paired_change(judged.by_items(draws), judged.by_items([plain]))
    assert drawn_anew.value == pytest.approx(change.mean())
    assert drawn_anew.error > result.error and drawn_anew.dof < 39
    alike = judged.paired_change(judged.by_items([plain + 0.5]), judged.by_items([plain]))
    assert alike.p == pytest.approx(0.5**39, rel=1e-6)  # of the sign test
    certain = judged.difference(right(20), right(0))
    assert (certain.value, certain.p) == (100, 2 * 0.5**20)
    assert all("alike" in each.reason and math.isnan(each.low) for each in (alike, certain))


# --- what says nothing ------------------------------------------------------------------------


def test_a_single_seed_is_never_significant():
    items, baseline = drawn(100, mean=3.0), drawn(100, seed=1)
    one, three = judged.by_items([items]), judged.by_items([items] * 3)
    for system in (one, three):
        result = judged.difference(system, judged.by_items([baseline]))
        assert result.variance_source == "items"
        assert result.p < 0.01 and math.isnan(result.detectable)
        assert result == judged.paired_change(system, judged.by_items([baseline]))
    percentiles = np.percentile(judged.resamples_of(items), [2.5, 97.5])
    assert interval(judged.mean(one)) == pytest.approx(tuple(percentiles))
    for equal in (one, judged.by_seeds([5.0, 5.0])):
        level = judged.difference(equal, equal)
        assert (level.value, level.p, *interval(level)) == (0.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize("seeds", [1, 3])
def test_few_items_judge_nothing(seeds):
    for items in (judged.MIN_ITEMS - 1, judged.MIN_ITEMS):
        pair = [judged.by_items(drawn(seeds, items, seed=seed)) for seed in range(2)]
        for result in (judged.difference(*pair), judged.paired_change(*pair), judged.mean(pair[0])):
            too_few = items < judged.MIN_ITEMS
            assert ("test items" in result.reason) == math.isnan(result.p) == too_few


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        # Nothing says how much would be chance.
        (judged.difference(*map(judged.by_seeds, ([5.0] * 3, [4.0] * 3))), "does not vary"),
        (judged.difference(judged.by_seeds([5.0, 5.1]), judged.by_seeds([4.0])), "a single seed"),
        (judged.difference(judged.by_seeds([5.0, 5.1]), judged.by_seeds([])), "no finite score"),
        (judged.mean(judged.by_items([[math.nan] * 20] * 3)), "no finite score"),
        (judged.difference(ONE_CASE, ONE_CASE), "resamples"),
        (judged.difference(right(20, 20), right(0, 0)), "does not vary"),
        *((judged.mean(right(*[n] * runs)), "does not vary") for n in (0, 20) for runs in (1, 3)),
    ],
)
def test_what_cannot_be_tested_says_why(result, reason):
    assert math.isnan(result.p) and math.isnan(result.low) and reason in result.reason


def test_runs_without_a_score_or_without_items():
    """Without items what these add to the seeds' variance is not taken off: nothing else has it."""
    runs = drawn(3, 12)
    with_lost = judged.by_items([*runs, [math.nan] * 12])
    assert judged.mean(with_lost) == judged.mean(judged.by_items(runs))
    for compare in (judged.difference, judged.paired_change):
        with pytest.raises(ValueError, match="12 and 13 items"):
            compare(judged.by_items(runs), judged.by_items(drawn(3, 13)))
    with_items, seeds = judged.by_items(runs), judged.by_seeds(runs.mean(1))
    result = judged.difference(with_items, judged.by_seeds(BASELINE))
    assert result == judged.difference(seeds, judged.by_seeds(BASELINE))


def test_two_seeds_have_no_interval_where_these_are_all_the_chance():
    """Student's t would make it twelve standard errors wide."""
    two = judged.by_seeds([5.0, 5.4])
    result = judged.mean(two)
    assert result.reason == "too few seeds" and math.isnan(result.low) and result.p < 1
    assert math.isnan(judged.difference(two, judged.by_seeds([4.0, 4.1])).detectable)
    assert judged.mean(judged.by_seeds([5.0, 5.4, 5.2])).reason == ""


def test_no_interval_leaves_the_range_of_its_score():
    good, bad = right(20, 19, 20, 12), right(0, 1, 0, 8)
    assert interval(judged.mean(good))[1] == 100.0 and interval(judged.mean(bad))[0] == 0.0
    assert interval(judged.difference(good, bad))[1] == 100.0
    assert interval(judged.difference(bad, good))[0] == -100.0
    assert judged.difference(good, bad).detectable < 100
    assert math.isnan(judged.difference(right(0, 20, 10), right(20, 0, 5)).detectable)
    assert str(Score.from_rows("accuracy", [[1.0, 1.0]] * 20, "accuracy")) == "accuracy 100.00"


# --- many comparisons, power, errors ----------------------------------------------------------


def test_holms_correction_is_that_of_its_definition():
    for number in (1, 2, 5, 12):
        ps = [*np.random.default_rng(number).uniform(0, 0.3, number - 1), 0.02]
        for p_value, corrected in zip(ps, judged.holm(ps), strict=True):
            # The largest of the products of all p-values up to this one in ascending order.
            smaller = [p for p in ps if p <= p_value]
            expected = max((number - sum(p < q for p in ps)) * q for q in smaller)
            assert corrected == pytest.approx(min(1.0, expected))
    assert judged.holm([0.02, 0.02, 0.9]) == pytest.approx([0.06, 0.06, 0.9])  # ties
    # A test that was not made does not count.
    assert judged.holm([0.02, math.nan, 0.5]) == pytest.approx([0.04, math.nan, 0.5], nan_ok=True)


@pytest.mark.parametrize("comparisons", [1, 5])
def test_the_detectable_difference_is_found_with_the_power_that_is_said(comparisons):
    result = judged.difference(judged.by_seeds(SYSTEM), judged.by_seeds(BASELINE), comparisons)
    generator = np.random.default_rng(9)
    chi = np.sqrt(generator.chisquare(result.dof, 40_000) / result.dof)
    t = (generator.normal(size=40_000) + result.detectable / result.error) / chi
    critical = scipy.stats.t.ppf(1 - 0.05 / comparisons / 2, result.dof)
    assert np.mean(t > critical) == pytest.approx(judged.POWER, abs=0.008)  # four standard errors


@pytest.mark.parametrize(
    ("trials", "allowed"), [(60, 8), pytest.param(2000, 120, marks=pytest.mark.nightly)]
)
def test_equally_good_systems_seldom_differ(trials, allowed):
    """Of 2,000 true hypotheses 100 may fail by the level of 5%; 120 are two errors more."""
    generator = np.random.default_rng(10)
    wrong = 0
    for _ in range(trials):
        shared = generator.normal(size=40)
        systems = shared + 0.4 * generator.normal(size=(2, 1, 40))
        seeds = systems + 0.25 * generator.normal(size=(2, 3, 1))
        runs = seeds + 0.6 * generator.normal(size=(2, 3, 40))
        result = judged.difference(*map(judged.by_items, runs))
        wrong += result.p < 0.05
        assert (result.p < 0.05) == (not result.low <= 0 <= result.high)
    assert wrong <= allowed
