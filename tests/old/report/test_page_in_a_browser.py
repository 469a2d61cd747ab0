"""The report in a browser: where its links lead, and what its buttons save."""

import csv
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import chromium
import numpy as np
import pytest
import torch
from PIL import Image
from synthetic import ALL, comparison, picture

import headwise as hw
from headwise.analysis.decisions.record import AnalysisRecord
from headwise.analysis.results import Benchmark
from headwise.report.analysis_page.page import render_analysis
from headwise.report.comparison import render_benchmark, render_report

Show = Callable[..., chromium.Tab]


@pytest.fixture
def shown(tab: chromium.Tab, tmp_path: Path) -> Show:
    """Opens a page, and returns the browser's tab."""

    def show(html: str, width: int = 1280, scheme: str = "light") -> chromium.Tab:
        tab.size(width, 900)
        tab.colours(scheme)
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        tab.load(path.as_uri())
        return tab

    return show


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    folder.mkdir()
    return folder


@cache
def report() -> str:
    made = comparison(ALL, seeds=3)
    made.pictures = [picture("Map", ALL[:2])]
    return render_report(made)


@cache
def benchmark() -> str:
    sets = {"one": comparison(), "two": comparison(("standard", "moa"))}
    return render_benchmark(Benchmark(title="Two", comparisons=sets))


@cache
def analysis() -> str:
    config = hw.CausalLMConfig(
        vocab_size=9, embed_dim=8, num_heads=2, ffn_dim=8, layers=1, attention="mae"
    )
    batches = [{"input_ids": torch.randint(9, (8, 20))}]
    run = hw.Analysis(hw.CausalLM(config), batches, tokens="input_ids").record
    return render_analysis(AnalysisRecord(title="one", part="test", runs=[run], findings=["f"]))


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("page", [report, benchmark, analysis])
def test_links_lead_to_all_sections_and_are_always_there(
    shown: Show, page: Callable[[], str]
) -> None:
    tab = shown(page())
    links = "[...document.querySelectorAll('nav.contents a')]"
    titles = tab.value(f"{links}.map((each) => each.textContent)")
    assert titles == tab.texts("main > section > h2") and len(titles) >= 3
    for number, title in enumerate(titles):
        tab.value(f"{links}[{number}].click()")
        tab.wait(f"location.hash === {links}[{number}].hash")
        assert tab.value("document.querySelector(':target').textContent") == title
        # Below the links, which stay where they are.
        box = "document.querySelector('%s').getBoundingClientRect()"
        ends = f"(({{top, bottom}}) => [top, bottom])({box})"
        top, bottom = tab.value(ends % "nav.contents")
        assert top == 0 and bottom <= tab.value(ends % ":target")[0]


def test_the_table_is_saved_as_csv(shown: Show, saved: Path) -> None:
    tab = shown(report())
    path = tab.saved("section .save", saved)
    assert path.name == "Quality-and-cost.csv"
    header, *rows = rows_of(path)
    assert all(len(row) == len(header) for row in rows)
    # Without the empty cells of details that a row lacks, it is what the table says, in its order.
    says = tab.value(
        "[...document.querySelector('.scores').rows].slice(1).map((row) =>"
        " [...row.querySelectorAll('th, span, small')].map((each) => each.cloneNode(true))"
        " .map((each) => { for (const detail of each.querySelectorAll('small')) detail.remove();"
        " return each.textContent.replaceAll('−', '-').trim(); }))"
    )
    assert [[cell for cell in row if cell] for row in rows] == says
    assert [row[0] for row in rows] == list(ALL)
    at = header.index("BLEU against baseline")
    assert header[at : at + 3] == ["BLEU against baseline"] * 3
    assert rows[3][at : at + 3] == ["+0.9 *", "[+0.5, +1.3]", "p < 0.001"]
    assert rows[0][at : at + 3] == ["baseline", "", ""]


def test_a_name_that_begins_like_a_formula_is_text_in_csv(shown: Show, saved: Path) -> None:
    html = str(report()).replace(">weighted<", ">=1+1, &quot;a&quot;<").replace(">tim<", ">+cmd<")
    html = html.replace(">moa<", ">−0.5 (−1.2e+05 to +1,000)<")
    rows = rows_of(shown(html).saved("section .save", saved))
    assert [rows[2][0], rows[5][0]] == ['\'=1+1, "a"', "'+cmd"]
    assert "-0.8 *" in rows[2]
    assert "-0.5 (-1.2e+05 to +1,000)" in [row[0] for row in rows]


@pytest.mark.parametrize("page", [report, benchmark, analysis])
def test_every_table_and_figure_can_be_saved(shown: Show, page: Callable[[], str]) -> None:
    tab = shown(page())
    tables = tab.value("document.querySelectorAll('table').length")
    figures = tab.value("document.querySelectorAll('figure > svg').length")
    buttons = tab.value("[...document.querySelectorAll('.save')].map((each) => each.textContent)")
    assert (buttons.count("CSV"), buttons.count("PNG")) == (tables, figures)
    assert min(tables, figures) > 0


@pytest.mark.parametrize(("scheme", "surface"), [("light", "#ffffff"), ("dark", "#14171c")])
def test_a_figure_is_saved_as_png(shown: Show, saved: Path, scheme: str, surface: str) -> None:
    tab = shown(report(), scheme=scheme)
    path = tab.saved("figcaption .save", saved)
    assert path.name.startswith("BLEU-mean-with-its-95-interval")
    found = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    shape = tab.value("document.querySelector('figure > svg').getAttribute('viewBox')")
    width, height = (3 * float(each) for each in shape.split()[2:])
    assert Image.open(path).size == pytest.approx((width, height), abs=1)
    colours, often = np.unique(found, axis=0, return_counts=True)
    named = {f"#{r:02x}{g:02x}{b:02x}": int(n) for (r, g, b), n in zip(colours, often, strict=True)}
    assert max(named, key=lambda colour: named[colour]) == surface
    # Its lines have the colours that they have in the page.
    for name in ("--series-0", "--series-1", "--line"):
        colour = tab.value(
            f"getComputedStyle(document.body).getPropertyValue({json.dumps(name)}).trim()"
        )
        assert named.get(colour, 0) > 100, name


@pytest.mark.parametrize("page", [report, benchmark, analysis])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_reaches_past_the_page(shown: Show, page: Callable[[], str], width: int) -> None:
    tab = shown(page(), width)
    tab.value("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert tab.value("document.documentElement.scrollWidth") == width


def test_the_policy_runs_no_other_script(shown: Show) -> None:
    html = re.sub("(<main>)", r"\1<script>document.title = 'changed'</script>", report())
    assert shown(html).value("document.title") == comparison().title
