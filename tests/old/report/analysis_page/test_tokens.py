"""What the page shows of weights of frequent tokens, and of labels that explain decisions."""

import torch
from decided import Places, of_two, standing
from pages import Page, section_of, shown

from headwise.analysis.decisions.explained import Explained
from headwise.analysis.decisions.ranges import Ranges
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.formatting import decimals
from headwise.tasks.positions import Positions

TOKENS = torch.tensor([[0, 1, 2, 0, 1, 0, 2, 0]])
NAMES = {0: "the", 1: r"<b>\xe4</b>", 2: "#010101"}


def ranges_run(name, decided, word="token"):
    counted = Ranges()
    described = Positions.of_tokens(TOKENS, NAMES, word)
    counted.add(Places("encoder_self", len(decided)).observed(decided, described))
    return RunAnalysis(name=name, words={}, sequences=1, ranges=counted.result())


def ranges_shown(*runs):
    title, body = section_of("ranges", *runs)
    return title, Page(body)


def labels(page):
    return [svg["aria-label"] for svg in page.all("svg")]


FIRST = torch.tensor([[0.9, 0.2, 0.5, 0.7, 0.4, 0.8, 0.5, 0.8]])


def test_of_two_units_it_is_the_first_in_the_layer_that_tells_tokens_apart():
    title, page = ranges_shown(
        ranges_run("tiny", [of_two(0 * FIRST + 0.5), of_two(FIRST)], word="word")
    )
    assert title == "Weights of frequent words"
    assert page.texts["figcaption"] == ["Layer 1"]
    (said,) = labels(page)
    assert r"layer 1: the 0.70, 0.80, 0.90 (expert 0); <b>\xe4</b> 0.20, 0.30, 0.40 (exp" in said
    assert page.row("the") == ["the", "4", "0", "0.700", "0.800", "0.900"]
    assert "b" not in page.texts  # a token is text


def test_of_more_units_it_is_the_one_of_greatest_mean():
    weights = torch.stack([0 * FIRST + 0.1, 0.9 * FIRST, 0.9 - 0.9 * FIRST], -1)
    (said,) = labels(ranges_shown(ranges_run("tiny", [weights]))[1])
    assert "the 0.63, 0.72, 0.81 (expert 1)" in said
    assert r"<b>\xe4</b> 0.54, 0.63, 0.72 (expert 2)" in said


def test_the_name_of_a_colour_is_none_of_the_pages_colours():
    """Figures are drawn in placeholders such as #010101, which a name may look like."""
    _, page = ranges_shown(ranges_run("tiny", [of_two(FIRST)], word="colour"))
    assert "#\u2060010101" in page.texts["text"]
    assert not any("currentColor" in text for text in page.texts["text"])


def explained_run(name, seed=0, layers=2):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, (6, 20), generator=generator)
    counted = Explained()
    decided = [of_two(torch.rand(6, 20, generator=generator)) for _ in range(layers - 1)]
    decided.append(of_two(tokens / 4))
    described = standing(tokens, {"class": torch.arange(6) % 2})
    counted.add(Places("encoder_self", layers).observed(decided, described))
    return RunAnalysis(name=name, words={}, sequences=6, explained=counted.result())


def test_a_figure_for_each_label_and_the_numbers():
    run = explained_run("tiny")
    page = shown("explained", run)
    assert page.texts["figcaption"] == ["Position", "Token", "Class, over sequences"]
    said = [svg["aria-label"] for svg in page.all("svg")]
    assert said[1].startswith("How much token explains: layer 0 ")
    assert said[1].endswith("; layer 1 1.00.")
    for record in run.explained:
        (row,) = [
            [cell.strip() for cell in row]
            for row in page.rows
            if row[:2] == [f" layer {record.where.layer}", f" {record.label}"]
        ]
        assert row[2:4] == [f"{record.rows} {record.of}", str(record.classes)]
        assert row[4:] == [decimals(record.between, 3), decimals(record.share, 3)]


def test_runs_stand_side_by_side():
    page = shown("explained", explained_run("one"), explained_run("<b>other</b>", seed=1))
    (label, *_) = [svg["aria-label"] for svg in page.all("svg") if "aria-label" in svg]
    assert label.count("one, layer 0") == label.count("<b>other</b>, layer 1") == 1
    assert "b" not in page.texts  # the name is text
    assert [text.strip() for text in page.texts["li"][:2]] == ["one", "<b>other</b>"]  # the legend
    assert len(page.texts["figcaption"]) == 3
