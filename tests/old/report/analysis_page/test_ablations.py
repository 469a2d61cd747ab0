"""The section of a page on what ablations cost."""

import math
import re

from pages import Page, section_of

from headwise.analysis.ablations.results import (
    AblationAnalysis,
    AblationResult,
    Measured,
    changes,
)
from headwise.analysis.decisions.observing import Where
from headwise.analysis.decisions.record import RunAnalysis
from headwise.analysis.statistics.estimates import Spread
from headwise.report.analysis_page.ablations import ablation_finding
from headwise.report.analysis_page.page import findings, sections_of

SITES = ("encoder_self", "decoder_cross")


def measured(difference, items=200):
    return Measured(
        value=20 + difference, difference=difference, spread=Spread(0.04, 1e-5), items=items
    )


def analysis(costs, *, site="encoder_self", system="mae", loss=True, alone=False):
    """Costs by layer and unit, and a uniform ablation that costs nothing."""
    units = [(layer, unit) for layer, row in enumerate(costs) for unit in range(len(row))]
    wanted = [costs[layer][unit] for layer, unit in units] + [0.0]
    scores = changes([measured(-cost) for cost in wanted], higher_is_better=True)
    losses = changes([measured(cost / 10) for cost in wanted], higher_is_better=False)
    results = []
    for place, score, lost in zip([*units, None], scores, losses, strict=True):
        layer, unit = place or (None, None)
        stands = {"path": f"layers.{layer}", "site": site, "layer": layer, "whole_layer": False}
        results.append(
            AblationResult(
                system=system,
                ablation="uniform" if place is None else "without-expert",
                options={} if place is None else {"expert": unit},
                meaning="What it does <b>.",
                where=None if place is None else Where(system=system, **stands),
                unit=None if place is None else "expert",
                alone=alone and place is not None,
                draws=0,
                score=score,
                loss=lost if loss else None,
            )
        )
    return AblationAnalysis(
        level="units",
        score="BLEU",
        higher_is_better=True,
        digits=1,
        item_name="sentences",
        items=200,
        value=20.0,
        loss_name="nats per token" if loss else "",
        loss=2.5 if loss else None,
        results=sorted(results, key=lambda r: -r.score.cost),
    )


def runs(**found):
    return [
        RunAnalysis(name=name, words={}, sequences=5, ablations=each)
        for name, each in found.items()
    ]


def page_of(made):
    title, body = section_of("ablations", *made)
    return title, body, Page(f"<div>{body}</div>")


def test_the_table_ranks_all_ablations_and_the_figures_draw_them():
    made = runs(one=analysis([[0.0, 3.0], [0.1, -1.2]]))
    title, body, page = page_of(made)
    assert title == "What each part is worth"
    rows = [[cell.strip() for cell in row] for row in page.rows]
    assert [row[0] for row in rows] == [
        "Ablation",
        "without expert 1, encoder self-attention, layer 0",
        "without expert 0, encoder self-attention, layer 1",
        "without expert 0, encoder self-attention, layer 0",
        "uniform",
        "without expert 1, encoder self-attention, layer 1",
    ]
    assert re.sub(r"\s+", " ", rows[1][2]).startswith("−3.00 −3.39 to −2.6")
    assert rows[1][1] == "17.00" and rows[1][3] == "< 0.001"
    labels = [svg["aria-label"] for svg in page.all("svg")]
    assert len(labels) == 4
    start = "difference to the whole model: encoder self 0: expert 1"
    assert labels[0].startswith(f"BLEU, {start} −3.00 (−3.39 to −2.6")
    assert labels[1].startswith(f"Nats per token, {start} +0.300")
    assert "cost in BLEU: layer 0: most for expert 1, +3.00; layer 1: most" in labels[2]
    assert "cost in nats per token: layer 0: most for expert 1, +0.300" in labels[3]
    assert body.count("What it does &lt;b&gt;.") == 2
    assert "finds a typical true difference of" in body and "removed one at a time" in body


def test_the_finding_counts_what_is_worse_and_names_the_costliest():
    found = analysis([[0.0, 3.0], [0.1, -1.2]])
    assert ablation_finding(found) == (
        "1 of 5 ablations makes BLEU worse by more than the chance of the sentences, 1 better. The "
        "loss is worse under none of them and better under none. The costliest: without expert 1, "
        "encoder self-attention, layer 0 (BLEU −3.00)."
    )
    assert ablation_finding(analysis([[0.0, 0.0]], loss=False)) == (
        "None of 3 ablations makes BLEU worse by more than the chance of the sentences, none "
        "better."
    )
    few = analysis([[2.0]], loss=False)
    for result in few.results:
        result.score.p_value = None
    assert ablation_finding(few).startswith("No ablation can be judged by so few sentences. The")


def test_the_costliest_stands_at_the_top_of_a_page():
    (run,) = runs(one=analysis([[0.0, 3.0], [0.1, -1.2]]))
    assert findings(run) == [
        "The costliest ablation: without expert 1, encoder self-attention, layer 0 (BLEU −3.00)."
    ]
    (run,) = runs(one=analysis([[0.1]]))
    assert "(BLEU −0.10, which may be chance)" in findings(run)[0]
    (run,) = runs(one=analysis([[0.0]]))
    assert findings(run) == ["There are no heads to compare."]


def test_several_runs_stand_side_by_side():
    made = runs(
        one=analysis([[1.0, 2.0]]),
        none=None,
        two=analysis([[0.5] * 12], site="decoder_cross", alone=True, loss=False),
    )
    _, body, page = page_of(made)
    assert page.texts["h3"] == ["one", "two"]
    assert "expert 3 alone, decoder cross-attention, layer 0" in body
    assert any("decoder cross 0: only expert 3" in svg["aria-label"] for svg in page.all("svg"))
    assert sections_of(runs(none=None), ["ablations"]) == []


def test_a_long_ranking_is_drawn_in_part_and_a_number_that_is_none_in_none():
    found = analysis([[float(i) for i in range(40)]])
    score = found.results[-1].score
    score.value = score.difference = score.cost = math.nan
    _, body, page = page_of(runs(one=found))
    assert "17 more are in the table" in body
    assert len(page.rows) == 1 + 41
    assert page.rows[-1][1].strip() == "–" and not re.search(r"\bnan\b", body)
