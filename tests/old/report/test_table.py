"""The table in the terminal, and the sentence at the top of the report."""

import io
import math
import re
from html import unescape

import pytest
from rich.console import Console
from synthetic import ALL, comparison, judge, of_task

from headwise.analysis.results import Comparison, EarlyStop, SystemSummary
from headwise.analysis.statistics.estimates import Difference
from headwise.report.cells import Cell, Row
from headwise.report.formatting import heading
from headwise.report.table import (
    comparison_scores,
    comparison_table,
    early_stops,
    perplexity,
    verdict,
)


def _headers(made: Comparison) -> list[str]:
    return [column.header for column in comparison_scores(made).columns]


def _cell(made: Comparison, row: Row, header: str) -> Cell:
    return row.cells[_headers(made).index(header)]


def _printed(made: Comparison, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(comparison_table(made), crop=False)
    return capture.get()


@pytest.mark.parametrize("width", [72, 60, 50, 40])
def test_a_narrow_terminal_shows_less_but_nothing_cut_off(width: int) -> None:
    made = comparison(ALL, seeds=3)
    text = _printed(made, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    header, *lines = text.split("System")[1].splitlines()
    for row in comparison_scores(made).rows:
        assert row.name in text
        for title, cell in (
            ("BLEU", _cell(made, row, "BLEU")),
            ("Difference", _cell(made, row, "BLEU against baseline")),
        ):
            assert title in header
            assert all(part in text for part in (cell.figure, *cell.details))
    names = ("Loss", "Time", "Params", "MACs", "Detectable", "chrF")
    shown = [name in header for name in names]
    assert shown == sorted(shown, reverse=True)  # given up from the last on
    assert not all(shown)
    assert "Too narrow for" in " ".join(" ".join(lines).split())


def test_no_number_is_cut_where_even_the_least_table_does_not_fit() -> None:
    made = of_task("language-modelling")
    for system in made.systems:
        for estimate in system.estimates.values():
            estimate.value *= 1e4
        if system.difference is not None:
            system.difference.value *= 1e6
    text = _printed(made, 20)
    for row in comparison_scores(made).rows:
        assert row.name in text
        assert _cell(made, row, "Word perplexity against baseline").figure in text
        assert _cell(made, row, "Word perplexity").figure in text


def test_significance_is_a_sign() -> None:
    made = comparison(seeds=3)
    text = _printed(made)
    assert "+0.9 *" in text
    assert "+0.5 " in text and "+0.5 *" not in text
    caption = " ".join(text.split())
    assert "* p < 0.05, corrected for all comparisons." in caption
    assert "95% intervals over seeds and test sentences together." in caption
    assert "* p" not in _printed(comparison(("standard",), seeds=3))
    notes = unescape(comparison_scores(made).notes)
    assert "corrected by Holm's method for the 2 comparisons of this table" in notes
    assert "Holm" not in unescape(comparison_scores(comparison(("standard", "moa"), seeds=3)).notes)


def test_one_seed_has_no_star_and_says_why() -> None:
    made = comparison(ALL)
    text = " ".join(_printed(made).split())
    assert "*" not in text and "p <" not in text and "p =" not in text
    assert "95% intervals over test sentences alone. One seed says nothing of training's" in text
    notes = unescape(comparison_scores(made).notes)
    assert "over test sentences alone and no star: one seed says nothing" in notes
    assert "--seeds 1,2,3" in notes and "Detectable" not in notes and "significant" not in notes
    row = next(row for row in comparison_scores(made).rows if row.name == "mae-7")
    assert _cell(made, row, "BLEU against baseline") == Cell("+0.9", ("[+0.5, +1.3]",))
    # What the paired bootstrap says of these runs is in the report, under its own name.
    assert _cell(made, row, "p of these runs, over test sentences alone") == Cell("< 0.001")
    assert "Detectable" not in _headers(made)


def test_p_of_single_runs_stands_apart_from_p_of_systems() -> None:
    made = comparison(("standard", "mae-7", "moa"), seeds=3)
    assert "p of these runs, over test sentences alone" not in _headers(made)
    for run in made.systems[1].runs[1:]:
        run.validation_loss = math.nan
    judge(made)
    _, lost, other = comparison_scores(made).rows
    assert _cell(made, lost, "BLEU against baseline").details == ("[+0.4, +1.2]",)
    assert _cell(made, lost, "p, not corrected") == _cell(made, lost, "Detectable") == Cell("–")
    assert _cell(made, lost, "p of these runs, over test sentences alone") == Cell("< 0.001")
    assert _cell(made, other, "p of these runs, over test sentences alone") == Cell("–")
    assert float(_cell(made, other, "p, not corrected").figure) > 0.05
    notes = unescape(comparison_scores(made).notes)
    assert "over seeds and test sentences together or over test sentences alone." in notes
    assert "Where a system has a single run" in notes


@pytest.mark.parametrize(
    ("kind", "before", "further"),
    [
        ("language-modelling", ["Validation perplexity"], ["Bits per byte"]),
        ("images", [], []),
        ("classification", [], []),
        ("speech", [], ["PESQ noisy", "SI-SDR", "SI-SDR noisy"]),
    ],
)
def test_columns_of_other_tasks(kind: str, before: list[str], further: list[str]) -> None:
    made = of_task(kind)
    cost = ["Parameters", "MACs", "Time per step", "Validation loss"]
    first = heading(made.systems[0].runs[0].scores[0].name)
    p_value = f"p of these runs, over test {made.item_name} alone"
    assert _headers(made) == [*cost, *before, first, f"{first} against baseline", p_value, *further]
    notes = unescape(comparison_scores(made).notes)
    assert f"Loss: {made.loss_name}, on the validation part" in notes
    assert f"over test {made.item_name} alone" in notes
    assert "over a sequence of 784." in notes
    for width in (120, 80, 60, 44):
        text = _printed(made, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        for row in comparison_scores(made).rows:
            for header in (first, f"{first} against baseline"):
                assert all(line in text for line in _cell(made, row, header).lines)


def test_scores_that_are_better_when_they_are_low() -> None:
    made = of_task("language-modelling", seeds=3)
    assert "Word perplexity and bits per byte: on the test part, lower is better." in unescape(
        comparison_scores(made).notes
    )
    text = " ".join(_printed(made).split())
    assert "Word perplexity and bits per byte: lower is better." in text
    row = next(row for row in comparison_scores(made).rows if row.name == "mae-7")
    assert _cell(made, row, "Word perplexity") == Cell("86.2", ("± 0.2", "[82.4, 90.0]"))
    better = _cell(made, row, "Word perplexity against baseline")
    assert better == Cell("−1.8 *", ("[−2.7, −0.9]", "p < 0.001"), significant=True)


def test_medians_where_the_task_reports_them() -> None:
    made = of_task("classification", ("standard", "moa"), seeds=3)
    for run, value in zip(made.systems[1].runs, (70.0, 71.0, 90.0), strict=True):
        run.scores[0].value = value
    judge(made)
    assert "Median of seeds" not in _headers(made)
    made.centre = "median"
    for width in (80, 140):
        assert "Median" in _printed(made, width)
    row = comparison_scores(made).rows[1]
    assert _cell(made, row, "Median of seeds") == Cell("71.0")
    # What is ranked and tested stays the mean.
    assert _cell(made, row, "Accuracy").lines[:2] == ("77.0", "± 11.3")
    made.systems[1].runs[2].validation_loss = math.nan
    assert _cell(made, comparison_scores(made).rows[1], "Median of seeds") == Cell("70.5")


def test_a_score_without_items_and_one_that_a_run_lacks() -> None:
    made = of_task("speech", ("standard", "moa"))
    del made.systems[1].runs[0].scores[2:]
    made.systems[0].runs[0].scores[1].value = math.nan
    judge(made, has_items=False)
    row, other = comparison_scores(made).rows
    assert _cell(made, row, "PESQ") == Cell("2.41")
    assert _cell(made, row, "PESQ noisy") == _cell(made, other, "SI-SDR") == Cell("–")
    assert _cell(made, other, "PESQ against baseline") == Cell("–")
    assert "In brackets" not in unescape(comparison_scores(made).notes)
    assert "interval" not in _printed(made)


def test_perplexity_of_any_loss() -> None:
    made = comparison(("standard",))
    assert perplexity(1000.0) == math.inf
    made.systems[0].runs[0].validation_loss = 1000.0
    assert _cell(made, comparison_scores(made).rows[0], "Perplexity").figure == "–"
    made.systems[0].runs[0].validation_loss = 30.0
    assert _cell(made, comparison_scores(made).rows[0], "Perplexity").figure == "1.1e+13"


def test_of_several_seeds_those_that_were_stopped_are_named() -> None:
    made = comparison(("standard", "moa"), seeds=3)
    for run, best in zip(made.systems[0].runs[1:], (200, None), strict=True):
        run.steps = 450
        run.early_stop = EarlyStop(planned_steps=600, best_step=best)
    (said,) = early_stops(made)
    assert said.endswith(
        "standard at step 450 of 600 (lowest at 200) with seed 1 and "
        "at step 450 of 600 with seed 2."
    )


def test_a_run_without_a_loss_is_told_apart_from_one_that_patience_stopped() -> None:
    made = comparison(("standard", "mae-7", "moa"))
    for system, loss in zip(made.systems, (2.5, math.nan, math.inf), strict=True):
        (run,) = system.runs
        run.steps, run.early_stop = 450, EarlyStop(planned_steps=1200, best_step=300)
        run.history.append({"step": 450, "eval_loss": loss})
    assert early_stops(made) == [
        "Stopped early, for want of a better validation loss: standard at step 450 of 1,200 "
        "(lowest at 300).",
        "Stopped early, because the validation loss was no number: mae-7 at step 450 of 1,200 "
        "(lowest at 300); moa at step 450 of 1,200 (lowest at 300).",
    ]


# The sentence at the top of the report says what the numbers say.


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
        "No clear winner. mae-7 is ahead, 27.3 BLEU (95% interval 25.6 to 29.1 over test "
        "sentences alone): 0.9 above the baseline standard, a difference that single runs cannot "
        "tell from the chance of training (95% interval +0.5 to +1.3 over test sentences alone), "
        "at 1.06× the time per step and 1.04× the parameters."
    )
    assert "significant" not in verdict(comparison(ALL))


def test_a_significant_winner_and_its_cost() -> None:
    assert verdict(comparison(seeds=3)) == (
        "mae-7 wins against the baseline standard, with 27.3 BLEU (mean of 3 seeds, 95% interval "
        "25.4 to 29.2): 0.9 above it, a significant difference (95% interval +0.5 to +1.3, "
        "p < 0.001), at 1.06× the time per step and 1.01× the parameters. moa shows no "
        "significant difference from the baseline (a true difference of 2.2 would be found in 80% "
        "of such comparisons)."
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
    assert verdict(_with_bleu(3, mae_7=25.5, standard=26.0)).startswith(
        "The baseline standard wins, with 26.0 BLEU (mean of 3 seeds, 95% interval 24.1 to 27.9): "
        "the closest, mae-7, is 0.5 below, a significant difference"
    )
    # One of the others is not told from it.
    assert verdict(_with_bleu(3, moa=25.0, mae_7=25.5, standard=26.0)).startswith(
        "No clear winner. No system is ahead of the baseline standard, 26.0 BLEU (mean of 3 seeds, "
    )
    said = verdict(_with_bleu(moa=26.0, standard=26.0))
    assert said.startswith("No clear winner. ") and "the closest, moa, is level with it" in said


def test_a_lead_that_rounds_to_nothing() -> None:
    made = _with_bleu(standard=26.0, moa=26.03)
    assert "less than 0.1 above the baseline" in verdict(made)


def test_systems_that_diverged() -> None:
    nan = math.nan
    assert verdict(_with_bleu(standard=nan)) == "standard diverged: there is no result."
    assert verdict(_with_bleu(standard=nan, moa=nan)).startswith("Every system diverged")
    assert verdict(_with_bleu(standard=26.0, moa=nan)).startswith("Only standard gave a result")
    made = _with_bleu(standard=nan, moa=25.0, mae_7=26.0)
    assert verdict(made).startswith("No clear winner. mae-7 is ahead, 26.0 BLEU (95% interval")
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
        f"mae-7 wins against the baseline standard, with {value} (mean of 3 seeds, 95% interval "
        f"{interval}): {lead} it, a significant"
    )
    assert (
        "Of the others, tim is significantly better than the baseline; weighted is significantly "
        "worse than it; agreement and moa show no significant difference from it ("
    ) in said


def test_a_score_without_items_and_without_a_value() -> None:
    made = of_task("speech", ("standard", "moa"))
    judge(made, has_items=False)
    assert verdict(made).startswith(
        "No clear winner. moa is ahead, 2.44 PESQ: 0.02 above the baseline standard, a difference "
        "that no test has judged"
    )
    made.systems[0].runs[0].scores[0].value = math.nan
    judge(made)
    assert verdict(made).startswith("Only moa gave a result, 2.44 PESQ (95% interval")
    assert verdict(made).endswith("): the other systems gave none.")
    made.systems[1].runs[0].scores[0].value = math.nan
    judge(made)
    assert verdict(made) == "No system has a PESQ."
