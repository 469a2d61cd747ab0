"""What the report shows of how soon systems learn and how fast they decode."""

import math
from html import unescape

import pytest
import synthetic

from headwise.analysis.how_soon import how_soon
from headwise.analysis.speed import DecodingSpeed, OverRounds
from headwise.report.cells import Cell
from headwise.report.comparison import render_report
from headwise.report.how_soon import how_soon_section, losses_against_each_other

SPEEDS = {"standard": 1.0, "fast": 2.0, "slow": 0.5}


def history(speed, offset=0.0):
    """Losses of 600 steps, each recorded twice as often as validated."""
    made = []
    for step in range(25, 601, 25):
        loss = 2 + offset + 5 * math.exp(-speed * step / 200)
        made.append({"step": step, "loss": loss + 0.2})
        if step % 50 == 0:
            made.append({"step": step, "eval_loss": loss})
    return made


def rounds(value, spread=0.1):
    return OverRounds(value=value, low=value - spread, high=value + spread, rounds=9)


def comparison(seeds=1, decodes=True, names=tuple(SPEEDS)):
    made = synthetic.comparison(names, seeds=seeds)
    baseline = [history(1.0, 0.01 * seed) for seed in range(seeds)]
    for system in made.systems:
        is_baseline = system.name == "standard"
        time = rounds(1.0, 0.0) if is_baseline else rounds(1.5)
        speed = DecodingSpeed(tokens_per_second=rounds(1500, 100), relative_time=time)
        found = [history(SPEEDS[system.name], 0.01 * seed) for seed in range(seeds)]
        for run, of_run in zip(system.runs, found, strict=True):
            run.history = of_run
        others = [] if is_baseline else found
        system.how_soon = how_soon(others, baseline, time, speed if decodes else None)
    return made


def cells(made):
    """Name of a system to header to cell."""
    section = how_soon_section(made)
    headers = [column.header for column in section["table"].columns]
    return {row.name: dict(zip(headers, row.cells, strict=True)) for row in section["table"].rows}


def test_one_seed_has_figures_without_intervals():
    found = cells(comparison())
    assert found["standard"]["Steps to the baseline's loss"] == Cell("baseline")
    assert found["fast"]["Steps to the baseline's loss"] == Cell("0.50×")
    assert found["fast"]["Time to the baseline's loss"] == Cell("0.75×")
    assert found["slow"]["Steps to the baseline's loss"] == Cell("> 1.00×", ("never reached",))
    assert found["slow"]["Time to the baseline's loss"] == Cell("–")
    assert found["fast"]["Validation loss at equal training loss"].details == ()
    notes = unescape(how_soon_section(comparison())["table"].notes)
    assert "2.249 at step 600" in notes
    assert "From one seed these figures have no interval" in notes


def test_several_seeds_have_intervals_and_say_who_gets_there():
    found = cells(comparison(seeds=3))
    (interval,) = found["fast"]["Steps to the baseline's loss"].details
    low, high = map(float, interval.split("–"))
    assert low < 0.5 < high
    assert found["fast"]["Validation loss at equal training loss"].details
    notes = unescape(how_soon_section(comparison(seeds=3))["table"].notes)
    assert "over seeds" in notes
    assert "From one seed" not in notes


def test_where_some_pairs_do_not_get_there_their_number_is_said():
    made = comparison(seeds=2, names=("standard", "fast"))
    runs = [history(2.0), history(0.5), history(2.1)]
    baseline = [run.history for run in made.systems[0].runs]
    made.systems[1].how_soon = how_soon(runs, baseline, None)
    cell = cells(made)["fast"]["Steps to the baseline's loss"]
    assert cell.details == ("4 of 6 pairs reach it",)
    assert cell.figure == "0.50×"


def test_the_notes_name_the_targets_that_were_used():
    made = comparison(seeds=2)
    made.systems[0].runs[0].history.append({"step": 650, "eval_loss": math.nan})
    notes = how_soon_section(made)["table"].notes
    assert "2.249 at step" not in notes and "2.259 at step 600" in notes


def test_a_baseline_alone_is_compared_with_nothing():
    section = how_soon_section(comparison(names=("standard",)))
    assert [column.header for column in section["table"].columns] == [
        "Tokens per second",
        "Time per token",
    ]
    assert section["figure"] is None
    assert how_soon_section(comparison(names=("standard",), decodes=False)) is None


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_report_has_the_table_and_the_figure(seeds):
    page = render_report(comparison(seeds))
    assert '<h2 id="how-soon">How soon</h2>' in page
    assert "Validation loss of each system against its training loss. Last: standard" in page
    assert page.count('aria-labelledby="how-soon"') == 2  # of the section and of its table
    assert ("thin lines are further seeds" in page) == (seeds > 1)


def test_runs_that_diverged_are_not_drawn():
    made = comparison()
    made.systems[1].runs[0].validation_loss = math.nan
    assert "fast" not in losses_against_each_other(made)
