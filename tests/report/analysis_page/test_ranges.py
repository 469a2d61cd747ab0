"""What the page shows of the weights of frequent tokens."""

import torch
from decided import Places, of_two
from pages import Page

from headwise.analysis.decisions.ranges import Ranges
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.ranges import ranges_section
from headwise.report.svg import looks_of
from headwise.tasks.positions import Positions

TOKENS = torch.tensor([[0, 1, 2, 0, 1, 0, 2, 0]])
NAMES = {0: "the", 1: "<b>cat</b>", 2: "#010101"}


def run_of(name, decided, word="token"):
    counted = Ranges()
    described = Positions.of_tokens(TOKENS, NAMES, word)
    counted.add(Places("encoder_self", len(decided)).observed(decided, described))
    return RunAnalysis(name=name, words={}, sequences=1, ranges=counted.result())


def shown(*runs):
    section = ranges_section(runs, looks_of([run.name for run in runs]))
    assert section is not None
    return section.title, Page(str(section.body))


def labels(page):
    return [svg["aria-label"] for svg in page.all("svg")]


FIRST = torch.tensor([[0.9, 0.2, 0.5, 0.7, 0.4, 0.8, 0.5, 0.8]])


def test_of_two_units_it_is_the_first_in_the_layer_that_tells_tokens_apart():
    title, page = shown(run_of("tiny", [of_two(0 * FIRST + 0.5), of_two(FIRST)], word="word"))
    assert title == "Weights of frequent words"
    assert page.texts["figcaption"] == ["Layer 1"]
    (said,) = labels(page)
    assert "layer 1: the 0.70, 0.80, 0.90 (expert 0); <b>cat</b> 0.20, 0.30, 0.40 (exp" in said
    assert page.row("the") == ["the", "4", "0", "0.700", "0.800", "0.900"]
    assert "b" not in page.texts  # a token is text


def test_of_more_units_it_is_the_one_of_greatest_mean():
    weights = torch.stack([0 * FIRST + 0.1, 0.9 * FIRST, 0.9 - 0.9 * FIRST], -1)
    (said,) = labels(shown(run_of("tiny", [weights]))[1])
    assert "the 0.63, 0.72, 0.81 (expert 1)" in said
    assert "<b>cat</b> 0.54, 0.63, 0.72 (expert 2)" in said


def test_the_name_of_a_colour_is_none_of_the_pages_colours():
    """Figures are drawn in placeholders such as #010101, which a name may look like."""
    _, page = shown(run_of("tiny", [of_two(FIRST)], word="colour"))
    assert "#\u2060010101" in page.texts["text"]
    assert not any("currentColor" in text for text in page.texts["text"])


def test_runs_stand_side_by_side():
    runs = run_of("one", [of_two(FIRST)]), run_of("two", [of_two(1 - FIRST)])
    _, page = shown(*runs)
    assert page.texts["figcaption"] == ["one, layer 0", "two, layer 0"]


def test_nothing_is_shown_where_no_token_stands():
    run = RunAnalysis(name="tiny", words={}, sequences=1)
    assert ranges_section([run], looks_of(["tiny"])) is None
