"""The page of `headwise explore` with a running model: a stand-in, whose answers are known."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import chromium
import pytest
from explorer_payloads import image, payload, removals, text_stack, translation

from headwise.report.explorer.payload import Item, Made, Output, Payload, Question
from headwise.report.explorer.server import ExplorerServer

pytestmark = pytest.mark.skipif(chromium.EXECUTABLE is None, reason="no Chromium is installed")
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQ"
    "ABpfZFQAAAAABJRU5ErkJggg=="
)
TITLE = "document.querySelector('.made p')?.textContent"


@pytest.fixture(scope="module")
def tab() -> Iterator[chromium.Tab]:
    with chromium.browser() as opened:
        opened.size(1280, 900)
        yield opened


class Model:
    """Translates by capitals, and leaves out the word of an expert that is removed."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def __call__(self, question: Question) -> Payload:
        self.asked.append(question)
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


def test_an_error_is_said_in_words_and_changes_nothing(tab: chromium.Tab, model: Model) -> None:
    type_text(tab, "rude words")
    tab.press("Enter")
    tab.wait("document.querySelector('.status.failed') !== null")
    assert tab.texts(".status") == ["text has the word rude, expected kind ones"]
    assert tab.texts(".made p")[0] == "THE CAT SLEEPS"
    assert tab.value("document.getElementById('page').hasAttribute('aria-busy')") is False


def test_a_model_that_has_gone(tab: chromium.Tab, model: Model) -> None:
    tab.cut_off(True)
    tab.point(".inspector .remove", 0, click=True)
    tab.wait("document.querySelector('.status.failed') !== null")
    tab.cut_off(False)
    assert "Is headwise still running?" in tab.texts(".status")[0]
    assert tab.texts(".removed") == [] and model.asked == []


def test_another_item_of_the_data(tab: chromium.Tab) -> None:
    asked: list[Question] = []

    def item(number: int) -> Payload:
        output = Output(made=[Made(label="completed", by_model=True, picture=PIXEL)])
        one = image().model_copy(update={"output": output})
        return payload(
            one,
            served=True,
            takes_text=False,
            text=None,
            item=Item(part="test", number=number, of=9),
        )

    def answer(question: Question) -> Payload:
        asked.append(question)
        return item(question.item or 0)

    with served(item(0), answer) as address:
        tab.open(address)
        assert tab.value("document.querySelector('textarea')") is None
        tab.value("document.querySelector('input[type=number]').focus()")
        tab.value("document.activeElement.select()")
        tab.send("Input.insertText", text="7")
        tab.press("Enter")
        tab.wait("document.querySelector('.status').textContent === ''")
        tab.wait("document.getElementById('announcement').textContent !== ''")
        assert [question.item for question in asked] == [7]
        assert tab.value("document.querySelector('.picture').naturalWidth") == 1
