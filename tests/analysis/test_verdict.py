"""The sentence at the top of the report says what the numbers say."""

import math
import re

import pytest
from synthetic import ALL, comparison, of_task

from headwise.analysis.results import Comparison, SystemSummary
from headwise.analysis.verdict import verdict


def _with_bleu(**bleu: float) -> Comparison:
    """Systems of this quality; nan is one that diverged."""
    made = comparison(tuple(name.replace("_", "-") for name in bleu))
    for system, value in zip(made.systems, bleu.values(), strict=True):
        for run in system.runs:
            score = run.scores[0]
            score.value, score.low, score.high = value, value - 1, value + 1
            run.validation_loss = math.nan if math.isnan(value) else 2.0
        if system.paired_test is not None:
            system.paired_test.difference = value - bleu["standard"]
    return made


def test_a_significant_winner_and_its_cost() -> None:
    assert verdict(comparison()) == (
        "mae-7 is best, 27.3 BLEU (95% interval 25.4 to 29.4): 0.9 above the baseline standard, "
        "a significant difference (paired bootstrap, p = 0.012), at 1.06× the time per step and "
        "1.01× the parameters. moa shows no significant difference from the baseline."
    )


def test_six_systems_each_told_of_once() -> None:
    made = comparison(ALL)
    assert verdict(made).endswith(
        "1.04× the parameters. Of the others, tim is significantly better than the baseline; "
        "weighted is significantly worse than it; agreement and moa show no significant "
        "difference from it."
    )
    assert all(len(re.findall(rf"\b{name}\b", verdict(made))) == 1 for name in ALL)
    many = verdict(comparison(ALL, seeds=3))
    assert many.endswith("no significant difference from it (tests of the first seed).")
    for name in ("agreement", "moa", "weighted"):
        _find(made, name).runs[0].validation_loss = math.nan
    assert verdict(made).endswith(
        " Of the others, tim is significantly better than the baseline; weighted, agreement and "
        "moa diverged."
    )


def test_others_where_the_baseline_wins() -> None:
    made = _with_bleu(standard=30.0, moa=27.0, weighted=26.0, tim=25.0)
    assert "the closest, moa, is 3.0 below" in verdict(made)
    assert verdict(made).endswith(
        "Of the others, weighted and tim are significantly worse than the baseline."
    )


def _find(made: Comparison, name: str) -> SystemSummary:
    return next(system for system in made.systems if system.name == name)


def test_a_lead_that_may_be_chance_and_a_time_not_measured() -> None:
    made = _with_bleu(standard=26.0, moa=27.0)
    made.systems[1].relative_step_time = None
    assert "1.0 above the baseline standard, a difference that may be chance" in verdict(made)
    assert verdict(made).endswith("p = 0.210), at 1.01× the parameters.")


def test_the_threshold_is_strict() -> None:
    made = _with_bleu(standard=26.0, moa=27.0)
    made.systems[1].paired_test.p_value = 0.05
    assert "may be chance" in verdict(made)
    made.systems[1].paired_test.p_value = 0.0499
    assert "a significant difference" in verdict(made)


def test_the_baseline_wins_and_wins_ties() -> None:
    assert verdict(_with_bleu(moa=25.0, mae_7=25.5, standard=26.0)).startswith(
        "No system beats the baseline standard, 26.0 BLEU (95% interval 25.0 to 27.0): the "
        "closest, mae-7, is 0.5 below, a significant difference"
    )
    assert "the closest, moa, is level with it" in verdict(_with_bleu(moa=26.0, standard=26.0))


def test_a_lead_that_rounds_to_nothing() -> None:
    made = _with_bleu(standard=26.0, moa=26.03)
    assert "less than 0.1 above the baseline" in verdict(made)


def test_seeds_may_contradict_the_test_of_the_first() -> None:
    made = comparison(("standard", "mae-7"), seeds=3)
    assert "mean of 3 seeds): 0.9 above the baseline" in verdict(made)
    assert "by the paired bootstrap (+0.9 in the first seed, p = 0.012)" in verdict(made)
    made.systems[1].paired_test.difference = -0.4
    assert "the first seed alone says significantly the opposite (−0.4 in" in verdict(made)


def test_systems_that_diverged() -> None:
    nan = math.nan
    assert verdict(_with_bleu(standard=nan)) == "standard diverged: there is no result."
    assert verdict(_with_bleu(standard=nan, moa=nan)).startswith("Every system diverged")
    assert verdict(_with_bleu(standard=26.0, moa=nan)).startswith("Only standard gave a result")
    made = _with_bleu(standard=nan, moa=25.0, mae_7=26.0)
    assert verdict(made).endswith("(95% interval 25.0 to 27.0); the baseline standard diverged.")


def test_one_system_and_no_baseline() -> None:
    assert verdict(comparison(("moa",))) == (
        "moa reaches 26.9 BLEU (95% interval 25.0 to 29.0) with 1.53M parameters."
    )
    assert "there is no baseline" in verdict(comparison(("moa", "mae-7")))


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("language-modelling", "86.2 word perplexity (95% interval 84.2 to 88.2): 1.8 below"),
        ("images", "3.182 bits per dimension (95% interval 3.162 to 3.202): 0.018 below"),
        ("classification", "76.9 accuracy (95% interval 75.9 to 77.9): 0.9 above"),
        ("speech", "2.46 PESQ (95% interval 2.41 to 2.50): 0.04 above"),
    ],
)
def test_other_scores_whichever_way_they_are_better(kind: str, start: str) -> None:
    said = verdict(of_task(kind))
    assert said.startswith(f"mae-7 is best, {start} the baseline standard, a significant")
    assert said.endswith(
        "Of the others, tim is significantly better than the baseline; weighted is significantly "
        "worse than it; agreement and moa show no significant difference from it."
    )


def test_a_baseline_of_lowest_perplexity() -> None:
    made = of_task("language-modelling", ("standard", "weighted"))
    assert verdict(made).startswith(
        "No system beats the baseline standard, 88.0 word perplexity (95% interval 86.0 to 90.0): "
        "the closest, weighted, is 1.6 above, a significant difference"
    )
    made.systems[1].runs[0].scores[0].value = 87.97
    assert "less than 0.1 below the baseline" in verdict(made)
    made.systems[1].runs[0].scores[0].value = 88.0
    assert "the closest, weighted, is level with it" in verdict(made)


def test_the_median_of_seeds() -> None:
    made = of_task("classification", ("standard", "moa"), seeds=3)
    made.centre = "median"
    made.systems[1].runs[2].scores[0].value = 99.0
    assert "moa is best, 76.8 accuracy (median of 3 seeds): 0.5 above" in verdict(made)


def test_a_score_without_interval_and_without_a_value() -> None:
    made = of_task("speech", ("standard", "moa"))
    for system in made.systems:
        system.runs[0].scores[0].low = system.runs[0].scores[0].high = None
    assert verdict(made).startswith("moa is best, 2.44 PESQ: 0.02 above the baseline")
    made.systems[0].runs[0].scores[0].value = math.nan
    assert verdict(made) == "Only moa gave a result, 2.44 PESQ: the other systems gave none."
    made.systems[1].runs[0].scores[0].value = math.nan
    assert verdict(made) == "No system has a PESQ."
