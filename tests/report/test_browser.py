"""The report in a real browser: it fits a phone, and can be read on light and on dark."""

import io

import numpy as np
import pytest
from PIL import Image
from support.compared import write_compared

from headwise.report.comparison import write_report

LONG = "a-system-with-a-name-without-any-space-" * 3
TEXT = "</p><script>alert(1)</script> & " + "word " * 90 + "w" * 400


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    systems = ("standard", "mae-7", LONG)
    write_compared(folder, systems, (1, 2), tests=["flickr", "coco"], text=TEXT)
    return write_report(folder)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_reaches_past_the_page_but_tables_scroll_in_their_box(
    opened, report, width, scheme
):
    tab = opened(report, viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert tab.locator("nav a").count() == tab.locator("h2").count() > 2
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    wide = """() => [...document.querySelectorAll("table")].filter((table) =>
        table.getBoundingClientRect().right > innerWidth).map((table) =>
        [getComputedStyle(table.parentElement).overflowX, table.parentElement.clientWidth])"""
    assert all(overflow == "auto" and box <= width for overflow, box in tab.evaluate(wide))
    if width == 390:
        assert tab.evaluate(wide)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_figures_are_dark_on_light_and_light_on_dark(opened, report, scheme):
    tab = opened(report, color_scheme=scheme)
    for element in ("h1", ".says", "table tbody th", ".notes", "table td", ".figures img"):
        shot = Image.open(io.BytesIO(tab.locator(element).first.screenshot())).convert("L")
        grey = np.asarray(shot, dtype=float)
        paper = np.median(grey)
        assert (paper > 240) if scheme == "light" else (paper < 40), element
        # Not a bright line alone, but text.
        assert (abs(grey - paper) > 110).mean() > 0.005, element
