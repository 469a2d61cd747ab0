"""What the page shows of the labels that explain decisions."""

import pytest
import torch
from decided import Places, of_two, standing
from pages import shown

from headwise.analysis.decisions.explained import Explained
from headwise.analysis.decisions.record import RunAnalysis
from headwise.report.analysis_page.explained import explained_section
from headwise.report.formatting import decimals
from headwise.report.svg import looks_of


def run_of(name, seed=0, layers=2):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, (6, 20), generator=generator)
    counted = Explained()
    decided = [of_two(torch.rand(6, 20, generator=generator)) for _ in range(layers - 1)]
    decided.append(of_two(tokens / 4))
    described = standing(tokens, {"class": torch.arange(6) % 2})
    counted.add(Places("encoder_self", layers).observed(decided, described))
    return RunAnalysis(name=name, words={}, sequences=6, explained=counted.result())


def test_a_figure_for_each_label_and_the_numbers():
    run = run_of("tiny")
    page = shown(explained_section, run)
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
    page = shown(explained_section, run_of("one"), run_of("<b>other</b>", seed=1))
    (label, *_) = [svg["aria-label"] for svg in page.all("svg") if "aria-label" in svg]
    assert label.count("one, layer 0") == label.count("<b>other</b>, layer 1") == 1
    assert "b" not in page.texts  # the name is text
    assert [text.strip() for text in page.texts["li"][:2]] == ["one", "<b>other</b>"]  # the legend
    assert len(page.texts["figcaption"]) == 3


def test_what_does_not_vary_has_a_dash():
    counted = Explained()
    uniform = torch.full((2, 5, 4), 0.25)
    counted.add(Places("encoder_self", 1).observed([uniform], None))
    run = RunAnalysis(name="tiny", words={}, sequences=2, explained=counted.result())
    page = shown(explained_section, run)
    assert page.row("layer 0")[4:] == ["–", "–"]
    assert [svg["aria-label"] for svg in page.all("svg")] == [
        "How much position explains: layer 0 –."
    ]


@pytest.mark.parametrize("number", [1, 2])
def test_nothing_is_shown_where_no_run_decides_anything(number):
    runs = [RunAnalysis(name=str(each), words={}, sequences=1) for each in range(number)]
    assert explained_section(runs, looks_of([run.name for run in runs])) is None
