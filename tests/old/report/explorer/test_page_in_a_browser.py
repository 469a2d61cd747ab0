"""The page of `headwise explore`: in a browser where there is one, else its files alone."""

import base64
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import chromium
import numpy as np
import pytest
from explorer_payloads import (
    image,
    payload,
    place,
    removals,
    run,
    speech,
    text_stack,
    translation,
)
from PIL import Image

from headwise.report.explorer.page import WEB, Explored, page_html
from headwise.report.explorer.payload import Blob, Item, Payload, Question, Run
from headwise.report.explorer.server import ExplorerServer

SCRIPTS = sorted(WEB.glob("*.js"))


def test_the_payload_comes_back_from_the_page_whatever_it_holds() -> None:
    made = payload(run("</script><img src=x>"), title="<!-- & \u2028")
    page = page_html(made)
    assert page.count("</script>") == 2
    assert "<img" not in page and "<!--" not in page
    (inside,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', page)
    assert Payload.model_validate_json(inside) == made


@pytest.mark.parametrize(
    "path",
    [*SCRIPTS, WEB / "explorer.css", WEB / "explorer.html.jinja", WEB.parents[1] / "page.js"],
    ids=lambda path: path.name,
)
def test_nothing_is_fetched_and_no_data_becomes_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|//\w+\.\w|@import|url\(|\bsrc=|\bimport\b", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)
    assert not re.search(r"\bon\w+=|\bstyle=", text)


# From here on in a browser.


@pytest.fixture
def shown(tab: chromium.Tab, tmp_path: Path):
    """Opens the page of a payload at a view, and returns the browser's tab."""

    def show(made: Payload, view: str = "", width: int = 1280, height: int = 900) -> chromium.Tab:
        tab.size(width, height)
        path = tmp_path / "page.html"
        path.write_text(page_html(made), encoding="utf-8")
        tab.open(f"{path.as_uri()}#{view}")
        return tab

    yield show
    assert tab.value("document.documentElement.dataset.error ?? null") is None


def marks(tab: chromium.Tab) -> list[str]:
    return tab.texts(".token .mark")


def test_tokens_tell_who_leads(shown) -> None:
    tab = shown(payload())
    assert tab.texts(".token .text") == ["The", "cat", "sle", "eps", "<b>", "<eos>"]
    assert marks(tab) == ["0", "1", "1", "1", "2", "0"]
    labels = tab.value("[...document.querySelectorAll('.token')].map((each) => each.ariaLabel)")
    assert labels[1] == "cat: expert 1 leads, weight 0.70"
    assert tab.value("document.querySelectorAll('.token')[4].classList.contains('unit-2')")
    assert "which expert has the largest weight" in tab.texts(".explanation")[0]
    # The classes stand beside it.
    assert tab.texts(".output .number") == ["0.75", "0.25"]
    # Nothing can be removed where no model answers.
    assert tab.texts(".remove") == [] and "--serve" in tab.texts("footer")[0]


def test_the_view_is_that_of_the_address(shown) -> None:
    tab = shown(payload(), "layer=1&unit=2&head=1&token=encoder:3")
    assert marks(tab) == [".70", ".70", ".70", ".15", ".15", ".33"]
    strengths = tab.styles(".token", "--strength")
    assert strengths[:3] == [1, 1, 1] and strengths[3] == 0 < strengths[5] < 1
    assert tab.texts(".inspector h3") == ["“eps” position 3"]
    assert tab.texts(".bar-table .number")[2:5] == ["0.70", "0.15", "0.15"]
    # Head 1 reads the token two before.
    assert tab.texts(".inspector caption")[1] == "Read from here by head 1"
    assert tab.texts(".bar-table th")[5] == "“cat” 1"
    assert tab.value("location.hash") == (
        "#site=encoder_self&layer=1&head=1&unit=2&token=encoder:3"
    )


def test_the_keyboard_goes_everywhere(shown) -> None:
    tab = shown(payload())
    tab.value("document.querySelector('.token').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    tab.wait("document.querySelector('.inspector h3').textContent.includes('sle')")
    assert tab.value("document.activeElement.ariaLabel") == "sle: expert 1 leads, weight 0.70"
    assert tab.value("document.activeElement.ariaSelected") == "true"
    tab.press("]")
    tab.wait("location.hash.includes('layer=1')")
    tab.wait("document.activeElement.ariaLabel === 'sle: expert 2 leads, weight 0.70'")
    assert tab.value("document.getElementById('announcement').textContent") == "Layer 1"
    tab.press("End")
    tab.wait("document.activeElement.textContent.startsWith('<eos>')")
    tab.press("Escape")
    tab.wait("!location.hash.includes('token')")
    # A slider stays what it was, so that it can be drawn along.
    tab.value("void (document.querySelector('input[type=range]').same = true)")
    tab.value("document.querySelector('input[type=range]').focus()")
    tab.press("ArrowLeft")
    tab.wait("location.hash.includes('layer=0')")
    assert tab.value("document.activeElement.same") and tab.texts("output")[0] == "0 of 0–1"


def test_negative_weights_are_red(shown) -> None:
    read = np.zeros((6, 6), np.float32)
    read[2] = 0.25, -0.5, 1, 0, 0, 0
    own = place(0, [0, 1, 1, 1, 2, 0])
    own.attentions[0].heads[0] = Blob.of(read, power=2, signed=True)
    tab = shown(payload(run(places=[own])), "head=0&token=encoder:2")
    tab.wait("document.querySelectorAll('.token.negative').length === 1")
    assert tab.styles(".tokens.read .token", "--read") == pytest.approx(
        [0.25, 0.5, 1, 0, 0, 0], abs=0.01
    )
    assert tab.texts(".bar-table .heat.negative") == [""]
    assert tab.texts(".bar-table .number")[5:8] == ["1.00", "-0.50", "0.25"]
    assert tab.texts(".below p") == ["Rows read, columns are read. Red: negative weights."]


def test_cross_attention_shows_both_texts(shown) -> None:
    tab = shown(payload(translation("le chat dort bien")), "site=decoder_cross&head=0")
    assert tab.texts(".tokens .text")[6:] == ["<bos>", "le", "chat", "dort", "bien", "<eos>"]
    assert tab.texts(".made p") == ["le chat dort bien"]
    # Colours are those of the decoder, whose system decides.
    assert marks(tab) == ["0", "1", "2", "0", "1", "2"]
    tab.point(".tokens:first-of-type .token", 2)  # a key: who reads it?
    tab.wait("/Reads this: head 0/.test(document.querySelector('.inspector').textContent)")
    assert tab.styles(".tokens.read .token", "--read") == [0, 0, 0, 1, 0, 0]
    tab.point(".token", 7, click=True)
    tab.wait("location.hash.endsWith('token=decoder:1')")
    tab.wait("document.querySelectorAll('.inspector table').length === 3")
    assert tab.texts(".inspector table:nth-of-type(3) th") == ["“le”"]


def test_images_are_coloured_by_pixel(shown) -> None:
    tab = shown(payload(image(), takes_text=False, text=None), "token=decoder:6")
    assert tab.texts(".inspector h3") == ["Row 1, column 1 position 6"]
    assert tab.pixels("canvas.pixels", 3, 0) == [0x10, 0x20, 0x30, 255]
    tab.press("Escape")
    tab.wait("!location.hash.includes('token')")
    rows = [tab.pixels(".overlay", 3, y) for y in (0, 1)]
    assert rows == [[0x05, 0x3D, 0xDD, 255], [0xD1, 0x77, 0x00, 255]]
    tab.value("document.querySelector('.image-map').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowDown")
    tab.wait("location.hash.endsWith('token=decoder:5')")
    assert "row 1, column 0, expert 1 leads" in tab.value(
        "document.querySelector('.image-map').ariaLabel"
    )
    assert "row 1, column 0" in tab.value("document.getElementById('announcement').textContent")


MAP = "document.querySelector('canvas.matrix')"
CELLS = "document.querySelector('.matrix-cells')"
LONG = [f" word{number}" for number in range(34)] + ["<eos>"]


def long_text() -> Payload:
    size = len(LONG)
    stacks = {"encoder": text_stack(LONG)}
    return payload(run(stacks=stacks, places=[place(0, [0] * size), place(1, [1] * size)]))


def wait_for_map(tab: chromium.Tab) -> None:
    """Waits until the map has its size, and is drawn in it."""
    tab.wait(f"{MAP} !== null && {MAP}.clientWidth > 350")
    tab.value("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")


def names_drawn(tab: chromium.Tab, width: int) -> list[str]:
    """What is written on the map when the window has a new width."""
    tab.value(
        "(() => { globalThis.drawn = []; const { fillText } = CanvasRenderingContext2D.prototype;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
        "drawn.push(text); fillText.call(this, text, ...at); }; })()"
    )
    tab.size(width, 900)
    tab.wait("drawn.length > 0")
    return tab.value("drawn")


def test_the_map_has_the_tokens_at_its_sides(shown) -> None:
    tab = shown(payload(), "head=0")
    wait_for_map(tab)
    tokens = ["The", "cat", "sle", "eps", "<b>", "<eos>"]
    assert names_drawn(tab, 1000) == 2 * tokens
    tab = shown(payload(translation("le chat dort bien")), "site=decoder_cross")
    wait_for_map(tab)
    assert names_drawn(tab, 1000) == ["<bos>", "le", "chat", "dort", "bien", "<eos>", *tokens]
    # A row reads: the pointer is where the cell is drawn, once the map has its size.
    tab = shown(payload(), "head=0")
    wait_for_map(tab)
    box = tab.value("(({x, y, width}) => [x, y, width / 6])(" + CELLS + ".getBoundingClientRect())")
    x, y, cell = box
    tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=x + 1.5 * cell, y=y + 2.5 * cell)
    tab.wait("document.querySelector('.below p').textContent === '“sle” reads “cat”: 1.00'")
    left, top = (tab.value(f"parseInt({CELLS}.style.{side})") for side in ("left", "top"))
    heat = tab.pixels("canvas.matrix", int(left + 1.5 * cell), int(top + 2.5 * cell))
    assert heat == [0x1F, 0x78, 0xC8, 255]
    assert tab.pixels("canvas.matrix", int(left + 3.5 * cell), int(top + 2.5 * cell))[:3] == (
        [255, 255, 255]
    )


@pytest.mark.parametrize(("width", "least"), [(1280, 700), (390, 280)])
def test_the_map_is_as_large_as_the_page_allows(shown, width: int, least: int) -> None:
    tab = shown(long_text(), width=width)
    tab.wait(f"{MAP} !== null && {MAP}.clientWidth > {least}")
    assert tab.value(f"{MAP}.clientWidth <= {MAP}.closest('.attention').clientWidth")
    assert tab.value("document.documentElement.scrollWidth") == width
    # Of names that would lie upon each other, some are left out.
    names = names_drawn(tab, width - 8)
    assert names[0] == "word0" and len(names) == 2 * (35 if width > 1000 else 18)


def test_the_map_is_saved_as_png(shown, tmp_path: Path) -> None:
    tab = shown(payload(), "head=0")
    tab.wait(f"{MAP} !== null && {MAP}.clientWidth > 350")
    folder = tmp_path / "saved"
    folder.mkdir()
    path = tab.saved(".below button", folder)
    assert path.name == "one-self-attention-layer-0-head-0.png"
    found = np.asarray(Image.open(path).convert("RGB")).astype(int)
    cell, left, top = (
        3 * tab.value(f"parseInt({CELLS}.style.{name})") for name in ("width", "left", "top")
    )
    assert found.shape == pytest.approx((top + cell + 3, left + cell + 3, 3), abs=1)
    # Every row reads one cell, wholly; at both sides there are names.
    heat = (found == (0x1F, 0x78, 0xC8)).all(axis=2).sum()
    assert heat == pytest.approx(cell * cell / 6, rel=0.02)
    assert (found[top:, : left - 3].sum(axis=2) < 200).sum() > 300
    assert (found[: top - 3, left:].sum(axis=2) < 200).sum() > 300


@pytest.mark.parametrize("made", [image, speech])
def test_other_inputs_fit_a_phone(shown, made: Callable[[], Run]) -> None:
    tab = shown(payload(made(), takes_text=False, text=None), width=390)
    tab.wait(f"{MAP} !== null && {MAP}.clientWidth > 200")
    assert tab.value("document.documentElement.scrollWidth") == 390


def test_a_notebook_shows_it_in_a_frame(tab: chromium.Tab, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(Explored(payload())._repr_html_(), encoding="utf-8")
    tab.send("Page.navigate", url=path.as_uri())
    frame = tab.frame()
    frame.wait_until_drawn()
    # Whether a frame has been laid out yet does not matter here.
    found = frame.value("[...document.querySelectorAll('.mark')].map((each) => each.textContent)")
    assert found == ["0", "1", "1", "1", "2", "0"]
    frame.value("document.querySelectorAll('.token')[3].click()")
    frame.wait("document.querySelector('.inspector h3').textContent.includes('eps')")
    assert frame.value("document.documentElement.dataset.error ?? null") is None


def test_an_error_of_the_page_is_seen(tab: chromium.Tab, tmp_path: Path) -> None:
    made = payload()
    (first, *_) = made.runs[0].places
    first.weights.data = base64.b64encode(b"no deflate").decode()
    path = tmp_path / "page.html"
    path.write_text(page_html(made), encoding="utf-8")
    tab.open(path.as_uri())
    tab.wait("document.documentElement.dataset.error !== undefined")
    assert tab.texts("[role=alert]")[0].startswith("This page has failed")


# The page of a running model: a stand-in, whose answers are known.

TITLE = "document.querySelector('.made p')?.textContent"


class Model:
    """Translates by capitals, and leaves out the word of an expert that is removed."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.seconds = 0.0  # that an answer takes

    def __call__(self, question: Question) -> Payload:
        self.asked.append(question)
        time.sleep(self.seconds)
        text = question.text or "the cat sleeps"
        if "rude" in text:
            raise ValueError("text has the word rude, expected kind ones")
        return self.payload(text, question)

    def payload(self, text: str, question: Question | None = None) -> Payload:
        asked = question.ablations if question else []
        runs = []
        for number, name in enumerate(("one", "two")):
            own = [each for each in asked if each.run == number]
            words = [
                word
                for position, word in enumerate(text.upper().split())
                if all(position != each.options["expert"] for each in own)
            ]
            source = [f" {word}" for word in text.split()][:5]
            source += ["<pad>"] * (6 - len(source))
            made = translation(" ".join(words), name=name)
            made.stacks["encoder"] = text_stack(source)
            made.output.predictions[0].probability = 0.5 - 0.2 * len(own)
            made.ablated = [
                each
                for each in removals("encoder_self.0", 3)
                if each.options in [o.options for o in own]
            ]
            runs.append(made)
        return payload(*runs, served=True, takes_target=True, text=text)


@contextmanager
def served(first: Payload, answer: Callable[[Question], Payload]) -> Iterator[str]:
    server = ExplorerServer(first, answer, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.address
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def model(tab: chromium.Tab) -> Iterator[Model]:
    made = Model()
    with served(made.payload("the cat sleeps"), made) as address:
        tab.size(1280, 900)
        tab.open(address)
        yield made
        assert tab.value("document.documentElement.dataset.error ?? null") is None
        tab.send("Page.navigate", url="about:blank")


def type_text(tab: chromium.Tab, text: str) -> None:
    tab.value("document.querySelector('textarea').focus()")
    tab.value("document.querySelector('textarea').select()")
    tab.send("Input.insertText", text=text)


def test_what_is_typed_is_translated(tab: chromium.Tab, model: Model) -> None:
    assert tab.value("document.querySelector('textarea').value") == "the cat sleeps"
    assert tab.value("document.activeElement === document.body")
    type_text(tab, "a dog runs")
    tab.press("Enter")
    tab.wait(f"{TITLE} === 'A DOG RUNS'")
    assert tab.texts(".tokens .text")[:3] == ["a", "dog", "runs"]
    assert tab.value("document.activeElement.tagName") == "TEXTAREA"
    assert "one: A DOG RUNS" in tab.value("document.getElementById('announcement').textContent")
    # After a pause without Enter, once.
    type_text(tab, "a dog sleeps")
    tab.wait(f"{TITLE} === 'A DOG SLEEPS'")
    assert [question.text for question in model.asked] == ["a dog runs", "a dog sleeps"]


def test_the_fields_follow_the_items(tab: chromium.Tab) -> None:
    texts, model = ["the cat sleeps", "a dog barks"], Model()

    def answer(question: Question) -> Payload:
        number = question.item or 0
        made = model.payload(question.text or texts[number], question)
        made.item = None if question.text else Item(part="test", number=number, of=2)
        return made

    def choose(number: int) -> None:
        field = "document.querySelector('input[type=number]')"
        tab.value(f"{field}.value = {number}; {field}.dispatchEvent(new Event('change'))")
        tab.wait(f"{TITLE} === {texts[number].upper()!r}")
        tab.wait(f"document.querySelector('textarea').value === {texts[number]!r}")

    with served(answer(Question()), answer) as address:
        tab.open(address)
        choose(1)
        type_text(tab, texts[0])
        tab.press("Enter")
        tab.wait(f"{TITLE} === 'THE CAT SLEEPS'")
        assert tab.value("document.querySelector('input[type=number]').value") == ""
        choose(1)
        tab.send("Page.navigate", url="about:blank")


def test_a_unit_is_removed_for_an_item_with_its_reference(tab: chromium.Tab) -> None:
    model = Model()

    def answer(question: Question) -> Payload:
        made = model(question)
        made.item = Item(part="test", number=3, of=4)
        return made

    with served(answer(Question()), answer) as address:
        tab.open(address)
        tab.point(".inspector .remove", 1, click=True)
        tab.wait("document.querySelector('.changed') !== null")
        tab.send("Page.navigate", url="about:blank")
    # By its number, since a text of its own would have no reference.
    assert [(each.item, each.text) for each in model.asked[1:]] == [(3, None)]


def test_a_unit_is_removed_and_put_back(tab: chromium.Tab, model: Model) -> None:
    assert tab.texts(".inspector .remove")[:3] == ["remove"] * 3
    tab.point(".inspector .remove", 1, click=True)
    tab.wait("document.querySelector('.changed') !== null")
    assert tab.texts(".made p") == ["THE CAT SLEEPS", "0.500 → 0.300", "THE CAT SLEEPS"]
    assert tab.texts("del") == ["CAT "] and tab.texts("ins") == []
    assert tab.texts(".removed li") == [
        "one: without expert 1, encoder self-attention, layer 0 put back"
    ]
    (asked,) = model.asked[-1].ablations
    assert (asked.run, asked.path, asked.name) == (0, "encoder_self.0", "without-expert")
    # The button that was pressed keeps the focus, and puts back.
    assert tab.value("document.activeElement.textContent") == "put back"
    tab.point(".token", 2)
    tab.wait("document.querySelector('.inspector h3').textContent.includes('sleeps')")
    assert tab.value("document.activeElement.textContent") == "put back"
    # Another of the same system takes its place.
    tab.point(".inspector .remove", 2, click=True)
    tab.wait("document.querySelector('del')?.textContent === 'SLEEPS'")
    assert len(model.asked[-1].ablations) == 1
    # One of the other run goes beside it.
    tab.point(".run:nth-child(2) .inspector .remove", 0, click=True)
    tab.wait("document.querySelectorAll('.removed li').length === 2")
    # A new text is compared with what the whole model makes of it.
    type_text(tab, "my red hat")
    tab.press("Enter")
    tab.wait("document.querySelector('del')?.textContent === 'HAT'")
    assert [len(question.ablations) for question in model.asked[-2:]] == [0, 2]
    tab.point(".removed > button", click=True)
    tab.wait("document.querySelector('.removed') === null")
    assert tab.texts(".made p") == ["MY RED HAT"] * 2 and tab.texts("del") == []


def test_what_is_removed_before_an_answer_is_compared_with_the_new_text(
    tab: chromium.Tab, model: Model
) -> None:
    model.seconds = 0.5
    type_text(tab, "my red hat")
    tab.press("Enter")
    tab.point(".inspector .remove", 1, click=True)
    tab.wait("document.querySelector('del') !== null")
    assert tab.texts("del") == ["RED "] and tab.texts("ins") == []


def test_an_error_is_said_in_words_and_changes_nothing(tab: chromium.Tab, model: Model) -> None:
    type_text(tab, "rude words")
    tab.press("Enter")
    tab.wait("document.querySelector('.status.failed') !== null")
    assert tab.texts(".status") == ["text has the word rude, expected kind ones"]
    assert tab.texts(".made p")[0] == "THE CAT SLEEPS"
    assert tab.value("document.getElementById('page').hasAttribute('aria-busy')") is False
    model.seconds = 0.5
    tab.press("Enter")  # of the same text, which the model may take by now
    tab.wait("document.querySelector('.status.failed') === null")
    tab.wait("document.querySelector('.status.failed') !== null")
    assert [question.text for question in model.asked] == ["rude words"] * 2
