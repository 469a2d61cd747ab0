"""The pages in a real browser: they run without errors and without a network, and fit a phone."""

import os
import shutil

import pytest
from support.tiny_tasks import run, write_recipe

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
EXECUTABLE = next((path for name in NAMES if (path := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(
    EXECUTABLE is None and os.environ.get("HEADWISE_BROWSER") != "required",
    reason="there is no Chromium or Chrome",
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of a translation and of images, by name."""
    folder = tmp_path_factory.mktemp("pages")
    translation, images = folder / "translation", folder / "images"
    for path in (translation, images):
        path.mkdir()
    recipes = [write_recipe(path.name, path) for path in (translation, images)]
    explored = ("moa-seed1", "mae-seed1")
    pairs = [[path / "runs" / name for name in explored] for path in (translation, images)]
    for command in (
        ("compare", recipes[0], "--systems", "mae,moa", "--output", translation / "runs"),
        ("analyse", translation / "runs/moa-seed1", "--output", translation / "a"),
        *(
            ("train", recipes[1], "--system", name[:3], "--output", images / "runs" / name)
            for name in explored
        ),
        (
            "explore",
            *pairs[0],
            "--text",
            "one two three",
            "--output",
            translation / "explored.html",
        ),
        ("explore", *pairs[1], "--output", images / "explored.html"),
    ):
        done = run(*command)
        assert done.exit_code == 0, (command, done.output)
    return {
        "comparison": folder / "translation/runs/report.html",
        "analysis": folder / "translation/a/analysis.html",
        "explorer": folder / "translation/explored.html",
        "explorer of images": folder / "images/explored.html",
    }


PAGES = ("comparison", "analysis", "explorer", "explorer of images")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser, pages):
    """`opened(name, ...)` opens a page, whose errors and requests are looked at in the end."""
    contexts, problems = [], []

    def open_page(name, view="", **options):
        contexts.append(browser.new_context(**options))
        tab = contexts[-1].new_page()
        tab.on("pageerror", lambda error: problems.append(f"error: {error}"))
        tab.on("console", lambda said: problems.extend([said.text] * (said.type == "error")))
        tab.on(
            "request",
            lambda asked: problems.extend(
                [asked.url] * (not asked.url.startswith(("file:", "data:", "blob:")))
            ),
        )
        tab.goto(pages[name].as_uri() + view)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_on_light_and_on_dark(opened, name, scheme):
    tab = opened(name, color_scheme=scheme)
    ink, paper = tab.evaluate(
        """() => {
            const grey = (text) => {
                const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number);
                return a === 0 ? null : (r + g + b) / 765;
            };
            const of = (element, key) => grey(getComputedStyle(element)[key]);
            const paper = of(document.body, "backgroundColor")
                ?? of(document.documentElement, "backgroundColor") ?? 1;
            return [of(document.body, "color"), paper];
        }"""
    )
    assert abs(ink - paper) > 0.5
    assert (paper < 0.5) == (scheme == "dark")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_reaches_past_the_page(opened, name, width):
    tab = opened(name, viewport={"width": width, "height": 800})
    tab.wait_for_load_state()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", PAGES)
def test_links_within_a_page_lead_somewhere(opened, name):
    tab = opened(name)
    dangling = tab.evaluate(
        """() => [...document.querySelectorAll('a[href^="#"]')].map((a) => a.hash.slice(1))
            .filter((id) => id && !id.includes("=") && !document.getElementById(id))"""
    )
    assert dangling == []


TOKEN = ".token"


def test_the_explorer_shows_the_text_and_what_a_token_reads(opened):
    tab = opened("explorer")
    tab.wait_for_selector(TOKEN)
    text = "".join(tab.locator(TOKEN).all_inner_texts())
    assert all(letter in text for letter in "onetwothree")
    before = tab.locator("body").inner_text()
    tab.locator(TOKEN).nth(1).click()
    tab.wait_for_function("before => document.body.innerText !== before", arg=before)


def test_the_explorer_follows_the_keyboard_and_keeps_its_view_in_the_address(opened):
    tab = opened("explorer")
    tab.wait_for_selector(TOKEN)
    tab.locator(TOKEN).first.focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_function("location.hash.includes('token')")
    view, shown = tab.evaluate("location.hash"), tab.locator("body").inner_text()
    again = opened("explorer", view)
    again.wait_for_selector(TOKEN)
    assert again.locator("body").inner_text() == shown
    assert again.evaluate("location.hash") == view


def test_the_explorer_shows_models_side_by_side(opened):
    tab = opened("explorer")
    tab.wait_for_selector(TOKEN)
    text = tab.locator("body").inner_text()
    assert "mae" in text and "moa" in text


def test_the_explorer_draws_images_and_maps(opened):
    tab = opened("explorer of images")
    tab.wait_for_selector("canvas, svg, img, .token")
    blank = tab.evaluate(
        """() => [...document.querySelectorAll("canvas")].filter((c) => c.width && c.height)
            .filter((c) => new Set(c.getContext("2d")
                .getImageData(0, 0, c.width, c.height).data).size < 2).length"""
    )
    assert blank == 0
