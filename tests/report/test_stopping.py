"""What is said of runs that ended before their last step."""

import math

from synthetic import comparison

from headwise.analysis.results import EarlyStop
from headwise.report.table import early_stops, table_notes


def test_who_was_stopped_when_is_said() -> None:
    made = comparison(("standard", "mae-7", "moa"))
    made.systems[1].runs[0].steps = 450
    made.systems[1].runs[0].early_stop = EarlyStop(planned_steps=1200, best_step=300)
    (said,) = early_stops(made)
    assert said.endswith("mae-7 at step 450 of 1,200 (lowest at 300).")
    assert said in table_notes(made)


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


def test_nothing_is_said_where_nobody_was() -> None:
    made = comparison()
    assert early_stops(made) == []
    assert not any("early" in note for note in table_notes(made))
