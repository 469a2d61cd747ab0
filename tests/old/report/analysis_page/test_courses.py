"""How decisions moved over training: what is kept of a run, and the section of the page."""

import math

import pytest
from pages import Page, shown
from synthetic import comparison

from headwise.analysis.decisions.record import RunAnalysis, courses_of
from headwise.analysis.decisions.snapshots import DecisionCourse, relative_entropy
from headwise.heads.system import Words
from headwise.report.comparison import render_report

STEPS = [0, 10, 20]


def course(site="encoder_self", layer=0, entropy=(0.6, 0.5, 0.25), **changes):
    made = {
        "path": f"{site}.{layer}",
        "site": site,
        "layer": layer,
        "system": "mae-7",
        "whole_layer": False,
        "uniform": math.log(2),
        "steps": STEPS,
        "entropy": list(entropy),
        "lowest_entropy": [0.5 * each for each in entropy],
        "shares": [[0.5, 0.5], [0.25, 0.75], [0.125, 0.875]],
        "weights": [[0.5, 0.5], [0.4, 0.6], [0.3, 0.7]],
        "explained": {"position": [None, 0.25, 0.5], "token": [0.0, 0.1, -0.02]},
    }
    return DecisionCourse(**{**made, **changes})


def at_start():
    values = {"shares": [[0.5, 0.5]], "weights": [[0.5, 0.5]], "explained": {"position": [None]}}
    return course(steps=[0], entropy=(0.6,), **values)


def analysed(name, snapshots, words=None, system="weighted"):
    """A run of the synthetic comparison, whose rule records something if it is weighted."""
    run = comparison(("standard", system), layers=2).systems[1].runs[0]
    run.snapshots = snapshots
    words = words or {"mae-7": Words(measure="lead", unit="expert", units="experts")}
    return RunAnalysis(
        name=name, words={**run.words, **words}, sequences=9, courses=courses_of(run)
    )


def page_of(*runs):
    return shown("over-training", *runs)


def labels(page):
    return [svg["aria-label"] for svg in page.all("svg") if "aria-label" in svg]


def test_what_a_run_has_kept():
    run = comparison(("standard", "moa"), layers=2).systems[1].runs[0]
    assert run.courses == [] and courses_of(run) is None
    run.snapshots = [at_start()]  # nothing but the start
    assert courses_of(run) is None
    run.snapshots = [course(), course(layer=1)]
    kept = courses_of(run)
    assert kept.snapshots == run.snapshots
    assert kept.stacks == ["encoder", "decoder"]
    weighted = comparison(("standard", "weighted"), layers=2).systems[1].runs[0]
    assert courses_of(weighted).recorded == weighted.courses


def test_the_figures_say_what_moved():
    snapshots = [
        course(),
        course(layer=1, entropy=(0.6, 0.6, 0.6)),
        course("decoder_cross", explained={}),
    ]
    page = page_of(analysed("a", snapshots, system="moa"))
    assert page.texts["figcaption"] == [
        "Encoder self-attention",
        "Decoder cross-attention",
        "Encoder self-attention: position",
        "Encoder self-attention: token",
        *("Layer 0", "Layer 1", "Layer 0"),
    ]
    found = labels(page)
    assert found[0] == (
        "Entropy in nats, Encoder self-attention, layer 0 from 0.600 to 0.250; "
        "layer 1 from 0.600 to 0.600."
    )
    assert "Explained by position, Encoder self-attention, layer 0 from – to 0.500" in found[2]
    assert "Share ends between 0.125 (expert 0) and 0.875 (expert 1)" in found[4]
    assert "Mean weight ends between 0.300 (expert 0) and 0.700 (expert 1)" in found[4]
    assert page.row("Encoder self-attention", "0")[2:] == [
        "0.600 → 0.250",
        "– → 0.500",
        "0.000 → −0.020",
    ]
    assert page.row("Decoder cross-attention", "0")[2:] == ["0.600 → 0.250", "– → –", "– → –"]
    assert "h3" not in page.texts  # a single run has no heading


def test_runs_are_side_by_side_and_ids_are_unique():
    runs = [analysed("<i>a", [course()]), analysed("b", [course()], system="moa")]
    runs.append(analysed("c", [], system="moa"))  # standard attention
    page = page_of(*runs)
    assert page.texts["h3"] == ["<i>a: experts", "<i>a: branches", "b"]
    assert "i" not in page.texts
    together = labels(page)[0]
    start, end = 0.6 / math.log(2), 0.25 / math.log(2)
    assert f"<i>a from {start:.3f} to {end:.3f}; b from {start:.3f}" in together
    assert sum("κ ends between" in label for label in labels(page)) == 4


def test_a_run_that_diverged_is_shown_as_far_as_it_went():
    gone = [math.nan] * 2
    lost = course(
        entropy=(0.5, math.nan, math.nan),
        shares=[[0.5, 0.5], gone, gone],
        weights=[[0.5, 0.5], gone, gone],
        explained={"position": [0.5, None, None]},
    )
    page = page_of(analysed("a", [lost], system="moa"))
    assert page.row("Encoder self-attention", "0")[2:] == ["0.500 → –", "0.500 → –"]
    assert relative_entropy([lost]) == {0: pytest.approx(0.5 / math.log(2))}


def test_the_report_has_one_panel_of_all_systems():
    made = comparison(("standard", "mae-7"), layers=1)
    caption = "Entropy of decisions / uniform"
    assert caption not in Page(render_report(made)).texts["figcaption"]
    for run in made.systems[1].runs:
        run.snapshots = [course()]
    page = Page(render_report(made))
    assert page.texts["figcaption"].count(caption) == 1
    (label,) = [label for label in labels(page) if caption in label]
    assert label.endswith(f"Last: mae-7 {0.25 / math.log(2):.3g}.")
