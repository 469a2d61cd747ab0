"""The sentence at the top of the report says what the numbers say."""

import math
import re

import pytest
from synthetic import ALL, comparison, judge, of_task

from headwise.analysis.results import Comparison, SystemSummary
from headwise.analysis.statistics.estimates import Difference
from headwise.report.verdict import verdict


def _with_bleu(seeds: int = 1, **bleu: float) -> Comparison:
    """Systems of this quality; nan is one that diverged."""
    made = comparison(tuple(name.replace("_", "-") for name in bleu), seeds=seeds)
    for system, value in zip(made.systems, bleu.values(), strict=True):
        middle = system.runs[seeds // 2].scores[0].value if seeds % 2 else math.nan
        for run in system.runs:
            run.scores[0].value += value - middle
            run.validation_loss = math.nan if math.isnan(value) else 2.0
    judge(made)
    return made


def _find(made: Comparison, name: str) -> SystemSummary:
    return next(system for system in made.systems if system.name == name)


def _difference(made: Comparison, name: str) -> Difference:
    found = _find(made, name).difference
    assert found is not None
    return found


def test_one_seed_says_nothing_of_the_chance_of_training() -> None:
    assert verdict(comparison(ALL)) == (
        "mae-7 is ahead, 27.3 BLEU (95% interval 25.6 to 29.1 over test sentences alone): 0.9 "
        "above the baseline standard, a difference that single runs cannot tell from the chance of "
        "training (95% interval +0.5 to +1.3 over test sentences alone), at 1.06× the time per "
        "step and 1.04× the parameters."
    )
    assert "significant" not in verdict(comparison(ALL))


def test_a_significant_winner_and_its_cost() -> None:
    assert verdict(comparison(seeds=3)) == (
        "mae-7 is ahead, 27.3 BLEU (mean of 3 seeds, 95% interval 25.4 to 29.2): 0.9 above the "
        "baseline standard, a significant difference (95% interval +0.5 to +1.3, p < 0.001), at "
        "1.06× the time per step and 1.01× the parameters. moa shows no significant difference "
        "from the baseline (a true difference of 2.2 would be found in 80% of such comparisons)."
    )


def test_six_systems_each_told_of_once() -> None:
    made = comparison(ALL, seeds=3)
    assert verdict(made).endswith(
        "1.04× the parameters. Of the others, tim is significantly better than the baseline; "
        "weighted is significantly worse than it; agreement and moa show no significant "
        "difference from it (true differences of 0.8 to 2.4, by system, would be found in 80% of "
        "such comparisons)."
    )
    assert all(len(re.findall(rf"\b{name}\b", verdict(made))) == 1 for name in ALL)
    for name in ("agreement", "moa", "weighted"):
        for run in _find(made, name).runs:
            run.validation_loss = math.nan
    judge(made)
    assert verdict(made).endswith(
        " Of the others, tim is significantly better than the baseline; weighted, agreement and "
        "moa diverged."
    )


def test_a_lead_that_may_be_chance_and_a_time_not_measured() -> None:
    made = _with_bleu(3, standard=26.0, moa=27.0)
    made.systems[1].relative_step_time = None
    found = _difference(made, "moa")
    assert verdict(made).endswith(
        f": 1.0 above the baseline standard, a difference that may be chance (95% interval "
        f"−0.4 to +2.4, p = {found.p_value:.3f}; a true difference of {found.detectable:.1f} would "
        f"be found in 80% of such comparisons), at 1.01× the parameters."
    )


def test_the_baseline_wins_and_wins_ties() -> None:
    assert verdict(_with_bleu(3, moa=25.0, mae_7=25.5, standard=26.0)).startswith(
        "No system is ahead of the baseline standard, 26.0 BLEU (mean of 3 seeds, 95% interval "
        "24.1 to 27.9): the closest, mae-7, is 0.5 below, a significant difference"
    )
    assert "the closest, moa, is level with it" in verdict(_with_bleu(moa=26.0, standard=26.0))


def test_a_lead_that_rounds_to_nothing() -> None:
    made = _with_bleu(standard=26.0, moa=26.03)
    assert "less than 0.1 above the baseline" in verdict(made)


def test_systems_that_diverged() -> None:
    nan = math.nan
    assert verdict(_with_bleu(standard=nan)) == "standard diverged: there is no result."
    assert verdict(_with_bleu(standard=nan, moa=nan)).startswith("Every system diverged")
    assert verdict(_with_bleu(standard=26.0, moa=nan)).startswith("Only standard gave a result")
    made = _with_bleu(standard=nan, moa=25.0, mae_7=26.0)
    assert verdict(made).startswith("mae-7 is ahead, 26.0 BLEU (95% interval")
    assert verdict(made).endswith("; the baseline standard diverged.")


def test_one_system_and_no_baseline() -> None:
    assert verdict(comparison(("moa",))) == (
        "moa reaches 26.9 BLEU (95% interval 24.7 to 29.3 over test sentences alone) with 1.53M "
        "parameters."
    )
    assert "there is no baseline" in verdict(comparison(("moa", "mae-7")))


@pytest.mark.parametrize(
    ("kind", "value", "interval", "lead"),
    [
        ("language-modelling", "86.2 word perplexity", "82.4 to 90.0", "1.8 below"),
        ("images", "3.182 bits per dimension", "3.144 to 3.220", "0.018 below"),
        ("classification", "76.9 accuracy", "75.0 to 78.8", "0.9 above"),
        ("speech", "2.46 PESQ", "2.36 to 2.55", "0.04 above"),
    ],
)
def test_other_scores_whichever_way_they_are_better(
    kind: str, value: str, interval: str, lead: str
) -> None:
    said = verdict(of_task(kind, seeds=3))
    assert said.startswith(
        f"mae-7 is ahead, {value} (mean of 3 seeds, 95% interval {interval}): {lead} the baseline "
        f"standard, a significant"
    )
    assert (
        "Of the others, tim is significantly better than the baseline; weighted is significantly "
        "worse than it; agreement and moa show no significant difference from it ("
    ) in said


def test_a_score_without_items_and_without_a_value() -> None:
    made = of_task("speech", ("standard", "moa"))
    judge(made, has_items=False)
    assert verdict(made).startswith(
        "moa is ahead, 2.44 PESQ: 0.02 above the baseline standard, a difference that no test has "
        "judged"
    )
    made.systems[0].runs[0].scores[0].value = math.nan
    judge(made)
    assert verdict(made).startswith("Only moa gave a result, 2.44 PESQ (95% interval")
    assert verdict(made).endswith("): the other systems gave none.")
    made.systems[1].runs[0].scores[0].value = math.nan
    judge(made)
    assert verdict(made) == "No system has a PESQ."
