"""A page as its reader sees it: elements, what it would load, visible text, rows of tables.

And what the page of `headwise explore` holds for its browser.
"""

import base64
import csv
import io
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

VOID = {"meta", "link", "br", "img", "input", "hr", "col", "source", "wbr"}
_LOADING = {"src", "href", "data", "poster", "srcset", "action", "formaction", "xlink:href"}
_NUMBER = re.compile(r"(?<![\w.])([-−]?)\+?(\d[\d,]*(?:\.\d+)?)([kMGT%×x]?)(?![\d.]*\w)")
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "%": 0.01, "×": 1.0, "x": 1.0}


class Number(NamedTuple):
    """A number as a page writes it, and half of its last digit."""

    value: float
    off: float

    def is_of(self, value: float) -> bool:
        return abs(self.value - value) <= self.off * (1 + 1e-9) + 1e-12


class Page(HTMLParser):
    """Reads a page; one that is not nested well, or has an id twice, fails."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.tables: list[list[list[str]]] = []  # the same rows, of each table
        self.text = ""
        self.html = path.read_text(encoding="utf-8")
        self._open: list[str] = []
        self.feed(self.html)
        assert not self._open, f"{self._open} is never closed"
        ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        assert len(ids) == len(set(ids)), "an id stands twice"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.rows.append([])
            self.tables[-1].append(self.rows[-1])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.text += data
            if {"td", "th"} & set(self._open) and self.rows and self.rows[-1]:
                self.rows[-1][-1] += f" {data.strip()}"

    def loads(self) -> list[str]:
        """What a browser would fetch: addresses that are neither of the page nor in it."""
        named = [
            value or ""
            for tag, attributes in self.elements
            for name, value in attributes.items()
            if name in _LOADING and not (tag == "a" and name == "href")
        ]
        named += re.findall(r"url\(\s*['\"]?([^'\")]+)", self.html)
        named += re.findall(r"@import\s+['\"]?([^'\";]+)", self.html)
        return [address for address in named if not address.startswith(("data:", "#"))]

    def saved(self) -> list[list[list[str]]]:
        """The rows of the CSV behind the link of each table."""
        found = []
        for tag, attributes in self.elements:
            if tag == "a" and "download" in attributes:
                content = base64.b64decode((attributes["href"] or "").partition("base64,")[2])
                found.append(list(csv.reader(io.StringIO(content.decode("utf-8-sig")))))
        return found

    def handlers(self) -> list[str]:
        """Attributes whose values are scripts."""
        return [name for _, found in self.elements for name in found if name.startswith("on")]

    def row(self, name: str, heading: str = "") -> dict[str, str]:
        """The cells of the first row that begins with a name, by the headings of its table.

        With a heading, only tables that have it count.
        """
        headings: list[str] = []
        for row in self.rows:
            is_asked = not heading or heading in map(str.strip, headings)
            if row and row[0].split()[:1] == [name] and is_asked:
                return {h.strip(): cell for h, cell in zip(headings, row, strict=True)}
            headings = row if row and row[0].strip() == "System" else headings
        raise AssertionError(f"no row begins with {name}")


def numbers(text: str) -> list[Number]:
    """The numbers of a text."""
    found = []
    for sign, digits, unit in _NUMBER.findall(text):
        plain = digits.replace(",", "")
        decimals, scale = len(plain.partition(".")[2]), _SCALE[unit]
        value = -float(plain) if sign else float(plain)
        found.append(Number(value * scale, 0.5 * 10**-decimals * scale))
    return found


def payload(page: Path) -> Any:
    """The data that the page of `headwise explore` holds."""
    text = page.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', text)
    return json.loads(found)


class ExplorerPage(NamedTuple):
    """One model on a page."""

    tokens: dict[str, list[str]]  # the stacks to the names of what stands at their positions
    decisions: list[np.ndarray]  # of each system that decides: positions × units, or 1 × units
    chosen: list[list[list[int]] | None]  # of each of these, the units that each position chose
    attention: list[np.ndarray]  # of each attention: heads × queries × keys


def read_page(page: Path) -> ExplorerPage:
    """The first model of a page."""
    return explored(payload(page)["models"][0])


def explored(model: dict[str, Any]) -> ExplorerPage:
    """One model of a payload."""
    deciding = [place for place in model["places"] if place["weights"]]
    return ExplorerPage(
        {name: stack["tokens"] for name, stack in model["stacks"].items()},
        [unpacked(place["weights"]) for place in deciding],
        [place["chosen"] for place in deciding],
        [unpacked(place["heads"]) for place in model["places"] if place["heads"]],
    )


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """An array of a payload, as the page unpacks it."""
    data, kind = zlib.decompress(base64.b64decode(packed["data"])), packed["kind"]
    if kind != "root":
        return np.frombuffer(data, kind).reshape(packed["shape"])
    steps = np.frombuffer(data, np.uint8).reshape(packed["shape"]).astype(float) - 128
    return packed["scale"] * np.sign(steps) * (steps / 127) ** 2
