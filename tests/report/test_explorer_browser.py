"""The page of `headwise explore` in a real browser, as its reader uses it."""

import pytest
from support.run_folders import headwise
from support.tiny_tasks import write_recipe

TASKS = {"translation": ("moa", "mae"), "images": ("tim",)}


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """A page for each task, by its name."""
    folder, paths = tmp_path_factory.mktemp("explored"), {}
    for task, systems in TASKS.items():
        (folder / task).mkdir()
        recipe, runs = write_recipe(task, folder / task), [folder / task / each for each in systems]
        commands = [("train", recipe, "--system", each.name, "--output", each) for each in runs]
        paths[task] = folder / f"{task}.html"
        text = ["--text", "one two three"] if task == "translation" else []
        for command in (*commands, ("explore", *runs, *text, "--output", paths[task])):
            headwise(*command)
    return paths


@pytest.fixture
def explored(opened, pages):
    """`explored(task, ...)` opens the page of a task, and waits until it is drawn."""

    def open_page(task, **options):
        tab = opened(pages[task], **options)
        tab.wait_for_selector("html[data-drawn]")
        return tab

    return open_page


def choose(tab, group, name):
    """Presses a button of a group of choices."""
    tab.get_by_role("group", name=group).get_by_role("button", name=name).click()


def drawn(tab, selector):
    """The pixels of the first canvas of a kind."""
    return tab.locator(selector).first.evaluate(
        """canvas => [...canvas.getContext("2d")
            .getImageData(0, 0, canvas.width, canvas.height).data]"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("task", TASKS)
def test_a_page_fits_a_phone_and_can_be_read_on_light_and_dark(explored, task, scheme):
    tab = explored(task, color_scheme=scheme, viewport={"width": 390, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    ink, paper = tab.evaluate(
        """() => ["color", "backgroundColor"].map((key) =>
            getComputedStyle(document.body)[key].match(/\\d+/g).slice(0, 3)
                .reduce((sum, each) => sum + Number(each), 0) / 765)"""
    )
    assert abs(ink - paper) > 0.5 and (paper < 0.5) == (scheme == "dark")
    assert tab.locator(".model").count() == len(TASKS[task])
    text = tab.locator("main").inner_text()
    assert "Each row is a position that reads" in text and "What matters on this input" in text


def test_pointing_at_a_token_shows_what_is_there(explored):
    tab = explored("translation")
    choose(tab, "Attention", "Decoder reads encoder")
    inspector = tab.locator(".inspector").first
    assert "Read from here" not in inspector.inner_text()
    tab.locator(".model").first.locator(".tokens").nth(1).locator(".token").first.hover()
    tab.wait_for_function(
        "document.querySelector('.inspector').innerText.includes('Probable next')"
    )
    text = inspector.inner_text()
    assert "<bos>" in text and "Weights" in text and "Read from here by all heads" in text
    read = tab.locator(".model").first.locator(".tokens.read .token")
    strengths = read.evaluate_all(
        "all => all.map((each) => +each.style.getPropertyValue('--read'))"
    )
    assert max(strengths) == pytest.approx(1)


def test_a_head_is_chosen(explored):
    tab = explored("translation")
    before = drawn(tab, "canvas.matrix")
    choose(tab, "Head", "1")
    assert drawn(tab, "canvas.matrix") != before


def test_a_click_removes_a_part_and_another_puts_it_back(explored):
    tab = explored("translation")
    loss, costs = tab.locator(".loss").first, tab.locator(".matters .number")
    before, cost = loss.inner_text(), float(costs.first.inner_text().replace("−", "-"))
    tab.locator(".matters .remove").first.click()
    tab.wait_for_selector(".removed")
    whole, without = map(float, loss.inner_text().split(" → "))
    assert whole == float(before) and without - whole == pytest.approx(cost, abs=0.002)
    name = tab.locator(".matters th").first.inner_text()
    assert name in tab.locator(".removed").inner_text()
    tab.locator(".removed .remove").click()
    tab.wait_for_selector(".removed", state="detached")
    assert loss.inner_text() == before


def test_the_keyboard_goes_through_tokens(explored):
    tab = explored("translation")
    tab.locator(".token").first.focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_function(
        "document.querySelector('.inspector h3').innerText.includes('position 1')"
    )


def test_an_image_is_a_grid_of_its_pixels_also_beside_its_map(explored):
    tab = explored("images")
    side = drawn(tab, "canvas.left")
    assert len({tuple(side[start : start + 3]) for start in range(4, 68, 4)}) > 1
    matrix = drawn(tab, "canvas.matrix")
    assert len(matrix) == 4 * 17 * 17 and len(set(matrix[3::4])) > 20  # how dark: no white paper
    pixels = tab.locator(".cells .token:visible")
    boxes = [pixel.bounding_box() for pixel in pixels.all()]
    assert len({box["x"] for box in boxes}) == len({box["y"] for box in boxes}) == 4
    pixels.nth(6).hover()
    heading = "document.querySelector('.inspector h3').innerText.includes('Row 1, column 2')"
    tab.wait_for_function(heading)
    pixels.nth(6).click()
    pixels.nth(6).focus()
    tab.keyboard.press("ArrowDown")
    tab.wait_for_function(heading.replace("Row 1", "Row 2"))
